"""A timer that also interrupts code which waits for a lock.

A signal handler of Python runs when the main thread comes back to the interpreter. A system call
that the signal restarts (`signal.siginterrupt(number, False)`) does not come back, so
`threading.Event().wait()`, `threading.Thread.join()` or `multiprocessing.Pool.map` would never see
a time limit. The signal of this timer interrupts system calls. It should come rarely, as compiled
code may take an interrupted call for an error.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from hpc_es.core.handlers import Handlers

CLOCK_MONOTONIC, SIGEV_THREAD_ID = 1, 4  # the signal is for one thread
SPARE = 8  # after SIGRTMIN, of which nothing else is known to use it
AGAIN_NANOSECONDS = 37_000_000


class _Event(ctypes.Structure):
    """`struct sigevent`, which has 64 bytes on Linux."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("number", "kind", "thread")),
        ("_", ctypes.c_byte * 44),
    )


class _Times(ctypes.Structure):
    """`struct itimerspec`: interval and first time, each in seconds and nanoseconds."""

    _fields_ = tuple(
        (name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")
    )


class Deadline:
    """Calls a handler of signals in the main thread some time after `set`.

    It does so again until `set` or `close`. Without Linux's timers it never does. Only the main
    thread may create it.
    """

    def __init__(self, handler: Callable[[int, FrameType | None], object]) -> None:
        self._timer = _timer(os.getpid())
        self._handlers = None if self._timer is None else Handlers([_number()], handler)

    def set(self, seconds: float) -> None:
        """Let the time begin again."""
        if self._timer is not None:
            whole, rest = divmod(max(seconds, 1e-3), 1)
            # A signal that comes together with one that restarts system calls interrupts nothing.
            times = _Times(0, AGAIN_NANOSECONDS, int(whole), int(1e9 * rest))
            _library().timer_settime(self._timer, 0, ctypes.byref(times), None)

    def close(self) -> None:
        """Stop the timer, and put the handler before it back: its signal would end the process."""
        timer, self._timer = self._timer, None  # a handler that is still to come sets nothing
        if timer is not None and self._handlers is not None:
            _library().timer_settime(timer, 0, ctypes.byref(_Times(0, 0, 0, 0)), None)
            self._handlers.restore()


def _number() -> int:
    return signal.SIGRTMIN + SPARE


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.cache
def _timer(process: int) -> ctypes.c_void_p | None:
    """Return a timer of this process, which forked children do not inherit.

    It is None without timers.
    """
    # glibc before 2.34 has them elsewhere
    if sys.platform != "linux" or not hasattr(_library(), "timer_create"):
        return None
    timer = ctypes.c_void_p()
    event = _Event(None, _number(), SIGEV_THREAD_ID, process)  # its main thread has the same number
    failed = _library().timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer))
    return None if failed else timer
