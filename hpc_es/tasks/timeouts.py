"""A time limit that also ends a call which never returns, and a look at the other ranks during a long one."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

POLL_PERIOD_SECONDS = 0.01


class EpisodeTimeout(BaseException):
    """A call took longer than its limit; not an Exception, so that no environment or function swallows it."""


class Watch:
    """Wraps calls into code of others and counts their seconds for each job.

    A timer signal interrupts a call that hangs in Python code; a hang inside compiled code that never gives control
    back to Python cannot be interrupted. `poll` is called from the same signal while a call runs, so that rank 0
    answers the others during it.
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
        self._previous: Any = None

    def __enter__(self) -> Watch:
        self._previous = signal.signal(signal.SIGALRM, self._look)
        signal.siginterrupt(signal.SIGALRM, False)  # system calls of compiled code go on
        period = min(max(self._limit / 10, 0.01), 1.0)
        if self._poll is not None:
            period = min(period, POLL_PERIOD_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, period, period)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._previous)

    def _look(self, signum: int, frame: FrameType | None) -> None:
        if self._current is None or self._polling:
            return
        self._check(self._spent.get(self._current, 0.0) + time.perf_counter() - self._since)
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
        """A new episode of this job begins, or one goes on that has taken so many seconds already."""
        self._spent[job] = spent

    def spent(self, job: int) -> float:
        """Return the seconds of a job's episode so far."""
        return self._spent.get(job, 0.0)

    def timed(self, job: int, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, its time counted for `job`; raises EpisodeTimeout once the episode's limit is passed."""

        def timed_call(*arguments: Any, **keywords: Any) -> Any:
            self._since, self._current = time.perf_counter(), job
            try:
                result = call(*arguments, **keywords)
            finally:
                self._current = None
                self._spent[job] = self._spent.get(job, 0.0) + time.perf_counter() - self._since
            self._check(self._spent[job])
            return result

        return timed_call
