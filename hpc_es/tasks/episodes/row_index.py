"""Which of a chunk's jobs run in which rows: what is the same in each step until an episode is over."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_es.tasks.episodes.environment_backend import Running, Stepped


class Seats:
    """Indices of rows and jobs, slices where that is possible."""

    def __init__(self, running: Running, stack_rows: int) -> None:
        self.running, self.are_all = running, len(running.rows) == stack_rows
        self.rows, self.jobs = _index(running.rows), _index(running.jobs)


def _index(places: list[int]) -> Any:
    """Return what selects these places of an array, a slice where they are the first."""
    if places == list(range(len(places))):
        return slice(len(places))
    return np.array(places, np.intp)


class StepClock:
    """The steps of each job's episode, and what ends by them.

    Steps are counted for all running jobs at once, and given to each when other jobs begin to run.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._elapsed = np.zeros(0, np.int64)  # of each job, without those of `_seats`
        self._seats: Seats | None = None  # whose jobs have taken `_taken` steps more
        self._taken, self._left = 0, 0  # until the first of them is at the limit

    def grow(self, jobs: int) -> None:
        """Have a place for so many jobs more."""
        self._give()
        self._elapsed = np.concatenate([self._elapsed, np.zeros(jobs, np.int64)])

    def restart(self, job: int) -> None:
        """An episode begins."""
        self._give()
        self._elapsed[job] = 0

    def stepped(self, seats: Seats, terminated: Any, failed: dict[int, Exception] | None = None) -> Stepped:
        """Return what ended with a step: by itself (bool[places] or None), by the limit, by an exception at a place."""
        if seats is not self._seats:
            self._give()
            self._seats = seats
            if self._limit is not None:
                self._left = self._limit - int(self._elapsed[seats.jobs].max(initial=0))
        self._taken += 1
        is_over = terminated is not None and bool(terminated.any())
        if not is_over and not failed and (self._limit is None or self._taken < self._left):
            return Stepped()
        return self._ended(seats, terminated, failed or {})

    def _give(self) -> None:
        if self._seats is not None:
            self._elapsed[self._seats.jobs] += self._taken
        self._seats, self._taken = None, 0

    def _ended(self, seats: Seats, terminated: Any, failed: dict[int, Exception]) -> Stepped:
        self._give()
        rows = seats.running.rows
        stepped = Stepped(failed=[(rows[place], error) for place, error in failed.items()])
        ended = set[int]() if terminated is None else set(np.flatnonzero(terminated).tolist())
        cut = set[int]() if self._limit is None else self._late(seats)
        stepped.ended = [rows[place] for place in sorted((ended | cut) - failed.keys())]
        stepped.cut = [rows[place] for place in sorted(cut - ended - failed.keys())]
        return stepped

    def _late(self, seats: Seats) -> set[int]:
        return set(np.flatnonzero(self._elapsed[seats.jobs] >= self._limit).tolist())
