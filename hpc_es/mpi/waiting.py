"""Long evaluations: what a run waits for, when no rank has finished its jobs for minutes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hpc_es.core.data import Chunk

MARKS = (60.0, 300.0, 900.0, 3600.0)  # seconds without a finished evaluation; then every hour
MOST_NAMED = 4  # ranks in the message


def next_mark(seconds: float) -> float:
    """Return the first time of MARKS, or full hour, after some seconds."""
    return next((mark for mark in MARKS if mark > seconds), (seconds // MARKS[-1] + 1) * MARKS[-1])


class Silence:
    """The time since the last finished evaluation, reported if it is unusual for this run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._since, self._longest = clock, clock(), 0.0
        self._due = next_mark(0.0)

    def seconds(self) -> float:
        """Return the seconds since the last start."""
        return self._clock() - self._since

    def end(self) -> None:
        """Start again, since an evaluation has finished.

        One as slow as this is not unusual any more.
        """
        self._longest = max(self._longest, self.seconds())
        self.restart()

    def restart(self) -> None:
        """Start again, since an evaluation begins."""
        self._since = self._clock()
        self._due = next_mark(2 * self._longest) if self._longest >= MARKS[0] / 2 else MARKS[0]

    def is_due(self, now: float) -> bool:
        """Return whether the silence is to be reported, once for each mark."""
        if now - self._since < self._due:
            return False
        self._due = next_mark(now - self._since)
        return True


@dataclass
class InProgress:
    """A chunk that a rank evaluates."""

    first_job: int
    jobs: int
    polls: int = 0  # since its start, such as steps of the episodes

    @classmethod
    def of(cls, chunk: Chunk) -> InProgress:
        """Return a chunk that has just begun."""
        return cls(chunk.first_job, chunk.jobs)


@dataclass(frozen=True)
class LongWait:
    """What rank 0 knows when no evaluation has finished for some time."""

    seconds: float
    chunks: Mapping[int, InProgress] = field(default_factory=dict)  # by rank, as far as known
    silent: tuple[int, ...] = ()  # other ranks that have not finished

    def text(self, counted: str = "") -> str:
        """Return the message.

        `counted` is what a poll counts, such as "steps", "" if it counts nothing.
        """
        named = []
        for rank, chunk in sorted(self.chunks.items()):
            last = chunk.first_job + chunk.jobs - 1
            jobs = (
                f"job {chunk.first_job}" if chunk.jobs == 1 else f"jobs {chunk.first_job} to {last}"
            )
            named.append(
                f"rank {rank} ({jobs}{f', {chunk.polls:,} {counted} so far' if counted else ''})"
            )
        named += [f"rank {rank}" for rank in self.silent]
        if len(named) > MOST_NAMED:
            named = [*named[:MOST_NAMED], f"{len(named) - MOST_NAMED} more ranks"]
        minutes = math.floor(self.seconds / 60 + 0.5)
        for_time = (
            f"{self.seconds:.0f} s" if minutes < 1 else f"{minutes} minute{'s'[: minutes > 1]}"
        )
        return f"has waited {for_time} for {', '.join(named) or 'the other ranks'}"
