"""Jobs, and chunks of consecutive jobs, which ranks evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
