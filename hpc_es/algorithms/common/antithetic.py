"""Antithetic (mirrored) pairs: which jobs share a perturbation, and its sign in each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpc_es.core.data import Array, Float64
from hpc_es.core.population import Directions, Layout, Perturbed


@dataclass(frozen=True)
class Pairs:
    """Assignment of jobs to perturbations.

    If mirrored, jobs 2 i and 2 i + 1 are pair i: they use its perturbation with the signs + and -. Otherwise each job
    is a pair of one job with a perturbation of its own.
    """

    mirrored: bool

    @property
    def size(self) -> int:
        """Number of jobs per pair, 1 or 2."""
        return 2 if self.mirrored else 1

    def of(self, job: int) -> int:
        """Return the index of a job's pair."""
        return job // self.size

    def among(self, jobs: range) -> range:
        """Return the indices of the pairs of consecutive jobs."""
        return range(self.of(jobs[0]), self.of(jobs[-1]) + 1)

    def signs(self, jobs: range) -> Array:
        """Return the sign of each job's perturbation, 1 or -1, int64[jobs]."""
        return 1 - 2 * (np.arange(jobs.start, jobs.stop) % 2) if self.mirrored else np.ones(len(jobs), np.int64)

    def along(
        self, layout: Layout, theta: Array, directions: Directions | Array, jobs: range, scale: float = 1.0
    ) -> Perturbed:
        """Return the candidates theta + sign * scale * direction of consecutive jobs; theta is dtype[params].

        `directions`, [pairs, params], are those of the jobs' pairs.
        """
        pair_of_job = np.arange(jobs.start, jobs.stop, dtype=np.intp) // self.size - self.of(jobs.start)
        scales = (scale * self.signs(jobs)).astype(theta.dtype)
        return Perturbed(layout, theta[np.newaxis], directions, pair_of_job, scales)

    def in_pairs(self, values: Array) -> Array:
        """Return one value per job, [jobs], as one row per pair, [pairs, jobs per pair]."""
        return values.reshape(-1, self.size)

    def whole(self, fitness: Float64) -> Array:
        """Return which pairs have no failed job (NaN), bool[pairs]; fitness is float64[jobs]."""
        failed: Array = np.isnan(self.in_pairs(fitness))
        return np.logical_not(failed.any(axis=1))

    def differences(self, fitness: Float64) -> Float64:
        """Return F+ - F- of each pair (F if not mirrored), float64[pairs], of float64[pairs, jobs per pair]."""
        return fitness[:, 0] - fitness[:, 1] if self.mirrored else fitness[:, 0]


ALONE = Pairs(mirrored=False)
