"""How a round of jobs is cut into chunks, and in which order they are handed out; no bit depends on either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hpc_es.config.schema import USUAL_CHUNK
from hpc_es.core.data import Chunk
from hpc_es.core.interfaces import Cutting

USUAL = USUAL_CHUNK  # a stack of more jobs saves hardly more of a policy's time
SMALLEST_USUAL = 4  # jobs of a chunk at the end of a round
SMALLEST_A_RANK = 8  # or, of a small round, a rank's share in so many
LARGEST_SECONDS, SMALLEST_SECONDS = 0.05, 0.002  # of cheap evaluations
FEW_SECONDS = 0.01  # of all evaluations of a generation: more than one chunk a rank does not pay
SHARED_SECONDS = 0.0005  # of all evaluations of a generation, that are worth the messages
SHORT_SECONDS = 1.0  # of a generation, in lockstep, that has one chunk a rank
CACHE_BYTES = 2 << 20  # of the parameters of a chunk in lockstep


@dataclass(frozen=True)
class Cut:
    """How many jobs chunks have: at most `largest`, fewer towards the end of a round, but at least `smallest`.

    0 for both: as the algorithm asks.
    """

    largest: int = 0
    smallest: int = 0

    def sizes(self, jobs: int, ranks: int) -> Iterator[int]:
        """Yield the jobs of each chunk of a round: half of what is left, shared among the ranks.

        So the ranks end together, however long an episode lasts (guided self-scheduling: Polychronopoulos & Kuck 1987).
        An even number keeps mirrored pairs together, which share their noise.
        """
        least = max(1, min(self.smallest, jobs // (SMALLEST_A_RANK * ranks)))
        while jobs:
            share = -(-jobs // (2 * ranks)) if ranks > 1 else jobs
            even = share + share % 2 if share > 1 else share
            wanted = max(least, even) if self.largest > self.smallest else self.largest
            size = min(wanted, self.largest, jobs)
            yield size
            jobs -= size


AS_ASKED = Cut()


def first_cut(cutting: Cutting, chunk_size: int | Literal["auto"]) -> Cut:
    """Return how the first generation is cut, of whose jobs nobody knows yet how long they last."""
    if cutting == "fixed":
        return AS_ASKED
    if chunk_size != "auto":
        return Cut(chunk_size, chunk_size)
    return AS_ASKED if cutting == "one by one" else Cut(USUAL, SMALLEST_USUAL)


def cut_by_time(cutting: Cutting, jobs: int, seconds: float, ranks: int, size: int) -> Cut:
    """Return how the next generation is cut, where so many jobs took so many seconds, summed over the ranks.

    `size` is that of a job's parameters, in bytes.
    """
    if cutting == "one by one":
        return _one_by_one(jobs, seconds, ranks)
    return _at_once(jobs, seconds, ranks, size) if cutting == "at once" else Cut(USUAL, SMALLEST_USUAL)


def _one_by_one(jobs: int, seconds: float, ranks: int) -> Cut:
    """Return chunks of some milliseconds: messages take their time too."""
    if ranks == 1 or seconds < SHARED_SECONDS:
        return Cut(max(jobs, 1), max(jobs, 1)) if seconds < LARGEST_SECONDS else _of_seconds(jobs, seconds)
    if seconds < FEW_SECONDS:
        return Cut(-(-jobs // ranks), -(-jobs // ranks))
    return _of_seconds(jobs, seconds)


def _of_seconds(jobs: int, seconds: float) -> Cut:
    each = max(seconds / max(jobs, 1), 1e-9)
    return Cut(max(1, int(LARGEST_SECONDS / each)), max(1, round(SMALLEST_SECONDS / each)))


def _at_once(jobs: int, seconds: float, ranks: int, size: int) -> Cut:
    """Return chunks of all jobs that a rank can have, since what a step itself costs is shared by them.

    A rank has one chunk, or some of a longer generation, smaller ones at its end, for who is done early; and so many
    jobs that their parameters stay in the processor's cache.
    """
    fitting = max(1, CACHE_BYTES // max(size, 1))
    if seconds < SHORT_SECONDS * ranks:
        most = max(1, min(-(-jobs // ranks), fitting))
        return Cut(most, most)
    most = max(1, min(-(-jobs // (2 * ranks)), fitting))
    return Cut(most, min(SMALLEST_USUAL, most))


def recut(chunks: Sequence[Chunk], cut: Cut, ranks: int) -> list[Chunk]:
    """Return the same jobs in chunks for so many ranks, each of one purpose and one parent."""
    if cut == AS_ASKED:
        return list(chunks)
    found = []
    for first, jobs in _rounds(chunks):
        done = 0
        for size in cut.sizes(jobs, ranks):
            found.append(replace(first, first_job=first.first_job + done, jobs=size, offset=done % first.jobs))
            done += size
    return found


def _rounds(chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, int]]:
    """Yield the first unit and the number of jobs that follow each other; all units but the last have one size."""
    first, jobs = None, 0
    for chunk in chunks:
        if first is not None and _goes_on(first, jobs, chunk):
            jobs += chunk.jobs
            continue
        if first is not None:
            yield first, jobs
        first, jobs = chunk, chunk.jobs
    if first is not None:
        yield first, jobs


def _goes_on(first: Chunk, jobs: int, chunk: Chunk) -> bool:
    follows = chunk.first_job == first.first_job + jobs and jobs % first.jobs == 0
    return follows and chunk.purpose == first.purpose and chunk.parent == first.parent


def evaluation_size(episodes: int, cutting: Cutting, chunk_size: int | Literal["auto"], ranks: int) -> int:
    """Return the episodes of a chunk of an evaluation."""
    if cutting == "fixed" or chunk_size != "auto":
        return USUAL
    share = max(1, -(-episodes // ranks))
    return share if cutting == "at once" else min(share, USUAL)


@dataclass(frozen=True)
class CutPlan:
    """How rank 0 wants the chunks of a generation."""

    cut: Cut = AS_ASKED
    evaluated: int = USUAL  # episodes of an evaluation's chunk
    evaluation_first: bool = True  # whether its chunks are handed out first, as those of longer episodes are

    def words(self) -> tuple[int, ...]:
        """As numbers, to be sent."""
        return self.cut.largest, self.cut.smallest, self.evaluated, int(self.evaluation_first)

    @staticmethod
    def of(words: Sequence[int]) -> CutPlan:
        """Back from numbers."""
        largest, smallest, evaluated, first = words
        return CutPlan(Cut(largest, smallest), evaluated, bool(first))
