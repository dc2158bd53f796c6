"""Data types of a generation: rows, chunks, outcomes, state, results and spaces;
how frozen dataclasses are defined.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeAlias, TypeVar

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
T = TypeVar("T")
_Fields = tuple[dataclasses.Field[Any], ...]
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
# an object of a JSON file, whose nested values are read without checks
JsonObject: TypeAlias = Mapping[str, Any]
Keywords: TypeAlias = Mapping[str, Any]  # keyword arguments of an environment or a function
# a config or a section of it as plain data, as in its YAML file
ConfigData: TypeAlias = Mapping[str, Any]

# bytes; JAX on a CPU reads NumPy arrays whose address is a multiple of it without a copy
ALIGNMENT = 64


def read_only(arrays: Arrays) -> dict[str, Array]:
    """Return read-only views of arrays, for code that must not change them."""
    views = {name: array.view() for name, array in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an array of arbitrary values, dtype[*shape], whose address is a multiple of ALIGNMENT.

    NumPy aligns arrays to 16 bytes only. Large arrays need this if they, or views of them, go to
    compiled calls.
    """
    count = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(count + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + count].view(dtype).reshape(shape)


# Frozen dataclasses.


def frozen_dataclass(*, frozen: bool, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Return a decorator that does what `dataclasses.dataclass` does with the same arguments,
    without compiling code.

    `dataclasses.dataclass` generates and compiles the source of six methods for each class, which
    takes 0.5 ms, and each rank defines about a hundred classes at its start. Here the methods are
    closures that read the fields of the class. An instance takes 1.7 instead of 0.7 us, so classes
    with an instance per step are made by `dataclasses`; so are base classes for users, since a
    frozen dataclass of `dataclasses` can have only such bases.
    """
    assert frozen, "a class whose instances change is made by dataclasses"

    def decorated(cls: type[T]) -> type[T]:
        assert not hasattr(cls, "__post_init__"), "such a class is made by dataclasses"
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        methods = {"__init__": _initializer(fields), **_comparison(fields)}
        methods |= {
            "__repr__": _representation(fields),
            "__setattr__": _refuse,
            "__delattr__": _refuse,
        }
        for name, method in methods.items():
            if name not in vars(cls):
                setattr(cls, name, method)
        return cls

    return decorated


# type checkers know the decorator of this name; with "as" other modules may import it from here
if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414
else:
    dataclass = frozen_dataclass


def _initializer(fields: _Fields) -> Callable[..., None]:
    names, set_attribute = [field.name for field in fields], object.__setattr__
    positional = [field.name for field in fields if not field.kw_only]
    all_names = set(names)
    defaults = {
        field.name: field.default for field in fields if field.default is not dataclasses.MISSING
    }
    factories = {
        field.name: field.default_factory
        for field in fields
        if field.default_factory is not dataclasses.MISSING
    }

    def initialize(self: object, *args: object, **values: Any) -> None:
        if args:
            if len(args) > len(positional) or not values.keys().isdisjoint(positional[: len(args)]):
                raise TypeError(f"{type(self).__name__}() has a value too many")
            values |= zip(positional, args, strict=False)
        if values.keys() != all_names:
            values = {**defaults, **values}
        if values.keys() != all_names:
            values |= {name: make() for name, make in factories.items() if name not in values}
            wrong = [f"lacks {name!r}" for name in names if name not in values]
            wrong += [f"has no field {name!r}" for name in values if name not in all_names]
            if wrong:
                raise TypeError(f"{type(self).__name__}() {', '.join(wrong)}")
        for name in names:
            set_attribute(self, name, values[name])

    return initialize


def _representation(fields: _Fields) -> Callable[[object], str]:
    def represent(self: object) -> str:
        items = ", ".join(
            f"{field.name}={getattr(self, field.name)!r}" for field in fields if field.repr
        )
        return f"{type(self).__qualname__}({items})"

    return represent


def _comparison(fields: _Fields) -> dict[str, Callable[..., Any]]:
    compared = [field.name for field in fields if field.compare]

    def values(instance: object) -> tuple[object, ...]:
        return tuple([getattr(instance, name) for name in compared])

    return {
        "__eq__": lambda self, other: (
            values(self) == values(other) if type(other) is type(self) else NotImplemented
        ),
        "__hash__": lambda self: hash(values(self)),
    }


def _refuse(self: object, name: str, value: object = None) -> NoReturn:
    raise dataclasses.FrozenInstanceError(
        f"cannot change {name!r}: {type(self).__name__} is frozen"
    )


# Rows: one per job, known to every rank.


@dataclass(frozen=True)
class Column:
    """A further column of the rows, in addition to return and length:
    a number or an array per job.
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
    """Return the dtype of rows with `return_`,
    `length` (in steps or characters) and these columns.
    """
    further = [(column.name, column.dtype, column.shape) for column in columns]
    return np.dtype([("return_", "<f8"), ("length", "<i4"), *further])


ROW = row_dtype((SIGN_RETURN,))  # dtype of the row of an episode


def behaviour(size: int) -> Column:
    """Return the column of behaviours, float32[size], which novelty search compares."""
    return Column(BEHAVIOUR, "<f4", (size,))


def info_numbers(count: int) -> Column:
    """Return the column of the numbers of `report.info`, float64[count], NaN if missing;
    updates do not use it.
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
    """Return the rows with further columns, such as those of `Needs.columns`;
    `values` are [jobs, *shape].
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
    """Return the rows of jobs in which an episode ended or failed; `length` is then that of the
    whole episode.

    For most algorithms these are all jobs. Algorithms that update within episodes have jobs of a
    few steps: `length` is their number, and `return_` the return of the episode so far.
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

    @property
    def job_numbers(self) -> range:
        """Numbers of the jobs, first_job .. first_job + jobs - 1."""
        return range(self.first_job, self.first_job + self.jobs)


def cut(
    jobs: int, size: int, first_job: int = 0, purpose: Purpose = "train", parent: int = 0
) -> list[Chunk]:
    """Divide jobs into consecutive chunks of `size` jobs; the last may be shorter.

    Their generation is set later.
    """
    return [
        Chunk(index, first_job + start, min(size, jobs - start), purpose, parent)
        for index, start in enumerate(range(0, jobs, size))
    ]


def numbered(chunks: Sequence[Chunk], first_index: int, generation: int) -> list[Chunk]:
    """Return the chunks with consecutive indices from
    `first_index` and the number of their generation.
    """
    return [
        Chunk(
            index,
            chunk.first_job,
            chunk.jobs,
            chunk.purpose,
            chunk.parent,
            chunk.offset,
            generation,
        )
        for index, chunk in enumerate(chunks, first_index)
    ]


@dataclass(frozen=True)
class Jobs:
    """The jobs of a chunk, as the argument of `Problem.evaluate`."""

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
    """

    generation: int  # number of finished generations, and index of the next one
    shared: Arrays  # arrays on every rank
    master: Arrays  # arrays on rank 0 only

    @property
    def theta(self) -> Array:
        """The parameters, dtype[params]; empty if the algorithm does not search for a vector."""
        return self.shared.get("theta", NO_PARAMETERS)

    def scope(self, prefix: str, number: int = 0) -> State:
        """Return the state of one of several searches, whose arrays have the prefix here and none
        there.

        Args:
            prefix: such as "search/1/".
            number: 0 .. 2**31 - 1. Searches that share generations need different ones: random
                numbers of a scope are those of the generation `generation + number * 2**32`.
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
        """Return this state with the arrays of a search, which may be new, under the prefix."""
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
        """Return the state of an algorithm with these arrays added."""
        return State(
            state.generation, {**state.shared, **self.shared}, {**state.master, **self.master}
        )

    def extract_from(self, state: State) -> ProblemState:
        """Return the arrays of a state that have these names."""
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
        """Number of normalisation statistics: one per element of vectors, one per channel of
        images.

        Channels are the last axis; an image of two axes has one channel.
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
        """Characters of the dtypes, `dtype.char`, all of whose values this dtype holds,
        apart from rounding.
        """
        if self.is_integer:
            return "".join(
                char for char in np.typecodes["AllInteger"] + "?" if np.can_cast(char, self.dtype)
            )
        return np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"

    def array(self, observations: npt.ArrayLike) -> Array:
        """Return observations, [..., *shape], in this dtype;
        ValueError unless they are numbers that it holds.
        """
        array = _as_array(observations)
        if array is None or not self._holds(array):
            raise ReturnedValueError(
                f"expected observations of dtype {self.dtype}, found {form_of(observations)}"
            )
        return np.asarray(array, self.dtype)

    def require(self, observation: object) -> Array:
        """Return an observation as an array [*shape]; ValueError for another shape,
        or values that are not numbers.
        """
        return self._required(observation, self.shape, "an observation")

    def batch(self, observations: object, count: int) -> Array:
        """Return `count` observations as an array [count, *shape]; ValueError like `require`."""
        return self._required(observations, (count, *self.shape), "observations")

    def _required(self, values: object, shape: tuple[int, ...], name: str) -> Array:
        array = _as_array(values)
        if array is None or array.shape != shape or not self._holds(array):
            raise ReturnedValueError(
                f"expected {name} {self.dtype}{list(shape)}, found {form_of(values)}"
            )
        return array

    def _holds(self, array: Array) -> bool:
        """Return whether this dtype holds the values, apart from rounding;
        infinity stands for larger floats.
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
    """Return "NAME is NaN AT", or infinite,
    with the first element of `values` [...] that is not finite.
    """
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
