"""The contracts of algorithms, problems and tasks.

Those of policies are in `core.policy`, those of noise and populations in `core.population`. The
steps of a generation (`training/generation.py`):

    state    = world.broadcast(state)                          rank 0 owns the state
    chunks   = algorithm.ask(state, round, rows, fitness)      the same on every rank; [] ends it
    mine     = work.evaluate(algorithm, state, chunks)         ranks take chunks on demand
    rows     = world.allgather(mine)                           one per job, in job order, everywhere
    fitness  = problem.fitness(rows, carried)                  one per job, on every rank
    state    = algorithm.with_probes(state, probes, fitness)   everywhere, after probes
    prepared = algorithm.prepare(state, rows, fitness)         on every rank, once
    blocks   = algorithm.partial_update(state, prepared, block) each block on one rank
    state    = algorithm.tell(state, results)                  on rank 0
    state    = problem.merge(carried, units)                   on rank 0: such as statistics

An algorithm searches one kind of problem: vectors, programs, or trajectories of a policy. It
declares the kind in `NEEDS`. A task declares in `OFFERS` for which kinds it can make a problem.
Algorithms only know the problem, not the task.

The module or class of a kind has `Options` (see `config.options`) and `build`, and declares what
others must know of it (`core.declarations`). That of an algorithm optionally has
`incompatibilities`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

import numpy as np

from hpc_es.core.data import (
    Array,
    Arrays,
    Chunk,
    Column,
    Float32,
    Float64,
    FloatDtype,
    Jobs,
    Json,
    Outcome,
    Poll,
    ProblemState,
    Results,
    Rows,
    Spaces,
    State,
)
from hpc_es.core.declarations import Searched
from hpc_es.core.elites import Elites
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Actor, Batch, Policy, Segments
from hpc_es.core.population import Factorisation, Layout, Population
from hpc_es.core.quantities import Quantities
from hpc_es.core.tabulated import TabulatedEpisodes


def no_barrier() -> None:
    """Return at once, as the barrier of a single rank."""


@dataclass(frozen=True)
class RunContext:
    """The directory and the ranks of a run, as the argument of `Problem.open`."""

    directory: Path  # run directory
    rank: int
    ranks: int  # number of ranks
    # calls its argument on rank 0, returns the text on every rank
    call_on_rank_0: Callable[[Callable[[], str]], str]
    node_rank: int = 0  # index of the rank on its node
    barrier: Callable[[], None] = no_barrier  # returns when every rank has called it
    # whether the first state comes from a checkpoint or from rank 0
    is_state_replaced: bool = False


# Name in `Problem.environment_info` of the SHA-256 of weights that are not in checkpoints: a run is
# resumed only with the same ones.
BASE_HASH = "base_sha256"

# Job (-1: the centre), value, and the vector that was evaluated.
Evaluation = tuple[int, float, Sequence[bool | int | float | str]]


# How the jobs of a round may be cut into chunks. "fixed": as the algorithm asks, because results
# depend on it. Otherwise anywhere. Larger chunks then save some time ("free"), only messages ("one
# by one"), or most of the time ("at once").
Cutting = Literal["fixed", "free", "one by one", "at once"]


class Problem(Protocol):
    """The part of the contract that is common to all kinds of problem.

    Each rank has its own object, made from the same options, and all of them must behave alike:
    what a problem learns is in its arrays of the state (`carried`), not in attributes. Methods that
    are called on rank 0 may also be called on the other ranks with `mpi.update: replicated`.
    `ProblemDefaults` implements the methods that most problems do not need.
    """

    columns: tuple[Column, ...]  # columns of the rows in addition to `return_` and `length`
    is_objective: bool  # whether it is a function whose best value is sought
    episodes_per_job: int  # episodes over which the return of a job is averaged
    # what makes its jobs less noisy, such as "task.repeats", for advice; "": nothing
    less_noise: str
    chunk_size: int | None  # jobs per chunk; None: `mpi.chunk_size`
    cutting: Cutting  # how rounds may be cut into chunks
    call_size: int  # jobs that are computed together; other chunks than multiples of it take longer
    # episodes per evaluation of the centre; None: evaluation.episodes; 0: none
    evaluation_episodes: int | None
    notices: tuple[str, ...]  # lines for the log at the start of the run
    # column names of evaluations.csv; (): the file is not written
    coordinate_names: tuple[str, ...]
    derives_fitness: bool  # whether `fitness` is not simply the return
    combines_units: bool  # whether `unit` accepts several parts
    # objectives, constraints, measures and metrics of the rows, which are among `columns`
    quantities: Quantities

    def carried(self) -> ProblemState:
        """Return the problem's arrays before the first generation; most problems have none.

        Called on every rank, several times: equal arrays each time, with the names and dtypes of
        the whole run.
        """
        ...

    def merge(self, carried: ProblemState, units: Sequence[Arrays]) -> ProblemState:
        """Return the arrays after learning from further units; on rank 0.

        Args:
            carried: the arrays so far, not to be modified.
            units: what was learned from each unit of jobs, to be added in this order.
        """
        ...

    def unit(self, parts: Sequence[Arrays]) -> Arrays:
        """Combine what was learned from the jobs of one unit; on rank 0.

        Args:
            parts: the arrays of each job or of the whole unit, in job order.

        Returns:
            The arrays of the unit, one of the items that `merge` gets.
        """
        ...

    def fitness(self, rows: Rows, carried: ProblemState) -> Float64:
        """Return the fitness by which algorithms rank jobs.

        Called on every rank, and again in a replay, whose rows lack the column of `report.info`:
        the result may depend on the arguments and on nothing else.

        Args:
            rows: row_dtype[jobs], at least one: those of all training jobs of the generation so
                far, or of all its probes. A job whose return is NaN has failed, whatever its
                fitness.
            carried: the shared arrays of the problem; those of rank 0 are left out.

        Returns:
            float64[jobs]: higher is better, NaN excludes a job.
        """
        ...

    def metrics(self, carried: ProblemState) -> Mapping[str, float]:
        """Return further metrics of a generation, by name; on rank 0."""
        ...

    def evaluation_units(self, state: State, evaluation: Rows) -> Sequence[Arrays]:
        """Return what was learned from an evaluation of the centre, merged last; on rank 0.

        Args:
            state: the state whose centre was evaluated.
            evaluation: row_dtype[evaluation jobs].

        Returns:
            Further units for `merge`.
        """
        ...

    def is_reached(self, carried: ProblemState, target: float) -> bool:
        """Whether the best value is at least as good as `stop.target_value`; on rank 0.

        Args:
            carried: all arrays of the problem.
            target: with the sign of the user's values.
        """
        ...

    def summary(self, carried: ProblemState) -> Mapping[str, Json]:
        """Return entries for result.json, plain numbers and text; on rank 0."""
        ...

    def open(self, run: RunContext) -> None:
        """Prepare files in the run directory before the first generation; on every rank.

        Args:
            run: the directory, this rank and the number of ranks. Only one rank may write a file.
        """
        ...

    def check(self) -> None:
        """Do the slow checks of --check, such as a compilation; in one process.

        Raises:
            ConfigError: with the key and the remedy.
        """
        ...

    def environment_info(self) -> Mapping[str, Json]:
        """Return further properties on which results depend, such as the processor; on rank 0.

        They are stored in checkpoints.
        """
        ...

    def on_checkpoint(self, generation: int) -> None:
        """React to a checkpoint that contains all generations before this one; on rank 0."""
        ...

    def evaluations(
        self, state: State, results: Results[object], evaluation: Rows
    ) -> Iterator[Evaluation]:
        """Yield the lines of evaluations.csv of a generation, in job order; on rank 0.

        Args:
            state: the state before the generation.
            results: those of the generation.
            evaluation: row_dtype[evaluation jobs], empty if the centre was not evaluated.
        """
        ...


@dataclass(frozen=True)
class MixedCoordinates:
    """The coordinates of a vector that are not continuous.

    The problem rounds an ordered coordinate to the nearest level. A choice is the index of a
    category, a whole number.
    """

    ordered: tuple[int, ...]  # indices of the coordinates with ordered levels, ascending
    # Of (index, number): the thresholds next to the level of this number; infinite beyond the first
    # and last level. A number on a threshold belongs to the lower level.
    thresholds: Callable[[int, float], tuple[float, float]]
    # number of categories by index, ascending
    choices: Mapping[int, int] = field(default_factory=dict)


class VectorProblem(Problem, Protocol):
    """A function of a vector: the parameters of a policy, or coordinates."""

    layout: Layout  # layout of the vector
    size: int  # layout.size, the number of parameters
    # dtype of candidates, sums and theta: float32 for policies, float64 for functions
    dtype: FloatDtype
    spread: Array  # float[size], initial standard deviations, if the config has no `sigma`
    mixed: MixedCoordinates | None  # the discrete coordinates; None: all are continuous
    changing_fitness: bool  # whether the fitness of a row changes from generation to generation
    # Whether it depends on the other rows, such as with feasible jobs first: it ranks jobs of one
    # generation only.
    relative_fitness: bool

    def initial(self, rng: np.random.Generator) -> Array:
        """Return the initial vector, dtype[size].

        Args:
            rng: the only source of random numbers, the same on every rank.
        """
        ...

    def first_candidates(self, population: int) -> Array | None:
        """Return vectors that replace samples of the first generation; None if there are none.

        The same on every rank. Only algorithms with `Needs.injects` ask for them.

        Args:
            population: candidates of the first generation.

        Returns:
            dtype[at most population, size].
        """
        ...

    def evaluate(
        self, population: Population, jobs: Jobs, carried: ProblemState, poll: Poll
    ) -> Outcome:
        """Evaluate the candidates of a chunk; on the rank that has taken the chunk.

        Results must not depend on which rank that is, nor on what it evaluated before. Random
        numbers come from keys of the generation and of `jobs.groups`, jobs of one group sharing
        their seeds.

        Args:
            population: the candidates, one per job, in order.
            jobs: numbers, groups and purpose of the jobs.
            carried: the shared arrays of the problem at the start of the generation, not to be
                modified.
            poll: to be called every few milliseconds, so that rank 0 can answer the other ranks.

        Returns:
            One row per job, and what the problem has learned from each unit.
        """
        ...


class ProgramProblem(Problem, Protocol):
    """A reward for programs, which are texts over an alphabet."""

    alphabet: str  # the characters of programs
    length: int  # maximum number of characters of a program

    def evaluate(self, programs: Sequence[str], jobs: Jobs, poll: Poll) -> Outcome:
        """Evaluate the programs of a chunk independently of each other.

        Called on the rank that has taken the chunk, on which the result must not depend.

        Args:
            programs: one per job, of at most `length` characters.
            jobs: numbers, groups and purpose of the jobs.
            poll: to be called every few milliseconds.
        """
        ...


@dataclass(frozen=True)
class CompiledEpisodes:
    """Compiled episodes as `TrajectoryProblem.compiled`,
    for algorithms that differentiate segments of them.
    """

    # returns `CompiledSegments`, the functions that play them; set up JAX before
    segments: Callable[[], Any]
    acting: Any  # in place of the policy, in evaluations: a `CompiledPolicy`
    aborts: bool  # whether a failed episode ends the run


class TrajectoryProblem(Problem, Protocol):
    """Episodes of a policy, whose steps an algorithm differentiates."""

    policy: Policy
    name: str  # name in logs, such as the id of the environment
    spaces: Spaces  # observations and actions
    time_limit: int | None  # maximum number of steps per episode; None: unknown
    # for algorithms that play episodes in compiled code of their own; None: not possible
    compiled: CompiledEpisodes | TabulatedEpisodes | None
    # creates episodes that continue from batch to batch; None: no support
    segments: Callable[[], Segments] | None

    def play(self, actor: Actor, batch: Batch, poll: Poll) -> Outcome:
        """Play the episodes of all jobs of a batch.

        Called on the rank that has taken the chunk, on which the result must not depend.

        Args:
            actor: one row per job.
            batch: seeds of the jobs, and `on_step`, which is called after each step.
            poll: to be called every few milliseconds.
        """
        ...


AnyProblem = VectorProblem | ProgramProblem | TrajectoryProblem


class Task(Protocol):
    """The environment, function or data that is optimised; `task.kind` of the config.

    Each rank builds its own. An exception in `build` or `problem` ends the run, so a mistake of the
    user should be a `ConfigError`.
    """

    name: str  # name in logs and plots, such as the id of the environment
    # observations and actions of the policy; None: no policy acts in the task
    spaces: Spaces | None

    def problem(
        self, searched: Searched, policy: Policy | None, keys: Keys, unit: int
    ) -> AnyProblem:
        """Return the problem of one kind, the same on every rank.

        Args:
            searched: the kind, one of `Offers.problems`.
            policy: what acts in the task; None if its `spaces` are None.
            keys: of the repetition, for all random numbers.
            unit: number of jobs per chunk that the algorithm asks for, unless the problem has a
                `chunk_size`.
        """
        ...

    def close(self) -> None:
        """Release resources, such as environments; called once, on every rank."""
        ...


PROBE_SECONDS = 2.0  # of episodes, in the search for hidden state at a start


@runtime_checkable
class ClosableProblem(Protocol):
    """A problem whose generations may be closed early (`Offers.close_at`).

    Some of their jobs then have no result: they count as failed.
    """

    def may_close(self, generation: int) -> bool:
        """Whether a generation may be closed early; on rank 0."""
        ...

    def close_generation(self, generation: int, rows: Rows) -> None:
        """Record which jobs of a closed generation have no result; on rank 0, before its update.

        Args:
            generation: its number.
            rows: row_dtype[training jobs]; the return of a job without a result is NaN.
        """
        ...


@runtime_checkable
class StartsFromPoints(Protocol):
    """A vector problem to which the user may have given points for the first generation."""

    def unknown_points(self) -> int | None:
        """Return the number of points without a value; None if there are no points."""
        ...

    def points_text(self, population: int) -> str:
        """Say which points are candidates of the first generation; "" if there are none.

        Args:
            population: candidates of the first generation.
        """
        ...


@runtime_checkable
class NamesParameters(Protocol):
    """A vector problem whose vectors have parameters with names, which tables show."""

    def evaluated_vectors(self, vectors: Array) -> Array:
        """Return candidates as they are passed to the objective, such as rounded and within bounds.

        Args:
            vectors: dtype[k, size].

        Returns:
            dtype[k, size].
        """
        ...

    def parameters(self, vector: Array) -> Mapping[str, Json]:
        """Return the parameters of one vector by name.

        Args:
            vector: dtype[size], from `evaluated_vectors`.
        """
        ...


@runtime_checkable
class EvaluatesVectors(Protocol):
    """A vector problem that evaluates given vectors outside of a search, for `hpc-es eval`."""

    def evaluate_vectors(self, vectors: Float64, seeds: Sequence[int], poll: Poll) -> Outcome:
        """Evaluate each vector once, as a training job would be.

        Args:
            vectors: as the objective gets them, float64[k, size].
            seeds: one for each evaluation.
            poll: called every few milliseconds.

        Returns:
            Rows and failures; nothing is learned.
        """
        ...


@runtime_checkable
class HasBounds(Protocol):
    """A vector problem whose candidates have bounds."""

    def search_bounds(self) -> tuple[Array, Array]:
        """Return the lowest and highest candidates, dtype[size] each; infinite where there is no
        bound, or where the coordinate is a choice.
        """
        ...


@runtime_checkable
class DeclaresNoise(Protocol):
    """A problem of which the user may have said whether its values are noisy."""

    @property
    def is_noisy(self) -> bool | None:
        """Whether the same vector has other values with other seeds; None: unknown."""
        ...


@runtime_checkable
class RepeatsJobs(Protocol):
    """A vector problem that may ask for several evaluations of each training job.

    All jobs of a round are evaluated once, then all of them again, and so on, with other seeds
    (`Jobs.repeats`). Algorithms see one row per job, which `combined` makes of these passes.
    """

    has_repeats: bool  # whether it does so with its options

    def repeats(self, shared: Arrays) -> int:
        """Return how often each job of a generation is evaluated; the same on every rank.

        Args:
            shared: the arrays of the state that every rank has.
        """
        ...

    def combined(self, passes: Sequence[Rows]) -> Rows:
        """Return one row per job; called on every rank.

        Args:
            passes: row_dtype[jobs] of the first evaluations, the second ones, and so on; if a
                budget has cut the generation short, the last ones may be fewer.

        Returns:
            row_dtype[jobs], where jobs are those of the first pass. The return of a job is NaN if
            all its evaluations failed.
        """
        ...

    def repeat_units(
        self, generation: int, results: Results[Any], passes: Sequence[Rows]
    ) -> Sequence[Arrays]:
        """Return what is learned from all evaluations of a generation, for `merge`; on rank 0.

        Args:
            generation: its number.
            results: with the combined rows.
            passes: as in `combined`.
        """
        ...


@runtime_checkable
class EvaluatesFactors(Protocol):
    """A compiled vector problem that can evaluate candidates from their low-rank factors."""

    def use_factors(self, factorisation: Factorisation) -> None:
        """Evaluate candidates from their factors; called once, before the first evaluation."""
        ...


@runtime_checkable
class ChecksMemory(Protocol):
    """A problem that knows how much memory of a device its calls need."""

    def check_memory(self, state: Arrays) -> None:
        """Raise ConfigError if a call and the arrays of a state do not fit; for --check."""
        ...


@dataclass(frozen=True)
class CallMemory:
    """The memory of a device that a call of a problem needs, in bytes."""

    jobs: int  # of a call
    arguments: int  # parameters and data
    total: int  # arguments, results and intermediate arrays
    option: str  # of the config, which makes calls smaller
    uncounted: str = ""  # what else takes memory, and is not known


@runtime_checkable
class KnowsCallMemory(Protocol):
    """A problem that computes in calls on a device; for `hpc-es plan --gpu`."""

    def call_memory(self) -> CallMemory:
        """Return the memory of a call of training; it may be compiled for this."""
        ...


@runtime_checkable
class DescribesItself(Protocol):
    """A task with lines of its own in the output of --check."""

    @property
    def check_lines(self) -> Sequence[str]:
        """The lines, without indentation."""
        ...


@runtime_checkable
class ProbesHiddenState(Protocol):
    """A task that can find out whether an evaluation depends on earlier ones."""

    def hidden_state_warning(self, seconds: float = PROBE_SECONDS) -> str | None:
        """Return a warning if evaluations depend on those before them, else None.

        Called before runs and evaluations, on rank 0.

        Args:
            seconds: limit of the search.
        """
        ...


class SearchSize(NamedTuple):
    """What the sizes follow from that a config leaves open."""

    platform: Literal["cpu", "gpu"]  # that computes
    jobs: int  # of a generation
    parameters: int  # that a candidate has of its own, such as the factors of low-rank noise


class AutomaticSizes(Protocol):
    """Options of a task with sizes that may be `auto` (`Offers.automatic_sizes`).

    They are chosen once, at the start of a run. Results may depend on them, but not on the number
    of ranks: so neither may they.
    """

    def automatic(self, search: SearchSize) -> Mapping[str, int]:
        """Return numbers for the options that are `auto`, by name; {} if there are none.

        Args:
            search: what the sizes may depend on.
        """
        ...


# type of what `Algorithm.prepare` returns; None if it has nothing to prepare
Prepared = TypeVar("Prepared")


class Algorithm(Protocol[Prepared]):
    """A search strategy.

    Its methods are pure functions of their arguments, the options and the keys: an algorithm keeps
    nothing in attributes, modifies no argument, and draws from `Keys` only. Methods that are called
    on rank 0 may also be called on the other ranks with `mpi.update: replicated`. The base classes
    `BaseStrategy`, `PairedStrategy` and `DistributionStrategy` implement most methods.
    """

    # Whether `tell` reads `results.blocks` at most once, in order. Blocks of a large update may
    # then be computed when they are read, so `partial_update` must not depend on arrays of the
    # state that `tell` overwrites.
    reads_blocks_once: ClassVar[bool]

    def initial(self) -> State:
        """Return the state before generation 0, without the problem's arrays; on every rank."""
        ...

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return the chunks of a round, the same on every rank; an empty list ends the generation.

        They must not depend on the number of ranks. Jobs of a purpose are numbered from 0 through
        all rounds.

        Args:
            state: at the start of the generation, or after `with_probes`; `master` is empty on
                other ranks than 0, so nothing may depend on it.
            round: number of the round in the generation, from 0.
            rows: row_dtype[jobs] of the training jobs of earlier rounds, in job order.
            fitness: float64[jobs] of these jobs.
        """
        ...

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate a chunk on the rank that has taken it.

        Training jobs evaluate candidates, those of other purposes the centre without noise.

        Args:
            state: as in `ask`.
            chunk: one of those that `ask` has returned, or a part of it.
            poll: passed on to the problem, or called every few milliseconds.
        """
        ...

    def with_probes(self, state: State, probes: Rows, fitness: Float64) -> State:
        """Return the state for the following rounds of the generation and its update.

        Called on every rank, only after rounds with probes. `tell` gets the state at the start of
        the generation and calls this method itself.

        Args:
            state: at the start of the generation.
            probes: row_dtype[probes] of all probes so far.
            fitness: float64[probes].
        """
        ...

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Prepared:
        """Return what all blocks of the update need, such as weights; on every rank, once.

        Args:
            state: at the start of the generation, or after `with_probes`.
            rows: row_dtype[jobs] of all training jobs, in job order.
            fitness: float64[jobs], NaN for failed jobs.
        """
        ...

    def blocks(self, state: State) -> int:
        """Return the number of blocks of `partial_update`; 0 if the update needs none."""
        ...

    def block_costs(self, state: State, prepared: Prepared) -> Sequence[float]:
        """Return the relative costs of the blocks, by which ranks share them; (): all equal."""
        ...

    def partial_update(self, state: State, prepared: Prepared, block: int) -> Arrays:
        """Return one block of the update, which is sent to rank 0.

        Each block is computed on one rank. Sums are over all jobs in their order, whatever the
        number of ranks.

        Args:
            state: as in `prepare`.
            prepared: what `prepare` has returned.
            block: 0 .. blocks - 1.
        """
        ...

    def tell(self, state: State, results: Results[Prepared]) -> tuple[State, Mapping[str, float]]:
        """Return the next state, without the arrays of the problem, and metrics; on rank 0.

        Args:
            state: at the start of the generation.
            results: rows, fitness and blocks of the generation. It may overwrite the arrays of the
                state only if `results.overwrite` is true.

        Returns:
            The state, whose `generation` is larger by 1, and numbers by name, among them those of
            `Needs.metrics`.
        """
        ...

    def solutions(self, state: State, results: Results[Prepared]) -> Sequence[Mapping[str, Json]]:
        """Return the solutions of a generation to record in programs.jsonl; on rank 0.

        Args:
            state: the argument of `tell`.
            results: the same as in `tell`.

        Returns:
            One mapping for each JSON line, with at least `program` (text) and `reward`.
        """
        ...

    def finished(self, state: State) -> str | None:
        """Return why the search has ended, such as "a correct program", or None; on rank 0."""
        ...

    def notices(self, state: State, results: Results[Prepared], after: State) -> Sequence[str]:
        """Return lines for the log about a generation; on rank 0.

        A line that recurs in later generations is logged once.

        Args:
            state: the argument of `tell`.
            results: the same as in `tell`.
            after: the state that `tell` has returned.
        """
        ...

    def summary(self, state: State) -> Mapping[str, Json]:
        """Return entries for result.json and `hpc-es inspect`, numbers and text; on rank 0."""
        ...


# for code that passes on the result of `prepare` without reading it
AnyAlgorithm: TypeAlias = Algorithm[Any]


@runtime_checkable
class KeepsElites(Protocol):
    """An algorithm whose result has several members: `Needs.incumbent` is front or cells."""

    def elites(self, state: State) -> Elites:
        """Return the members of the front or archive in a state; on rank 0."""
        ...


@runtime_checkable
class RecordingAlgorithm(Algorithm[Prepared], Protocol[Prepared]):
    """An algorithm whose state also records what jobs have found, such as the best program."""

    def recorded(
        self, state: State, results: Results[Prepared]
    ) -> tuple[State, Mapping[str, float]]:
        """Return the state with what the jobs of a generation have found, and metrics; on rank 0.

        Called in place of `tell` for a generation that a budget has cut short.

        Args:
            state: at the start of the generation.
            results: without the last jobs, and without an update.
        """
        ...


@runtime_checkable
class GradientAlgorithm(Algorithm[Prepared], Protocol[Prepared]):
    """An algorithm that descends a loss, and reports it for `run.loss()` and `after_train_step`."""

    def with_samples(self) -> GradientAlgorithm[Prepared]:
        """Return the same algorithm, whose chunks also return the data that they learn from.

        The data are in `Outcome.arrays`.
        """
        ...

    def sample(self, results: Results[Prepared]) -> Arrays:
        """Return the data of all chunks of a generation, joined; on rank 0.

        Args:
            results: of an algorithm made by `with_samples`.
        """
        ...

    def gradient(self, state: State, results: Results[Prepared]) -> Float32:
        """Return the gradient of the loss before clipping, float32[params]; on rank 0."""
        ...

    def losses(self, state: State, results: Results[Prepared]) -> Mapping[str, float]:
        """Return the terms of the loss, and "loss", their weighted sum; on rank 0."""
        ...

    def sample_losses(self, state: State, sample: Arrays) -> Mapping[str, float]:
        """Return the losses of given data under the parameters of a state; on rank 0.

        Args:
            state: has the parameters.
            sample: what `sample` has returned for this or another generation.
        """
        ...


@runtime_checkable
class LearnsFromSamples(GradientAlgorithm[Prepared], Protocol[Prepared]):
    """An algorithm that can learn from data of the caller, for `run.update(sample)`."""

    def results_of(self, state: State, sample: Arrays) -> Results[Prepared]:
        """Return the results of a generation with given data, in place of evaluated ones.

        Args:
            state: at the start of the generation.
            sample: trajectories of the caller, in the form of `sample`.

        Raises:
            UserError: an array is missing, or has another shape.
        """
        ...
