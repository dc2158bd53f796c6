"""An error on one rank ends all of them, at once and with its name: the others would wait for it for ever.

The guard stands around everything that `hpc_es.main` does, imports included, with or without MPI up and running.
"""

from __future__ import annotations

import atexit
import faulthandler
import math
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

from hpc_es.core.errors import LaunchError, UserError
from hpc_es.mpi.connect import joined
from hpc_es.mpi.launch import abort, by_srun, task_rank, tasks_started

FIRST_WORD_SECONDS = 0.5  # rank 0 speaks first: where all fail alike it ends the others before they say the same
REPEAT_SECONDS = 0.5  # a launcher and the scheduler may both deliver one signal
TERM_SECONDS = 3.0  # for the generation to end; SIGKILL follows
CHECK_HUNG_SECONDS = 0.5
INTERRUPTED_STATUS = 130  # as shells have it for Ctrl-C


def guarded(body: Callable[[], int]) -> NoReturn:
    """Run `body` and end the process with the status it returns; whatever it raises ends all ranks.

    An exception is shown as a traceback whose every line names the rank, a UserError as its message only.
    """
    faulthandler.enable()
    try:
        status = body()
    except BaseException as error:  # the broad except of `main`: nothing may leave one rank alone
        status = _leave(error)
    for each in Signals.HANDLED:  # the status is settled, and srun sends SIGTERM once a rank has ended with another
        signal.signal(each, signal.SIG_IGN)
    world = joined()
    if world is not None:
        world.finalize()
    sys.exit(status)


def stand_by() -> None:
    """Guard a program that is not ours: an uncaught exception ends all ranks, and at its end they part in peace."""
    if sys.excepthook is not _excepthook:
        sys.excepthook = _excepthook
        atexit.register(_part)


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    atexit.unregister(_part)
    status = _leave(error.with_traceback(trace))
    os._exit(status or 1)


def _part() -> None:
    world = joined()
    if world is not None:
        world.finalize()


def _leave(error: BaseException) -> int:
    """Say what happened and end all ranks; returns the status where this process is the only one."""
    rank, size = _place()
    message, status = describe(error)
    if size == 1:
        sys.stderr.write(message)
        return status
    if isinstance(error, SystemExit) and status == 0 and joined() is None:
        return 0  # such as --help, on all ranks alike
    if rank != 0:
        time.sleep(FIRST_WORD_SECONDS)
    if isinstance(error, LaunchError) and rank != 0:  # tasks that do not see each other cannot end each other
        message = message.partition("\n")[0] if error.__cause__ else ""  # the library may be missing on this host only
    _say(message if rank == 0 and isinstance(error, UserError) else tagged(message, rank, size))
    abort(status if status else 1)  # a rank that leaves alone is a failure, whatever it says


def describe(error: BaseException) -> tuple[str, int]:
    """Return the message, with a line end, and the exit status of what ended `body`."""
    if isinstance(error, UserError):
        return f"hpc_es: {error}\n", error.status
    if isinstance(error, KeyboardInterrupt):
        return "interrupted\n", INTERRUPTED_STATUS
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return ("" if joined() is None else f"left by SystemExit({error.code})\n"), error.code or 0
        return f"{error.code}\n", 1
    below = error.__traceback__.tb_next if error.__traceback__ else None  # without the guard's own frame
    return "".join(traceback.format_exception(type(error), error, below)), 1


def tagged(message: str, rank: int, size: int) -> str:
    """Return the message with the rank, host and process named in front of each line."""
    tag = f"[rank {rank} of {size} on {socket.gethostname()} pid {os.getpid()}] "
    return "".join(tag + line + "\n" for line in message.splitlines())


def _say(text: str) -> None:
    try:
        sys.stderr.write(text)  # at once, so that ranks do not mix their lines
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # nobody listens; the others must still be ended


def _place() -> tuple[int, int]:
    """(rank, size), of MPI or, before it is there, as the launcher tells them."""
    world = joined()
    if world is not None:
        return world.rank, world.size
    return task_rank(os.environ) or 0, tasks_started(os.environ)[0]


def _nothing() -> None:
    """Insist on nothing: nobody can be kept from looking yet."""


class Signals:
    """From now on SIGTERM, SIGUSR1, SIGUSR2 and SIGINT are only counted; look at `count` between two steps.

    The first asks to stop at the end of the generation, the second to give it up. The same signal again within
    REPEAT_SECONDS is one delivered twice, and not counted.

    Nothing reads `count` while an environment hangs. Therefore, from the second signal on, `abort_if_hung` is called
    every CHECK_HUNG_SECONDS, between any two Python instructions; it raises GiveUp if the chunk in progress hangs.

    srun sends SIGTERM also where a rank has died (--kill-on-bad-exit), SIGKILL only KillWait later, usually 30 s; and
    that generation never ends. So under srun the second is taken as given TERM_SECONDS after SIGTERM.
    """

    HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)

    def __init__(self) -> None:
        self.abort_if_hung: Callable[[], None] = _nothing
        self.name = ""  # of the last one, such as "SIGTERM"
        self._noted = 0
        self._given_up_at = math.inf
        self._last_seconds: dict[int, float] = {}
        self._before: dict[signal.Signals, Any] = {each: signal.signal(each, self._note) for each in self.HANDLED}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.HANDLED)  # main blocks them

    @property
    def count(self) -> int:
        """How many signals came, or are taken as given."""
        return self._noted + (time.monotonic() >= self._given_up_at)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last_seconds.get(number, -REPEAT_SECONDS) >= REPEAT_SECONDS:
            self._noted += 1
            self.name = signal.Signals(number).name
        self._last_seconds[number] = now
        if number == signal.SIGTERM and by_srun(os.environ):
            self._given_up_at = min(self._given_up_at, now + TERM_SECONDS)
        if self._noted >= 2 or self._given_up_at < math.inf:
            self._start_hang_checks()

    def _start_hang_checks(self) -> None:
        """Share the timer with whoever watches the time of episodes; this job will not need it for long."""
        before, period = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[1]

        def alarmed(number: int, frame: FrameType | None) -> None:
            if self.count >= 2:
                self.abort_if_hung()
            if callable(before):
                before(number, frame)

        self._before.setdefault(signal.SIGALRM, before)
        signal.signal(signal.SIGALRM, alarmed)
        signal.siginterrupt(signal.SIGALRM, False)  # a checkpoint may be on its way to the disk
        period = min(period or CHECK_HUNG_SECONDS, CHECK_HUNG_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, period, period)

    def restore(self) -> None:
        """Put the former handlers back."""
        if signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in self._before.items():
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)
