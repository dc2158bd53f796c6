"""Base classes of algorithms: `BaseStrategy`, and `PairedStrategy`, which weighs perturbations.

`Pairs` says which jobs share a perturbation, and its sign in each of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic

import numpy as np
import numpy.typing as npt

from hpc_es.algorithms.common import noise_bound
from hpc_es.core.data import (
    Array,
    Arrays,
    Chunk,
    Float64,
    FloatDtype,
    Jobs,
    Json,
    Outcome,
    Poll,
    ProblemState,
    Results,
    Rows,
    State,
    cut,
)
from hpc_es.core.interfaces import Prepared, VectorProblem
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import (
    Directions,
    FactorisedNoise,
    Layout,
    LowRank,
    Noise,
    Perturbed,
    Population,
    unperturbed,
)

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Pairs:
    """Assignment of jobs to perturbations.

    If mirrored, jobs 2 i and 2 i + 1 are pair i: they use its perturbation with the signs + and -.
    Otherwise each job is a pair of one job with a perturbation of its own.

    Examples:
        >>> from hpc_es.extend import Pairs
        >>> pairs = Pairs(mirrored=True)
        >>> pairs.among(range(2, 6)), pairs.signs(range(2, 6))
        (range(1, 3), array([ 1, -1,  1, -1]))
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
        """Return the indices of the pairs of consecutive jobs, of which there is at least one."""
        return range(self.of(jobs[0]), self.of(jobs[-1]) + 1)

    def signs(self, jobs: range) -> Array:
        """Return the sign of each job's perturbation, 1 or -1, int64[jobs]."""
        return (
            1 - 2 * (np.arange(jobs.start, jobs.stop) % 2)
            if self.mirrored
            else np.ones(len(jobs), np.int64)
        )

    def along(
        self,
        layout: Layout,
        theta: Array,
        directions: Directions | Array,
        jobs: range,
        scale: float = 1.0,
    ) -> Perturbed:
        """Return the candidates theta + sign * scale * direction of consecutive jobs.

        Args:
            layout: that of theta.
            theta: dtype[params].
            directions: those of the jobs' pairs, [pairs, params].
            jobs: numbers of the jobs.
            scale: such as the standard deviation of the perturbations.
        """
        rows, scales = self.rows_and_scales(jobs, scale, theta.dtype)
        return Perturbed(layout, theta[np.newaxis], directions, rows, scales)

    def rows_and_scales(
        self, jobs: range, scale: float, dtype: FloatDtype
    ) -> tuple[npt.NDArray[np.intp], Array]:
        """Return which direction each job uses, and with which factor.

        Args:
            jobs: numbers of consecutive jobs.
            scale: factor of all directions.
            dtype: that of the factors.

        Returns:
            The index of each job's pair among those of the jobs, intp[jobs], and sign * scale,
            dtype[jobs].
        """
        pair_of_job = np.arange(jobs.start, jobs.stop, dtype=np.intp) // self.size - self.of(
            jobs.start
        )
        return pair_of_job, (scale * self.signs(jobs)).astype(dtype)

    def in_pairs(self, values: Array) -> Array:
        """Return one value per job, [jobs], as one row per pair, [pairs, jobs per pair]."""
        return values.reshape(-1, self.size)

    def whole(self, fitness: Float64) -> Array:
        """Return which pairs have no failed job (NaN), bool[pairs]; fitness is float64[jobs]."""
        failed: Array = np.isnan(self.in_pairs(fitness))
        return np.logical_not(failed.any(axis=1))

    def differences(self, fitness: Float64) -> Float64:
        """Return F+ - F- of each pair, or F if they are not mirrored.

        Args:
            fitness: float64[pairs, jobs per pair].

        Returns:
            float64[pairs].
        """
        return fitness[:, 0] - fitness[:, 1] if self.mirrored else fitness[:, 0]


ALONE = Pairs(mirrored=False)


def round_of_jobs(
    round: int,
    rows: Rows,
    population: int,
    least_timesteps: int,
    most_jobs: int | None = None,
    *,
    chunk_size: int,
) -> Sequence[Chunk]:
    """Return the chunks of a round for algorithms whose generations need some timesteps.

    A generation ends when its jobs have `least_timesteps` timesteps, or all episodes so far have
    length 0, since these would never reach them.

    Args:
        round: number of the round, from 0.
        rows: row_dtype[jobs] of earlier rounds.
        population: jobs of a round.
        least_timesteps: 0 for one round.
        most_jobs: limit for a generation; None: unlimited.
        chunk_size: jobs per chunk.

    Returns:
        The chunks; [] ends the generation.
    """
    timesteps, first_job = int(rows["length"].sum()), round * population
    if round and (timesteps >= least_timesteps or timesteps == 0):
        return []
    return cut(
        population if most_jobs is None else min(population, most_jobs - first_job),
        chunk_size,
        first_job,
    )


def first_deviations(sigma: float | None, problem: VectorProblem) -> tuple[float, Float64]:
    """Return the initial step size, and each coordinate's standard deviation relative to it.

    Args:
        sigma: the same deviation for all coordinates; None: those of the problem's `spread`.
        problem: has the coordinates.

    Returns:
        The step size, and ratios, float64[size], whose geometric mean is 1.
    """
    if sigma is not None:
        return sigma, np.ones(problem.size)
    spread: Array = problem.spread.astype(np.float64)
    if (spread == spread[0]).all():
        return float(spread[0]), np.ones(problem.size)
    step = float(np.exp(np.log(spread).mean()))
    return step, spread / step


@dataclass(frozen=True)
class BaseStrategy(Generic[Prepared]):
    """Base class of algorithms with defaults for most methods.

    A strategy on vectors defines `initial`, `candidates`, `prepare`, `partial_update` and `tell`.
    It overrides `pairs` if jobs share perturbations, and `ask` if a generation is not one round of
    `population` jobs. A search for programs defines `evaluate` instead of `candidates`. The type
    parameter is the type that `prepare` returns. All methods are pure functions of their arguments,
    see `Algorithm`.

    Examples:
        A search that moves to the best candidate of each generation:

        >>> from hpc_es.extend import Needs, Positive, State, BaseStrategy, option, options, ranking
        >>> class ToBest(BaseStrategy):
        ...     NEEDS = Needs(searches="vectors", noise=True)
        ...
        ...     @options
        ...     class Options:
        ...         kind: str = option("this class", "to_best:ToBest")
        ...         population_size: int = option("jobs per generation", 8)
        ...         sigma: Positive = option("standard deviation of the candidates", 0.1)
        ...
        ...     def initial(self):
        ...         return State(0, {"theta": self.first_theta()}, {})
        ...
        ...     def candidates(self, state, chunk):
        ...         return self.perturbed(state, chunk, self.options.sigma)
        ...
        ...     def blocks(self, state):
        ...         return 0
        ...
        ...     def tell(self, state, results):
        ...         best = int(ranking(results.fitness)[0])
        ...         eps = self.noise.direction(state.generation, best, 0, self.problem.size)
        ...         theta = state.theta + self.options.sigma * eps.astype(state.theta.dtype)
        ...         return State(state.generation + 1, {"theta": theta}, {}), {}
    """

    options: Any
    problem: Any
    noise: Any  # None if NEEDS.noise is false
    keys: Keys
    chunk_size: int

    reads_blocks_once: ClassVar[bool] = False  # see `Algorithm.reads_blocks_once`
    has_candidates: ClassVar[bool] = False  # whether `candidates` is defined

    def __init_subclass__(cls) -> None:
        """Declare whether a subclass defines `candidates`, unless it does so itself."""
        super().__init_subclass__()
        if "candidates" in vars(cls) and "has_candidates" not in vars(cls):
            cls.has_candidates = True

    @classmethod
    def build(cls, options: Any, problem: Any, noise: Any, keys: Keys, chunk_size: int) -> Self:
        """Create the strategy.

        With this method, a class that has `Options` and `NEEDS` is a kind of algorithm.

        Args:
            options: an instance of its `Options`.
            problem: of the kind that `NEEDS.searches` names.
            noise: None unless `NEEDS.noise`.
            keys: source of all random numbers.
            chunk_size: jobs per chunk.
        """
        return cls(options, problem, noise, keys, chunk_size)

    # Jobs and candidates.

    def population(self, state: State) -> int:
        """Return the number of jobs per generation, by default `options.population_size`."""
        population: int = self.options.population_size
        return population

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return one round of `population` jobs."""
        return [] if round else cut(self.population(state), self.chunk_size)

    def first_theta(self, restart: int = 0) -> Array:
        """Return the problem's initial vector, dtype[size], the same on every rank.

        Args:
            restart: number of the search; random vectors differ by it.
        """
        theta: Array = self.problem.initial(
            self.keys.generator(Purpose.INITIAL_PARAMETERS, restart)
        )
        return theta

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return the candidates of a chunk of training jobs, in job order.

        Called on the rank that evaluates the chunk.

        Args:
            state: its arrays are those that every rank has.
            chunk: consecutive jobs of the generation.
        """
        raise AssertionError(
            f"{type(self).__name__} has neither `candidates` nor an `evaluate` of its own"
        )

    def source_chunk(self, chunk: Chunk) -> Chunk:
        """Return the chunk whose `candidates` the training jobs of a chunk evaluate, by default the
        same one; another one if they evaluate candidates again.
        """
        return chunk

    def centre(self, state: State, parent: int) -> Array:
        """Return the vector that evaluations and probes measure, dtype[size].

        Args:
            state: has the centre, by default theta.
            parent: index of the centre, for strategies with several.
        """
        return state.theta

    @property
    def pairs(self) -> Pairs:
        """Assignment of jobs to perturbations; by default every job is alone.

        Jobs of one pair share their seeds.
        """
        return ALONE

    def perturbed(
        self,
        state: State,
        chunk: Chunk,
        scale: float,
        ratios: Array | None = None,
        centre: Array | None = None,
    ) -> Population:
        """Return the candidates centre +- scale * ratios * eps of a chunk.

        Signs and directions are those of `pairs`.

        Args:
            state: has theta and the generation.
            chunk: of training jobs.
            scale: standard deviation of the perturbations.
            ratios: factor of each parameter, dtype[size]; None: 1.
            centre: dtype[size]; None: theta.
        """
        jobs, theta = chunk.job_numbers, state.theta if centre is None else centre
        pairs = self.pairs.among(jobs)
        if (factorised := self._factorised_noise) is not None:
            rows, scales = self.pairs.rows_and_scales(jobs, scale, theta.dtype)
            numbers = factorised.numbers(state.generation, pairs)
            return LowRank(factorised.factorisation, theta, numbers, rows, scales, ratios)
        directions = Directions(self.noise, state.generation, pairs, ratios)
        return self.pairs.along(self.problem.layout, theta, directions, jobs, scale)

    @cached_property
    def _factorised_noise(self) -> FactorisedNoise | None:
        """The noise, if it is of low rank: to look takes 0.1 ms."""
        return self.noise if isinstance(self.noise, FactorisedNoise) else None

    def group(self, job: int) -> int:
        """Return the group of a training job, by default its pair.

        Jobs of one group share their seeds.
        """
        return self.pairs.of(job)

    def jobs(self, state: State, chunk: Chunk) -> Jobs:
        """Return the jobs of a chunk with their groups."""
        numbers = chunk.job_numbers
        groups = [self.group(job) for job in numbers] if chunk.purpose == "train" else list(numbers)
        is_again = chunk.purpose == "train" and self.source_chunk(chunk) != chunk
        repeat = chunk.repeat + is_again
        return Jobs(
            state.generation,
            numbers,
            groups,
            chunk.purpose,
            chunk.parent,
            chunk.offset,
            repeats=[repeat] * chunk.jobs if repeat else (),
        )

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate the candidates of training jobs, or the centre without noise."""
        if chunk.purpose == "train":
            candidates = self.candidates(state, self.source_chunk(chunk))
        else:
            candidates = unperturbed(
                self.problem.layout, self.centre(state, chunk.parent), chunk.jobs
            )
        return self.evaluated(state, chunk, candidates, poll)

    def evaluated(self, state: State, chunk: Chunk, candidates: Population, poll: Poll) -> Outcome:
        """Evaluate given candidates as the jobs of a chunk.

        Args:
            state: has the arrays of the problem.
            chunk: the jobs.
            candidates: one per job, in job order.
            poll: passed on to the problem.
        """
        carried = self._problem_state.extract_from(state)
        outcome: Outcome = self.problem.evaluate(candidates, self.jobs(state, chunk), carried, poll)
        return outcome

    @cached_property
    def _problem_state(self) -> ProblemState:
        """The problem's initial arrays; only their names are used, so they are created once."""
        carried: ProblemState = self.problem.carried()
        return carried

    # The update.

    def with_probes(self, state: State, probes: Rows, fitness: Float64) -> State:
        """Return the state unchanged: by default probes matter for the update only."""
        return state

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Prepared:
        """Return None: by default an update needs no preparation."""
        return None  # type: ignore[return-value]

    def blocks(self, state: State) -> int:
        """Return the number of blocks of the noise; 0 without noise."""
        return 0 if self.noise is None else len(self.noise.edges)

    def block_costs(self, state: State, prepared: Prepared) -> Sequence[float]:
        """Return (): by default all blocks cost the same."""
        return ()

    def weighted_sums(
        self, state: State, weights: Array, powers: tuple[int, ...], block: int
    ) -> Array:
        """Return sum_i weights[k, i] * eps_i ** powers[k] over one block of parameters.

        Args:
            state: has the generation.
            weights: [powers, pairs].
            powers: 1 or 2.
            block: index of the block.

        Returns:
            dtype[powers, width of the block].
        """
        sums: Array = self.noise.weighted_sums(
            state.generation, weights, powers, block, self.problem.dtype
        )
        return sums

    def partial_update(self, state: State, prepared: Prepared, block: int) -> Arrays:
        """Compute one block of the update; needed if `blocks` is not 0."""
        raise AssertionError(f"{type(self).__name__} has blocks but no `partial_update`")

    # Reports.

    def solutions(self, state: State, results: Results[Prepared]) -> Sequence[Mapping[str, Json]]:
        """Return no solutions; only searches for programs have them."""
        return ()

    def finished(self, state: State) -> str | None:
        """Return None: by default a search never ends by itself."""
        return None

    def notices(self, state: State, results: Results[Prepared], after: State) -> Sequence[str]:
        """Return no lines for the log."""
        return ()

    def summary(self, state: State) -> Mapping[str, Json]:
        """Return nothing in addition to theta."""
        return {}


@dataclass(frozen=True)
class Weights:
    """Weights of the pairs of a generation.

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import Weights
        >>> Weights(np.array([[0.5, -0.5]])).reason is None
        True
    """

    values: Array  # [powers, pairs] in the problem's dtype; 0 for pairs with a failed job
    reason: str | None = None  # why there is no update; None: there is one
    deviation: float = 0.0  # standard deviation by which the fitness was divided, for the metrics
    count: int = 0  # number of jobs in pairs without failures
    noise_bound: float = math.nan  # largest share that can be noise; NaN: unknown
    # standard deviations of the candidates, dtype[params], for PGPE
    deviations: Array | None = None


@dataclass(frozen=True)
class PairedStrategy(BaseStrategy[Weights], ABC):
    """Base class of strategies whose update is a weighted sum of perturbations, such as ES.

    A strategy defines `initial`, `candidates`, `weights` and `tell`, and `pairs` if its pairs are
    not antithetic.
    """

    problem: VectorProblem
    noise: Noise

    reads_blocks_once: ClassVar[bool] = True  # by `summed` or `sums_by_part`
    powers: ClassVar[tuple[int, ...]] = (1,)  # one weighted sum of eps ** power for each of them
    pair_name: ClassVar[str] = "pair"  # name of a pair in messages

    @property
    def pairs(self) -> Pairs:
        """Antithetic pairs."""
        return Pairs(mirrored=True)

    def whole(self, fitness: Float64) -> Array:
        """Return which pairs have no failed job, bool[pairs]; fitness is float64[jobs]."""
        return self.pairs.whole(fitness)

    @abstractmethod
    def weights(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        """Return the weights of the pairs without failures; there is at least one.

        Called on every rank.

        Args:
            state: at the start of the generation.
            rows: row_dtype[pairs, jobs per pair].
            fitness: float64[pairs, jobs per pair], all finite or infinite.

        Returns:
            `Weights.values` are [powers, pairs].
        """

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        """Return the weights of all pairs; both jobs of a pair are dropped if one has failed."""
        valid = self.whole(fitness)
        values = np.zeros((len(self.powers), len(valid)), self.problem.dtype)
        if not valid.any():
            return Weights(values, f"every {self.pair_name} has a failed evaluation: no update")
        weights = self.weights(
            state, self.pairs.in_pairs(rows)[valid], self.pairs.in_pairs(fitness)[valid]
        )
        values[:, valid] = weights.values
        return replace(weights, values=values, count=int(valid.sum()) * self.pairs.size)

    def partial_update(self, state: State, prepared: Weights, block: int) -> Arrays:
        """Return the weighted sums over all pairs, in order, for one block of parameters."""
        return (
            {}
            if prepared.reason
            else {"sums": self.weighted_sums(state, prepared.values, self.powers, block)}
        )

    def summed(self, results: Results[Weights]) -> Array:
        """Return the weighted sums of all blocks, dtype[powers, size]; 0 if there is no update."""
        if results.prepared.reason:
            return np.zeros((len(self.powers), self.problem.size), self.problem.dtype)
        ((_, sums),) = self.sums_by_part(results, self.problem.size)
        return sums

    def sums_by_part(
        self, results: Results[Weights], width: int, arrays: int = 1
    ) -> Iterator[tuple[slice, Array]]:
        """Yield slices of the parameters and their weighted sums; there must be an update.

        The array of the sums may be modified, and is used again after `arrays` slices.

        Args:
            results: of the generation; its blocks are read once.
            width: elements of a slice; the last one may be shorter.
            arrays: slices that the caller uses at the same time.

        Yields:
            A slice, and dtype[powers, width].
        """
        start, number, count = 0, 0, 0
        shape = len(self.powers), min(width, self.problem.size)
        buffers = [
            np.empty(shape, self.problem.dtype)
            for _ in range(min(arrays, -(-self.problem.size // width)))
        ]
        sums = buffers[0]
        for block in results.blocks:
            added, done = block["sums"], 0
            while done < added.shape[1]:
                more = min(added.shape[1] - done, sums.shape[1] - count)
                sums[:, count : count + more] = added[:, done : done + more]
                done, count = done + more, count + more
                if count == sums.shape[1]:
                    yield slice(start, start + count), sums
                    start, number, count = start + count, number + 1, 0
                    sums = buffers[number % len(buffers)][:, : self.problem.size - start]
            if results.overwrite and isinstance(block, dict):
                block.clear()  # frees memory

    def notices(self, state: State, results: Results[Weights], after: State) -> Sequence[str]:
        """Return why there was no update, or that much of it may be noise."""
        prepared = results.prepared
        if prepared.reason:
            return [prepared.reason]
        pairs = prepared.count // self.pairs.size
        return noise_bound.advice(prepared.noise_bound, pairs, self.problem.less_noise)
