"""What belongs to the user is closed within a limit, and its errors are messages."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from hpc_es.core import closing
from hpc_es.tasks.timeouts import EpisodeTimeout, Watch


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(closing, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(closing, "AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(closing, "STUCK_SECONDS", 0.5)
    monkeypatch.setattr(closing, "_left_behind", {})
    yield
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def hang() -> None:
    """Wait forever, as for a connection."""
    threading.Event().wait()


def test_call_that_does_not_return_is_left_behind_with_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    since, before, calls = time.monotonic(), signal.getsignal(signal.SIGALRM), list[str]()
    closing.close("Sim-v0", lambda: calls.append("first"), hang, lambda: calls.append("last"))
    assert 0.2 <= time.monotonic() - since < 5
    assert calls == ["first"] and closing.has_left_behind()
    assert (
        capsys.readouterr().err
        == "hpc_es: Sim-v0: close() has not returned within 0.2 s: it is left behind\n"
    )
    assert signal.getsignal(signal.SIGALRM) == before
    closing.close("Sim-v0", hang)
    assert "within 0.1 s" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ValueError("why"), SystemExit(3)])
def test_error_is_a_message_and_the_rest_is_closed(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    calls = list[str]()
    name = f"Sim-{type(error).__name__}"
    closing.close(name, fail, lambda: calls.append("last"), fail)
    assert calls == ["last"] and not closing.has_left_behind()
    assert (
        capsys.readouterr().err
        == f"hpc_es: {name}: close() raised {type(error).__name__}: {error}\n"
    )


def test_interruption_that_is_caught_is_repeated() -> None:
    caught = []

    def stubborn() -> None:
        try:
            hang()
        except BaseException:
            caught.append(sys.exc_info()[0])
        hang()

    closing.close("Sim", stubborn)
    assert len(caught) == 1


def test_code_that_cannot_be_interrupted_calls_for_help_in_another_thread() -> None:
    stuck = threading.Event()

    def stubborn() -> None:
        while not stuck.is_set():
            try:
                hang()
            except BaseException:
                continue

    closing.close("Sim", stubborn, stuck=stuck.set)
    assert stuck.is_set()


def test_time_limit_of_an_episode_goes_on_after_a_call() -> None:
    with Watch(0.5) as watch:
        closing.close("Sim", hang)
        with pytest.raises(EpisodeTimeout):
            watch.timed(0, hang)()


def test_calls_in_another_thread_are_made_there_without_a_limit() -> None:
    threads = list[threading.Thread]()
    other = threading.Thread(
        target=lambda: closing.close("Sim", lambda: threads.append(threading.current_thread()))
    )
    other.start()
    other.join()
    assert threads == [other]
