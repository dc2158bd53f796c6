"""A time limit for calls of user code, which also interrupts calls that hang.

Also polling during long calls.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

from hpc_es.core.deadline import Deadline
from hpc_es.core.handlers import Handlers
from hpc_es.core.machine import in_main_thread

P = ParamSpec("P")
R = TypeVar("R")

POLL_PERIOD_SECONDS = 0.01


class EpisodeTimeout(BaseException):
    """A call took longer than its limit.

    It is not an Exception, so that user code does not catch it.
    """


class Watch:
    """Wraps calls of user code and adds up their seconds for each job.

    A timer signal interrupts a call that hangs in Python code, also while it waits for a lock;
    compiled code that never returns to Python cannot be interrupted. The signal handler also calls
    `poll` while a call runs, so that rank 0 can answer the other ranks. Outside of the main thread
    there is no timer: the limit is checked when a call returns. `what` begins the message of
    EpisodeTimeout, which ends with the limit.
    """

    def __init__(
        self,
        limit_seconds: float = math.inf,
        what: str = "the episode took longer than task.episode_timeout_seconds",
        poll: Callable[[], None] | None = None,
    ) -> None:
        self._limit, self._what, self._poll = limit_seconds, what, poll
        self._spent: dict[int, float] = {}
        self._current: int | None = None
        self._since = 0.0
        self._polling = False
        self._handlers: Handlers | None = None
        self._deadline: Deadline | None = None

    def __enter__(self) -> Watch:
        if not in_main_thread():
            return self
        self._handlers = Handlers([signal.SIGALRM], self._handle_timer)
        # restart interrupted system calls of compiled code
        signal.siginterrupt(signal.SIGALRM, False)
        period = min(max(self._limit / 10, 0.01), 1.0)
        if self._poll is not None:
            period = min(period, POLL_PERIOD_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, period, period)
        if self._limit < math.inf:
            self._deadline = Deadline(self._handle_timer)
            self._deadline.set(self._limit)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not in_main_thread():
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._deadline is not None:
            self._deadline.close()
        if self._handlers is not None:
            self._handlers.restore()

    def _handle_timer(self, signum: int, frame: FrameType | None) -> None:
        left = self._limit
        if self._current is not None:
            left -= self._spent.get(self._current, 0.0) + time.perf_counter() - self._since
        if self._deadline is not None:
            self._deadline.set(left)
        if self._current is None or self._polling:
            return
        self._check(self._limit - left)
        if self._poll is not None:
            self._polling = True
            try:
                self._poll()
            finally:
                self._polling = False

    def _check(self, seconds: float) -> None:
        if seconds > self._limit:
            self._current = None
            raise EpisodeTimeout(f"{self._what}: {self._limit:g}")

    def restart(self, job: int, spent: float = 0.0) -> None:
        """Set the seconds of the job's episode, 0 for a new one."""
        self._spent[job] = spent

    def spent(self, job: int) -> float:
        """Return the seconds of a job's episode so far."""
        return self._spent.get(job, 0.0)

    def timed(self, job: int, call: Callable[P, R]) -> Callable[P, R]:
        """Return `call` with its time added to the job's.

        It raises EpisodeTimeout once the limit is exceeded.
        """

        def timed_call(*arguments: P.args, **keywords: P.kwargs) -> R:
            self._since, self._current = time.perf_counter(), job
            try:
                result = call(*arguments, **keywords)
            finally:
                self._current = None
                self._spent[job] = self._spent.get(job, 0.0) + time.perf_counter() - self._since
            self._check(self._spent[job])
            return result

        return timed_call
