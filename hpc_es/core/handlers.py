"""Signal handlers of hpc_es: they are put back after use, and a forked child has those from before.

`multiprocessing` forks on Linux before Python 3.14, and user code may fork. A child with the
handlers of a run would ignore SIGTERM, by which pools and daemon processes are ended, and its
parent would wait for it forever. Signals that are addressed to the run are left to it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from hpc_es.core.streams import say_error

# by a run, apart from its timer
HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
# A terminal sends Ctrl-C to all processes of a job, and SLURM the others. A child would die of
# them, while the run finishes its generation. SIGTERM is how parents end their children.
FOR_THE_RUN = (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
CHILD_STATUS = 1  # of a forked child that comes back from user code

Handler = Callable[[int, FrameType | None], object] | signal.Handlers

_installed: list[Handlers] = []  # in the order of their installation
_forked = threading.Event()  # whether user code has forked this process during a run
_masks = threading.local()  # the signals that a thread blocked before it forked


class Handlers:
    """A handler of some signals, from its creation to `restore`.

    Only the main thread may create it.
    """

    def __init__(self, numbers: Sequence[int], handler: Handler) -> None:
        self._handler = handler
        self._before: dict[int, Any] = {
            number: signal.signal(number, handler) for number in numbers
        }
        _installed.append(self)

    @property
    def numbers(self) -> Sequence[int]:
        """The signals."""
        return tuple(self._before)

    def restore(self) -> bool:
        """Put the previous handlers back, unless other code has replaced ours.

        Returns:
            False if that was done before.
        """
        if self not in _installed:
            return False
        _installed.remove(self)
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handler:
                signal.signal(number, signal.SIG_DFL if before is None else before)
        return True


def has_forked() -> bool:
    """Return whether user code has forked this process while handlers were installed."""
    return _forked.is_set()


class OwnProcess:
    """The process that creates this object.

    A child that user code forks must not go on with the run.
    """

    def __init__(self) -> None:
        self._id = os.getpid()

    def is_forked(self) -> bool:
        """Return whether this is a forked child of the process."""
        return os.getpid() != self._id

    def end_forked(self) -> None:
        """End this process if it is a forked child that came back from user code.

        Exit handlers do not run.
        """
        if not self.is_forked():
            return
        say_error(
            f"hpc_es: process {os.getpid()} was forked by code of the user and returned from it: it ends here, and "
            f"process {self._id} continues; end a forked process with os._exit(0)\n"
        )
        os._exit(CHILD_STATUS)


def _before_fork() -> None:
    """Block the signals, so that none reaches the child before it has the earlier handlers."""
    if _installed:
        _forked.set()
    _masks.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED) if _installed else None


def _unblock() -> None:
    if _masks.blocked is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.blocked)


def _in_child() -> None:
    numbers = {number for handlers in _installed for number in handlers.numbers}
    while _installed:
        _installed[-1].restore()
    for number in numbers & set(FOR_THE_RUN):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _leave_to_parent)
    _unblock()


def _leave_to_parent(number: int, frame: FrameType | None) -> None:
    """Do nothing. Unlike SIG_IGN, a program that this process executes does not inherit it."""


os.register_at_fork(before=_before_fork, after_in_parent=_unblock, after_in_child=_in_child)


@contextlib.contextmanager
def raised_exits() -> Iterator[None]:
    """Let `os._exit` of user code raise SystemExit, as sys.exit does.

    It would end the program as if it had finished. Its forked children, and this package, end as
    before.
    """
    process, leave = OwnProcess(), os._exit

    def exit_(status: int) -> NoReturn:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if process.is_forked() or caller.partition(".")[0] == "hpc_es":
            leave(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = exit_
    try:
        yield
    finally:
        os._exit = leave
