"""Perturbations of a centre, alone or in mirrored (antithetic) pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float64
from hpc_es.core.population import Directions, Layout, Perturbed


@dataclass(frozen=True)
class Pairs:
    """Which jobs share a direction: two in a row (+, -) where pairs are mirrored, else each has one of its own."""

    mirrored: bool

    @property
    def size(self) -> int:
        """Jobs of a pair."""
        return 2 if self.mirrored else 1

    def of(self, job: int) -> int:
        """Return the pair of a job."""
        return job // self.size

    def among(self, jobs: range) -> range:
        """Return the pairs of consecutive jobs."""
        return range(self.of(jobs[0]), self.of(jobs[-1]) + 1)

    def signs(self, jobs: range) -> Array:
        """Return 1 of jobs that go along their direction and -1 of those that go against it, int[jobs]."""
        return 1 - 2 * (np.arange(jobs.start, jobs.stop) % 2) if self.mirrored else np.ones(len(jobs), np.int64)

    def along(
        self, layout: Layout, theta: Array, directions: Directions | Array, jobs: range, scale: float = 1.0
    ) -> Perturbed:
        """Return theta and scale times the directions of these jobs' pairs, with the jobs' signs."""
        return Perturbed(layout, theta[np.newaxis], directions, self._rows(jobs), self._scales(theta, jobs, scale))

    def _rows(self, jobs: range) -> npt.NDArray[np.intp]:
        return np.arange(jobs.start, jobs.stop, dtype=np.intp) // self.size - self.of(jobs.start)

    def _scales(self, theta: Array, jobs: range, scale: float) -> Array:
        return (scale * self.signs(jobs)).astype(theta.dtype)

    def in_pairs(self, values: Array) -> Array:
        """Return a value a job as a row a pair, [pairs, size of a pair]."""
        return values.reshape(-1, self.size)

    def whole(self, fitness: Float64) -> Array:
        """Return bool[pairs], the pairs of which no job has failed: both halves are dropped with one."""
        failed: Array = np.isnan(self.in_pairs(fitness))
        return np.logical_not(failed.any(axis=1))

    def differences(self, fitness: Float64) -> Float64:
        """Return u(theta + sigma eps) - u(theta - sigma eps) of [pairs, size], or u itself without mirrors."""
        return fitness[:, 0] - fitness[:, 1] if self.mirrored else fitness[:, 0]


ALONE = Pairs(mirrored=False)
