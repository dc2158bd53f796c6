"""Running mean and standard deviation of observations, from sums that are merged in job order.

Running mean and sample deviation of observations: an input that has never varied is known as such, and becomes 0.

Sums of squares lose small deviations of large numbers. So a job's sums are of differences from its first observation,
and jobs are merged by their means (Chan, Golub and LeVeque 1983).


Sums of the observations that a chunk's policies saw, for the normaliser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Arrays, Float32, Float64, ObservationSpec
from hpc_es.core.policy import Batch

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
