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
        pairs = [self.of(job) for job in jobs]
        first = pairs[0]
        directions = [noise.direction(generation, pair, 0, len(theta)) for pair in range(first, pairs[-1] + 1)]
        scales = np.full(len(jobs), sigma, theta.dtype)
        if self.mirrored:
            scales[[job % 2 == 1 for job in jobs]] *= -1
        return Perturbed(theta, np.stack(directions), np.array(pairs) - first, scales)

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
