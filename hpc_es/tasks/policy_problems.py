"""The problems of a policy that acts in episodes: search for its parameters as a vector, or learn from trajectories."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import Count, Positive, Probability, option, options, unused
from hpc_es.core.data import SIGN_RETURN, Arrays, Column, Float32, Jobs, Normaliser, Outcome, Poll, ProblemState
from hpc_es.core.errors import ConfigError
from hpc_es.core.interfaces import Cutting
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.policy import Actor, Batch, Episodic, Policy, ReferencePolicy, Segments
from hpc_es.core.population import Population
from hpc_es.tasks.observation_statistics import Deviations, Moments
from hpc_es.tasks.problem_defaults import ProblemDefaults
from hpc_es.tasks.random_play import REFERENCE_HASH, random_observations, sha256

SPREAD = 0.1  # initial standard deviation of parameters; the columns of a layer's weights have length 1
UNIT = 16  # jobs whose observations are summed together, the default chunk size of version 0.1
PROBE_BLOCK = 3  # of keys: evaluations in training have 0, `hpc-es eval` 1, `hpc-es bandit-report` 2


@options
class ObservationNormalization:
    """`task.observation_normalization:`, by the running mean and standard deviation of the observations."""

    enabled: bool = option("whether observations are normalised", False)
    probability: Probability = option("fraction of pairs whose observations are added to the statistics", 0.01)
    clip: Positive | None = option("maximum absolute value of normalised observations; null: no clipping", 5.0)
    deviation: Literal["floored", "sample"] = option(
        "divisor: the standard deviation but at least 0.1 (floored, as in OpenAI-ES), or the sample deviation, with "
        "which an input that has never varied becomes 0 (sample, as in ARS)",
        "floored",
    )
    unit: Count = option("number of jobs whose observations are summed together; results depend on it", UNIT)

    @property
    def limit(self) -> float:
        """Maximum absolute value of normalised observations; infinity if they are not clipped."""
        return math.inf if self.clip is None else self.clip

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for each option that has no effect."""
        if not self.enabled:
            yield from unused(self, ("probability", "clip", "deviation", "unit"), "enabled is false")
        elif not self.probability:
            yield "probability", "is 0: no observations are added, so mean and deviation stay 0 and 1 (try 0.01)"


def refuse_normalization(normalization: ObservationNormalization) -> None:
    """Raise ConfigError if normalisation is enabled, for an algorithm that learns from trajectories."""
    if normalization.enabled:
        text = "is true, but algorithms that differentiate trajectories do not support it: expected false"
        raise ConfigError([("task.observation_normalization.enabled", f"{text}, or algorithm.kind: es")])


class PolicyProblem(ProblemDefaults):
    """Search for a policy's parameters, which are evaluated in episodes; it learns the statistics of observations.

    The statistics have a number for each element of a flat observation, or for each channel of an image.

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
        self._info: dict[str, str] = {}
        if isinstance(policy, ReferencePolicy) and policy.reference_frames:
            observations = random_observations(task, keys, policy.reference_frames)
            policy, self._info = policy.with_reference(observations), {REFERENCE_HASH: sha256(observations)}
        self.cutting = cutting if getattr(policy, "rows_are_independent", False) else "fixed"
        self.chunk_size = unit if self.cutting == "fixed" else normalization.unit
        self._task, self._policy, self._keys, self._normalization = task, policy, keys, normalization
        self._statistics: Any = Deviations if normalization.deviation == "sample" else Moments
        self.episodes_per_job = task.episodes_per_job
        self.layout, self.size = policy.layout, policy.layout.size
        self.spread = np.broadcast_to(np.float32(SPREAD), (self.size,))

    def initial(self, rng: np.random.Generator) -> Float32:
        return self._policy.initial(rng)

    def evaluate(self, population: Population, jobs: Jobs, carried: ProblemState, poll: Poll) -> Outcome:
        actor = self._policy.bind(population, self._normaliser(carried))
        return self._task.evaluate(actor, self._batch(jobs), poll)

    def _normaliser(self, carried: ProblemState) -> Normaliser | None:
        if not self._normalization.enabled:
            return None
        return carried.shared["observation_mean"], carried.shared["observation_std"], self._normalization.limit

    def _batch(self, jobs: Jobs) -> Batch:
        # The seeds of a job are those of its group, so that both candidates of a pair play the same episodes.
        training = jobs.purpose == "train"
        seeds = {group: self._seeds(jobs, group) for group in dict.fromkeys(jobs.groups)}
        return Batch(
            seeds=np.stack([seeds[group] for group in jobs.groups]),
            training=training,
            observe=np.array([training and self._is_observed(jobs.generation, group) for group in jobs.groups]),
            action_noise_std=self._policy.action_noise_std,
            action_noise=partial(self._action_noise, jobs.generation, jobs.numbers.start),
            unit=self.chunk_size,
            offset=jobs.offset,
            centred=self._statistics is Deviations,
        )

    def _seeds(self, jobs: Jobs, group: int) -> npt.NDArray[np.int64]:
        purpose = Purpose.ENVIRONMENT if jobs.purpose == "train" else Purpose.EVALUATION
        block = PROBE_BLOCK if jobs.purpose == "probe" else 0
        if self.episodes_per_job == 1:
            return np.array([self._keys.seed31(purpose, jobs.generation, group, block)])
        return self._keys.borrowed(purpose, jobs.generation, group, block).integers(2**31, size=self.episodes_per_job)

    def _is_observed(self, generation: int, group: int) -> bool:
        if not self._normalization.enabled:
            return False
        uniform = self._keys.borrowed(Purpose.OBSERVATION_SAMPLING, generation, group).random()
        return bool(uniform < self._normalization.probability)

    def _action_noise(self, generation: int, first_job: int, job: int) -> np.random.Generator:
        return self._keys.generator(Purpose.ACTION_NOISE, generation, first_job + job)

    def carried(self) -> ProblemState:
        return statistics_state(self._initial_statistics()) if self._normalization.enabled else ProblemState()

    def _initial_statistics(self) -> Any:
        return self._statistics.initial(self._task.spaces.observations.statistics)

    def unit(self, parts: Sequence[Arrays]) -> Arrays:
        statistics = [self._statistics.from_arrays(arrays) for arrays in parts if arrays]
        return reduce(lambda total, item: total.plus(item), statistics).arrays() if statistics else {}

    def merge(self, carried: ProblemState, units: Sequence[Arrays]) -> ProblemState:
        if not self._normalization.enabled:
            return carried
        statistics = self._statistics.from_arrays(carried.master)
        for arrays in units:
            statistics = statistics.plus(self._statistics.from_arrays(arrays)) if arrays else statistics
        return statistics_state(statistics)

    def environment_info(self) -> Mapping[str, Any]:
        """Return the SHA-256 of the reference observations, if the policy has any."""
        return self._info

    def metrics(self, carried: ProblemState) -> Mapping[str, float]:
        """Return `observation_count`, the number of observations in the statistics."""
        if not self._normalization.enabled:
            return {"observation_count": self._initial_statistics().count}
        return {"observation_count": self._statistics.from_arrays(carried.master).count}


def statistics_state(statistics: Any) -> ProblemState:
    """Return statistics (`Moments` or `Deviations`) as a part of the state."""
    shared = {"observation_mean": statistics.mean(), "observation_std": statistics.deviation()}
    return ProblemState(shared, dict(statistics.arrays()))


class PolicyTrajectories(ProblemDefaults):
    """The episodes of a policy, for algorithms that use every step."""

    def __init__(
        self,
        task: Episodic,
        policy: Policy,
        time_limit: int | None,
        compiled: object = None,
        segments: Callable[[], Segments] | None = None,
        columns: tuple[Column, ...] = (),
    ) -> None:
        self.columns = (SIGN_RETURN, *columns)
        self._task, self.policy = task, policy
        self.name, self.spaces, self.episodes_per_job = task.name, task.spaces, task.episodes_per_job
        self.time_limit = time_limit  # in steps
        self.compiled = compiled  # functions with which a graph plays whole episodes; None: not supported
        self.segments = segments  # creates episodes that continue from batch to batch; None: not supported

    def play(self, actor: Actor, batch: Batch, poll: Poll) -> Outcome:
        """Play the episodes of all jobs."""
        return self._task.evaluate(actor, batch, poll)
