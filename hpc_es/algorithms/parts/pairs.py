"""Perturbations of a centre, alone or in mirrored (antithetic) pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpc_es.core.data import Array, Float64, Perturbed, Rows
from hpc_es.core.interfaces import Noise


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

    def perturbed(self, theta: Array, noise: Noise, generation: int, jobs: range, sigma: float) -> Perturbed:
        """Return theta + sigma * eps and theta - sigma * eps for consecutive jobs."""
        directions = [noise.direction(generation, pair, 0, len(theta)) for pair in self.among(jobs)]
        return self.along(theta, np.stack(directions), jobs, sigma)

    def among(self, jobs: range) -> range:
        """Return the pairs of consecutive jobs."""
        return range(self.of(jobs[0]), self.of(jobs[-1]) + 1)

    def signs(self, jobs: range) -> Array:
        """Return 1 of jobs that go along their direction and -1 of those that go against it, int[jobs]."""
        return np.array([-1 if self.mirrored and job % 2 else 1 for job in jobs])

    def along(self, theta: Array, directions: Array, jobs: range, scale: float = 1.0) -> Perturbed:
        """Return theta and scale times the directions of these jobs' pairs, with the jobs' signs."""
        scales = (scale * self.signs(jobs)).astype(theta.dtype)
        return Perturbed(theta, directions, np.array([self.of(job) for job in jobs]) - self.of(jobs[0]), scales)

    def in_pairs(self, values: Array) -> Array:
        """Return a value a job as a row a pair, [pairs, size of a pair]."""
        return values.reshape(-1, self.size)

    def whole(self, rows: Rows) -> Array:
        """Return bool[pairs], the pairs of which no job has failed: both halves are dropped with one."""
        failed: Array = np.isnan(self.in_pairs(rows["return_"]))
        return np.logical_not(failed.any(axis=1))

    def differences(self, fitness: Float64) -> Float64:
        """Return u(theta + sigma eps) - u(theta - sigma eps) of [pairs, size], or u itself without mirrors."""
        return fitness[:, 0] - fitness[:, 1] if self.mirrored else fitness[:, 0]
