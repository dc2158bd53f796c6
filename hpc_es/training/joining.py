"""Several chunks become one, where they are cheap or gain by it; no bit depends on that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpc_es.core.data import Chunk

CHUNK_SECONDS, CHUNKS_A_RANK = 0.01, 4
SHORT_SECONDS = 1.0  # of a generation, in lockstep, that has one chunk a rank
CACHE_BYTES = 2 << 20  # of the parameters of a chunk in lockstep
SHARED_SECONDS = 0.0005  # of all evaluations of a generation, that are worth the messages


def jobs_at_once(jobs: int, seconds: float, ranks: int) -> int:
    """Return how many evaluations make a chunk: some milliseconds of them, but several chunks a rank.

    A rank has one chunk where all take no longer, and there is one in all where sharing them out would take longer.
    `seconds` is what the evaluation of so many jobs has taken, summed over the ranks.
    """
    most = jobs // (CHUNKS_A_RANK * ranks)
    if ranks == 1 or seconds < SHARED_SECONDS:
        most = jobs
    elif seconds < CHUNK_SECONDS:
        most = -(-jobs // ranks)
    return max(1, min(most, int(CHUNK_SECONDS / max(seconds / max(jobs, 1), 1e-9))))


def jobs_in_lockstep(jobs: int, seconds: float, ranks: int, size: int) -> int:
    """Return how many jobs make a chunk where all of them step together, so that what a step itself costs is shared.

    A rank has one chunk, or some of a longer generation, for who is done early; and so many that their parameters, of
    `size` bytes a job, stay in the processor's cache. `seconds` are those of so many jobs, summed over the ranks.
    """
    a_rank = 1 if seconds < SHORT_SECONDS * ranks else CHUNKS_A_RANK
    return max(1, min(-(-jobs // (a_rank * ranks)), CACHE_BYTES // max(size, 1)))


def joined(chunks: Sequence[Chunk], jobs: int) -> list[Chunk]:
    """Return neighbouring chunks as one, where that has no more than so many jobs, of one purpose and one parent."""
    found: list[Chunk] = []
    first, count = None, 0  # the run that is open
    for chunk in chunks:
        if (
            first is not None
            and chunk.first_job == first.first_job + count
            and count + chunk.jobs <= jobs
            and (chunk.purpose, chunk.parent) == (first.purpose, first.parent)
        ):
            count += chunk.jobs
            continue
        if first is not None:
            found.append(replace(first, jobs=count))
        first, count = chunk, chunk.jobs
    return found if first is None else [*found, replace(first, jobs=count)]
