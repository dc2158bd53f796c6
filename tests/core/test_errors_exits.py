"""Exceptions of the user's code that would end the program."""

from __future__ import annotations

import signal
import threading

import pytest

from hpc_es.core.errors import (
    Exit,
    GenerationClosed,
    RunError,
    exits_as_errors,
    is_users,
    require_users,
)
from hpc_es.mpi.guard import Signals
from hpc_es.mpi.scheduler import GiveUp, OtherRankFailed
from hpc_es.mpi.world import RestartFromCheckpoint
from hpc_es.tasks.timeouts import EpisodeTimeout


class Own(BaseException):
    """An exception of the user's."""


USERS = (ValueError, SystemExit, GeneratorExit, StopIteration, Own, EpisodeTimeout)
OURS = (GenerationClosed, GiveUp, OtherRankFailed, RestartFromCheckpoint, Exit)


@pytest.mark.parametrize("kind", USERS)
def test_any_exception_of_the_user_is_a_failure(kind: type[BaseException]) -> None:
    assert is_users(kind())
    require_users(kind())


@pytest.mark.parametrize("kind", OURS)
def test_exceptions_of_hpc_es_pass_through_code_of_the_user(kind: type[BaseException]) -> None:
    assert not is_users(kind())
    with pytest.raises(kind):
        require_users(kind())
    with pytest.raises(kind), exits_as_errors():
        raise kind


def test_keyboard_interrupt_is_ctrl_c_unless_signals_are_handled() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not is_users(KeyboardInterrupt())
    signals = Signals()
    try:
        assert is_users(KeyboardInterrupt())
    finally:
        signals.restore()
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(is_users(KeyboardInterrupt())))
    thread.start()
    thread.join()
    assert seen == [True]


def test_exit_becomes_an_error_with_its_place() -> None:
    expected = r"^my function must not end the program, but raised SystemExit: 0 \(test_.*:\d+ in .*\): stop$"
    with pytest.raises(RunError, match=expected), exits_as_errors("my function", "stop"):
        raise SystemExit(0)
    with pytest.raises(ValueError, match="usual"), exits_as_errors():
        raise ValueError("usual")
