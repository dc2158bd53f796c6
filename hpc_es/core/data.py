"""Data types of a generation: rows, chunks, outcomes, state, results and spaces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from hpc_es.core.errors import Failure, ReturnedValueError

Array = npt.NDArray[Any]  # each use states shape and dtype
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Arrays = Mapping[str, Array]  # arrays by name
FloatDtype = np.dtype[np.float32] | np.dtype[np.float64]
Normaliser = tuple[Float32, Float32, float]  # mean, standard deviation and clip of the observations
# answers messages of other ranks; call it every few milliseconds in long evaluations
Poll = Callable[[], None]
Prepared_co = TypeVar("Prepared_co", covariant=True)  # what an algorithm's `prepare` returns
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
# an object of a JSON file, whose nested values are read without checks
JsonObject: TypeAlias = Mapping[str, Any]
Keywords: TypeAlias = Mapping[str, Any]  # keyword arguments of an environment or a function
# a config or a section of it as plain data, as in its YAML file
ConfigData: TypeAlias = Mapping[str, Any]

# bytes; JAX on a CPU reads NumPy arrays whose address is a multiple of it without a copy
ALIGNMENT = 64


def read_only(arrays: Arrays) -> dict[str, Array]:
    """Read-only views of arrays, for code that must not change them."""
    views = {name: array.view() for name, array in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an uninitialised array, dtype[*shape], whose address is a multiple of `ALIGNMENT`.

    NumPy aligns arrays to 16 bytes only. Large arrays need this if they, or views of them, go to
    compiled calls.
    """
    count = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(count + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + count].view(dtype).reshape(shape)


# Rows: one per job, known to every rank.


@dataclass(frozen=True)
class Column:
    """A column of the rows in addition to return and length: a number or an array per job.

    Examples:
        >>> from hpc_es.extend import Column, row_dtype
        >>> row_dtype((Column("energy", "<f8"), Column("end", "<f4", (2,)))).names
        ('return_', 'length', 'energy', 'end')
    """

    name: str
    dtype: str  # a NumPy dtype, such as "<f4"
    shape: tuple[int, ...] = ()  # shape of the array per job; (): a number


SIGN_RETURN = Column("sign_return", "<f4")  # sum of the signs of the rewards of an episode
CORRECT = Column("correct", "?")  # whether a program is correct
# length of the episode that ended in this job; 0: none ended
EPISODE_LENGTH = Column("episode_length", "<i4")
# among a chunk's arrays: an observation that loggers may show, [height, width] or with channels
IMAGE = "image"
BEHAVIOUR = "behaviour"  # name of the column of `behaviour`
INFO = "info"  # name of the column of `info_numbers`

Rows = npt.NDArray[np.void]  # row_dtype(columns)[jobs]; the return of a failed job is NaN
NO_FITNESS: Float64 = np.zeros(0)


@lru_cache(maxsize=64)
def row_dtype(columns: tuple[Column, ...] = ()) -> np.dtype[np.void]:
    """Return the dtype of rows with these columns.

    Args:
        columns: those in addition to `return_`, float64, and `length`, int32, in timesteps or
            characters.
    """
    further = [(column.name, column.dtype, column.shape) for column in columns]
    return np.dtype([("return_", "<f8"), ("length", "<i4"), *further])


ROW = row_dtype((SIGN_RETURN,))  # dtype of the row of an episode


def behaviour(size: int) -> Column:
    """Return the column of behaviours, which novelty search compares.

    Args:
        size: numbers per behaviour; the column is float32[jobs, size].
    """
    return Column(BEHAVIOUR, "<f4", (size,))


def info_numbers(count: int) -> Column:
    """Return the column of the numbers of `report.info`, which no update uses.

    Args:
        count: how many numbers; the column is float64[jobs, count], NaN where one is missing.
    """
    return Column(INFO, "<f8", (count,))


def without_info(rows: Rows) -> Rows:
    """Return the rows, row_dtype[jobs], without the column of `info_numbers`."""
    names = rows.dtype.names or ()
    if INFO not in names:
        return rows
    reduced = np.zeros(len(rows), [field for field in rows.dtype.descr if field[0] != INFO])
    for name in reduced.dtype.names or ():
        reduced[name] = rows[name]
    return reduced


def with_columns(rows: Rows, values: Mapping[Column, npt.ArrayLike]) -> Rows:
    """Return a copy of the rows with further columns, such as those of `Needs.columns`.

    Args:
        rows: row_dtype[jobs].
        values: the values of each new column, [jobs, *shape of the column].

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import Column, row_dtype, with_columns
        >>> rows = np.zeros(2, row_dtype())
        >>> with_columns(rows, {Column("energy", "<f8"): [0.5, 1.5]})["energy"]
        array([0.5, 1.5])
    """
    further = [(column.name, column.dtype, column.shape) for column in values]
    extended = np.zeros(len(rows), [*rows.dtype.descr, *further])
    for name in rows.dtype.names or ():
        extended[name] = rows[name]
    for column, value in values.items():
        extended[column.name] = value
    return extended


def with_episode_lengths(rows: Rows, lengths: Array) -> Rows:
    """Return the rows with the column EPISODE_LENGTH; `lengths` is int[jobs]."""
    return with_columns(rows, {EPISODE_LENGTH: lengths})


def finished_episodes(rows: Rows) -> Rows:
    """Return the rows of jobs in which an episode ended or failed.

    In the result `length` is that of the whole episode. For most algorithms these are all jobs.
    Algorithms that update within episodes have jobs of a few steps: `length` is their number, and
    `return_` the return of the episode so far.
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
    """Consecutive jobs that one rank evaluates.

    Training jobs are numbered from 0 through all rounds of a generation. Probes evaluate the centre
    without noise for the update; evaluation jobs do so for the metrics only. Both are numbered
    separately, from 0.
    """

    index: int  # position in the list of all chunks of the generation
    first_job: int  # number of the first job
    jobs: int  # number of jobs
    purpose: Purpose = "train"
    parent: int = 0  # index of the centre, for strategies with several
    # number of jobs of the first job's unit that precede the chunk, if it divides a unit
    offset: int = 0
    generation: int = 0  # number of the generation
    repeat: int = 0  # number of earlier evaluations of the same jobs: see `RepeatsJobs`

    @property
    def job_numbers(self) -> range:
        """Numbers of the jobs, first_job .. first_job + jobs - 1."""
        return range(self.first_job, self.first_job + self.jobs)


def cut(
    jobs: int, size: int, first_job: int = 0, purpose: Purpose = "train", parent: int = 0
) -> list[Chunk]:
    """Divide jobs into consecutive chunks of `size` jobs; the last may be shorter.

    Chunks are numbered from 0, and their generation is set later, by the loop.

    Args:
        jobs: number of jobs.
        size: jobs per chunk, at least 1.
        first_job: number of the first job.
        purpose: that of all jobs.
        parent: index of the centre, for strategies with several.

    Examples:
        >>> from hpc_es.extend import cut
        >>> [chunk.job_numbers for chunk in cut(5, 2)]
        [range(0, 2), range(2, 4), range(4, 5)]
    """
    return [
        Chunk(index, first_job + start, min(size, jobs - start), purpose, parent)
        for index, start in enumerate(range(0, jobs, size))
    ]


def numbered(chunks: Sequence[Chunk], first_index: int, generation: int) -> list[Chunk]:
    """Return the chunks with consecutive indices and the number of their generation."""
    return [
        Chunk(
            index,
            chunk.first_job,
            chunk.jobs,
            chunk.purpose,
            chunk.parent,
            chunk.offset,
            generation,
            chunk.repeat,
        )
        for index, chunk in enumerate(chunks, first_index)
    ]


@dataclass(frozen=True)
class Jobs:
    """The jobs of a chunk, as the argument of `VectorProblem.evaluate`."""

    generation: int  # number of the generation
    numbers: range  # job numbers
    # group of each job; jobs of a group, such as an antithetic pair, share their seeds
    groups: Sequence[int]
    purpose: Purpose = "train"
    parent: int = 0  # index of the centre, for strategies with several
    # number of jobs of the first job's unit that precede the chunk, if it divides a unit
    offset: int = 0
    # of each job, the number of earlier evaluations of its candidate; (): 0
    repeats: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.numbers)

    def seed_groups(self, common: bool) -> Sequence[int]:
        """Return the group of each job whose seeds it has: its own, or, with common seeds, for
        training jobs one for all first evaluations, one for all second ones, and so on.
        """
        if not common or self.purpose != "train":
            return self.groups
        return self.repeats or [0] * len(self.numbers)


# Results.


@dataclass(frozen=True)
class Outcome:
    """The result of the evaluation of a chunk."""

    rows: Rows  # row_dtype[jobs], sent to every rank
    # sent to rank 0; shapes do not depend on the number of ranks
    arrays: Arrays = field(default_factory=dict)
    # time spent in "environment" and "policy"
    seconds: Mapping[str, float] = field(default_factory=dict)
    failures: Sequence[Failure] = ()  # one per failed job
    # What the problem learned from each unit of jobs: one item per whole unit, or one per job of a
    # divided unit.
    learned: Sequence[Sequence[Arrays]] = ()
    # whether the jobs shared a random generator, so that results depend on the chunks
    mixed: bool = False


@dataclass(frozen=True)
class State:
    """The state of a run between generations: named arrays, all stored in checkpoints.

    `shared` is broadcast to every rank at the start of a generation; `master` stays on rank 0, such
    as optimizer slots and queues. Names and dtypes do not change during a run, nor do shapes unless
    `Needs.growing` is true. Text is stored as uint8, a number as a 0-d array. The arrays of the
    algorithm precede those of the problem.

    The docstring of an algorithm or problem lists its arrays in the sections `State, shared:` and
    `State, master:`, one per line:

        archive: float32[entries, numbers], grows; description
        adam_m: dtype[params], if optimizer.kind is adam; description
        those of `module.name`

    `dtype` is the dtype of theta and `params` its length. The arrays of base classes are not
    repeated.

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import State
        >>> state = State(0, {"theta": np.zeros(3)}, {"adam_m": np.zeros(3)})
        >>> state.theta.shape
        (3,)
    """

    generation: int  # number of finished generations, and index of the next one
    shared: Arrays  # arrays on every rank
    master: Arrays  # arrays on rank 0 only

    @property
    def theta(self) -> Array:
        """The parameters, dtype[params]; empty if the algorithm does not search for a vector."""
        return self.shared.get("theta", NO_PARAMETERS)

    def scope(self, prefix: str, number: int = 0) -> State:
        """Return the state of one of several searches within this one.

        Args:
            prefix: such as "search/1/"; the arrays of the search have it here and none there.
            number: 0 .. 2**31 - 1. Searches that share generations need different ones: random
                numbers of a scope are those of the generation `generation + number * 2**32`.

        Examples:
            >>> import numpy as np
            >>> from hpc_es.extend import State
            >>> both = State(4, {"search/1/theta": np.zeros(2)}, {})
            >>> search = both.scope("search/1/")
            >>> sorted(search.shared)
            ['theta']
            >>> sorted(both.with_scope("search/1/", search).shared)
            ['search/1/theta']
        """
        shared, master = (
            {
                name.removeprefix(prefix): array
                for name, array in arrays.items()
                if name.startswith(prefix)
            }
            for arrays in (self.shared, self.master)
        )
        return State(self.generation + number * SCOPED, shared, master)

    def with_scope(self, prefix: str, search: State) -> State:
        """Return this state with the arrays of a search; the inverse of `scope`.

        Args:
            prefix: of the names of the arrays here.
            search: state of the search, whose arrays replace or extend those with the prefix.
        """
        shared, master = (
            {prefix + name: array for name, array in arrays.items()}
            for arrays in (search.shared, search.master)
        )
        return State(self.generation, {**self.shared, **shared}, {**self.master, **master})


SCOPED = 1 << 32  # generations between the random numbers of two scopes
NO_PARAMETERS: Float32 = np.zeros(0, np.float32)


@dataclass(frozen=True)
class ProblemState:
    """The arrays of a state that belong to the problem, such as observation statistics."""

    shared: Arrays = field(default_factory=dict)  # arrays on every rank
    master: Arrays = field(default_factory=dict)  # arrays on rank 0 only

    def merge_into(self, state: State) -> State:
        """Return the state of an algorithm with these arrays added.

        Args:
            state: that of the algorithm alone; arrays of equal names are replaced.
        """
        return State(
            state.generation, {**state.shared, **self.shared}, {**state.master, **self.master}
        )

    def extract_from(self, state: State) -> ProblemState:
        """Return the arrays of a state that have the names of these.

        Args:
            state: that of a run, which has all these names.
        """
        shared = {name: state.shared[name] for name in self.shared}
        return ProblemState(shared, {name: state.master[name] for name in self.master})


@dataclass(frozen=True)
class Results(Generic[Prepared_co]):
    """The results of a generation, from which `Algorithm.tell` computes the update on rank 0."""

    rows: Rows  # row_dtype[training jobs], of all rounds in job order
    chunk_arrays: Sequence[Arrays]  # `Outcome.arrays` of each training chunk, in chunk order
    blocks: Iterable[Arrays] = ()  # results of `partial_update`, in block order
    prepared: Prepared_co = None  # type: ignore[assignment]  # result of `prepare`; the default fits where that is None
    probes: Rows = field(default_factory=lambda: np.zeros(0, row_dtype()))  # row_dtype[probe jobs]
    # float64[training jobs], see `Problem.fitness`
    fitness: Float64 = field(default_factory=lambda: NO_FITNESS)
    probe_fitness: Float64 = field(default_factory=lambda: NO_FITNESS)  # float64[probe jobs]
    # whether `tell` may overwrite the state and the blocks, which are read once
    overwrite: bool = False


# Observations and actions.


@dataclass(frozen=True)
class Box:
    """Continuous actions between `low` and `high`, which may be infinite."""

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
    """Vectors of discrete actions: element i is one of 0 .. counts[i] - 1."""

    counts: tuple[int, ...]

    def __str__(self) -> str:
        return f"MultiDiscrete({list(self.counts)})"


Actions = Box | Discrete | MultiDiscrete  # an action space


@dataclass(frozen=True)
class ObservationSpec:
    """The shape and dtype of the observations that a policy gets.

    Integer arrays of two or more axes, such as images, keep the dtype of the environment. All other
    observations are float32.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic] = field(default_factory=lambda: np.dtype(np.float32))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_flat(self) -> bool:
        """Whether observations are vectors."""
        return len(self.shape) == 1

    @property
    def statistics(self) -> int:
        """Number of normalisation statistics.

        There is one per element of vectors, and one per channel of images. Channels are the last
        axis; an image of two axes has one channel.
        """
        if self.is_flat:
            return self.size
        return 1 if self.is_integer and len(self.shape) == 2 else self.shape[-1]

    @property
    def is_integer(self) -> bool:
        """Whether the dtype is an integer type."""
        return self.dtype.kind in "iu"

    @property
    def castable(self) -> str:
        """Characters (`dtype.char`) of the dtypes all of whose values this dtype holds.

        Floats hold all numbers, apart from rounding.
        """
        if self.is_integer:
            return "".join(
                char for char in np.typecodes["AllInteger"] + "?" if np.can_cast(char, self.dtype)
            )
        return np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"

    def array(self, observations: npt.ArrayLike) -> Array:
        """Return observations in this dtype.

        Args:
            observations: numbers, [..., *shape].

        Returns:
            The array, [..., *shape].

        Raises:
            ValueError: they are no numbers, or numbers that the dtype does not hold.
        """
        array = _as_array(observations)
        if array is None or not self._holds(array):
            raise ReturnedValueError(
                f"expected observations of dtype {self.dtype}, found {form_of(observations)}"
            )
        return np.asarray(array, self.dtype)

    def require(self, observation: object) -> Array:
        """Return one observation as an array.

        Args:
            observation: what an environment has returned.

        Returns:
            The array, [*shape], in the dtype of the observation.

        Raises:
            ValueError: it has another shape, or values that the dtype of the spec does not hold.
        """
        return self._required(observation, self.shape, "an observation")

    def batch(self, observations: object, count: int) -> Array:
        """Return several observations as one array; like `require` otherwise.

        Args:
            observations: what environments have returned.
            count: the number expected.

        Returns:
            The array, [count, *shape].

        Raises:
            ValueError: as in `require`.
        """
        return self._required(observations, (count, *self.shape), "observations")

    def _required(self, values: object, shape: tuple[int, ...], name: str) -> Array:
        array = _as_array(values)
        if array is None or array.shape != shape or not self._holds(array):
            raise ReturnedValueError(
                f"expected {name} {self.dtype}{list(shape)}, found {form_of(values)}"
            )
        return array

    def _holds(self, array: Array) -> bool:
        """Whether this dtype holds the values, apart from rounding.

        Infinity stands for larger floats.
        """
        if array.dtype.char in self.castable or not array.size:
            return True
        if not self.is_integer or array.dtype.kind not in "iu":
            return False
        limits = np.iinfo(self.dtype)  # type: ignore[type-var]
        return bool(limits.min <= int(array.min()) and int(array.max()) <= limits.max)

    def __str__(self) -> str:
        return str(self.size) if self.is_flat else f"{self.dtype}{list(self.shape)}"


def _as_array(values: object) -> Array | None:
    """Return values as an array; None if they are ragged, or parts of them are masked."""
    try:
        return None if np.ma.is_masked(values) else np.asarray(values)
    except (TypeError, ValueError):
        return None


def form_of(value: object) -> str:
    """Return what a value is, for messages: type or dtype, and shape, such as "float64[2, 3]"."""
    if isinstance(value, np.ndarray):
        masked = "masked " if np.ma.is_masked(value) else ""
        return f"{masked}{value.dtype}{list(value.shape)}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        return (
            repr(value)
            if len(repr(value)) <= 60
            else f"{type(value).__name__} {repr(value)[:60]} ..."
        )
    if isinstance(value, list | tuple):
        array = _as_array(value)
        if array is not None and array.dtype.kind in "biufc":
            return f"{array.dtype}{list(array.shape)}"
        return f"a {type(value).__name__} of {len(value)}"
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f"{list(shape)}" if isinstance(shape, tuple) else "")


def not_finite_text(name: str, values: Array, at: str) -> str:
    """Describe the first element of `values` that is not finite: "NAME is NaN AT", or infinite."""
    index = tuple(int(position) for position in np.argwhere(~np.isfinite(values))[0])
    element = f" in element {', '.join(map(str, index))}" if values.size > 1 else ""
    if np.isnan(values[index]):
        return f"{name} is NaN{element} {at}"
    largest = (
        "" if values.dtype.itemsize > 4 else f" (float32 ends at {np.finfo(np.float32).max:.1e})"
    )
    return f"{name} is infinite{element}{largest} {at}"


def flat_observations(width: int) -> ObservationSpec:
    """Return the spec of observations that are vectors, float32[width]."""
    return ObservationSpec((width,))


@dataclass(frozen=True)
class Spaces:
    """Observations and actions of a policy."""

    observations: ObservationSpec
    actions: Actions
