"""Sums of the observations that a chunk's policies saw, for the normaliser."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_es.core.acting import Batch
from hpc_es.core.data import Array, Arrays, ObservationSpec
from hpc_es.tasks.observation_deviations import Deviations
from hpc_es.tasks.observation_moments import Moments


class Sums:
    """Sums and squares of the observations a policy saw, for each job to observe: float64[jobs observed, width].

    There is one for each element of a flat observation, and for each channel, the last axis, of an image.
    For sample deviations they are of the differences from the job's first observation.
    """

    def __init__(self, batch: Batch, spec: ObservationSpec) -> None:
        width, self._is_flat = spec.statistics, spec.is_flat
        self._per_step = spec.size // width  # numbers of an observation that share a mean: the pixels of a channel
        self._place = {int(job): place for place, job in enumerate(np.flatnonzero(batch.observe))}
        self._jobs, self._unit, self._centred = np.flatnonzero(batch.observe), batch.unit, batch.centred
        self._offset = batch.offset
        self._origin = np.zeros((len(self._place), width))
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
        if not self._is_flat:
            seen = seen.reshape(len(rows), self._per_step, -1)
        if self._centred:
            first = self._count[places] == 0
            if first.any():
                self._origin[np.array(places)[first]] = seen[first] if seen.ndim == 2 else seen[first, 0]
            seen -= self._origin[places] if seen.ndim == 2 else self._origin[places][:, np.newaxis]
        squares = np.square(seen)
        self._total[places] += seen if seen.ndim == 2 else seen.sum(axis=1)
        self._squares[places] += squares if seen.ndim == 2 else squares.sum(axis=1)
        self._count[places] += self._per_step

    def put(self, job: int, total: Array, squares: Array, count: float, origin: Array) -> None:
        """Set the sums of a job that were made elsewhere, float64[width]; of differences from `origin`."""
        place = self._place[job]
        self._total[place], self._squares[place], self._origin[place] = total, squares, origin
        self._count[place] = count

    def units(self, failed: Array) -> list[list[Arrays]]:
        """Return the statistics of each unit of jobs: see `arrays`; of a unit that is not whole, those of each job."""
        jobs = len(failed)
        size = self._unit or max(jobs, 1)
        found = []
        for start in range(-self._offset, jobs, size):
            places = range(max(start, 0), min(start + size, jobs))
            parts = [places] if len(places) == size else [range(place, place + 1) for place in places]
            found.append([self.arrays(failed, part) for part in parts])
        return found

    def arrays(self, failed: Array, jobs: range) -> Arrays:
        """Return the statistics of some jobs, in order, without failed ones; nothing where none was observed."""
        observed = [(place, job) for place, job in enumerate(self._jobs.tolist()) if job in jobs]
        if not observed:
            return {}
        kind: Any = Deviations if self._centred else Moments
        found = kind.nothing(self._total.shape[1])
        for place, job in observed:
            if not failed[job]:
                sums = self._total[place], self._squares[place], self._count[place], self._origin[place]
                found = found.plus(kind.of_sums(*sums))
        arrays: Arrays = found.arrays()
        return arrays
