"""What travels through a generation: chunks of jobs, their rows, and the state; candidates are in `population`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from hpc_es.core.failures import Failure

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Arrays = Mapping[str, Array]
Normaliser = tuple[Float32, Float32, float]  # mean, standard deviation and clip of the observations
Poll = Callable[[], None]
Prepared_co = TypeVar("Prepared_co", covariant=True)  # what an algorithm's `prepare` returns
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"  # plain numbers and text


# Rows: what every rank gets of every job.


@dataclass(frozen=True)
class Column:
    """A column of the rows, besides the return and the length: a number or an array for each job."""

    name: str
    dtype: str  # a NumPy dtype, such as "<f4"
    shape: tuple[int, ...] = ()  # of the array of one job; (): a number


SIGN_RETURN = Column("sign_return", "<f4")  # the sum of the signs of an episode's rewards
CORRECT = Column("correct", "?")  # whether a program is correct
EPISODE_LENGTH = Column(
    "episode_length", "<i4"
)  # steps of the episode that ended in this job; 0: it goes on in a later one
BEHAVIOUR = "behaviour"  # the name of the column that `behaviour` makes
INFO = "info"  # of the column that `info_numbers` makes

Rows = npt.NDArray[np.void]  # row_dtype(columns)[jobs]; a failed job has the return NaN
NO_FITNESS: Float64 = np.zeros(0)  # of no jobs


@lru_cache(maxsize=64)
def row_dtype(columns: tuple[Column, ...] = ()) -> np.dtype[np.void]:
    """Return the dtype of a row: `return_`, `length` (in steps or characters) and these columns."""
    further = [(each.name, each.dtype, each.shape) for each in columns]
    return np.dtype([("return_", "<f8"), ("length", "<i4"), *further])


ROW = row_dtype((SIGN_RETURN,))  # of an episode


def behaviour(size: int) -> Column:
    """Return the column of a job's behaviour, float32[size], by which novelty search compares jobs."""
    return Column(BEHAVIOUR, "<f4", (size,))


def info_numbers(count: int) -> Column:
    """Return the column of the numbers of `report.info`, float64[count], NaN if missing; no update depends on them."""
    return Column(INFO, "<f8", (count,))


def without_info(rows: Rows) -> Rows:
    """Return the rows without the column of `info_numbers`, if they have it."""
    names = rows.dtype.names or ()
    if INFO not in names:
        return rows
    kept = np.zeros(len(rows), [each for each in rows.dtype.descr if each[0] != INFO])
    for name in kept.dtype.names or ():
        kept[name] = rows[name]
    return kept


def with_columns(rows: Rows, values: Mapping[Column, npt.ArrayLike]) -> Rows:
    """Return the rows with further columns and their values, [jobs, *shape], such as those of `Needs.columns`."""
    further = [(each.name, each.dtype, each.shape) for each in values]
    extended = np.zeros(len(rows), [*rows.dtype.descr, *further])
    for name in rows.dtype.names or ():
        extended[name] = rows[name]
    for each, value in values.items():
        extended[each.name] = value
    return extended


def with_episode_lengths(rows: Rows, lengths: Array) -> Rows:
    """Return the rows with this further column, int[jobs]."""
    return with_columns(rows, {EPISODE_LENGTH: lengths})


def of_episodes(rows: Rows) -> Rows:
    """Return the rows of the jobs in which an episode ended or failed, with the lengths of whole episodes.

    Those are all jobs but of strategies that update in the middle of an episode: there a job is a few steps of one,
    its `length` is the number of these steps, and its `return_` that of the episode so far.
    """
    if EPISODE_LENGTH.name not in (rows.dtype.names or ()):
        return rows
    ended: Rows = rows[np.isnan(rows["return_"]) | (rows[EPISODE_LENGTH.name] > 0)].copy()
    ended["length"] = ended[EPISODE_LENGTH.name]
    return ended


# Jobs.

Purpose = Literal["train", "probe", "evaluate"]


@dataclass(frozen=True)
class Chunk:
    """A run of consecutive jobs that one rank evaluates.

    Training jobs are numbered through all rounds of a generation. Probes, which evaluate the centre without noise for
    the update, have numbers of their own, and so do evaluation jobs, on which no update depends.
    """

    index: int  # in the list of all chunks of the generation
    first_job: int  # number of the first job
    jobs: int  # number of jobs
    purpose: Purpose = "train"  # "train", "probe" or "evaluate"
    parent: int = 0  # index of the centre, for strategies with several
    offset: int = 0  # jobs of the unit of its first job that are before it, if a unit is divided
    generation: int = 0  # the number of its generation

    @property
    def job_numbers(self) -> range:
        """The numbers of its jobs."""
        return range(self.first_job, self.first_job + self.jobs)


def cut(jobs: int, size: int, first_job: int = 0, purpose: Purpose = "train", parent: int = 0) -> list[Chunk]:
    """Divide jobs into consecutive chunks of `size` jobs, the last perhaps shorter; the loop numbers the chunks."""
    return [
        Chunk(number, first_job + start, min(size, jobs - start), purpose, parent)
        for number, start in enumerate(range(0, jobs, size))
    ]


def numbered(chunks: Sequence[Chunk], first_index: int, generation: int) -> list[Chunk]:
    """Return the chunks with their places in the list of their generation, and with its number."""
    return [
        Chunk(index, chunk.first_job, chunk.jobs, chunk.purpose, chunk.parent, chunk.offset, generation)
        for index, chunk in enumerate(chunks, first_index)
    ]


@dataclass(frozen=True)
class Jobs:
    """The jobs of a chunk, as a problem gets them."""

    generation: int  # number of the generation
    numbers: range  # of the jobs
    groups: Sequence[int]  # group of each job; jobs of one group share their seeds, such as both jobs of a pair
    purpose: Purpose = "train"  # "train", "probe" or "evaluate"
    parent: int = 0  # index of the centre, for strategies with several
    offset: int = 0  # jobs of the unit of the first job that are before it, if a unit is divided

    def __len__(self) -> int:
        return len(self.numbers)


# Results.


@dataclass(frozen=True)
class Outcome:
    """The result of the evaluation of a chunk."""

    rows: Rows  # [jobs], for every rank
    arrays: Arrays = field(default_factory=dict)  # for rank 0; their shapes do not depend on the number of ranks
    seconds: Mapping[str, float] = field(default_factory=dict)  # spent in "environment" and "policy"
    failures: Sequence[Failure] = ()  # one for each failed job
    # What the problem learned from each unit of jobs: one item for a whole unit, one for each job of a divided unit.
    learned: Sequence[Sequence[Arrays]] = ()
    mixed: bool = False  # whether jobs drew from one generator in turn, so that others beside them change their numbers


@dataclass(frozen=True)
class State:
    """All that is carried from one generation to the next, as named arrays, which checkpoints store completely.

    `shared` is broadcast to every rank at the start of a generation; `master` stays on rank 0 (optimizer slots, sums,
    queues). Names and dtypes are those of the initial state throughout the run, and so are shapes unless
    `Needs.growing` is true; text is uint8, a number is a 0-d array. The arrays of the algorithm come first, then those
    of the problem.

    The docstring of the class of an algorithm or a problem lists its arrays in sections `State, shared:` and
    `State, master:`, one a line:

        archive: float32[entries, numbers], grows; what it is
        adam_m: dtype[params], if optimizer.kind is adam; what it is
        those of `module.name`

    `dtype` is that of theta, and params is the length of it. A class has the arrays of its base classes too.
    """

    generation: int  # number of finished generations, and of the next generation
    shared: Arrays  # on every rank
    master: Arrays  # on rank 0

    @property
    def theta(self) -> Array:
        """The parameters, [params]; empty if the algorithm does not learn a vector."""
        return self.shared.get("theta", NO_PARAMETERS)


NO_PARAMETERS: Float32 = np.zeros(0, np.float32)


@dataclass(frozen=True)
class ProblemState:
    """The arrays of the state that belong to the problem: what it learns, such as observation statistics."""

    shared: Arrays = field(default_factory=dict)  # on every rank
    master: Arrays = field(default_factory=dict)  # on rank 0

    def merge_into(self, state: State) -> State:
        """Return the state with these arrays behind the algorithm's."""
        return State(state.generation, {**state.shared, **self.shared}, {**state.master, **self.master})

    def extract_from(self, state: State) -> ProblemState:
        """Return the arrays of these names in a state."""
        shared = {name: state.shared[name] for name in self.shared}
        return ProblemState(shared, {name: state.master[name] for name in self.master})


@dataclass(frozen=True)
class Results(Generic[Prepared_co]):
    """What rank 0 has for the update at the end of a generation."""

    rows: Rows  # of all training jobs, in job order, of all rounds
    chunk_arrays: Sequence[Arrays]  # of each training chunk, in chunk order
    blocks: Sequence[Arrays] = ()  # results of `partial_update`, in block order
    prepared: Prepared_co = None  # type: ignore[assignment]  # result of `prepare`; the default fits where that is None
    probes: Rows = field(default_factory=lambda: np.zeros(0, row_dtype()))  # of the probe jobs, in job order
    fitness: Float64 = field(default_factory=lambda: NO_FITNESS)  # float64[training jobs], see `Problem.fitness`
    probe_fitness: Float64 = field(default_factory=lambda: NO_FITNESS)  # float64[probe jobs]


# What a policy sees and does.


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

    def __str__(self) -> str:
        return f"Discrete({self.n})"


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once: element i is one of 0 .. counts[i] - 1."""

    counts: tuple[int, ...]

    def __str__(self) -> str:
        return f"MultiDiscrete({list(self.counts)})"


Actions = Box | Discrete | MultiDiscrete


@dataclass(frozen=True)
class ObservationSpec:
    """The shape and dtype of an observation as a policy gets it.

    Images and other arrays of whole numbers keep the environment's dtype; all others, and every flat observation, are
    float32.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_flat(self) -> bool:
        """Whether it is a vector."""
        return len(self.shape) == 1

    @property
    def statistics(self) -> int:
        """Number of means that normalisation has: one for each element, or of an image for each channel.

        Channels are the last axis; an image of two axes has one channel.
        """
        if self.is_flat:
            return self.size
        return 1 if self.is_whole and len(self.shape) == 2 else self.shape[-1]

    @property
    def is_whole(self) -> bool:
        """Whether it is of whole numbers, as images are."""
        return self.dtype.kind in "iu"

    def array(self, observations: npt.ArrayLike) -> Array:
        """Return observations as an array of the dtype; ValueError for fractions, which whole numbers would lose."""
        if self.is_whole:
            dtype = np.asarray(observations).dtype
            if np.size(observations) and dtype.kind not in "iub":
                raise ValueError(f"expected observations of whole numbers, {self.dtype}, found {dtype}")
        return np.asarray(observations, self.dtype)

    def require(self, observation: Array) -> None:
        """Raise ValueError where an observation has another shape, or fractions, which whole numbers would lose."""
        shape, dtype = np.shape(observation), np.asarray(observation).dtype
        if shape != self.shape or (self.is_whole and dtype.kind not in "iub"):
            expected, found = f"{self.dtype}{list(self.shape)}", f"{dtype}{list(shape)}"
            raise ValueError(f"expected an observation {expected}, found {found}")

    def __str__(self) -> str:
        return str(self.size) if self.is_flat else f"{self.dtype}{list(self.shape)}"


def flat_observations(width: int) -> ObservationSpec:
    """Return the spec of vectors, float32[width]."""
    return ObservationSpec((width,))


@dataclass(frozen=True)
class Spaces:
    """What a policy sees and does."""

    observations: ObservationSpec
    actions: Actions
