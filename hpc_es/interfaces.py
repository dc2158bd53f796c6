"""What travels through a generation, and what an Algorithm, Task, Policy and Noise must offer.

One generation (`experiment/train.py`):

    state  = world.broadcast(state)                    rank 0 is the master: it owns theta and the optimizer
    chunks = algorithm.ask(state, round)               the same list on every rank
    mine   = work.evaluate(algorithm, state, chunks)   chunks are handed out on demand
    rows   = world.allgather(mine)                     one row a job, in job order, on every rank
    blocks = algorithm.contribute(state, rows, block)  each rank computes its share of parameter blocks
    state  = algorithm.tell(state, results)            on rank 0

An algorithm or task is a module in its folder that has `Options` (a dataclass of `hpc_es.options`) and `build`. That of
an algorithm also has `POLICY`, the kind of policy it has where the config names none (None: it takes no policy),
`NOISE`, whether it wants a Noise, `TENSORFLOW`, whether it computes with that itself, and `misfits`, which finds a task
or policy that it cannot work with. A task is built from its options and the number of the repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Arrays = Mapping[str, Array]
Poll = Callable[[], None]

# What every rank gets of every job, 16 bytes. A failed job has the return NaN.
ROW = np.dtype([("return_", "<f8"), ("sign_return", "<f4"), ("length", "<i4")])
Rows = npt.NDArray[np.void]  # ROW[jobs]


@dataclass(frozen=True)
class Chunk:
    """A fixed run of consecutive jobs, evaluated together by one rank.

    Jobs of training are numbered through all rounds of a generation; evaluation jobs have numbers of their own.
    """

    index: int  # place in the generation's list
    first_job: int
    jobs: int
    training: bool = True  # False: noise-free episodes of the unperturbed theta

    @property
    def job_numbers(self) -> range:
        """The jobs of this chunk."""
        return range(self.first_job, self.first_job + self.jobs)


def cut(jobs: int, size: int, first_index: int, first_job: int = 0) -> list[Chunk]:
    """Consecutive training chunks of so many jobs, the last perhaps shorter."""
    return [
        Chunk(first_index + number, first_job + start, min(size, jobs - start))
        for number, start in enumerate(range(0, jobs, size))
    ]


@dataclass(frozen=True)
class Outcome:
    """What a chunk's evaluation gives."""

    rows: Rows  # ROW[jobs]; every rank gets them
    arrays: Arrays = field(default_factory=dict)  # only rank 0 gets them; shapes do not depend on ranks
    seconds: Mapping[str, float] = field(default_factory=dict)  # where the time went: "environment", "policy"
    failures: Sequence[str] = ()  # why jobs failed, for the log of the rank


@dataclass(frozen=True)
class State:
    """All that an algorithm carries from one generation to the next: named arrays, so it is saved without knowing it.

    `shared` is broadcast to every rank at the start of a generation; `master` stays on rank 0 (optimizer slots, sums,
    queues). Names, shapes and dtypes are those of the algorithm's `initial()` state for ever: text is uint8, a number
    is a 0-d array.
    """

    generation: int  # finished generations, which is the number of the next one
    shared: Arrays
    master: Arrays

    @property
    def theta(self) -> Float32:
        """The parameters, float32[params]; none where what is learned is not a policy."""
        return self.shared.get("theta", NO_PARAMETERS)


NO_PARAMETERS: Float32 = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Results:
    """What rank 0 knows at the end of a generation."""

    rows: Rows  # ROW[training jobs], in job order, of all rounds
    chunk_arrays: Sequence[Arrays]  # of each training chunk, in chunk order
    blocks: Sequence[Array]  # of each block, in block order


@dataclass(frozen=True)
class Box:
    """Continuous actions between `low` and `high`."""

    low: Float32  # float32[actions]
    high: Float32  # float32[actions]


@dataclass(frozen=True)
class Discrete:
    """Actions start .. start + n - 1."""

    n: int
    start: int = 0


@dataclass(frozen=True)
class Spaces:
    """What a policy sees and does."""

    observations: int  # width of the flat observation
    actions: Box | Discrete


@dataclass(frozen=True)
class Perturbed:
    """A chunk's parameters, theta + scale * direction, kept apart so that a policy may share the work on theta."""

    theta: Float32  # float32[params]
    directions: Float32  # float32[directions, params]
    rows: npt.NDArray[np.intp]  # intp[jobs], the direction of each job
    scales: Float32  # float32[jobs], such as +sigma and -sigma; 0 is theta itself

    def stacked(self) -> Float32:
        """float32[jobs, params]."""
        if not len(self.directions):
            return np.repeat(self.theta[np.newaxis], len(self.scales), axis=0)
        stack = self.directions[self.rows]
        stack *= self.scales[:, np.newaxis]
        stack += self.theta
        return stack


class Actor(Protocol):
    """A policy with the parameters of some jobs: it acts for all of them at once."""

    def act(self, observations: Float32) -> Array:
        """Actions of all rows, from float32[rows, observations]: float32[rows, actions], or int64[rows] if Discrete."""
        ...

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Forget the rows not named; what remains acts exactly as before."""
        ...

    def restart(self, row: int) -> None:
        """A new episode begins in this row: forget what a recurrent policy remembers."""
        ...


class Policy(Protocol):
    """A function from observations to actions with `size` parameters in one flat float32 vector."""

    size: int
    action_noise_std: float  # of training episodes

    def initial(self, rng: np.random.Generator) -> Float32:
        """Initial parameters, float32[size]."""
        ...

    def bind(self, parameters: Perturbed, normaliser: tuple[Float32, Float32, float] | None) -> Actor:
        """An actor for a chunk; `normaliser` is (mean, standard deviation, clip) of the observations."""
        ...


class Witness(Protocol):
    """Who is told of every step of a chunk's episodes, to learn from it."""

    def __call__(
        self, jobs: Sequence[int], live: Sequence[int], observations: Float32, rewards: Float64, cut: Sequence[int]
    ) -> None:
        """A step was taken in the rows `live`: what came of it, and the rows whose episode its time limit cut off.

        `jobs` names the job (its place in the batch) of each row, observations are float32[rows, observations] and
        rewards float64[rows]. The arrays are those that the task goes on with: copy what is to be kept.
        """
        ...


@dataclass(frozen=True)
class Batch:
    """The jobs of one chunk as a task needs them."""

    seeds: npt.NDArray[np.int64]  # int64[jobs, episodes_per_job], 0 .. 2**31 - 1; both halves of a pair share theirs
    training: bool
    observe: npt.NDArray[np.bool_]  # bool[jobs]: whose observations are to be summed
    action_noise_std: float
    action_noise: Callable[[int], np.random.Generator]  # the generator of a job (its place in the batch)
    witness: Witness | None = None  # is told of every step of the episodes; some tasks call none


class Task(Protocol):
    """What is optimised."""

    name: str  # for people: the environment's id, the program to find
    spaces: Spaces | None  # None where no policy acts: programs
    episodes_per_job: int

    def evaluate(self, actor: Any, batch: Any, poll: Poll) -> Outcome:
        """Run the batch; `poll` is called between steps, so that rank 0 can answer other ranks."""
        ...

    def close(self) -> None:
        """Give back what it holds, such as environments."""
        ...


class Noise(Protocol):
    """Standard normal perturbations, computed from (generation, pair) on any rank."""

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """float32[stop - start]: the elements start .. stop - 1 of a pair's direction; `start` is a block's edge."""
        ...


class Algorithm(Protocol):
    """How the parameters move. Its methods are pure functions of their arguments, and of options and seed."""

    def initial(self) -> State:
        """The state before generation 0; the same on every rank."""
        ...

    def ask(self, state: State, round: int, first_index: int) -> list[Chunk]:
        """The training chunks of a round, the first of them with index `first_index`; the same on every rank.

        None where a generation has nothing to evaluate, as all its programs are known.
        """
        ...

    def enough(self, rows: Rows) -> bool:
        """Whether the generation is complete, or a further round is needed."""
        ...

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate a chunk, of training or of evaluation episodes."""
        ...

    def blocks(self) -> int:
        """How many parameter blocks `contribute` computes; 0 if the update needs none."""
        ...

    def contribute(self, state: State, rows: Rows, block: int) -> Array:
        """One parameter block of the update, computed whole by one rank."""
        ...

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
        """The next state, and numbers for the metrics; on rank 0 only."""
        ...

    def finished(self, state: State) -> str | None:
        """Why there is nothing left to search for, such as "a correct program"; on rank 0 only."""
        ...

    def summary(self, state: State) -> Mapping[str, Any]:
        """What result.json and `hpc-es inspect` tell of the state besides theta: plain numbers and text."""
        ...
