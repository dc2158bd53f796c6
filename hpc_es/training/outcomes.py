"""The outcomes of a generation that a budget cuts short.

They are stored in its checkpoint. If the run continues with a larger budget, the generation is run
again, and the jobs with stored outcomes are not evaluated.
"""

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

CHUNK_NUMBERS = 7  # numbers that describe a chunk in `StoredOutcomes.table`
# the same in checkpoints from before repeats, without generation and repeat
OLD_CHUNK_NUMBERS = 5


@dataclass(frozen=True)
class StoredOutcomes:
    """The chunks of a generation that was cut short, those of evaluations first.

    Attributes:
        chunks: with index 0 and generation 0 (`unnumbered`).
        outcomes: one for each chunk on rank 0; none on the other ranks.
    """

    chunks: Sequence[Chunk]
    outcomes: Sequence[Outcome] = ()

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
        """Return the chunks as numbers, int64[CHUNK_NUMBERS * chunks]."""
        numbers = [
            (
                chunk.first_job,
                chunk.jobs,
                PURPOSES.index(chunk.purpose),
                chunk.parent,
                chunk.offset,
                0,  # generation
                chunk.repeat,
            )
            for chunk in self.chunks
        ]
        return np.array(numbers, np.int64).reshape(-1)

    @classmethod
    def from_table(cls, table: Int64, numbers: int = CHUNK_NUMBERS) -> StoredOutcomes:
        """Return the chunks from the result of `table`, without outcomes.

        Args:
            table: int64[numbers * chunks].
            numbers: how many of them describe a chunk.
        """
        return cls(
            [
                Chunk(0, first_job, jobs, PURPOSES[purpose], *rest)
                for first_job, jobs, purpose, *rest in table.reshape(-1, numbers).tolist()
            ]
        )

    # Chunks and outcomes in a checkpoint.

    def pack(self) -> bytes:
        """Return chunks and outcomes as bytes, with names and dtypes of the columns."""
        columns = self.outcomes[0].rows.dtype.descr if self.outcomes else []
        arrays: dict[str, Array] = {
            "table": self.table(),
            "numbers": np.array(CHUNK_NUMBERS),
            "columns": np.frombuffer(json.dumps(columns).encode(), np.uint8),
        }
        arrays |= packed_outcomes(dict(enumerate(self.outcomes)))
        return encode(arrays).tobytes()

    @classmethod
    def unpack(cls, packed: bytes, row: np.dtype[np.void]) -> StoredOutcomes:
        """Return what `pack` converted, with rows of the dtype `row`.

        Raises:
            CheckpointError: a column is missing (see `with_columns_of`).
        """
        arrays = decode(np.frombuffer(packed, np.uint8))
        numbers = int(arrays.pop("numbers", OLD_CHUNK_NUMBERS))
        chunks = cls.from_table(arrays.pop("table"), numbers).chunks
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
    jobs = [job for chunk in asked for job in _identities(chunk)]
    known: list[Chunk] = []
    done = 0
    for chunk in stored:
        if _identities(chunk) != jobs[done : done + chunk.jobs]:
            break
        known.append(chunk)
        done += chunk.jobs
    return known, done


def _identities(chunk: Chunk) -> list[tuple[object, ...]]:
    """What tells each job of a chunk from the other jobs of its generation."""
    return [(chunk.purpose, chunk.parent, chunk.repeat, number) for number in chunk.job_numbers]


def with_columns_of(row: np.dtype[np.void], rows: Rows) -> Rows:
    """Return rows with the columns of `row`, matched by name.

    Numbers of `report.info` that were not recorded are NaN.

    Raises:
        CheckpointError: another column is missing.
    """
    if rows.dtype == row:
        return rows
    stored = rows.dtype
    result = np.zeros(len(rows), row)
    for name in row.names or ():
        if name in (stored.names or ()) and stored[name].shape == row[name].shape:
            result[name] = rows[name]
        elif name == INFO:
            result[name] = np.nan
        else:
            raise CheckpointError(
                f"the rows of the checkpoint have no column {name!r} {row[name]}, which this run needs; they have {stored.descr}: resume with the code that wrote it"
            )
    return result
