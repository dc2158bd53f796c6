"""The end of a program, which does not wait long for what user code has left running.

Python waits for threads that are no daemons, child processes of `multiprocessing` and exit
handlers, for any time. A job would keep its nodes until its time limit, although its results are
written. Here the limit is END_SECONDS, and DESTRUCTOR_SECONDS for destructors.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, NoReturn

from hpc_es.core import closing, streams
from hpc_es.core.handlers import OwnProcess
from hpc_es.core.streams import say_error

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

END_SECONDS = 10.0
# Destructors of large libraries, such as those of PyTorch, took 10 s on a busy node; the status of
# a process that has to be ended there is 1, as if the run had failed.
DESTRUCTOR_SECONDS = 60.0
MOST_NAMED = 8  # processes and threads in the message
EXIT_SECONDS = 2.0  # for the exit handlers of C libraries
KILL_SECONDS = 1.0  # for children to end after SIGTERM; SIGKILL follows


class ProgramEnd:
    """Ends this program in time, with the status given to `begin`.

    Create it before user code is imported.
    """

    def __init__(self) -> None:
        self._status, self._who, self._ranks, self._process = 0, "", 1, OwnProcess()
        self._has_begun = False
        atexit.register(self._after_exit_handlers)  # the first one registered runs last

    def begin(self, status: int, who: str = "the program", ranks: int = 1) -> None:
        """Limit the time until the program has ended, from now on.

        Args:
            status: with which it ends.
            who: its name in the message.
            ranks: of the job.
        """
        self._status, self._who, self._ranks, self._has_begun = status, who, ranks, True
        threading.Thread(target=self._end_in_time, name="hpc_es end", daemon=True).start()

    def _end_in_time(self) -> None:
        time.sleep(END_SECONDS)
        say_error(
            f"hpc_es: {self._who} has ended, and {END_SECONDS:g} s later this is left: {'; '.join(_what_is_left())}. "
            "The process ends without it\n"
        )
        self._leave()

    def _leave(self) -> None:
        end_children()
        streams.flush(sys.stdout, sys.stderr)
        end_process(self._status, self._ranks)

    def _after_exit_handlers(self) -> None:
        """Leave out the destructors of what could not be closed.

        Destructors that hang are ended, with status 1.
        """
        if not self._has_begun or self._process.is_forked():
            return
        if closing.has_left_behind():
            self._leave()
        # sys.stderr may be no file
        faulthandler.dump_traceback_later(DESTRUCTOR_SECONDS, exit=True, file=2)


def end_process(status: int, ranks: int) -> NoReturn:
    """End this process without Python's exit handlers and destructors, after MPI was finalized.

    Those of C libraries are called if there are several ranks: in one of them MPICH leaves its
    process manager, which otherwise takes the end for a crash, and kills the other ranks. The job
    then had the status 9 in place of 1 or 75.
    """
    if ranks > 1:
        threading.Timer(EXIT_SECONDS, os._exit, (status,)).start()
        ctypes.CDLL(None).exit(status)
    os._exit(status)


def end_children() -> None:
    """End the child processes of `multiprocessing`, by SIGTERM and then by SIGKILL."""
    children = _children()
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            with contextlib.suppress(OSError):
                if child.pid is not None:
                    os.kill(child.pid, number)
        limit = time.monotonic() + KILL_SECONDS
        while children and time.monotonic() < limit:
            time.sleep(0.01)
            children = [child for child in children if child.is_alive()]


def _children() -> list[BaseProcess]:
    multiprocessing = sys.modules.get("multiprocessing")
    with contextlib.suppress(Exception):  # its state may change in the main thread meanwhile
        return [] if multiprocessing is None else multiprocessing.active_children()
    return []


def _what_is_left() -> list[str]:
    """Describe the child processes and threads that are left, or what the main thread does."""
    left = [f"process {child.name} (pid {child.pid})" for child in _children()]
    left += [
        f"thread {thread.name}"
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    ]
    if len(left) > MOST_NAMED:
        left = [*left[:MOST_NAMED], f"{len(left) - MOST_NAMED} more"]
    return left or [f"an exit handler{_place_of_main_thread()}"]


def _place_of_main_thread() -> str:
    """Return where the main thread is, preferably in code that is not of the standard library."""
    import sysconfig  # few programs need it

    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = traceback.extract_stack(frame) if frame is not None else []
    own = [
        entry
        for entry in stack
        if not entry.filename.startswith((sysconfig.get_path("stdlib"), "<"))
    ]
    place = next(reversed(own or list(stack)), None)
    return "" if place is None else f" in {place.filename}:{place.lineno}"
