"""The problems that a policy and the episodes of a task make: its parameters as a vector, or its trajectories."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Literal, Protocol

import numpy as np

from hpc_es.config.options import Count, Positive, Probability, option, options, unused
from hpc_es.core.data import SIGN_RETURN, Arrays, Column, Float32, Jobs, Normaliser, Outcome, Poll, ProblemState, Spaces
from hpc_es.core.errors import ConfigError
from hpc_es.core.interfaces import Cutting
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.policy import Actor, Batch, Policy, Segments
from hpc_es.core.population import Population
from hpc_es.tasks.observation_statistics import Deviations, Moments
from hpc_es.tasks.problem_defaults import ProblemDefaults

SPREAD = 0.1  # of parameters, of which a layer's columns have the length 1
UNIT = 16  # jobs whose observations are summed as one, as in version 0.1 with its default chunks
PROBE_BLOCK = 3  # of evaluation's keys: training's evaluations have 0, `hpc-es eval` 1, `hpc-es bandit-report` 2


@options
class ObservationNormalization:
    """`task.observation_normalization:`, running mean and standard deviation of the observations."""

    enabled: bool = option("normalise what the policy sees", False)
    probability: Probability = option("share of pairs whose observations are added to the statistics", 0.01)
    clip: Positive | None = option("normalised observations are clipped to [-clip, clip]; null: not", 5.0)
    deviation: Literal["floored", "sample"] = option(
        "what they are divided by: a deviation of at least 0.1 (OpenAI-ES), or the sample's, where an input that has "
        "never varied becomes 0 (ARS)",
        "floored",
    )
    unit: Count = option("jobs of a round whose observations are summed first; part of the result", UNIT)

    @property
    def limit(self) -> float:
        """The largest normalised observation; infinity where none is clipped."""
        return math.inf if self.clip is None else self.clip

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield what has no effect: (key, text)."""
        if not self.enabled:
            yield from unused(self, ("probability", "clip", "deviation", "unit"), "enabled is false")
        elif not self.probability:
            yield "probability", "is 0: nothing is ever observed, so mean and deviation stay 0 and 1 (try 0.01)"


class Episodic(Protocol):
    """A task that plays episodes with an actor."""

    name: str
    spaces: Spaces
    episodes_per_job: int

    def evaluate(self, actor: Actor, batch: Batch, poll: Poll) -> Outcome:
        """Run every job's episodes."""
        ...


def refuse_normalization(normalization: ObservationNormalization) -> None:
    """Raise ConfigError where observations are to be normalised by an algorithm that learns from trajectories."""
    if normalization.enabled:
        text = "is true, but an algorithm that differentiates trajectories sees observations as they are"
        raise ConfigError(
            [("task.observation_normalization.enabled", f"{text}: expected false, or algorithm.kind: es")]
        )


class PolicyProblem(ProblemDefaults):
    """A policy's parameters, evaluated by episodes; what it learns is the observations' mean and deviation.

    Its statistics have a number for each element of a flat observation, or for each channel of an image.

    State, shared:
        observation_mean: float32[observations], if observation_normalization.enabled; mean
        observation_std: float32[observations], if observation_normalization.enabled; divisor of the differences from it
    State, master:
        observation_count: float64[], if observation_normalization.enabled; number of observations
        observation_sum: float64[observations], if observation_normalization.deviation is floored; sum
        observation_squares: float64[observations], if observation_normalization.deviation is floored; sum of squares
        observation_centre: float64[observations], if observation_normalization.deviation is sample; mean
        observation_scatter: float64[observations], if observation_normalization.deviation is sample; squared deviations
    """

    dtype = np.dtype(np.float32)

    def __init__(
        self,
        task: Episodic,
        policy: Policy,
        keys: Keys,
        normalization: ObservationNormalization,
        unit: int,
        columns: tuple[Column, ...] = (),
        cutting: Cutting = "fixed",
    ) -> None:
        self.columns = (SIGN_RETURN, *columns)
        self.cutting = cutting if getattr(policy, "rows_are_independent", False) else "fixed"
        self.chunk_size = unit if self.cutting == "fixed" else normalization.unit
        self._task, self._policy, self._keys, self._normalization = task, policy, keys, normalization
        self._statistics: Any = Deviations if normalization.deviation == "sample" else Moments
        self.episodes_per_job = task.episodes_per_job
        self.layout, self.size = policy.layout, policy.layout.size
        self.spread = np.broadcast_to(np.float32(SPREAD), (self.size,))

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return the policy's initial parameters, float32[size]."""
        return self._policy.initial(rng)

    def evaluate(self, population: Population, jobs: Jobs, carried: ProblemState, poll: Poll) -> Outcome:
        """Play every job's episodes with its own parameters."""
        actor = self._policy.bind(population, self._normaliser(carried))
        return self._task.evaluate(actor, self._batch(jobs), poll)

    def _normaliser(self, carried: ProblemState) -> Normaliser | None:
        if not self._normalization.enabled:
            return None
        return carried.shared["observation_mean"], carried.shared["observation_std"], self._normalization.limit

    def _batch(self, jobs: Jobs) -> Batch:
        """Seeds by group, so that both halves of a pair meet the same episodes; evaluation has seeds of its own."""
        training = jobs.purpose == "train"
        seeds = {group: self._seeds(jobs, group) for group in dict.fromkeys(jobs.groups)}
        return Batch(
            seeds=np.stack([seeds[group] for group in jobs.groups]),
            training=training,
            observe=np.array([training and self._observed(jobs.generation, group) for group in jobs.groups]),
            action_noise_std=self._policy.action_noise_std,
            action_noise=partial(self._action_noise, jobs.generation, jobs.numbers.start),
            unit=self.chunk_size,
            offset=jobs.offset,
            centred=self._statistics is Deviations,
        )

    def _seeds(self, jobs: Jobs, group: int) -> Any:
        purpose = Purpose.ENVIRONMENT if jobs.purpose == "train" else Purpose.EVALUATION
        block = PROBE_BLOCK if jobs.purpose == "probe" else 0
        if self.episodes_per_job == 1:
            return np.array([self._keys.seed31(purpose, jobs.generation, group, block)])
        return self._keys.borrowed(purpose, jobs.generation, group, block).integers(2**31, size=self.episodes_per_job)

    def _observed(self, generation: int, group: int) -> bool:
        if not self._normalization.enabled:
            return False
        drawn = self._keys.borrowed(Purpose.OBSERVATION_SAMPLING, generation, group).random()
        return bool(drawn < self._normalization.probability)

    def _action_noise(self, generation: int, first_job: int, place: int) -> np.random.Generator:
        return self._keys.generator(Purpose.ACTION_NOISE, generation, first_job + place)

    def carried(self) -> ProblemState:
        """Return mean 0 and standard deviation 1, where observations are normalised."""
        return carried_statistics(self._nothing_seen()) if self._normalization.enabled else ProblemState()

    def _nothing_seen(self) -> Any:
        return self._statistics.initial(self._task.spaces.observations.statistics)

    def unit(self, parts: Sequence[Arrays]) -> Arrays:
        """Return the statistics of a unit of jobs: those of its parts, added in their order."""
        statistics = [self._statistics.of(arrays) for arrays in parts if arrays]
        return reduce(lambda so_far, more: so_far.plus(more), statistics).arrays() if statistics else {}

    def merge(self, carried: ProblemState, units: Sequence[Arrays]) -> ProblemState:
        """Return the statistics with those of more observations, added in the order of the units."""
        if not self._normalization.enabled:
            return carried
        statistics = self._statistics.of(carried.master)
        for arrays in units:
            statistics = statistics.plus(self._statistics.of(arrays)) if arrays else statistics
        return carried_statistics(statistics)

    def metrics(self, carried: ProblemState) -> Mapping[str, float]:
        """Return how many observations the statistics are of."""
        seen = self._statistics.of(carried.master) if self._normalization.enabled else self._nothing_seen()
        return {"observation_count": seen.count}


def carried_statistics(statistics: Any) -> ProblemState:
    """Return statistics of observations as a part of the state."""
    shared = {"observation_mean": statistics.mean(), "observation_std": statistics.deviation()}
    return ProblemState(shared, dict(statistics.arrays()))


class PolicyTrajectories(ProblemDefaults):
    """The episodes of a policy, for algorithms that see every step."""

    def __init__(
        self,
        task: Episodic,
        policy: Policy,
        time_limit: int | None,
        compiled: Any = None,
        segments: Callable[[], Segments] | None = None,
        columns: tuple[Column, ...] = (),
    ) -> None:
        self.columns = (SIGN_RETURN, *columns)
        self._task, self.policy = task, policy
        self.name, self.spaces, self.episodes_per_job = task.name, task.spaces, task.episodes_per_job
        self.time_limit = time_limit  # in steps
        self.compiled = compiled  # what a graph needs to play whole episodes itself; None: nothing can
        self.segments = segments  # what makes episodes that go on from batch to batch; None: nothing does

    def play(self, actor: Actor, batch: Batch, poll: Poll) -> Outcome:
        """Run every job's episodes."""
        return self._task.evaluate(actor, batch, poll)
