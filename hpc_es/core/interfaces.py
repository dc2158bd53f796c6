"""The contracts: what an Algorithm, a Problem, a Task and a Noise offer each other; those of a Policy are in `acting`.

One generation (`training/generation.py`):

    state    = world.broadcast(state)                        rank 0 is the master: it owns the state
    chunks   = algorithm.ask(state, round, rows, fitness)    the same list on every rank; [] ends the generation
    mine     = work.evaluate(algorithm, state, chunks)       chunks are handed out on demand
    rows     = world.allgather(mine)                         one row a job, in job order, on every rank
    fitness  = problem.fitness(rows, carried)                one number a job, which algorithms rank, on every rank
    state    = algorithm.probed(state, probes, fitness)      on every rank, after a round with probes
    prepared = algorithm.prepare(state, rows, fitness)       on every rank, once
    blocks   = algorithm.contribute(state, prepared, block)  each rank computes its share of the blocks
    state    = algorithm.tell(state, results)                on rank 0
    state    = problem.merge(carried, units)                 on rank 0: what the problem itself has learned

An algorithm searches one kind of problem: vectors, programs, or trajectories of a policy. It says which in `NEEDS`; a
task says in `OFFERS` which kinds it can be, and makes the problem. An algorithm sees the problem alone, never the task.

A kind is a module or package in its folder, or the user's own, that has `Options` (of `hpc_es.config.options`) and
`build`; that of an algorithm also has `NEEDS` and may have `misfits`, that of a task has `OFFERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from hpc_es.core.acting import Actor, Batch, Policy, Segments
from hpc_es.core.data import (
    Array,
    Arrays,
    Carried,
    Chunk,
    Column,
    Float64,
    Jobs,
    Json,
    Outcome,
    Poll,
    Results,
    Rows,
    Spaces,
    State,
)
from hpc_es.core.keys import Keys
from hpc_es.core.places import RunPlace
from hpc_es.core.population import Layout, Population

Searched = Literal["vectors", "programs", "trajectories"]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What an algorithm needs: declared once, as `NEEDS` of its module."""

    searches: Searched
    policy: str = "mlp"  # the kind of policy where a policy acts and the config names none
    noise: bool = False  # whether it perturbs parameters by a Noise
    tensorflow: bool = False  # whether it computes with TensorFlow itself
    gradients: bool = False  # whether chunks give gradients, so that bits depend on how rounds are cut
    columns: tuple[Column, ...] = ()  # further columns of a row, which its `evaluate` fills
    presets: Mapping[str, Json] = field(default_factory=dict)  # defaults of other sections, by dotted key
    growing: bool = False  # whether arrays of its state change their shapes, such as an archive
    stochastic: bool = False  # whether its policies give probabilities, from which actions can be drawn


@dataclass(frozen=True, kw_only=True)
class Offers:
    """What a task offers: declared once, as `OFFERS` of its module."""

    problems: tuple[Searched, ...]  # the kinds of problem that it can be
    policy: bool = False  # whether a policy acts in it
    values: bool = False  # whether its jobs have values, which `stop.target_value` is of
    any_chunks: bool = False  # whether no bit depends on how rounds are cut, where no chunk gives a gradient
    info: bool = False  # whether its `build` takes `info=`, the numbers of `report.info` and how they are made
    compiled: bool = False  # whether it compiles the policy's pure form, and says how many jobs a call has


Evaluation = tuple[int, float, Sequence[float]]  # a job (-1: the centre), its value, its vector as it was evaluated


# How a round of jobs may be cut into chunks: as the algorithm asks, since bits depend on it; or anywhere, where a chunk
# of more jobs saves a little ("free"), messages only ("one by one"), or most of the time ("at once").
Cutting = Literal["fixed", "free", "one by one", "at once"]


class Problem(Protocol):
    """What is common to the three kinds of problem."""

    columns: tuple[Column, ...]  # of a row, besides `return_` and `length`
    is_objective: bool  # whether it is a function of the user's, of whose values the best is wanted
    episodes_per_job: int
    chunk_size: int | None  # jobs of a unit, in which the algorithm asks, where that is not the user's choice
    cutting: Cutting
    evaluation_episodes: int | None  # of an evaluation of the centre; None: evaluation.episodes; 0: there is none

    def carried(self) -> Carried:
        """Return what the problem has learned before the first generation; nothing, for most."""
        ...

    def merge(self, carried: Carried, units: Sequence[Arrays]) -> Carried:
        """Return what it has learned after some more units, merged in their order; on rank 0 only."""
        ...

    def unit(self, parts: Sequence[Arrays]) -> Arrays:
        """Return what a unit has taught, of what its jobs have, in their order; on rank 0 only."""
        ...

    def fitness(self, rows: Rows, carried: Carried) -> Float64:
        """Return what algorithms rank, float64[jobs]: higher is better, NaN of a job that is not to be ranked.

        `rows` are those of all training jobs of the generation so far, or of all its probes, and there is one at least.
        `carried` has the shared arrays only. A job whose return is NaN has failed, whatever its fitness. The result
        must depend on nothing else: every rank calls this, and so does a run that computes a generation again, from
        rows without the column of `report.info`.
        """
        ...

    def metrics(self, carried: Carried) -> Mapping[str, float]:
        """Return numbers for the metrics of a generation; on rank 0 only."""
        ...

    def measured(self, state: State, evaluation: Rows) -> Sequence[Arrays]:
        """Return what an evaluation of the centre says, as units to merge after the others; on rank 0 only."""
        ...

    def is_reached(self, carried: Carried, target: float) -> bool:
        """Return whether the best value is as good as `stop.target_value`; on rank 0 only."""
        ...

    def summary(self, carried: Carried) -> Mapping[str, Json]:
        """Return what result.json tells of what it has learned: plain numbers and text; on rank 0 only."""
        ...

    def open(self, place: RunPlace) -> None:
        """Get to know the run directory, before the first generation; every rank calls this."""
        ...

    def check(self) -> None:
        """See what --check alone has the time for, such as whether everything can be compiled; ConfigError."""
        ...

    def circumstances(self) -> Mapping[str, Json]:
        """Return what bits depend on besides config and versions, for the checkpoint; plain numbers and text."""
        ...

    def saved(self, generation: int) -> None:
        """A checkpoint holds the generations before this one; on rank 0 only."""
        ...

    notices: tuple[str, ...]  # what a user should know of how it runs, for the log
    coordinate_names: tuple[str, ...]  # of evaluations.csv, the names of the coordinates; none: it is not written

    def evaluations(self, state: State, results: Results, evaluation: Rows) -> Iterator[Evaluation]:
        """Yield what a generation has evaluated, in job order; on rank 0 only."""
        ...


class VectorProblem(Problem, Protocol):
    """A function of a vector: a policy's parameters, or coordinates of one's own."""

    layout: Layout  # of the vector; `size` is layout.size
    size: int
    dtype: np.dtype[Any]  # of candidates, sums and state: float32 of policies, float64 of functions
    spread: Array  # [size]: standard deviations to begin with, of strategies to which the config gives none

    def initial(self, rng: np.random.Generator) -> Array:
        """Return the vector to begin with, [size]."""
        ...

    def evaluate(self, population: Population, jobs: Jobs, carried: Carried, poll: Poll) -> Outcome:
        """Evaluate a chunk; `poll` is called between steps, so that rank 0 can answer other ranks.

        Of `carried` only the shared arrays are those of this generation.
        """
        ...


class ProgramProblem(Problem, Protocol):
    """Programs, texts over an alphabet, and what they are worth."""

    alphabet: str
    length: int  # characters of the longest program

    def evaluate(self, programs: Sequence[str], jobs: Jobs, poll: Poll) -> Outcome:
        """Score the programs of a chunk, each alone."""
        ...


class TrajectoryProblem(Problem, Protocol):
    """Episodes of a policy whose steps an algorithm wants to see, to differentiate them."""

    policy: Policy
    name: str
    spaces: Spaces
    time_limit: int | None  # in steps, where it is known
    compiled: (
        object | None
    )  # what a graph needs to play whole episodes itself, such as a bandits' Setting; None: nothing can
    segments: Callable[[], Segments] | None  # what makes episodes that go on from batch to batch; None: nothing can

    def play(self, actor: Actor, batch: Batch, poll: Poll) -> Outcome:
        """Run every job's episodes."""
        ...


AnyProblem = VectorProblem | ProgramProblem | TrajectoryProblem


class Task(Protocol):
    """What is optimised, as the config names it."""

    name: str  # for people: the environment's id, the program to find
    spaces: Spaces | None  # what a policy must fit; None where none acts

    def problem(self, searched: Searched, policy: Policy | None, keys: Keys, unit: int) -> AnyProblem:
        """Return the problem of this kind, one of OFFERS.problems.

        `unit` is the number of jobs that the algorithm asks for as one, where the problem has no `chunk_size`.
        """
        ...

    def close(self) -> None:
        """Give back what it holds, such as environments."""
        ...


class Algorithm(Protocol):
    """How the search goes on. Its methods are pure functions of their arguments, and of options and seed.

    `algorithms/parts/strategy.py` has the base classes that give the methods most do not need.
    """

    def initial(self) -> State:
        """Return the state before generation 0, without what the problem carries; the same on every rank."""
        ...

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return the chunks of a round, the same on every rank; none where the generation is complete.

        `rows` and `fitness` are those of the training jobs of the rounds before, in job order.
        """
        ...

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate a chunk, whatever its purpose."""
        ...

    def probed(self, state: State, probes: Rows, fitness: Float64) -> State:
        """Return the state for the next rounds of the generation, and for its update; on every rank.

        Called after rounds with probes only: `state` is that of the generation's begin, and `probes` and `fitness` are
        those of its probe jobs so far, in job order. `tell` gets the state of the begin, and calls this itself.
        """
        ...

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Any:
        """Return what `contribute` needs of the rows and the fitness of all training jobs; on every rank, once."""
        ...

    def blocks(self, state: State) -> int:
        """Return how many blocks `contribute` computes; 0 if the update needs none."""
        ...

    def contribute(self, state: State, prepared: Any, block: int) -> Arrays:
        """Return one block of the update, computed whole by one rank."""
        ...

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
        """Return the next state, without what the problem carries, and numbers for the metrics; on rank 0 only."""
        ...

    def discoveries(self, state: State, results: Results) -> Sequence[Mapping[str, Json]]:
        """Return what a generation has found that is to be kept, such as correct programs; on rank 0 only.

        `state` is the one that `tell` got. Each is one JSON line of programs.jsonl: plain numbers and text, among them
        `program` (the text) and `reward`.
        """
        ...

    def finished(self, state: State) -> str | None:
        """Return why there is nothing left to search for, such as "a correct program"; on rank 0 only."""
        ...

    def notices(self, state: State, results: Results, after: State) -> Sequence[str]:
        """Return lines for the log of what a user should know of a generation; on rank 0 only.

        `state` is the one that `tell` got and `after` the one it gave. A line is written when it is new, not again in
        each generation that says the same.
        """
        ...

    def summary(self, state: State) -> Mapping[str, Json]:
        """Return what result.json and `hpc-es inspect` tell of the state besides theta: plain numbers and text."""
        ...


@runtime_checkable
class GradientAlgorithm(Algorithm, Protocol):
    """An algorithm that follows the gradient of a loss, and shows both: `run.loss()` and `after_train_step`."""

    def keeping_samples(self) -> GradientAlgorithm:
        """Return the same algorithm, whose chunks have what they learn from among their arrays."""
        ...

    def sample(self, results: Results) -> Arrays:
        """Return what all chunks of a generation have learned from, joined; of one that keeps samples, on rank 0."""
        ...

    def losses(self, state: State, results: Results) -> Mapping[str, float]:
        """Return the parts of the loss of a generation's batch, and "loss", their weighted sum; on rank 0."""
        ...

    def losses_of(self, state: State, sample: Arrays) -> Mapping[str, float]:
        """Return the same of a sample, under the parameters of this state; on rank 0."""
        ...
