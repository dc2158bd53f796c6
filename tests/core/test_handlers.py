"""Signal handlers are put back after use, and forked children have those from before."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from hpc_es.core.handlers import CHILD_STATUS, HANDLED, Handlers, OwnProcess
from hpc_es.mpi.guard import Signals
from hpc_es.tasks.timeouts import Watch


def nothing(number: int, frame: FrameType | None) -> None:
    """A handler of the user."""


def other(number: int, frame: FrameType | None) -> None:
    """Another handler of the user."""


@pytest.fixture(autouse=True)
def _handlers_of_the_test() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (*HANDLED, signal.SIGALRM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def in_child(work: Callable[[], bool]) -> int:
    """Fork, and return the status of a child that exits with 0 if `work()` is true there."""
    child = os.fork()
    if child == 0:
        status = 3
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def handlers() -> list[object]:
    """The handlers of the signals of a run and of its timer."""
    return [signal.getsignal(number) for number in (*HANDLED, signal.SIGALRM)]


def test_forked_child_has_the_handlers_from_before_the_run() -> None:
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, nothing)
    before = handlers()
    signals = Signals()
    try:
        with Watch(10.0):
            assert in_child(lambda: handlers() == before) == 0
            assert handlers() != before  # those of the parent stay
    finally:
        signals.restore()
    assert handlers() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_for_the_run_do_not_end_a_forked_child(number: signal.Signals) -> None:
    """A terminal sends Ctrl-C to all processes;
    the run finishes its generation with its workers.
    """
    signals = Signals()

    def survives() -> bool:
        os.kill(os.getpid(), number)
        return True

    try:
        assert in_child(survives) == 0
        ignored = in_child(
            lambda: os.execv("/bin/sh", ["sh", "-c", f"kill -{number:d} $$; exit 0"])
        )
        assert ignored == -number  # a program gets the default action
    finally:
        signals.restore()
    # of a program without a run
    assert in_child(lambda: signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL) == 0


def test_handler_that_user_code_installs_during_a_run_stays_in_the_child_and_after_the_run() -> (
    None
):
    signals = Signals()
    signal.signal(signal.SIGTERM, other)
    assert in_child(lambda: signal.getsignal(signal.SIGTERM) is other) == 0
    signals.restore()
    assert signal.getsignal(signal.SIGTERM) is other


def test_blocked_signals_are_those_of_the_caller_in_the_child_and_after_the_run() -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        signals = Signals()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask - set(HANDLED)
        assert (
            in_child(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask - set(HANDLED))
            == 0
        )
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask - set(HANDLED)
        signals.restore()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask | {signal.SIGUSR1}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.mark.long
def test_sigterm_ends_a_forked_child_at_any_time() -> None:
    """Also while the child starts; a lost signal would leave it asleep."""
    signals = Signals()
    try:
        for _ in range(100):
            child = os.fork()
            if child == 0:
                time.sleep(30)
                os._exit(0)
            os.kill(child, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    finally:
        signals.restore()


def test_processes_of_multiprocessing_end_by_terminate() -> None:
    context = multiprocessing.get_context("fork")
    signals = Signals()
    try:
        with context.Pool(2) as pool:
            assert pool.map(abs, [-1, 2]) == [1, 2]
        process = context.Process(target=time.sleep, args=(30,), daemon=True)
        process.start()
        process.terminate()
        process.join(10)
        assert process.exitcode == -signal.SIGTERM
    finally:
        signals.restore()


def test_handlers_are_restored_once() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    installed = Handlers([signal.SIGUSR1], nothing)
    assert installed.restore()
    signal.signal(signal.SIGUSR1, nothing)
    assert not installed.restore() and signal.getsignal(signal.SIGUSR1) is nothing
    signal.signal(signal.SIGUSR1, before)


def test_forked_child_that_comes_back_from_user_code_ends(
    capfd: pytest.CaptureFixture[str],
) -> None:
    process = OwnProcess()
    process.end_forked()

    def come_back() -> bool:
        sys.stderr = sys.__stderr__
        process.end_forked()
        return True

    assert in_child(come_back) == CHILD_STATUS
    assert (
        f"process {os.getpid()} continues; end a forked process with os._exit(0)"
        in capfd.readouterr().err
    )
