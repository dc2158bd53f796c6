"""The time limit of episodes."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable

import pytest

from hpc_es.tasks.timeouts import EpisodeTimeout, Watch


def test_call_that_hangs_is_ended() -> None:
    since = time.perf_counter()
    with (
        Watch(0.1) as watch,
        pytest.raises(EpisodeTimeout, match=r"longer than .*episode_timeout_seconds: 0\.1"),
    ):
        watch.timed(0, time.sleep)(60)
    assert 0.1 <= time.perf_counter() - since < 5


def test_short_calls_of_one_job_add_up_until_it_restarts() -> None:
    with Watch(1.0) as watch:
        nap, other = watch.timed(0, time.sleep), watch.timed(1, time.sleep)
        for _ in range(2):
            watch.restart(0)
            nap(0.55)
        other(0.55)
        with pytest.raises(EpisodeTimeout):
            nap(0.55)
        other(0.0)


def test_time_between_calls_is_not_counted() -> None:
    with Watch(0.3) as watch:
        call = watch.timed(0, lambda: "ended")
        call()
        time.sleep(0.5)
        assert call() == "ended"


def test_results_arguments_and_errors_pass_through() -> None:
    with Watch(10) as watch:
        assert watch.timed(0, max)([3, 1], key=lambda x: -x) == 1
        with pytest.raises(ZeroDivisionError):
            watch.timed(0, lambda: 1 / 0)()


def test_previous_signal_handler_is_restored_and_the_timer_stopped() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(KeyError), Watch(0.05):
        raise KeyError
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_environment_cannot_catch_the_timeout_as_an_exception() -> None:
    assert not issubclass(EpisodeTimeout, Exception)


def test_call_that_catches_the_timeout_fails_when_it_returns() -> None:
    def stubborn() -> None:
        try:
            time.sleep(60)
        except BaseException:
            return

    with Watch(0.1) as watch, pytest.raises(EpisodeTimeout):
        watch.timed(0, stubborn)()


def test_limit_in_a_thread_is_noticed_when_the_call_returns() -> None:
    before, seen = signal.getsignal(signal.SIGALRM), list[str]()

    def work() -> None:
        with Watch(0.3, poll=lambda: None) as watch:
            assert watch.timed(0, lambda: "fast")() == "fast"
            try:
                watch.timed(1, time.sleep)(0.6)
            except EpisodeTimeout as error:
                seen.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["the episode took longer than task.episode_timeout_seconds: 0.3"]
    assert signal.getsignal(signal.SIGALRM) == before and signal.getitimer(signal.ITIMER_REAL) == (
        0.0,
        0.0,
    )


def locked_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@pytest.mark.parametrize("poll", [None, lambda: None])
@pytest.mark.parametrize("wait", [threading.Event().wait, queue.Queue().get, locked_twice])
def test_call_that_waits_for_a_lock_is_ended(
    wait: Callable[[], object], poll: Callable[[], None] | None
) -> None:
    """The timer that polls restarts system calls, so that these never come back to Python."""
    since = time.perf_counter()
    with Watch(0.3, poll=poll) as watch:
        watch.restart(0)
        with pytest.raises(EpisodeTimeout):
            watch.timed(0, wait)()
    assert 0.3 <= time.perf_counter() - since < 20
