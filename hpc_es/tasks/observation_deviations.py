"""Running mean and sample deviation of observations: an input that has never varied is known as such, and becomes 0.

Sums of squares lose small deviations of large numbers. So a job's sums are of differences from its first observation,
and jobs are merged by their means (Chan, Golub and LeVeque 1983).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpc_es.core.data import Arrays, Float32, Float64

SMALLEST = 1e-7  # a smaller deviation is none: the input becomes 0
ADDED = 1e-8  # to all others, as in the code of Mania et al. 2018


@dataclass(frozen=True)
class Deviations:
    """Mean, sum of squared differences from it (float64[observations]) and count of observations."""

    centre: Float64
    scatter: Float64
    count: float

    @staticmethod
    def initial(width: int) -> Deviations:
        """Nothing observed: mean 0, deviation 1."""
        return Deviations(np.zeros(width), np.zeros(width), 0.0)

    nothing = initial

    @staticmethod
    def of_sums(total: Float64, squares: Float64, count: float, origin: Float64) -> Deviations:
        """Return those of a job's differences from `origin`: their sum and their squares' sum."""
        mean = total / count
        return Deviations(origin + mean, np.maximum(squares - total * mean, 0.0), count)

    @staticmethod
    def of_normaliser(mean: Float32, deviation: Float32, count: float) -> Deviations:
        """Return those of so many observations with this mean and deviation; infinity of inputs that never varied."""
        scatter = np.where(np.isinf(deviation), 0.0, np.square(deviation.astype(np.float64)) * (count - 1))
        return Deviations(mean.astype(np.float64), scatter, count)

    def plus(self, other: Deviations) -> Deviations:
        """Return the statistics of both; the order of additions is the caller's to fix."""
        if not self.count or not other.count:
            return self if self.count else other
        count, apart = self.count + other.count, other.centre - self.centre
        scatter = self.scatter + other.scatter + np.square(apart) * (self.count * other.count / count)
        return Deviations(self.centre + apart * (other.count / count), scatter, count)

    def mean(self) -> Float32:
        """float32[observations]."""
        return self.centre.astype(np.float32)

    def deviation(self) -> Float32:
        """What differences from the mean are divided by, float32[observations]; infinity where nothing varies."""
        if self.count < 2:
            return np.ones(len(self.centre), np.float32)
        deviation = np.sqrt(self.scatter / (self.count - 1))
        return np.where(deviation < SMALLEST, np.inf, deviation + ADDED).astype(np.float32)

    def arrays(self) -> Arrays:
        """As named arrays, to be sent or saved."""
        return {
            "observation_centre": self.centre,
            "observation_scatter": self.scatter,
            "observation_count": np.asarray(self.count, np.float64),
        }

    @staticmethod
    def of(arrays: Arrays) -> Deviations:
        """Back from named arrays."""
        count = float(arrays["observation_count"])
        return Deviations(arrays["observation_centre"], arrays["observation_scatter"], count)
