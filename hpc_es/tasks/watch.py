"""A time limit for episodes that also ends one that never returns from `step`."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class EpisodeTimeout(BaseException):
    """An episode took longer than its limit; not an Exception, so that no environment swallows it."""


class Watch:
    """Wraps calls into an environment and counts their seconds for each episode.

    A timer signal interrupts a call that hangs in Python code; a hang inside compiled code that never gives control
    back to Python cannot be interrupted.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit = limit_seconds
        self._spent: dict[int, float] = {}
        self._current: int | None = None
        self._since = 0.0
        self._previous: Any = None

    def __enter__(self) -> Watch:
        self._previous = signal.signal(signal.SIGALRM, self._look)
        period = min(max(self._limit / 10, 0.01), 1.0)
        signal.setitimer(signal.ITIMER_REAL, period, period)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._previous)

    def _look(self, signum: int, frame: FrameType | None) -> None:
        if self._current is not None:
            self._check(self._spent.get(self._current, 0.0) + time.perf_counter() - self._since)

    def _check(self, seconds: float) -> None:
        if seconds > self._limit:
            self._current = None
            raise EpisodeTimeout(f"the episode took longer than task.episode_timeout_seconds: {self._limit:g}")

    def restart(self, job: int) -> None:
        """A new episode of this job begins."""
        self._spent[job] = 0.0

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
