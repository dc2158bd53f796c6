"""Base classes of problems with defaults, and the problems of a policy that acts in episodes.

A policy's problem is the search for its parameters as a vector, or learning from trajectories.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import Count, Positive, Probability, option, options, unused
from hpc_es.core.data import (
    SIGN_RETURN,
    Array,
    Arrays,
    Column,
    Float32,
    Float64,
    FloatDtype,
    Jobs,
    JsonObject,
    Normaliser,
    Outcome,
    Poll,
    ProblemState,
    Results,
    Rows,
    State,
)
from hpc_es.core.errors import ConfigError, RunError
from hpc_es.core.interfaces import (
    CompiledEpisodes,
    Cutting,
    Evaluation,
    MixedCoordinates,
    RunContext,
    VectorProblem,
)
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.policy import Actor, Batch, Episodic, Policy, ReferencePolicy, Segments, Traits
from hpc_es.core.population import Layout, Population, unperturbed
from hpc_es.core.quantities import CONSTRAINTS, NONE, OBJECTIVES, Quantities, fitness_of, ranked_by
from hpc_es.core.tabulated import TabulatedEpisodes
from hpc_es.devices import jax_setup
from hpc_es.devices.backend import Backend, backend
from hpc_es.tasks.observation_statistics import (
    REFERENCE_HASH,
    Deviations,
    Moments,
    random_observations,
    sha256,
)

SPREAD = 0.3  # initial standard deviation of a coordinate, where a problem has no bounds


class ProblemDefaults:
    """Base class of problems, with defaults for all methods but those of their kind.

    The problem has no arrays in the state, and the chunks and evaluations of the config. See
    `Problem`; `VectorProblemDefaults` has an example.
    """

    columns: tuple[Column, ...] = ()
    is_objective = False
    episodes_per_job = 1
    less_noise = ""
    chunk_size: int | None = None
    cutting: Cutting = "fixed"
    call_size = 1
    evaluation_episodes: int | None = None
    notices: tuple[str, ...] = ()
    coordinate_names: tuple[str, ...] = ()
    mixed: MixedCoordinates | None = None
    changing_fitness = False
    relative_fitness = False
    derives_fitness = False
    combines_units = False
    quantities = NONE

    def __init_subclass__(cls) -> None:
        """Declare what a subclass defines, unless it does so itself."""
        super().__init_subclass__()
        for declared, method in (("derives_fitness", "fitness"), ("combines_units", "unit")):
            if method in vars(cls) and declared not in vars(cls):
                setattr(cls, declared, True)

    def first_candidates(self, population: int) -> Array | None:
        """Return None: the first candidates are samples."""
        return None

    def carried(self) -> ProblemState:
        """Return an empty state."""
        return ProblemState()

    def merge(self, carried: ProblemState, units: Sequence[Arrays]) -> ProblemState:
        """Return the unchanged state."""
        return carried

    def unit(self, parts: Sequence[Arrays]) -> Arrays:
        """Return the only part, since only a subclass knows how to combine several.

        Raises:
            RunError: there are several.
        """
        if len(parts) != 1:
            raise RunError(
                f"{type(self).__name__}: expected 1 dict in Outcome.learned for each unit of "
                f"jobs, found {len(parts)}: return 1, or define unit(parts), "
                "which combines several"
            )
        return parts[0]

    def fitness(self, rows: Rows, carried: ProblemState) -> Float64:
        """Return the returns of the rows, float64[jobs]."""
        returns: Float64 = rows["return_"]
        return returns

    def metrics(self, carried: ProblemState) -> Mapping[str, float]:
        """Return no metrics."""
        return {}

    def evaluation_units(self, state: State, evaluation: Rows) -> Sequence[Arrays]:
        """Return no units."""
        return ()

    def is_reached(self, carried: ProblemState, target: float) -> bool:
        """Return False: the jobs have no values."""
        return False

    def summary(self, carried: ProblemState) -> JsonObject:
        """Return an empty summary."""
        return {}

    def open(self, run: RunContext) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Do nothing."""

    def environment_info(self) -> JsonObject:
        """Return nothing: results depend on the config and the versions only."""
        return {}

    def on_checkpoint(self, generation: int) -> None:
        """Do nothing."""

    def evaluations(
        self, state: State, results: Results[object], evaluation: Rows
    ) -> Iterator[Evaluation]:
        """Yield nothing."""
        return iter(())


class VectorProblemDefaults(ProblemDefaults):
    """Base class of vector problems: a subclass defines `layout`, `initial` and `evaluate`.

    Vectors are float64; the initial standard deviation is 0.3 for strategies whose config has no
    sigma.

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import Layout, Outcome, VectorProblemDefaults, row_dtype
        >>> class Sphere(VectorProblemDefaults):
        ...     layout = Layout({"x": (10,)})
        ...
        ...     def initial(self, rng):
        ...         return rng.normal(size=self.size)
        ...
        ...     def evaluate(self, population, jobs, carried, poll):
        ...         rows = np.zeros(len(jobs), row_dtype(self.columns))
        ...         rows["return_"] = -np.square(population.stacked()).sum(axis=1)
        ...         return Outcome(rows)

        A test needs neither a run nor other ranks:

        >>> from hpc_es.extend import Jobs, ProblemState, unperturbed
        >>> ones = unperturbed(Sphere.layout, np.ones(10), jobs=2)
        >>> jobs = Jobs(generation=0, numbers=range(2), groups=[0, 1])
        >>> Sphere().evaluate(ones, jobs, ProblemState(), lambda: None).rows["return_"]
        array([-10., -10.])
    """

    layout: Layout
    dtype: FloatDtype = np.dtype(np.float64)

    @cached_property
    def size(self) -> int:
        """Number of coordinates."""
        return self.layout.size

    @cached_property
    def spread(self) -> Array:
        """Initial standard deviations, dtype[size], for strategies whose config has no sigma."""
        return np.full(self.size, SPREAD, self.dtype)


@dataclass(frozen=True)
class VectorTask:
    """A task without a policy, whose problem is created from the keys of a repetition.

    Examples:
        >>> from hpc_es.extend import VectorTask
        >>> task = VectorTask("sphere", lambda keys: ...)  # such as Sphere()
        >>> task.name, task.spaces
        ('sphere', None)
    """

    name: str  # name in messages and plots
    make: Callable[[Keys], VectorProblem]  # creates the problem from the keys of a repetition
    spaces: None = None

    def problem(self, searched: str, policy: None, keys: Keys, unit: int) -> VectorProblem:
        """Return the result of `make`."""
        return self.make(keys)

    def close(self) -> None:
        """Do nothing."""


# initial standard deviation of parameters; the columns of a layer's weights have length 1
PARAMETER_SPREAD = 0.1
UNIT = 16  # jobs whose observations are summed together, the default chunk size of version 0.1
# of keys: evaluations in training have 0, `hpc-es eval` 1, reports of extensions 2
PROBE_BLOCK = 3


@options
class ObservationNormalization:
    """`task.observation_normalization:`, by running mean and standard deviation."""

    enabled: bool = option("whether observations are normalised", False)
    probability: Probability = option(
        "fraction of pairs whose observations are added to the statistics", 0.01
    )
    clip: Positive | None = option(
        "maximum absolute value of normalised observations; null: no clipping", 5.0
    )
    deviation: Literal["floored", "sample"] = option(
        "divisor: the standard deviation but at least 0.1 (floored, as in OpenAI-ES), or the sample deviation, with "
        "which an input that has never varied becomes 0 (sample, as in ARS)",
        "floored",
    )
    unit: Count = option(
        "number of jobs whose observations are summed together; results depend on it", UNIT
    )

    @property
    def limit(self) -> float:
        """Maximum absolute value of normalised observations; infinity if they are not clipped."""
        return math.inf if self.clip is None else self.clip

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for each option that has no effect."""
        if not self.enabled:
            yield from unused(
                self, ("probability", "clip", "deviation", "unit"), "enabled is false"
            )
        elif not self.probability:
            yield (
                "probability",
                "is 0: no observations are added, so mean and deviation stay 0 and 1, or those "
                "of policy.init_observations (try 0.01)",
            )


def refuse_common_seeds(common_seeds: bool) -> None:
    """Raise ConfigError for common seeds of an algorithm that learns from trajectories."""
    if common_seeds:
        raise ConfigError(
            [
                (
                    "task.common_seeds",
                    "is true, but the algorithm learns from trajectories, and has no candidates to "
                    "compare: expected false",
                )
            ]
        )


def refuse_normalization(normalization: ObservationNormalization) -> None:
    """Raise ConfigError if normalisation is enabled.

    For algorithms that learn from trajectories.
    """
    if normalization.enabled:
        raise ConfigError(
            [
                (
                    "task.observation_normalization.enabled",
                    "is true, but algorithms that differentiate trajectories do not support it: "
                    "expected false, or algorithm.kind: es",
                )
            ]
        )


def refuse_quantities(quantities: Quantities) -> None:
    """Raise ConfigError if something but returns would rank jobs.

    For algorithms that learn from trajectories.
    """
    for group in (OBJECTIVES, CONSTRAINTS):
        if group in quantities.groups:
            raise ConfigError(
                [
                    (
                        f"task.{group}",
                        "is set, but algorithms that differentiate trajectories follow returns: "
                        "expected null, or an algorithm that ranks jobs, such as algorithm.kind: es",
                    )
                ]
            )


class PolicyProblem(ProblemDefaults):
    """Search for a policy's parameters, which are evaluated in episodes.

    It learns the statistics of observations, with a number for each element of a flat observation,
    or for each channel of an image.

    State, shared:
        observation_mean: float32[observations], if observation_normalization.enabled; mean
        observation_std: float32[observations], if observation_normalization.enabled; divisor of the
            differences from it
    State, master:
        observation_count: float64[], if observation_normalization.enabled; number of observations
        observation_sum: float64[observations], if observation_normalization.deviation is floored;
            sum
        observation_squares: float64[observations], if observation_normalization.deviation is
            floored; sum of squares
        observation_centre: float64[observations], if observation_normalization.deviation is sample;
            mean
        observation_scatter: float64[observations], if observation_normalization.deviation is
            sample; squared deviations
    """

    dtype = np.dtype(np.float32)
    derives_fitness = False

    def __init__(
        self,
        task: Episodic,
        policy: Policy,
        keys: Keys,
        normalization: ObservationNormalization,
        unit: int,
        columns: tuple[Column, ...] = (),
        cutting: Cutting = "fixed",
        quantities: Quantities = NONE,
    ) -> None:
        self.columns, self.quantities = (SIGN_RETURN, *columns), quantities
        self.derives_fitness, self.relative_fitness = (
            ranked_by(quantities),
            bool(quantities.constraints),
        )
        if normalization.enabled and Traits.of(policy).scales_observations:
            raise ConfigError(
                [
                    (
                        "task.observation_normalization.enabled",
                        "is true, but the policy scales observations itself: expected false",
                    )
                ]
            )
        self._reference_info: dict[str, str] = {}
        if isinstance(policy, ReferencePolicy) and policy.reference_frames:
            observations = random_observations(task, keys, policy.reference_frames)
            policy, self._reference_info = (
                policy.with_reference(observations),
                {REFERENCE_HASH: sha256(observations)},
            )
        traits = Traits.of(policy)
        self.cutting = cutting if traits.rows_are_independent else "fixed"
        self.call_size = traits.candidates_per_call
        self.chunk_size = unit if self.cutting == "fixed" else normalization.unit
        self._task, self._policy, self._keys, self._normalization = (
            task,
            policy,
            keys,
            normalization,
        )
        self._statistics: Any = Deviations if normalization.deviation == "sample" else Moments
        self.episodes_per_job = task.episodes_per_job
        self.less_noise = "more task.episodes_per_job"
        # whether all candidates of a generation play the same episodes
        self.common_seeds = False
        self.layout, self.size = policy.layout, policy.layout.size
        self.spread = np.broadcast_to(np.float32(PARAMETER_SPREAD), (self.size,))

    def initial(self, rng: np.random.Generator) -> Float32:
        return self._policy.initial(rng)

    def fitness(self, rows: Rows, carried: ProblemState) -> Float64:
        """Return the fitness by the first objective, by default the return, and the constraints."""
        return fitness_of(self.quantities, rows)

    def open(self, run: RunContext) -> None:
        """Compile the policy if a library does.

        Raises RunError if rank 0 has another layout, as with names in the order of a set, which
        differs by process.
        """
        library = _open_library(self._policy, run)
        if library is not None:
            library.compile(run, self._act_once)

    def _act_once(self) -> None:
        """Let one candidate act, which compiles calls of any candidates."""
        spec = self._task.spaces.observations
        # of normalised observations
        dtype = np.dtype(np.float32) if self._normalization.enabled else spec.dtype
        actor = self._policy.bind(
            unperturbed(self.layout, np.zeros(self.size, self.dtype), 1), None
        )
        actor.act(np.zeros((1, *spec.shape), dtype))

    def evaluate(
        self, population: Population, jobs: Jobs, carried: ProblemState, poll: Poll
    ) -> Outcome:
        bind = partial(self._policy.bind, population, self._normaliser(carried))
        # folding takes a while
        actor = jax_setup.in_thread(bind, poll) if self._reference_info else bind()
        return self._task.evaluate(actor, self._batch(jobs), poll)

    def _normaliser(self, carried: ProblemState) -> Normaliser | None:
        if not self._normalization.enabled:
            return None
        return (
            carried.shared["observation_mean"],
            carried.shared["observation_std"],
            self._normalization.limit,
        )

    def _batch(self, jobs: Jobs) -> Batch:
        # The seeds of a job are those of its group, so that both candidates of a pair play the same
        # episodes.
        training = jobs.purpose == "train"
        groups = jobs.seed_groups(self.common_seeds)
        seeds = {group: self._seeds(jobs, group) for group in dict.fromkeys(groups)}
        return Batch(
            seeds=np.stack([seeds[group] for group in groups]),
            training=training,
            observe=np.array(
                [training and self._is_observed(jobs.generation, group) for group in jobs.groups]
            ),
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
        return self._keys.borrowed(purpose, jobs.generation, group, block).integers(
            2**31, size=self.episodes_per_job
        )

    def _is_observed(self, generation: int, group: int) -> bool:
        if not self._normalization.enabled:
            return False
        uniform = self._keys.borrowed(Purpose.OBSERVATION_SAMPLING, generation, group).random()
        return bool(uniform < self._normalization.probability)

    def _action_noise(self, generation: int, first_job: int, job: int) -> np.random.Generator:
        return self._keys.generator(Purpose.ACTION_NOISE, generation, first_job + job)

    def carried(self) -> ProblemState:
        return (
            statistics_state(self._initial_statistics())
            if self._normalization.enabled
            else ProblemState()
        )

    def _initial_statistics(self) -> Any:
        return self._statistics.initial(self._task.spaces.observations.statistics)

    def unit(self, parts: Sequence[Arrays]) -> Arrays:
        statistics = [self._statistics.from_arrays(arrays) for arrays in parts if arrays]
        return (
            reduce(lambda total, item: total.plus(item), statistics).arrays() if statistics else {}
        )

    def merge(self, carried: ProblemState, units: Sequence[Arrays]) -> ProblemState:
        if not self._normalization.enabled:
            return carried
        statistics = self._statistics.from_arrays(carried.master)
        for arrays in units:
            statistics = (
                statistics.plus(self._statistics.from_arrays(arrays)) if arrays else statistics
            )
        return statistics_state(statistics)

    def environment_info(self) -> Mapping[str, Any]:
        """Return the SHA-256 of reference observations, and for what a policy is compiled."""
        return {**self._reference_info, **_compiled_for(self._policy)}

    def metrics(self, carried: ProblemState) -> Mapping[str, float]:
        """Return `observation_count`, the number of observations in the statistics."""
        if not self._normalization.enabled:
            return {"observation_count": self._initial_statistics().count}
        return {"observation_count": self._statistics.from_arrays(carried.master).count}


def _open_library(policy: Policy, run: RunContext) -> Backend | None:
    """Return the backend that compiles a policy, with the cache of the run; None if there is none.

    Raises RunError if rank 0 has another layout.
    """
    name = Traits.of(policy).compiled_by
    if not name:
        return None
    parts = str(dict(policy.layout.shapes))
    if run.call_on_rank_0(lambda: parts) != parts:
        raise RunError(
            f"policy.network: rank {run.rank} has other parameters than rank 0, or the same in "
            "another order: expected a fixed order of layers, such as that of a list"
        )
    library = backend(name)
    library.use_cache(run)
    return library


def _compiled_for(policy: Policy) -> dict[str, Any]:
    """Return the device and the size of calls for which a policy is compiled.

    It is empty if the backend does not say so.
    """
    traits = Traits.of(policy)
    info = backend(traits.compiled_by).compilation_info() if traits.compiled_by else {}
    return (
        {"compiled_for": {**info, "candidates_per_call": traits.candidates_per_call}}
        if info
        else {}
    )


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
        compiled: CompiledEpisodes | TabulatedEpisodes | None = None,
        segments: Callable[[], Segments] | None = None,
        columns: tuple[Column, ...] = (),
    ) -> None:
        self.columns = (SIGN_RETURN, *columns)
        self._task, self.policy = task, policy
        self.name, self.spaces, self.episodes_per_job = (
            task.name,
            task.spaces,
            task.episodes_per_job,
        )
        self.time_limit = time_limit  # in steps
        # for algorithms that play episodes in compiled code of their own; None: not supported
        self.compiled = compiled
        # creates episodes that continue from batch to batch; None: not supported
        self.segments = segments

    def open(self, run: RunContext) -> None:
        """Use the compilation cache of the run, in which functions are stored on their first use.

        Raises RunError if rank 0 has another layout.
        """
        _open_library(self.policy, run)

    def environment_info(self) -> Mapping[str, Any]:
        """Return the device and the size of calls for which the policy is compiled, if it is."""
        return _compiled_for(self.policy)

    def play(self, actor: Actor, batch: Batch, poll: Poll) -> Outcome:
        """Play the episodes of all jobs."""
        return self._task.evaluate(actor, batch, poll)
