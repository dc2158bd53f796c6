"""Running mean and standard deviation of observations, from sums that are merged in job order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpc_es.core.data import Arrays, Float32, Float64

INITIAL_COUNT = 1e-2  # mean 0 and deviation 1 before any observation
VARIANCE_FLOOR = 1e-2


@dataclass(frozen=True)
class Moments:
    """Sum, sum of squares (float64[observations]) and count of observations."""

    total: Float64
    squares: Float64
    count: float

    @staticmethod
    def initial(width: int) -> Moments:
        """Mean 0, standard deviation 1."""
        return Moments(np.zeros(width), np.full(width, INITIAL_COUNT), INITIAL_COUNT)

    @staticmethod
    def nothing(width: int) -> Moments:
        """Nothing observed, and no mean and deviation to begin with."""
        return Moments(np.zeros(width), np.zeros(width), 0.0)

    @staticmethod
    def of_sums(total: Float64, squares: Float64, count: float, origin: Float64) -> Moments:
        """Return those of a job; `origin` is 0."""
        return Moments(total, squares, count)

    @staticmethod
    def of_normaliser(mean: Float32, deviation: Float32, count: float) -> Moments:
        """Return those of so many observations with this mean and deviation; infinity of inputs that never varied."""
        centre = mean.astype(np.float64)
        variance = np.where(np.isinf(deviation), 0.0, np.square(deviation.astype(np.float64)))
        return Moments(centre * count, (variance + np.square(centre)) * count, count)

    def plus(self, other: Moments) -> Moments:
        """Return the moments of both; the order of additions is the caller's to fix."""
        return Moments(self.total + other.total, self.squares + other.squares, self.count + other.count)

    def mean(self) -> Float32:
        """float32[observations]."""
        return (self.total / self.count).astype(np.float32)

    def deviation(self) -> Float32:
        """Standard deviation, at least 0.1, float32[observations]."""
        variance = self.squares / self.count - np.square(self.total / self.count)
        return np.sqrt(np.maximum(variance, VARIANCE_FLOOR)).astype(np.float32)

    def arrays(self) -> Arrays:
        """As named arrays, to be sent or saved."""
        return {
            "observation_sum": self.total,
            "observation_squares": self.squares,
            "observation_count": np.asarray(self.count, np.float64),
        }

    @staticmethod
    def of(arrays: Arrays) -> Moments:
        """Back from named arrays."""
        count = float(arrays["observation_count"])
        return Moments(arrays["observation_sum"], arrays["observation_squares"], count)
