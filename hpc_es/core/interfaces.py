"""The contracts: what an Algorithm, a Problem, a Task and a Noise offer each other; those of a Policy are in `acting`.

One generation (`training/generation.py`):

    state    = world.broadcast(state)                           rank 0 is the master: it owns the state
    chunks   = algorithm.ask(state, round, rows, fitness)       the same list on every rank; [] ends the generation
    mine     = work.evaluate(algorithm, state, chunks)          chunks are handed out on demand
    rows     = world.allgather(mine)                            one row a job, in job order, on every rank
    fitness  = problem.fitness(rows, carried)                   one number a job, which algorithms rank, on every rank
    state    = algorithm.with_probes(state, probes, fitness)    on every rank, after a round with probes
    prepared = algorithm.prepare(state, rows, fitness)          on every rank, once
    blocks   = algorithm.partial_update(state, prepared, block) each rank computes its share of the blocks
    state    = algorithm.tell(state, results)                   on rank 0
    state    = problem.merge(carried, units)                    on rank 0: what the problem itself has learned

An algorithm searches one kind of problem: vectors, programs, or trajectories of a policy. It says which in `NEEDS`; a
task says in `OFFERS` which kinds it can be, and makes the problem. An algorithm sees the problem alone, never the task.

A kind is a module or package in its folder, or the user's own, that has `Options` (made with `options`) and
`build`; that of an algorithm also has `NEEDS` and may have `misfits`, that of a task has `OFFERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np

from hpc_es.core.data import (
    Array,
    Arrays,
    Chunk,
    Column,
    Float64,
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
from hpc_es.core.keys import Keys
from hpc_es.core.paths import RunContext
from hpc_es.core.policy import Actor, Batch, Policy, Segments
from hpc_es.core.population import Layout, Population

Searched = Literal["vectors", "programs", "trajectories"]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What an algorithm needs of the other parts of a run, declared as `NEEDS` of its module or class."""

    searches: Searched  # the kind of problem: vectors, programs or trajectories
    policy: str = "mlp"  # default kind of policy, for tasks in which a policy acts
    noise: bool = False  # whether it perturbs parameters with a `Noise`
    tensorflow: bool = False  # whether the algorithm itself computes with TensorFlow
    gradients: bool = False  # whether chunks return gradients; results then depend on the chunks
    columns: tuple[Column, ...] = ()  # further columns of the rows, which its `evaluate` fills
    presets: Mapping[str, Json] = field(default_factory=dict)  # defaults of other sections of the config, by dotted key
    growing: bool = False  # whether arrays of its state may change their shapes, such as an archive
    stochastic: bool = False  # whether its policies return probabilities, from which actions are sampled


@dataclass(frozen=True, kw_only=True)
class Offers:
    """What a task offers to the other parts of a run, declared as `OFFERS` of its module or class."""

    problems: tuple[Searched, ...]  # the kinds of problem that the task can make
    policy: bool = False  # whether a policy acts in the task
    values: bool = False  # whether jobs have values that `stop.target_value` can refer to
    any_chunks: bool = False  # whether results are independent of the chunks, apart from gradients
    info: bool = False  # whether `build` takes `info=`, the numbers of `report.info` and their reductions
    compiled: bool = False  # whether it compiles the pure form of the policy and chooses the jobs of a call


Evaluation = tuple[int, float, Sequence[float]]  # a job (-1: the centre), its value, its vector as it was evaluated


# How a round of jobs may be cut into chunks: as the algorithm asks, since bits depend on it; or anywhere, where a chunk
# of more jobs saves a little ("free"), messages only ("one by one"), or most of the time ("at once").
Cutting = Literal["fixed", "free", "one by one", "at once"]


class Problem(Protocol):
    """What the three kinds of problem have in common; `ProblemDefaults` provides it for most problems."""

    columns: tuple[Column, ...]  # of the rows, besides `return_` and `length`
    is_objective: bool  # whether it is a function of the user's whose best value is wanted
    episodes_per_job: int
    chunk_size: int | None  # jobs of a chunk that the algorithm asks for; None: `mpi.chunk_size`
    cutting: Cutting  # how rounds may be divided into chunks
    evaluation_episodes: int | None  # of an evaluation of the centre; None: evaluation.episodes; 0: no evaluation

    def carried(self) -> ProblemState:
        """Return the arrays of what the problem learns, before the first generation; none for most problems."""
        ...

    def merge(self, carried: ProblemState, units: Sequence[Arrays]) -> ProblemState:
        """Return the arrays after further units were merged in their order; on rank 0 only."""
        ...

    def unit(self, parts: Sequence[Arrays]) -> Arrays:
        """Return what was learned from a unit, from what was learned from its jobs, in their order; on rank 0 only."""
        ...

    def fitness(self, rows: Rows, carried: ProblemState) -> Float64:
        """Return what algorithms rank, float64[jobs]: higher is better, NaN excludes a job from the ranking.

        `rows` are those of all training jobs of the generation so far, or of all its probes; there is at least one.
        `carried` has the shared arrays only. A job whose return is NaN has failed, whatever its fitness. The result
        must depend on nothing else: every rank calls this, and so does a run that computes a generation again, from
        rows without the column of `report.info`.
        """
        ...

    def metrics(self, carried: ProblemState) -> Mapping[str, float]:
        """Return further numbers for the metrics of a generation; on rank 0 only."""
        ...

    def measured(self, state: State, evaluation: Rows) -> Sequence[Arrays]:
        """Return what an evaluation of the centre teaches, as units to merge after the others; on rank 0 only."""
        ...

    def is_reached(self, carried: ProblemState, target: float) -> bool:
        """Return whether the best value is as good as `stop.target_value`; on rank 0 only."""
        ...

    def summary(self, carried: ProblemState) -> Mapping[str, Json]:
        """Return what result.json says about what was learned, plain numbers and text; on rank 0 only."""
        ...

    def open(self, run: RunContext) -> None:
        """Take the run directory, before the first generation; on every rank."""
        ...

    def check(self) -> None:
        """Do the slow checks of --check, such as a compilation; raise ConfigError."""
        ...

    def environment_info(self) -> Mapping[str, Json]:
        """Return what results depend on besides config and versions, such as the processor; stored in checkpoints."""
        ...

    def on_checkpoint(self, generation: int) -> None:
        """Take note that a checkpoint has stored all generations before this one; on rank 0 only."""
        ...

    notices: tuple[str, ...]  # lines for the log at the start of the run
    coordinate_names: tuple[str, ...]  # column names of evaluations.csv; if there are none, it is not written

    def evaluations(self, state: State, results: Results[object], evaluation: Rows) -> Iterator[Evaluation]:
        """Yield the lines of evaluations.csv for a generation, in job order; on rank 0 only."""
        ...


class VectorProblem(Problem, Protocol):
    """A function of a vector: the parameters of a policy, or coordinates."""

    layout: Layout  # of the vector
    size: int  # layout.size, the number of parameters
    dtype: np.dtype[Any]  # of candidates, sums and theta: float32 for policies, float64 for functions
    spread: Array  # [size]: initial standard deviations, if the config has no `sigma`

    def initial(self, rng: np.random.Generator) -> Array:
        """Return the initial vector, dtype[size]."""
        ...

    def evaluate(self, population: Population, jobs: Jobs, carried: ProblemState, poll: Poll) -> Outcome:
        """Evaluate the candidates of a chunk.

        Call `poll()` every few milliseconds, so that rank 0 can answer the other ranks. Only the shared arrays of
        `carried` are those of this generation.
        """
        ...


class ProgramProblem(Problem, Protocol):
    """Programs, which are texts over an alphabet, and their rewards."""

    alphabet: str
    length: int  # maximum number of characters of a program

    def evaluate(self, programs: Sequence[str], jobs: Jobs, poll: Poll) -> Outcome:
        """Score the programs of a chunk independently of each other."""
        ...


class TrajectoryProblem(Problem, Protocol):
    """Episodes of a policy whose steps an algorithm differentiates."""

    policy: Policy
    name: str
    spaces: Spaces
    time_limit: int | None  # in steps; None: unknown
    compiled: (
        object | None
    )  # what a graph needs to play whole episodes itself, such as a bandits' Setting; None: nothing can
    segments: Callable[[], Segments] | None  # what makes episodes that go on from batch to batch; None: nothing can

    def play(self, actor: Actor, batch: Batch, poll: Poll) -> Outcome:
        """Run the episodes of all jobs."""
        ...


AnyProblem = VectorProblem | ProgramProblem | TrajectoryProblem


class Task(Protocol):
    """What is optimised, named by `task.kind` of the config."""

    name: str  # for logs and plots, such as the id of the environment
    spaces: Spaces | None  # what a policy observes and does; None: no policy acts in the task

    def problem(self, searched: Searched, policy: Policy | None, keys: Keys, unit: int) -> AnyProblem:
        """Return the problem of this kind, one of OFFERS.problems.

        `unit` is the number of jobs of a chunk that the algorithm asks for, unless the problem has a `chunk_size`.
        """
        ...

    def close(self) -> None:
        """Release resources, such as environments."""
        ...


Prepared = TypeVar("Prepared")  # what the algorithm's `prepare` returns; None if it needs nothing


class Algorithm(Protocol[Prepared]):
    """The search. Its methods are pure functions of their arguments, the options and the keys.

    The base classes `Strategy`, `PairedStrategy` and `DistributionStrategy` provide most of them.
    """

    def initial(self) -> State:
        """Return the state before generation 0, without the arrays of the problem; the same on every rank."""
        ...

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return the chunks of a round, the same on every rank; an empty list ends the generation.

        `rows` and `fitness` are those of the training jobs of the rounds before, in job order.
        """
        ...

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate a chunk of any purpose: the candidates of training jobs, or the centre without noise."""
        ...

    def with_probes(self, state: State, probes: Rows, fitness: Float64) -> State:
        """Return the state for the next rounds of the generation, and for its update; on every rank.

        Called only after rounds with probes. `state` is the state at the start of the generation, `probes` and
        `fitness` are those of all probe jobs so far, in job order. `tell` gets the state at the start of the
        generation, and calls this itself.
        """
        ...

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Prepared:
        """Return what `partial_update` needs of the rows and the fitness of all training jobs; on every rank."""
        ...

    def blocks(self, state: State) -> int:
        """Return the number of blocks that `partial_update` computes; 0 if the update needs none."""
        ...

    def partial_update(self, state: State, prepared: Prepared, block: int) -> Arrays:
        """Return one block of the update; each block is computed by one rank, and the arrays go to rank 0."""
        ...

    def tell(self, state: State, results: Results[Prepared]) -> tuple[State, Mapping[str, float]]:
        """Return the next state, without the arrays of the problem, and numbers for the metrics; on rank 0 only."""
        ...

    def discoveries(self, state: State, results: Results[Prepared]) -> Sequence[Mapping[str, Json]]:
        """Return what a generation found that is to be recorded, such as correct programs; on rank 0 only.

        `state` is the argument of `tell`. Each item becomes a JSON line of programs.jsonl: plain numbers and text,
        among them `program` (the text) and `reward`.
        """
        ...

    def finished(self, state: State) -> str | None:
        """Return why the search has ended, such as "a correct program", or None; on rank 0 only."""
        ...

    def notices(self, state: State, results: Results[Prepared], after: State) -> Sequence[str]:
        """Return lines for the log about a generation; on rank 0 only.

        `state` is the argument of `tell`, `after` its result. A line is not repeated in each generation that has it.
        """
        ...

    def summary(self, state: State) -> Mapping[str, Json]:
        """Return what result.json and `hpc-es inspect` show of the state besides theta: plain numbers and text."""
        ...


AnyAlgorithm: TypeAlias = Algorithm[Any]  # for code that passes on what `prepare` returned without reading it


@runtime_checkable
class GradientAlgorithm(Algorithm[Prepared], Protocol[Prepared]):
    """An algorithm that follows the gradient of a loss, and shows both: `run.loss()` and `after_train_step`."""

    def keeping_samples(self) -> GradientAlgorithm[Prepared]:
        """Return the same algorithm, whose chunks have what they learn from among their arrays."""
        ...

    def sample(self, results: Results[Prepared]) -> Arrays:
        """Return what all chunks of a generation have learned from, joined; of one that keeps samples, on rank 0."""
        ...

    def losses(self, state: State, results: Results[Prepared]) -> Mapping[str, float]:
        """Return the parts of the loss of a generation's batch, and "loss", their weighted sum; on rank 0."""
        ...

    def losses_of(self, state: State, sample: Arrays) -> Mapping[str, float]:
        """Return the same of a sample, under the parameters of this state; on rank 0."""
        ...
