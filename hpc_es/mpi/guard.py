"""Errors and signals: an error on one rank ends all ranks at once.

Otherwise the others would wait for it forever. `guarded` runs everything that `hpc_es.main` does,
including imports, whether or not MPI is initialised.
"""

from __future__ import annotations

import atexit
import faulthandler
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NoReturn

from hpc_es.core import closing
from hpc_es.core.errors import CTRL_C, INTERRUPTED, Exit, LaunchError, UserError, exits_as_errors
from hpc_es.core.handlers import HANDLED, Handlers, OwnProcess, raised_exits
from hpc_es.core.machine import in_main_thread
from hpc_es.core.quiet import show_once
from hpc_es.core.streams import say_error
from hpc_es.mpi.connect import joined
from hpc_es.mpi.ending import ProgramEnd, end_children
from hpc_es.mpi.launch import abort, by_srun, task_rank, tasks_started
from hpc_es.mpi.scheduler import GiveUp

# delay of other ranks' messages: if all fail alike, rank 0 ends them before they print
RANK_0_LEAD_SECONDS = 0.5
REPEAT_SECONDS = 0.5  # a launcher and the scheduler may both deliver one signal
TERM_SECONDS = 3.0  # time for the generation to end after SIGTERM; SIGKILL follows
CHECK_HUNG_SECONDS = 0.5
NOT_MAIN_THREAD = (
    "hpc_es: this is not the main thread, so signals are not handled (they do not stop the search at the end of a "
    "generation), and a time limit is noticed only when the step or call that exceeds it has returned"
)


def guarded(body: Callable[[], int]) -> NoReturn:
    """Run `body` and exit with the status that it returns; an exception ends all ranks.

    Each line of the traceback names the rank; a UserError is printed as its message only.
    """
    faulthandler.enable(2)  # sys.stderr may be no file
    process, end = OwnProcess(), ProgramEnd()
    try:
        with raised_exits(), exits_as_errors():
            status = body()
    except BaseException as error:  # broad: no rank may end without the others
        process.end_forked()
        status = _end_all_ranks(error)
    # the status is final, but srun sends SIGTERM when a rank ends with another one
    Handlers(HANDLED, signal.SIG_IGN)
    # Python removes its handler of SIGALRM before it has ended
    signal.setitimer(signal.ITIMER_REAL, 0)
    # before the ranks part, since mpiexec kills those that end after a failed one
    if closing.has_left_behind():
        end_children()
    world = joined()
    if world is not None:
        world.finalize()
    if world is not None and world.size > 1:
        end.begin(status, f"rank {world.rank}", world.size)
    else:
        end.begin(status)
    raise Exit(status)


def install_hooks() -> None:
    """Guard a user's program: an uncaught exception ends all ranks.

    At a regular exit MPI is finalized.
    """
    if not isinstance(sys.excepthook, _Hooks):
        sys.excepthook = hooks = _Hooks()
        atexit.register(hooks.finalize)
    if not in_main_thread() and threading.excepthook is not _thread_excepthook:
        threading.excepthook = _thread_excepthook


def _thread_excepthook(arguments: threading.ExceptHookArgs) -> None:
    """End all ranks if a thread that other ranks wait for has ended.

    A lone process goes on, as usual in Python.
    """
    error, frames = arguments.exc_value, traceback.walk_tb(arguments.exc_traceback)
    is_ours = any(frame.f_globals.get("__name__", "").startswith("hpc_es.") for frame, _ in frames)
    if error is not None and is_ours and not isinstance(error, Exit) and _rank_and_size()[1] > 1:
        sys.excepthook(type(error), error, arguments.exc_traceback)
    threading.__excepthook__(arguments)


class _Hooks:
    """The exception hook of a user's program, and its exit handler. A forked child uses neither."""

    def __init__(self) -> None:
        self._process, self._before = OwnProcess(), sys.excepthook

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if self._process.is_forked():
            self._before(kind, error, trace)
            return
        atexit.unregister(self.finalize)
        status = _end_all_ranks(error.with_traceback(trace))
        os._exit(status or 1)

    def finalize(self) -> None:
        world = joined()
        if world is not None and not self._process.is_forked():
            world.finalize()


def _end_all_ranks(error: BaseException) -> int:
    """Print the error and end all ranks; return the exit status if this process is the only one."""
    rank, size = _rank_and_size()
    message, status = describe(error)
    if size == 1:
        say_error(message)
        return status
    if isinstance(error, Exit) and status == 0 and joined() is None:
        return 0  # such as --help, on all ranks
    if rank != 0:
        world = joined()
        (time.sleep if world is None else world.deliver)(RANK_0_LEAD_SECONDS)
    # tasks that are not connected cannot end each other
    if isinstance(error, LaunchError) and rank != 0:
        # the library may be missing on this host only
        message = message.partition("\n")[0] if error.__cause__ else ""
    text = message if rank == 0 and isinstance(error, UserError) else tagged(message, rank, size)
    say_error(text)  # one call, so that lines of several ranks do not mix
    abort(status if status else 1)  # a rank that ends without the others is a failure in any case


def describe(error: BaseException) -> tuple[str, int]:
    """Return the message, with a newline, and the exit status for an exception."""
    if isinstance(error, UserError):
        return f"hpc_es: {error}\n", error.status
    if isinstance(error, GiveUp):
        return f"hpc_es: {error}\n", INTERRUPTED
    if isinstance(error, KeyboardInterrupt):
        return "interrupted\n", CTRL_C
    if isinstance(error, Exit) and isinstance(error.code, int):
        return "", error.code
    # omits the frame of `guarded`
    below = error.__traceback__.tb_next if error.__traceback__ else None
    return "".join(traceback.format_exception(type(error), error, below)), 1


def tagged(message: str, rank: int, size: int) -> str:
    """Return the message with rank, host and process id before each line."""
    tag = f"[rank {rank} of {size} on {os.uname().nodename} pid {os.getpid()}] "
    return "".join(tag + line + "\n" for line in message.splitlines())


def _rank_and_size() -> tuple[int, int]:
    """Return rank and number of ranks from MPI or, before its initialisation, from the launcher."""
    world = joined()
    if world is not None:
        return world.rank, world.size
    return task_rank(os.environ) or 0, tasks_started(os.environ)[0]


def give_up_start() -> None:
    """Raise GiveUp: before the first generation there is nothing to save."""
    raise GiveUp("a second signal was received before the first generation: nothing was done")


class Signals:
    """Counts SIGTERM, SIGUSR1, SIGUSR2 and SIGINT; the loop calls `count` between steps.

    The first signal asks to stop at the end of the generation, the second to abandon the
    generation. A signal that recurs within REPEAT_SECONDS counts as delivered twice and is ignored.

    Nothing calls `count` while an environment hangs. Therefore, from the second signal on,
    `abort_if_hung` is called every CHECK_HUNG_SECONDS, between any two Python instructions; it
    raises GiveUp if the chunk in progress hangs.

    srun also sends SIGTERM if a rank has died (--kill-on-bad-exit), and SIGKILL after KillWait,
    usually 30 s; the generation in progress then never ends. Therefore under srun a second signal
    is assumed TERM_SECONDS after SIGTERM.
    """

    def __init__(self) -> None:
        """Install the handlers, which Python allows in the main thread only."""
        self.abort_if_hung: Callable[[], None] = give_up_start  # a run has its own
        self.name = ""  # of the last signal, such as "SIGTERM"
        self._received = 0
        self._assumed_at = math.inf
        self._last_seconds: dict[int, float] = {}
        self._handlers: Handlers | None = None
        self._hang_checks: list[Handlers] = []
        if not in_main_thread():
            show_once(NOT_MAIN_THREAD)
            return
        self._handlers = Handlers(HANDLED, self._on_signal)
        self._blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)  # main blocks them

    def count(self) -> int:
        """Return the number of signals received or assumed."""
        return self._received + (time.monotonic() >= self._assumed_at)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last_seconds.get(number, -REPEAT_SECONDS) >= REPEAT_SECONDS:
            self._received += 1
            self.name = signal.Signals(number).name
            if self._received == 1 and _rank_and_size()[0] == 0:
                say_error(
                    f"hpc_es: {self.name}: the run stops after the generation in progress; "
                    "a second signal gives this generation up\n"
                )
        self._last_seconds[number] = now
        if number == signal.SIGTERM and by_srun(os.environ):
            self._assumed_at = min(self._assumed_at, now + TERM_SECONDS)
        if self._received >= 2 or self._assumed_at < math.inf:
            self._start_hang_checks()

    def _start_hang_checks(self) -> None:
        """Start a timer, which is shared with the time limits of episodes:
        their handler is called as well.
        """
        before, period = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[1]

        def on_alarm(number: int, frame: FrameType | None) -> None:
            if self.count() >= 2:
                self.abort_if_hung()
            if callable(before):
                before(number, frame)

        self._hang_checks.append(Handlers([signal.SIGALRM], on_alarm))
        signal.siginterrupt(signal.SIGALRM, False)  # a checkpoint may be being written
        period = min(period or CHECK_HUNG_SECONDS, CHECK_HUNG_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, period, period)

    def restore(self) -> bool:
        """Restore the previous handlers; return False if the main thread has to do it later."""
        if self._handlers is None:
            return True
        if not in_main_thread():
            return False
        if self._hang_checks:
            signal.setitimer(signal.ITIMER_REAL, 0)
        while self._hang_checks:
            self._hang_checks.pop().restore()
        if self._handlers.restore():
            signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        return True
