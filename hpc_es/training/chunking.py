"""How the jobs of a round are cut into chunks and in which order chunks are handed out.

Unless `cutting` is "fixed" no result depends on either, so rank 0 adapts both to the seconds that jobs take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hpc_es.config.registry import module
from hpc_es.config.schema import USUAL_CHUNK, Config
from hpc_es.core.data import NO_FITNESS, Chunk, Rows, State, row_dtype
from hpc_es.core.errors import RunError
from hpc_es.core.interfaces import Cutting, Problem
from hpc_es.core.keys import Keys
from hpc_es.mpi.scheduler import evaluators
from hpc_es.mpi.world import World
from hpc_es.training.build import Parts, cutting_of, needs, unit_of

USUAL = USUAL_CHUNK  # jobs of a chunk; batching more of them hardly speeds a policy up
SMALLEST_USUAL = 4  # jobs of a chunk at the end of a round
SMALLEST_A_RANK = 8  # in a small round, a chunk has at least the jobs of a rank divided by this
LARGEST_SECONDS, SMALLEST_SECONDS = 0.05, 0.002  # of a chunk of cheap evaluations
FEW_SECONDS = 0.01  # total evaluation seconds of a generation below which a rank gets one chunk
SHARED_SECONDS = 0.0005  # total evaluation seconds of a generation below which messages cost more than they save
SHORT_SECONDS = 1.0  # seconds per rank of a generation in lockstep, below which a rank gets one chunk
CACHE_BYTES = 2 << 20  # of the parameters of a chunk in lockstep

MIXED_CHUNK = (
    "steps of the environment draw from Python's or NumPy's global random generator, so episodes of one chunk affect "
    "each other and results would depend on the number of ranks. Set mpi.chunk_size to a number, such as 16, which "
    "then is part of the result, or have the environment draw from self.np_random"
)

ChunkSize = int | Literal["auto"]  # mpi.chunk_size


@dataclass(frozen=True)
class Cut:
    """Sizes of chunks: at most `largest` jobs, fewer towards the end of a round, but at least `smallest`.

    With 0 for both, chunks stay as the algorithm asked for them. Otherwise sizes are rounded up to multiples of
    `multiple`, the number of jobs that are computed together, if there are that many jobs for each rank.
    """

    largest: int = 0
    smallest: int = 0
    multiple: int = 1

    def sizes(self, jobs: int, ranks: int) -> Iterator[int]:
        """Yield the sizes of the chunks of a round: each is half of the remaining jobs, divided by the ranks.

        Ranks then end at nearly the same time, however long episodes last (guided self-scheduling: Polychronopoulos &
        Kuck 1987). Sizes are even, because antithetic pairs share their noise.
        """
        least = max(1, min(self.smallest, jobs // (SMALLEST_A_RANK * ranks)))
        multiple = self.multiple if jobs >= self.multiple * ranks else 1
        while jobs:
            share = -(-jobs // (2 * ranks)) if ranks > 1 else jobs
            even = share + share % 2 if share > 1 else share
            wanted = max(least, even) if self.largest > self.smallest else self.largest
            size = min(-(-min(wanted, self.largest) // multiple) * multiple, jobs)
            yield size
            jobs -= size


AS_ASKED = Cut()


@dataclass(frozen=True)
class CutPlan:
    """Sizes and order of the chunks of a generation, chosen by rank 0."""

    cut: Cut = AS_ASKED
    evaluated: int = USUAL  # episodes per chunk of an evaluation
    evaluation_first: bool = True  # hand out the chunks of the evaluation first, because their episodes are longer

    def to_numbers(self) -> tuple[int, ...]:
        """Return the plan as five integers, for a message."""
        return self.cut.largest, self.cut.smallest, self.cut.multiple, self.evaluated, int(self.evaluation_first)

    @staticmethod
    def from_numbers(numbers: Sequence[int]) -> CutPlan:
        """Return the plan that `to_numbers` converted."""
        largest, smallest, multiple, evaluated, first = numbers
        return CutPlan(Cut(largest, smallest, multiple), evaluated, bool(first))


def first_cut(cutting: Cutting, chunk_size: ChunkSize) -> Cut:
    """Return the cut of the first generation, before any job was timed."""
    if cutting == "fixed":
        return AS_ASKED
    if chunk_size != "auto":
        return Cut(chunk_size, chunk_size)
    return AS_ASKED if cutting == "one by one" else Cut(USUAL, SMALLEST_USUAL)


def cut_by_time(cutting: Cutting, jobs: int, seconds: float, ranks: int, size: int) -> Cut:
    """Return the cut of the next generation, from the `seconds` that `jobs` took, summed over the ranks.

    Args:
        cutting: "one by one" jobs are cheap calls, in chunks of some milliseconds; "at once" jobs step in lockstep, in
            few large chunks, because jobs share the cost of a step.
        size: bytes of the parameters of a job; a chunk in lockstep should fit the processor's cache.
    """
    if cutting == "one by one":
        per_job = max(seconds / max(jobs, 1), 1e-9)
        timed = Cut(max(1, int(LARGEST_SECONDS / per_job)), max(1, round(SMALLEST_SECONDS / per_job)))
        if ranks == 1 or seconds < SHARED_SECONDS:
            return Cut(max(jobs, 1), max(jobs, 1)) if seconds < LARGEST_SECONDS else timed
        return Cut(-(-jobs // ranks), -(-jobs // ranks)) if seconds < FEW_SECONDS else timed
    if cutting != "at once":
        return Cut(USUAL, SMALLEST_USUAL)
    fitting = max(1, CACHE_BYTES // max(size, 1))
    if seconds < SHORT_SECONDS * ranks:
        most = max(1, min(-(-jobs // ranks), fitting))
        return Cut(most, most)
    most = max(1, min(-(-jobs // (2 * ranks)), fitting))  # and smaller ones at the end of a longer generation
    return Cut(most, min(SMALLEST_USUAL, most))


def evaluation_size(episodes: int, cutting: Cutting, chunk_size: ChunkSize, ranks: int) -> int:
    """Return the number of episodes per chunk of an evaluation."""
    if cutting == "fixed" or chunk_size != "auto":
        return USUAL
    share = max(1, -(-episodes // ranks))
    return share if cutting == "at once" else min(share, USUAL)


def recut(chunks: Sequence[Chunk], cut: Cut, ranks: int) -> list[Chunk]:
    """Return the same jobs in chunks of other sizes, each chunk with one purpose and one parent."""
    if cut == AS_ASKED:
        return list(chunks)
    result: list[Chunk] = []
    start = 0
    while start < len(chunks):
        first, jobs, stop = chunks[start], chunks[start].jobs, start + 1
        while stop < len(chunks) and _continues(first, jobs, chunks[stop]):
            jobs += chunks[stop].jobs
            stop += 1
        done = 0
        for size in cut.sizes(jobs, ranks):
            result.append(replace(first, first_job=first.first_job + done, jobs=size, offset=done % first.jobs))
            done += size
        start = stop
    return result


def _continues(first: Chunk, jobs: int, chunk: Chunk) -> bool:
    """Return whether a chunk follows the `jobs` jobs that start with `first`; all units but the last have one size."""
    follows = chunk.first_job == first.first_job + jobs and jobs % first.jobs == 0
    return follows and chunk.purpose == first.purpose and chunk.parent == first.parent


class ChunkPlanner:
    """Chooses the plan of the next generation; rank 0 broadcasts its own to the others."""

    def __init__(self, config: Config, parts: Parts, world: World, evaluated: int) -> None:
        self._config, self._parts, self._world = config, parts, world
        self._ranks = ranks = len(evaluators(world.size, config.mpi.master_evaluates))
        chunk_size, cutting = config.mpi.chunk_size, parts.cutting
        self.is_adaptive = cutting != "fixed" and chunk_size == "auto"
        cut = self._in_calls(first_cut(cutting, chunk_size))
        self.plan = CutPlan(cut, evaluation_size(evaluated, cutting, chunk_size, ranks))

    def update(self, rows: Rows, evaluation: Rows, seconds: float, size: int) -> None:
        """Choose the plan of the next generation.

        Args:
            rows: rows[training jobs] of the last generation.
            evaluation: rows[evaluation jobs], empty without an evaluation.
            seconds: time in the environment or the objective, summed over the ranks.
            size: bytes of theta.
        """
        if self._world.fault_handler.is_fault_tolerant:
            return  # surviving ranks name the chunks that they have by index, so chunks must stay as they were
        if len(evaluation) and len(rows):
            is_longer = bool(evaluation["length"].mean() >= rows["length"].mean())
            self.plan = replace(self.plan, evaluation_first=is_longer)
        if self.is_adaptive:
            cut = cut_by_time(self._parts.cutting, len(rows), seconds, self._ranks, size)
            self.plan = replace(self.plan, cut=self._in_calls(cut))

    def _in_calls(self, cut: Cut) -> Cut:
        """Return the cut into chunks that fill the calls of the problem, unless the config sets the size of chunks."""
        is_free = self.is_adaptive and cut != AS_ASKED
        return replace(cut, multiple=self._parts.problem.call_size) if is_free else cut

    def require_independent(self, mixed_chunks: int) -> None:
        """Raise RunError if results depend on the cut, because jobs of `mixed_chunks` chunks affected each other."""
        if self.is_adaptive and mixed_chunks:
            raise RunError(MIXED_CHUNK)

    def idle_warning(self, state: State) -> str | None:
        """Return a warning about ranks without work in the next generation, or None."""
        if getattr(self._config.algorithm, "updates", "") == "asynchronous":
            return None
        chunks = self._parts.algorithm.ask(state, 0, np.zeros(0, self._parts.row), NO_FITNESS)
        is_free = self._parts.cutting != "fixed"
        return _idle_warning(self._config, training_jobs(chunks), is_free, self._parts.unit, self._world.size)


def idle_warning(config: Config, problem: Problem, ranks: int) -> str | None:
    """Return a warning about ranks without work before a run on `ranks` ranks is built, or None."""
    unit = getattr(problem, "chunk_size", None) or unit_of(config)
    if needs(config).tensorflow:  # the algorithm is not built, as that would import it
        jobs = int(getattr(config.algorithm, "batch_size", 0))
    else:
        build = module("algorithms", config.algorithm.kind).build
        algorithm = build(config.algorithm, problem, None, Keys(config.seed), unit)
        state = problem.carried().merge_into(algorithm.initial())
        jobs = training_jobs(algorithm.ask(state, 0, np.zeros(0, row_dtype()), NO_FITNESS))
    return _idle_warning(config, jobs, cutting_of(config, problem) != "fixed", unit, ranks)


def training_jobs(chunks: Sequence[Chunk]) -> int:
    """Return the number of training jobs in chunks."""
    return sum(chunk.jobs for chunk in chunks if chunk.purpose == "train")


def _idle_warning(config: Config, jobs: int, is_free: bool, unit: int, ranks: int) -> str | None:
    if not jobs:
        return None
    chunk_size = config.mpi.chunk_size
    size = unit if not is_free else 1 if chunk_size == "auto" else chunk_size
    return idle_message(jobs, size, ranks, config.mpi.master_evaluates, is_free)


def idle_message(
    jobs: int, size: int, ranks: int, master_evaluates: Literal["auto"] | bool = "auto", is_free: bool = True
) -> str | None:
    """Return a warning if `jobs` jobs per generation, in chunks of at least `size`, leave ranks idle, or None."""
    busy, chunks = len(evaluators(ranks, master_evaluates)), -(-jobs // size)
    if chunks >= busy:
        return None
    some_chunks = f"{chunks} chunk{'s' * (chunks != 1)}"
    idle_ranks = f"{busy - chunks} rank{'s' * (busy - chunks != 1)}"
    fill = f"{busy * size} jobs per generation (population, batch) would fill them"
    if size > 1 and jobs >= busy:
        fill += ", and so would mpi.chunk_size: " + ("auto" if is_free else str(jobs // busy))
    return (
        f"{jobs} jobs per generation are {some_chunks} for {busy} evaluating ranks, so {idle_ranks} of {ranks} will be "
        f"idle: {fill}"
    )
