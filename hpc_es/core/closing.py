"""Closing what belongs to the user, such as environments: it may raise, exit or never return."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Protocol, TypeVar

from hpc_es.core.errors import Interruption, message_of, require_users
from hpc_es.core.handlers import Handlers
from hpc_es.core.machine import in_main_thread
from hpc_es.core.quiet import is_first
from hpc_es.core.streams import say_error

CLOSE_SECONDS = 10.0  # for an environment, or all environments of a rank, to close
# for what did not close the last time, and between interruptions, since code may catch the first
AGAIN_SECONDS = 1.0
STUCK_SECONDS = 30.0  # after which code that cannot be interrupted ends the program

# By name: what has not closed. It is kept, since its destructor would not return either.
_left_behind: dict[str, list[Callable[[], object]]] = {}


class Closable(Protocol):
    """Anything with `close`."""

    def close(self) -> object:
        """Release what it uses."""
        ...


ClosableT = TypeVar("ClosableT", bound=Closable)


class _CloseTimeout(Interruption):
    """A call took too long. It is not an Exception, so that user code does not catch it."""


def close(
    name: str, *calls: Callable[[], object], stuck: Callable[[], object] | None = None
) -> None:
    """Make calls that close something, for at most CLOSE_SECONDS together.

    Problems are messages with this name. The calls are made in this thread, which created the
    objects: a renderer's context belongs to its thread. A timer interrupts Python code, also while
    it waits, but only in the main thread; in another one there is no limit. `stuck` is called in a
    new thread if the calls have not returned after STUCK_SECONDS.
    """
    guard: threading.Timer | None = None
    if stuck is not None:
        guard = threading.Timer(STUCK_SECONDS, _give_up, (name, stuck))
        guard.daemon = True
        guard.start()
    done, seconds = 0, AGAIN_SECONDS if name in _left_behind else CLOSE_SECONDS
    try:
        with _limit(seconds):
            for call in calls:
                with _problems_as_messages(name):
                    call()
                done += 1
    except _CloseTimeout:
        _left_behind.setdefault(name, []).extend(calls[done:])
        text = f"hpc_es: {name}: close() has not returned within {seconds:g} s: it is left behind\n"
        if is_first(text):
            say_error(text)
    finally:
        if guard is not None:
            guard.cancel()


@contextlib.contextmanager
def closing(name: str, item: ClosableT) -> Iterator[ClosableT]:
    """Close the item at the end of the context, like `contextlib.closing`, but as `close` does."""
    try:
        yield item
    finally:
        close(name, item.close)


def has_left_behind() -> bool:
    """Return whether this process has objects that could not be closed."""
    return bool(_left_behind)


@contextlib.contextmanager
def _problems_as_messages(name: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        require_users(error)
        text = f"hpc_es: {name}: close() raised {type(error).__name__}: {message_of(error)}\n"
        if is_first(text):  # of all environments of this rank
            say_error(text)


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise _CloseTimeout in this context after some seconds, in the main thread."""
    if not in_main_thread():
        yield
        return
    is_closing = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        if is_closing:
            raise _CloseTimeout

    handlers = Handlers([signal.SIGALRM], interrupt)
    before = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
    try:
        yield
    finally:
        is_closing = False
        signal.setitimer(signal.ITIMER_REAL, *before)
        handlers.restore()


def _give_up(name: str, stuck: Callable[[], object]) -> None:
    say_error(f"hpc_es: {name}: close() cannot be interrupted: the process ends without it\n")
    stuck()
