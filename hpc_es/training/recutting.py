"""The jobs of a round in other chunks than those that the algorithm asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpc_es.core.data import Chunk
from hpc_es.training.chunk_sizes import AS_ASKED, Cut


def recut(chunks: Sequence[Chunk], cut: Cut, ranks: int, skipped: int = 0) -> list[Chunk]:
    """Return the same jobs in chunks of other sizes, each chunk with one purpose and one parent.

    The first `skipped` jobs are left out.
    """
    if cut == AS_ASKED:
        return without_first_jobs(chunks, skipped)
    result: list[Chunk] = []
    start = 0
    while start < len(chunks):
        first, jobs, stop = chunks[start], chunks[start].jobs, start + 1
        while stop < len(chunks) and _continues(first, jobs, chunks[stop]):
            jobs += chunks[stop].jobs
            stop += 1
        done = min(skipped, jobs)
        skipped -= done
        for size in cut.sizes(jobs - done, ranks):
            result.append(
                replace(
                    first, first_job=first.first_job + done, jobs=size, offset=done % first.jobs
                )
            )
            done += size
        start = stop
    return result


def _continues(first: Chunk, jobs: int, chunk: Chunk) -> bool:
    """Whether a chunk can be joined to the `jobs` jobs before it, which start with `first`.

    These must be whole chunks as large as the first one: what the algorithm asked for as one chunk
    is a unit, and the unit of a job follows from its number.
    """
    follows = chunk.first_job == first.first_job + jobs and jobs % first.jobs == 0
    is_alike = chunk.parent == first.parent and chunk.repeat == first.repeat
    return follows and chunk.purpose == first.purpose and is_alike


def first_jobs(chunks: Sequence[Chunk], jobs: int) -> list[Chunk]:
    """Return the chunks of the first `jobs` jobs; the last one may be shorter than it was."""
    result: list[Chunk] = []
    for chunk in chunks:
        if jobs <= 0:
            break
        result.append(chunk if chunk.jobs <= jobs else replace(chunk, jobs=jobs))
        jobs -= chunk.jobs
    return result


def without_first_jobs(chunks: Sequence[Chunk], jobs: int) -> list[Chunk]:
    """Return the chunks without the first `jobs` jobs; the first one may be the rest of a chunk."""
    result: list[Chunk] = []
    for chunk in chunks:
        done = min(jobs, chunk.jobs)
        jobs -= done
        if done < chunk.jobs:
            rest = replace(
                chunk,
                first_job=chunk.first_job + done,
                jobs=chunk.jobs - done,
                offset=chunk.offset + done,
            )
            result.append(rest if done else chunk)
    return result
