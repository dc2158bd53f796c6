"""What ranks send each other about a generation.

These are rows with timings, outcomes, states, and parts of an update. The rows of a round, which
every rank sends in each generation, are plain records. Everything else is named arrays in the bytes
of `mpi.world.encode`, where a name like block/3/sums has the place of an array in front of its own
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Arrays, Chunk, Outcome, Purpose, Rows
from hpc_es.mpi.world import Bytes, Int64, decode, encode, from_words, to_words

PURPOSES: tuple[Purpose, ...] = ("train", "probe", "evaluate")


def under(place: str, arrays: Arrays) -> dict[str, Array]:
    """Return the arrays with `place`/ in front of their names."""
    return {f"{place}/{name}": array for name, array in arrays.items()}


def places(arrays: Arrays) -> dict[str, dict[str, Array]]:
    """Return the arrays by what precedes the first / in their names."""
    by_place: dict[str, dict[str, Array]] = {}
    for key, array in arrays.items():
        place, name = key.split("/", 1)
        by_place.setdefault(place, {})[name] = array
    return by_place


# The rows of a round: the header of a rank, the times of its chunks, and their rows in that order.

TIMES = ("environment", "policy", "update", "messages", "idle")
HEADER = np.dtype(
    [
        *(
            ("signals", "<i8"),
            ("policy_calls", "<f8"),
            *((name, "<f8") for name in TIMES),
            ("chunks", "<i8"),
        ),
        ("arrays", "<i8"),  # number of chunks that returned arrays in addition to rows
        ("mixed", "<i8"),  # number of chunks whose jobs affected each other's random numbers
        # seconds from the start of a round to the end of the rank's last chunk
        ("evaluating", "<f8"),
        # number of jobs that were given up, because the generation was closed early
        ("given_up", "<i8"),
        ("failures", "<i8"),  # number of new kinds of failure that the rank has to report
    ]
)
TIMED = np.dtype([("index", "<i8"), ("environment", "<f8"), ("elapsed", "<f8"), ("steps", "<f8")])

Header: TypeAlias = npt.NDArray[np.void]  # HEADER[1], or HEADER[ranks]


class TimedChunk(NamedTuple):
    """How long a chunk took."""

    environment: float  # seconds in the environment or the objective; NaN if unknown
    elapsed: float  # seconds of all, also of noise and policy
    steps: float  # that its jobs took together; 0 if they take none


def packed_round(
    header: Header, times: Mapping[int, TimedChunk], rows: Mapping[int, Rows]
) -> Bytes:
    """Return the message of a rank; `times` and `rows` are those of its chunks, by index."""
    timed = np.array([(index, *chunk) for index, chunk in times.items()], TIMED)
    parts = [header.tobytes(), timed.tobytes(), *(rows[index].tobytes() for index in times)]
    return np.frombuffer(b"".join(parts), np.uint8)


def unpacked_round(
    message: Bytes, row: np.dtype[np.void], jobs: Mapping[int, int]
) -> tuple[Header, dict[int, TimedChunk], dict[int, Rows]]:
    """Return the header, times and rows in a message from `packed_round`.

    The jobs of all chunks are given by index.
    """
    memory = message.tobytes()
    header = np.frombuffer(memory, HEADER, 1)
    start = HEADER.itemsize
    timed = np.frombuffer(memory, TIMED, int(header[0]["chunks"]), start)
    start += timed.nbytes
    times, rows = dict[int, TimedChunk](), dict[int, Rows]()
    for index, *seconds in timed.tolist():
        times[index] = TimedChunk(*seconds)
        rows[index] = np.frombuffer(memory, row, jobs[index], start)
        start += rows[index].nbytes
    return header, times, rows


# The outcome of a chunk, also in the checkpoint of a generation that a budget cuts short.


def packed_outcome(outcome: Outcome) -> dict[str, Array]:
    """Return rows, arrays and what the problem learned from a chunk, as named arrays."""
    packed: dict[str, Array] = {
        "rows": np.ascontiguousarray(outcome.rows).view(np.uint8),
        "learned": np.array([len(parts) for parts in outcome.learned], np.int64),
    }
    packed |= under("array", outcome.arrays)
    for unit, parts in enumerate(outcome.learned):
        for part, arrays in enumerate(parts):
            packed |= under(f"learned/{unit}/{part}", arrays)
    return packed


def unpacked_outcome(packed: Arrays, row: np.dtype[np.void]) -> Outcome:
    """Return the outcome from the result of `packed_outcome`, with rows of this dtype."""
    learned: list[list[dict[str, Array]]] = [
        [{} for _ in range(count)] for count in packed["learned"].tolist()
    ]
    by_place = places({key: array for key, array in packed.items() if "/" in key})
    for key, array in by_place.get("learned", {}).items():
        unit, part, name = key.split("/", 2)
        learned[int(unit)][int(part)][name] = array
    return Outcome(
        np.frombuffer(packed["rows"].tobytes(), row), by_place.get("array", {}), learned=learned
    )


def packed_outcomes(outcomes: Mapping[int, Outcome]) -> dict[str, Array]:
    """Return outcomes by number, such as the index of their chunk, as named arrays."""
    packed: dict[str, Array] = {}
    for number, outcome in outcomes.items():
        packed |= under(str(number), packed_outcome(outcome))
    return packed


def unpacked_outcomes(packed: Arrays, row: np.dtype[np.void]) -> dict[int, Outcome]:
    """Return the outcomes from the result of `packed_outcomes`, by number and in its order."""
    return {
        int(number): unpacked_outcome(outcome, row) for number, outcome in places(packed).items()
    }


# What rank 0 gets for an update in addition to rows, from every rank: blocks, and the arrays and
# units of chunks.


@dataclass(frozen=True)
class Gathered:
    """Arrays that rank 0 receives in addition to rows."""

    blocks: Iterable[Arrays] = ()  # of the update, in block order
    chunk_arrays: Sequence[Arrays] = ()  # of each training chunk, in chunk order
    # of each unit of training jobs and probes, in order: its parts
    learned: Sequence[Sequence[Arrays]] = ()


def packed_block(block: int, sums: Arrays) -> dict[str, Array]:
    """Return a block of the update as named arrays."""
    return under(f"block/{block}", sums)


def packed_chunk_arrays(index: int, arrays: Arrays) -> dict[str, Array]:
    """Return the arrays of a chunk as named arrays."""
    return under(f"chunk/{index}", arrays)


def packed_unit(unit: int, index: int, part: int, arrays: Arrays) -> dict[str, Array]:
    """Return a part of what the problem learned from a unit, as named arrays.

    The chunk `index` has this part.
    """
    return under(f"unit/{unit}.{index}.{part}", arrays)


def gathered(messages: Sequence[Arrays], blocks: int, chunks: Sequence[int]) -> Gathered:
    """Return what is in the named arrays of all ranks.

    The number of blocks and the indices of the chunks are given.
    """
    groups: dict[str, dict[str, dict[str, Array]]] = {"block": {}, "chunk": {}, "unit": {}}
    for message in messages:
        for key, array in message.items():
            group, item, name = key.split("/", 2)
            groups[group].setdefault(item, {})[name] = array
    learned: dict[int, list[Arrays]] = {}
    for unit, index, part in sorted(tuple(map(int, item.split("."))) for item in groups["unit"]):
        learned.setdefault(unit, []).append(groups["unit"][f"{unit}.{index}.{part}"])
    return Gathered(
        [groups["block"].get(str(block), {}) for block in range(blocks)],
        [groups["chunk"].get(str(index), {}) for index in chunks],
        list(learned.values()),
    )


# Messages between rank 0 and a worker while generations overlap: Tag.TASK of rank 0, and Tag.RESULT
# of the worker. The first of the named arrays, which are numbers, has the name of the class.


@dataclass(frozen=True)
class StateTask:
    """A state for the following chunks: that of their jobs, or the one that evaluations measure."""

    NAME: ClassVar = "state"
    generation: int
    shared: Arrays
    is_evaluation: bool = False

    def packed(self) -> dict[str, Array]:
        """Return the message as named arrays."""
        numbers = np.array([self.generation, self.is_evaluation], np.int64)
        return {self.NAME: numbers, **under("shared", self.shared)}

    @classmethod
    def unpacked(cls, numbers: Sequence[int], arrays: Arrays, row: np.dtype[np.void]) -> StateTask:
        """Return the message from the result of `packed`."""
        generation, is_evaluation = numbers
        return cls(generation, places(arrays).get("shared", {}), bool(is_evaluation))


@dataclass(frozen=True)
class ChunkTask:
    """A chunk to evaluate."""

    NAME: ClassVar = "chunk"
    chunk: Chunk

    def packed(self) -> dict[str, Array]:
        """Return the message as named arrays."""
        chunk = self.chunk
        place = chunk.parent, chunk.offset, chunk.generation, chunk.repeat
        numbers = chunk.index, chunk.first_job, chunk.jobs, PURPOSES.index(chunk.purpose), *place
        return {self.NAME: np.array(numbers, np.int64)}

    @classmethod
    def unpacked(cls, numbers: Sequence[int], arrays: Arrays, row: np.dtype[np.void]) -> ChunkTask:
        """Return the message from the result of `packed`."""
        index, first_job, jobs, purpose, *place = numbers
        return cls(Chunk(index, first_job, jobs, PURPOSES[purpose], *place))


@dataclass(frozen=True)
class BlocksTask:
    """Blocks of an update to compute, and the rows of all training jobs of its generation."""

    NAME: ClassVar = "blocks"
    generation: int
    blocks: Sequence[int]
    rows: Rows

    def packed(self) -> dict[str, Array]:
        """Return the message as named arrays."""
        numbers = np.array([self.generation, *self.blocks], np.int64)
        return {self.NAME: numbers, "rows": np.frombuffer(self.rows.tobytes(), np.uint8)}

    @classmethod
    def unpacked(cls, numbers: Sequence[int], arrays: Arrays, row: np.dtype[np.void]) -> BlocksTask:
        """Return the message from the result of `packed`."""
        generation, *blocks = numbers
        return cls(generation, blocks, np.frombuffer(arrays["rows"].tobytes(), row))


@dataclass(frozen=True)
class EndTask:
    """The end of the phase."""

    NAME: ClassVar = "end"

    def packed(self) -> dict[str, Array]:
        """Return the message as named arrays."""
        return {self.NAME: np.zeros(0, np.int64)}

    @classmethod
    def unpacked(cls, numbers: Sequence[int], arrays: Arrays, row: np.dtype[np.void]) -> EndTask:
        """Return the message from the result of `packed`."""
        return cls()


@dataclass(frozen=True)
class ChunkResult:
    """The outcome of a chunk, with the header of the worker.

    It has reports of failures if there are any.
    """

    NAME: ClassVar = "outcome"
    generation: int
    index: int
    outcome: Outcome
    header: Header  # HEADER[1]
    failures: Bytes | None = None

    def packed(self) -> dict[str, Array]:
        """Return the message as named arrays."""
        numbers = np.array([self.generation, self.index], np.int64)
        failures = {} if self.failures is None else {"failures": self.failures}
        return {
            self.NAME: numbers,
            "header": self.header.view(np.uint8),
            **failures,
            **packed_outcome(self.outcome),
        }

    @classmethod
    def unpacked(
        cls, numbers: Sequence[int], arrays: Arrays, row: np.dtype[np.void]
    ) -> ChunkResult:
        """Return the message from the result of `packed`."""
        generation, index = numbers
        header = np.frombuffer(arrays["header"].tobytes(), HEADER)
        return cls(generation, index, unpacked_outcome(arrays, row), header, arrays.get("failures"))


@dataclass(frozen=True)
class BlockResult:
    """A block of an update."""

    NAME: ClassVar = "block"
    generation: int
    block: int
    sums: Arrays

    def packed(self) -> dict[str, Array]:
        """Return the message as named arrays."""
        return {
            self.NAME: np.array([self.generation, self.block], np.int64),
            **under("sums", self.sums),
        }

    @classmethod
    def unpacked(
        cls, numbers: Sequence[int], arrays: Arrays, row: np.dtype[np.void]
    ) -> BlockResult:
        """Return the message from the result of `packed`."""
        generation, block = numbers
        return cls(generation, block, places(arrays).get("sums", {}))


Message: TypeAlias = StateTask | ChunkTask | BlocksTask | EndTask | ChunkResult | BlockResult
MESSAGES: Mapping[str, type[Message]] = {
    kind.NAME: kind
    for kind in (StateTask, ChunkTask, BlocksTask, EndTask, ChunkResult, BlockResult)
}


def encoded(message: Message) -> Int64:
    """Return a message as words, which a world sends."""
    return to_words(encode(message.packed()))


def decoded(words: Int64, row: np.dtype[np.void]) -> Message:
    """Return the message in the result of `encoded`, with rows of this dtype.

    Its arrays are views of the words.
    """
    arrays = decode(from_words(words))
    name = next(iter(arrays))
    return MESSAGES[name].unpacked(arrays.pop(name).tolist(), arrays, row)
