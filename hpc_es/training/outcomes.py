"""The outcomes of a generation that a budget cuts short, which its checkpoint has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpc_es.core.data import INFO, Array, Chunk, Outcome, Rows
from hpc_es.core.errors import CheckpointError
from hpc_es.core.run_files import parse_json
from hpc_es.mpi.world import Int64, decode, encode
from hpc_es.training.messages import PURPOSES, packed_outcomes, unpacked_outcomes

NUMBERS = 7  # of a chunk in `StoredOutcomes.table`
OLD_NUMBERS = 5  # in checkpoints from before repeats, without generation and repeat


@dataclass(frozen=True)
class StoredOutcomes:
    """The chunks of a generation that was cut short, and their outcomes on rank 0.

    Those of evaluations come first.
    """

    chunks: Sequence[Chunk]  # with index 0 and generation 0
    outcomes: Sequence[Outcome] = ()  # on other ranks none

    @classmethod
    def of(cls, chunks: Sequence[Chunk], outcomes: Mapping[int, Outcome]) -> StoredOutcomes:
        """Return the chunks of all rounds of a generation with their outcomes, by chunk index."""
        ordered = sorted(chunks, key=lambda chunk: chunk.purpose != "evaluate")
        return cls(
            [unnumbered(chunk) for chunk in ordered], [outcomes[chunk.index] for chunk in ordered]
        )

    def jobs(self, with_evaluations: bool) -> int:
        """Return the number of jobs, with or without those that evaluate the centre."""
        return sum(
            chunk.jobs for chunk in self.chunks if with_evaluations or chunk.purpose != "evaluate"
        )

    def by_chunk(self) -> dict[Chunk, Outcome | None]:
        """Return the outcomes by chunk; None on ranks that do not have them."""
        if not self.outcomes:
            return dict.fromkeys(self.chunks)
        return dict(zip(self.chunks, self.outcomes, strict=True))

    # The chunks as a message.

    def table(self) -> Int64:
        """Return the chunks as numbers, int64[NUMBERS * chunks]."""
        numbers = [
            (c.first_job, c.jobs, PURPOSES.index(c.purpose), c.parent, c.offset, 0, c.repeat)
            for c in self.chunks
        ]
        return np.array(numbers, np.int64).reshape(-1)

    @classmethod
    def from_table(cls, table: Int64, numbers: int = NUMBERS) -> StoredOutcomes:
        """Return the chunks from the result of `table`, without outcomes."""
        rows = table.reshape(-1, numbers).tolist()
        return cls(
            [Chunk(0, first, jobs, PURPOSES[which], *more) for first, jobs, which, *more in rows]
        )

    # Chunks and outcomes in a checkpoint.

    def pack(self) -> bytes:
        """Return chunks and outcomes as bytes, with names and dtypes of the columns."""
        columns = self.outcomes[0].rows.dtype.descr if self.outcomes else []
        arrays: dict[str, Array] = {
            "table": self.table(),
            "numbers": np.array(NUMBERS),
            "columns": np.frombuffer(json.dumps(columns).encode(), np.uint8),
        }
        arrays |= packed_outcomes(dict(enumerate(self.outcomes)))
        return encode(arrays).tobytes()

    @classmethod
    def unpack(cls, packed: bytes, row: np.dtype[np.void]) -> StoredOutcomes:
        """Return the result of `pack` with rows of this dtype.

        Numbers of `report.info` that were not recorded are NaN.

        Raises:
            CheckpointError: a column is missing.
        """
        arrays = decode(np.frombuffer(packed, np.uint8))
        table, numbers = arrays.pop("table"), int(arrays.pop("numbers", OLD_NUMBERS))
        chunks = cls.from_table(table, numbers).chunks
        # [name, dtype] or [name, dtype, shape]
        columns = parse_json(arrays.pop("columns").tobytes())
        stored = np.dtype([(name, dtype, *map(tuple, shape)) for name, dtype, *shape in columns])
        outcomes = unpacked_outcomes(arrays, stored).values()
        return cls(
            chunks,
            [replace(outcome, rows=with_columns_of(row, outcome.rows)) for outcome in outcomes],
        )


def unnumbered(chunk: Chunk) -> Chunk:
    """Return a chunk with index 0 and generation 0."""
    return replace(chunk, index=0, generation=0)


def continued(stored: Sequence[Chunk], asked: Sequence[Chunk]) -> tuple[list[Chunk], int]:
    """Return the stored chunks that the asked jobs begin with, and the number of their jobs."""
    if not stored:
        return [], 0
    jobs = [
        (chunk.purpose, chunk.parent, chunk.repeat, number)
        for chunk in asked
        for number in chunk.job_numbers
    ]
    known: list[Chunk] = []
    done = 0
    for chunk in stored:
        own = [(chunk.purpose, chunk.parent, chunk.repeat, number) for number in chunk.job_numbers]
        if own != jobs[done : done + chunk.jobs]:
            break
        known.append(chunk)
        done += chunk.jobs
    return known, done


def with_columns_of(row: np.dtype[np.void], rows: Rows) -> Rows:
    """Return rows with the columns of `row`, matched by name.

    Numbers of `report.info` may be missing, as NaN.

    Raises:
        CheckpointError: another column is missing.
    """
    if rows.dtype == row:
        return rows
    mapped = np.zeros(len(rows), row)
    for name in row.names or ():
        is_missing = (
            name not in (rows.dtype.names or ()) or rows.dtype[name].shape != row[name].shape
        )
        if is_missing and name != INFO:
            text = f"the rows of the checkpoint have no column {name!r} {row[name]}, which this run needs"
            raise CheckpointError(
                f"{text}; they have {rows.dtype.descr}: resume with the code that wrote it"
            )
        mapped[name] = np.nan if is_missing else rows[name]
    return mapped
