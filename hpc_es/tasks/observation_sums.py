"""Sums of the observations that a chunk's policies saw, for the normaliser."""

from __future__ import annotations

import numpy as np

from hpc_es.core.data import Array, Arrays


class Sums:
    """Sums and squares of the observations a policy saw, for each job to observe: float64[jobs observed, width]."""

    def __init__(self, observe: Array, width: int) -> None:
        self._place = {int(job): place for place, job in enumerate(np.flatnonzero(observe))}
        self._jobs = np.flatnonzero(observe)
        self._total = np.zeros((len(self._place), width))
        self._squares = np.zeros((len(self._place), width))
        self._count = np.zeros(len(self._place))

    def add(self, observations: Array, jobs: list[int], live: list[int]) -> None:
        """Add one step's observations of the live rows."""
        if not self._place:
            return
        rows = [row for row in live if jobs[row] in self._place]
        places = [self._place[jobs[row]] for row in rows]
        seen = observations[rows].astype(np.float64)
        self._total[places] += seen
        self._squares[places] += np.square(seen)
        self._count[places] += 1

    def units(self, failed: Array, unit: int | None) -> list[Arrays]:
        """Return the sums of each run of `unit` jobs (None: of all): see `arrays`."""
        jobs = len(failed)
        size = unit or max(jobs, 1)
        return [self.arrays(failed, range(start, min(start + size, jobs))) for start in range(0, jobs, size)]

    def arrays(self, failed: Array, jobs: range) -> Arrays:
        """Return the sums of some jobs, added in order, without failed ones; nothing where none was observed."""
        observed = [(place, job) for place, job in enumerate(self._jobs.tolist()) if job in jobs]
        if not observed:
            return {}
        total, squares, count = np.zeros_like(self._total[0]), np.zeros_like(self._total[0]), 0.0
        for place, job in observed:
            if not failed[job]:
                total, squares = total + self._total[place], squares + self._squares[place]
                count += self._count[place]
        return {
            "observation_sum": total,
            "observation_squares": squares,
            "observation_count": np.asarray(count, np.float64),
        }
