"""Observations: running mean and standard deviation, and reference observations.

The statistics are merged from the sums of each job, in job order.

`Moments` keeps sums and sums of squares; its standard deviation is at least 0.1, as in OpenAI-ES.
`Deviations` keeps means and sums of squared differences from them, and yields the sample deviation,
with which an input that has never varied becomes 0, as in ARS. Sums of squares lose small
deviations of large numbers; its sums of a job are therefore of differences from the first
observation, and jobs are merged by their means (Chan, Golub and LeVeque 1983).

Reference observations, on which virtual batch normalisation depends, are those of episodes with
random actions. They are functions of the keys, so that every rank, and a later evaluation, plays
the same episodes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import (
    Actions,
    Array,
    Arrays,
    Box,
    Discrete,
    Float32,
    Float64,
    ObservationSpec,
)
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.policy import Batch, Episodic

INITIAL_COUNT = 1e-2  # of observations with mean 0 and standard deviation 1, before the first one
VARIANCE_FLOOR = 1e-2


@dataclass(frozen=True)
class Moments:
    """Sum, sum of squares (float64[observations]) and count of observations."""

    total: Float64
    squares: Float64
    count: float

    @staticmethod
    def initial(width: int) -> Moments:
        """Return mean 0 and standard deviation 1, with a small count."""
        return Moments(np.zeros(width), np.full(width, INITIAL_COUNT), INITIAL_COUNT)

    @staticmethod
    def empty(width: int) -> Moments:
        """Return the moments of no observations."""
        return Moments(np.zeros(width), np.zeros(width), 0.0)

    @staticmethod
    def from_sums(total: Float64, squares: Float64, count: float, origin: Float64) -> Moments:
        """Return the moments of a job from float64[observations] sums; `origin` is not used."""
        return Moments(total, squares, count)

    @staticmethod
    def from_normaliser(mean: Float32, deviation: Float32, count: float) -> Moments:
        """Return the moments of `count` observations with this mean and deviation.

        They are float32[observations]. A standard deviation is infinite for an input that has never
        varied.
        """
        centre = mean.astype(np.float64)
        variance = np.where(np.isinf(deviation), 0.0, np.square(deviation.astype(np.float64)))
        return Moments(centre * count, (variance + np.square(centre)) * count, count)

    def plus(self, other: Moments) -> Moments:
        """Return the moments of both.

        The result depends on the order of additions, which the caller must fix.
        """
        return Moments(
            self.total + other.total, self.squares + other.squares, self.count + other.count
        )

    def mean(self) -> Float32:
        """Return the mean, float32[observations]."""
        return (self.total / self.count).astype(np.float32)

    def deviation(self) -> Float32:
        """Return the standard deviation, at least 0.1, float32[observations]."""
        variance = self.squares / self.count - np.square(self.total / self.count)
        return np.sqrt(np.maximum(variance, VARIANCE_FLOOR)).astype(np.float32)

    def arrays(self) -> Arrays:
        """Return the moments as named arrays, for messages and checkpoints."""
        return {
            "observation_sum": self.total,
            "observation_squares": self.squares,
            "observation_count": np.asarray(self.count, np.float64),
        }

    @staticmethod
    def from_arrays(arrays: Arrays) -> Moments:
        """Return the moments from the result of `arrays`."""
        count = float(arrays["observation_count"])
        return Moments(arrays["observation_sum"], arrays["observation_squares"], count)


SMALLEST_DEVIATION = 1e-7  # an input with a smaller one becomes 0
ADDED_DEVIATION = 1e-8  # added to the others, as in the code of Mania et al. 2018


@dataclass(frozen=True)
class Deviations:
    """Mean, sum of squared differences from it, and count of observations.

    The first two are float64[observations].
    """

    centre: Float64
    scatter: Float64
    count: float

    @staticmethod
    def initial(width: int) -> Deviations:
        """Return the statistics of no observations: mean 0, standard deviation 1."""
        return Deviations(np.zeros(width), np.zeros(width), 0.0)

    empty = initial

    @staticmethod
    def from_sums(total: Float64, squares: Float64, count: float, origin: Float64) -> Deviations:
        """Return the statistics of a job from sums of differences and of their squares.

        The differences are those from `origin`; all three are float64[observations].
        """
        mean = total / count
        return Deviations(origin + mean, np.maximum(squares - total * mean, 0.0), count)

    @staticmethod
    def from_normaliser(mean: Float32, deviation: Float32, count: float) -> Deviations:
        """Return the statistics of `count` observations with this mean and deviation.

        They are float32[observations]. A standard deviation is infinite for an input that has never
        varied.
        """
        scatter = np.where(
            np.isinf(deviation), 0.0, np.square(deviation.astype(np.float64)) * (count - 1)
        )
        return Deviations(mean.astype(np.float64), scatter, count)

    def plus(self, other: Deviations) -> Deviations:
        """Return the statistics of both.

        The result depends on the order of additions, which the caller must fix.
        """
        if not self.count or not other.count:
            return self if self.count else other
        count, difference = self.count + other.count, other.centre - self.centre
        scatter = (
            self.scatter
            + other.scatter
            + np.square(difference) * (self.count * other.count / count)
        )
        return Deviations(self.centre + difference * (other.count / count), scatter, count)

    def mean(self) -> Float32:
        """Return the mean, float32[observations]."""
        return self.centre.astype(np.float32)

    def deviation(self) -> Float32:
        """Return the sample deviation, float32[observations].

        It is infinite for an input that has never varied.
        """
        if self.count < 2:
            return np.ones(len(self.centre), np.float32)
        deviation = np.sqrt(self.scatter / (self.count - 1))
        return np.where(deviation < SMALLEST_DEVIATION, np.inf, deviation + ADDED_DEVIATION).astype(
            np.float32
        )

    def arrays(self) -> Arrays:
        """Return the statistics as named arrays, for messages and checkpoints."""
        return {
            "observation_centre": self.centre,
            "observation_scatter": self.scatter,
            "observation_count": np.asarray(self.count, np.float64),
        }

    @staticmethod
    def from_arrays(arrays: Arrays) -> Deviations:
        """Return the statistics from the result of `arrays`."""
        count = float(arrays["observation_count"])
        return Deviations(arrays["observation_centre"], arrays["observation_scatter"], count)


NAMES = frozenset(
    f"observation_{name}"
    for name in ("mean", "std", "sum", "squares", "centre", "scatter", "count")
)


def not_finite(*states: Arrays) -> str:
    """Return the name of the first statistics in a state that are not finite, or "".

    A standard deviation is infinite for an input that has never varied. Only versions before 0.2
    have added infinite observations to the statistics, which then stay infinite or NaN.
    """
    for name, array in (item for arrays in states for item in arrays.items()):
        # with `algorithm.delay` there are those of earlier generations
        own = name.rpartition("/")[2]
        if (
            own in NAMES
            and not (~np.isnan(array) if own == "observation_std" else np.isfinite(array)).all()
        ):
            return name
    return ""


class ObservationSums:
    """Sums and sums of squares of the observations of each observed job.

    They are float64[observed jobs, width]. `width` is the size of a flat observation, or the number
    of channels (the last axis) of an image. For sample deviations the sums are those of differences
    from the job's first observation.
    """

    def __init__(self, batch: Batch, spec: ObservationSpec) -> None:
        width, self._is_flat = spec.statistics, spec.is_flat
        # numbers per observation and mean: 1, or the pixels of a channel
        self._per_step = spec.size // width
        self._jobs, self._unit, self._centred = (
            np.flatnonzero(batch.observe),
            batch.unit,
            batch.centred,
        )
        self._offset = batch.offset
        self._index = {job: index for index, job in enumerate(self._jobs.tolist())}
        self._origin = np.zeros((len(self._jobs), width))
        self._total = np.zeros((len(self._jobs), width))
        self._squares = np.zeros((len(self._jobs), width))
        self._count = np.zeros(len(self._jobs))

    def add(self, observations: Array, jobs: list[int], live: list[int]) -> None:
        """Add one step's observations [rows, *shape].

        `jobs` are those of all rows, `live` the running rows.
        """
        if not self._index:
            return
        rows = [row for row in live if jobs[row] in self._index]
        indices = [self._index[jobs[row]] for row in rows]
        values = observations[rows].astype(np.float64)
        if not self._is_flat:
            values = values.reshape(len(rows), self._per_step, -1)
        if self._centred:
            is_first = self._count[indices] == 0
            if is_first.any():
                self._origin[np.array(indices)[is_first]] = (
                    values[is_first] if self._is_flat else values[is_first, 0]
                )
            values -= (
                self._origin[indices] if self._is_flat else self._origin[indices][:, np.newaxis]
            )
        squares = np.square(values)
        self._total[indices] += values if self._is_flat else values.sum(axis=1)
        self._squares[indices] += squares if self._is_flat else squares.sum(axis=1)
        self._count[indices] += self._per_step

    def set_job(self, job: int, total: Array, squares: Array, count: float, origin: Array) -> None:
        """Set the sums of a job, float64[width], of differences from `origin`, float64[width]."""
        index = self._index[job]
        self._total[index], self._squares[index], self._origin[index] = total, squares, origin
        self._count[index] = count

    def units(self, failed: Array) -> list[list[Arrays]]:
        """Return the statistics of each unit of jobs.

        For a unit that is not complete they are those of each of its jobs. `failed` is bool[jobs].
        """
        jobs = len(failed)
        size = self._unit or max(jobs, 1)
        units = []
        for start in range(-self._offset, jobs, size):
            unit = range(max(start, 0), min(start + size, jobs))
            parts = [unit] if len(unit) == size else [range(job, job + 1) for job in unit]
            units.append([self.arrays(failed, part) for part in parts])
        return units

    def arrays(self, failed: Array, jobs: range) -> Arrays:
        """Return the statistics of some jobs, in order, without failed ones.

        {} if none is observed. `failed` is bool[jobs of the chunk].
        """
        observed = [(index, job) for index, job in enumerate(self._jobs.tolist()) if job in jobs]
        if not observed:
            return {}
        kind: Any = Deviations if self._centred else Moments
        statistics = kind.empty(self._total.shape[1])
        for index, job in observed:
            if not failed[job]:
                sums = (
                    self._total[index],
                    self._squares[index],
                    self._count[index],
                    self._origin[index],
                )
                statistics = statistics.plus(kind.from_sums(*sums))
        arrays: Arrays = statistics.arrays()
        return arrays


# name of their SHA-256 in `Problem.environment_info` and in checkpoints
REFERENCE_HASH = "reference_observations"
INTERVAL = 10  # steps from one observation to the next, since successive ones are similar


def random_observations(task: Episodic, keys: Keys, count: int) -> Array:
    """Return every tenth observation of episodes with random actions, [count, *shape].

    Raises:
        ConfigError: an episode fails.
    """
    spec = task.spaces.observations
    observations: list[Array] = []
    steps = episode = 0
    while len(observations) < count:
        actor = RandomActor(
            task.spaces.actions, keys.generator(Purpose.REFERENCE, index=episode, block=1), steps
        )
        rng = keys.generator(Purpose.REFERENCE, index=episode)
        batch = Batch(
            seeds=rng.integers(2**31, size=(1, task.episodes_per_job)),
            training=False,
            observe=np.zeros(1, np.bool_),
            action_noise_std=0.0,
            action_noise=np.random.default_rng,  # unused
        )
        outcome = task.evaluate(actor, batch, lambda: None)
        if outcome.failures:
            raise ConfigError(
                [
                    (
                        "policy.normalisation",
                        "is virtual_batch, which needs observations of random play, but an episode of "
                        f"random actions fails: {outcome.failures[0].text}",
                    )
                ]
            )
        observations += actor.observations
        steps, episode = actor.steps, episode + 1
    return np.stack(observations[:count]).astype(spec.dtype, copy=False)


def sha256(observations: Array) -> str:
    """Return the SHA-256 of observations, [count, *shape], in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(observations).tobytes()).hexdigest()


class RandomActor:
    """Takes random actions in an episode, and keeps observations.

    They are those of the steps divisible by INTERVAL.
    """

    def __init__(self, space: Actions, rng: np.random.Generator, steps: int) -> None:
        self._space, self._rng, self.steps = space, rng, steps
        self.observations: list[Array] = []

    def act(self, observations: Array) -> Array:
        if self.steps % INTERVAL == 0:
            self.observations.append(observations[0].copy())
        self.steps += 1
        return random_actions(self._space, self._rng, len(observations))

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Do nothing: rows have no parameters."""

    def restart(self, row: int) -> None:
        """Do nothing: there is no memory."""


def random_actions(space: Actions, rng: np.random.Generator, rows: int) -> Array:
    """Return uniform actions of all rows.

    They are float32[rows, actions] (Box), int64[rows] (Discrete) or int64[rows, choices]. Those of
    a Box are between its bounds, where -1 and 1 replace infinite ones.
    """
    if isinstance(space, Discrete):
        return rng.integers(space.start, space.start + space.n, rows)
    if isinstance(space, Box):
        low, high = (
            np.where(np.isfinite(space.low), space.low, -1),
            np.where(np.isfinite(space.high), space.high, 1),
        )
        uniform = rng.uniform(np.minimum(low, high), np.maximum(low, high), (rows, len(low)))
        return np.clip(uniform.astype(np.float32), space.low, space.high)
    return rng.integers(space.counts, size=(rows, len(space.counts)))
