"""How the jobs of a round are cut into chunks and in which order chunks are handed out.

Unless `cutting` is "fixed" no result depends on either, so rank 0 adapts both to the seconds that
jobs take.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.config.options import build_kind
from hpc_es.config.schema import USUAL_CHUNK, Config
from hpc_es.core.data import NO_FITNESS, Chunk, Float64, Rows, State, row_dtype
from hpc_es.core.errors import RunError
from hpc_es.core.interfaces import AnyAlgorithm, Cutting, Problem, RepeatsJobs
from hpc_es.core.keys import Keys
from hpc_es.core.population import FactorisedNoise
from hpc_es.mpi.scheduler import evaluators
from hpc_es.mpi.world import World
from hpc_es.training.build import Parts, cutting_of, unit_of
from hpc_es.training.chunk_sizes import (
    CHUNK_BYTES,
    FIRST_JOBS,
    Cut,
    StepCosts,
    best_cut,
    evenly,
    first_cut_at_once,
)
from hpc_es.training.compatibility import algorithm_waits, vectors

USUAL = USUAL_CHUNK  # jobs of a chunk; batching more of them hardly speeds a policy up
SMALLEST_USUAL = 4  # jobs of a chunk at the end of a round
LARGEST_SECONDS, SMALLEST_SECONDS = 0.05, 0.002  # of a chunk of cheap evaluations
FEW_SECONDS = 0.01  # total evaluation seconds of a generation below which a rank gets one chunk
# total evaluation seconds of a generation below which messages cost more than they save
SHARED_SECONDS = 0.0005
FEW_JOBS = 32  # jobs per rank up to which it matters whether rank 0 evaluates too
ORDERED_SECONDS = 0.02  # mean seconds of a job from which long jobs are handed out first
MOST_REMEMBERED = 512  # evaluated candidates, from which durations are estimated
# of candidates whose durations are estimated; those remembered then take 64 MiB
MOST_COORDINATES = 1 << 14
NEIGHBOURS = 5  # similar candidates
# share of the ranks' time below which a population that does not fit them is reported
WELL_DIVIDED = 0.75

FIRST_PLANS = 4  # that are made in successive generations
PLANNING_SHARE = 0.01  # of the time

MIXED_CHUNK = (
    "steps of the environment draw from Python's or NumPy's global random generator, so episodes of one chunk affect "
    "each other and results would depend on the number of ranks. Set mpi.chunk_size to a number, such as 16, which "
    "then is part of the result, or have the environment draw from self.np_random"
)

ChunkSize = int | Literal["auto"]  # mpi.chunk_size


AS_ASKED = Cut()


@dataclass(frozen=True)
class CutPlan:
    """Sizes and order of the chunks of a generation, and who evaluates them; chosen by rank 0."""

    cut: Cut = AS_ASKED
    evaluated: int = USUAL  # episodes per chunk of an evaluation
    # hand out the chunks of the evaluation first, because their episodes are longer
    evaluation_first: bool = True
    ranks: int = 1  # number of ranks that chunks are cut for
    rank_0_evaluates: bool = True
    # training jobs of the first round, the longest first; (): in the order of the jobs
    order: tuple[int, ...] = ()

    def in_order(self, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        """Return the chunks in the order in which they are handed out."""
        if not self.order:
            return chunks
        position = {job: index for index, job in enumerate(self.order)}
        evaluations = -1 if self.evaluation_first else len(position)

        def first(chunk: Chunk) -> int:
            if chunk.purpose != "train":
                return evaluations
            return min(position.get(job, len(position)) for job in chunk.job_numbers)

        return sorted(chunks, key=first)

    def to_numbers(self) -> tuple[int, ...]:
        """Return the plan without `order` as eight integers, for a message."""
        cut = self.cut
        sizes = cut.largest, cut.smallest, cut.multiple, int(cut.is_even)
        return (
            *sizes,
            self.evaluated,
            int(self.evaluation_first),
            self.ranks,
            int(self.rank_0_evaluates),
        )

    @staticmethod
    def from_numbers(numbers: Sequence[int]) -> CutPlan:
        """Return the plan that `to_numbers` converted."""
        largest, smallest, multiple, is_even, evaluated, first, ranks, rank_0_evaluates = numbers
        cut = Cut(largest, smallest, multiple, bool(is_even))
        return CutPlan(cut, evaluated, bool(first), ranks, bool(rank_0_evaluates))


def first_cut(cutting: Cutting, chunk_size: ChunkSize) -> Cut:
    """Return the cut of the first generation, before any job was timed."""
    if cutting == "fixed":
        return AS_ASKED
    if chunk_size != "auto":
        return Cut(chunk_size, chunk_size)
    if cutting == "one by one":
        return AS_ASKED
    return Cut(FIRST_JOBS if cutting == "at once" else USUAL, SMALLEST_USUAL)


def cut_by_time(jobs: int, job: float, ranks: int) -> Cut:
    """Return the cut of a generation of jobs "one by one", cheap calls of `job` seconds each."""
    job = max(job, 1e-9)
    seconds = job * jobs
    timed = Cut(max(1, int(LARGEST_SECONDS / job)), max(1, round(SMALLEST_SECONDS / job)))
    if ranks == 1 or seconds < SHARED_SECONDS:
        return Cut(max(jobs, 1), max(jobs, 1)) if seconds < LARGEST_SECONDS else timed
    return evenly(-(-jobs // ranks)) if seconds < FEW_SECONDS else timed


def most_jobs(cutting: Cutting, candidate_bytes: int) -> int:
    """Return the largest size of chunks whose jobs advance together.

    Environments that are stepped one after the other ("free") gain little from larger batches,
    and each job of a chunk has an environment of its own.
    """
    most = max(1, CHUNK_BYTES // max(candidate_bytes, 1))
    return most if cutting == "at once" else min(most, USUAL)


def rank_0_saves_time(jobs: int, ranks: int, cutting: Cutting) -> bool:
    """Whether a round of `jobs` jobs ends earlier if rank 0 evaluates, too.

    It also hands out chunks. A round ends earlier if the longest share then has one job less. Where
    rank 0 cannot answer during a job, each share must be a single job.
    """
    share, without = -(-jobs // ranks), -(-jobs // max(ranks - 1, 1))
    return share < without and share <= (1 if cutting == "one by one" else FEW_JOBS)


def evaluating_ranks(
    jobs: int,
    ranks: int,
    cutting: Cutting,
    chunk_size: ChunkSize,
    master_evaluates: Literal["auto"] | bool,
) -> range:
    """Return the ranks that evaluate a generation of `jobs` jobs."""
    usual = evaluators(ranks, master_evaluates)
    may_add = (
        master_evaluates == "auto"
        and len(usual) < ranks
        and cutting != "fixed"
        and chunk_size == "auto"
    )
    return range(ranks) if may_add and rank_0_saves_time(jobs, ranks, cutting) else usual


def evaluation_size(episodes: int, cutting: Cutting, chunk_size: ChunkSize, ranks: int) -> int:
    """Return the number of episodes per chunk of an evaluation."""
    if cutting == "fixed" or chunk_size != "auto":
        return USUAL
    share = max(1, -(-episodes // ranks))
    return share if cutting == "at once" else min(share, USUAL)


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
    """Whether a chunk follows the `jobs` jobs that start with `first`.

    All units but the last have one size.
    """
    follows = chunk.first_job == first.first_job + jobs and jobs % first.jobs == 0
    is_alike = chunk.parent == first.parent and chunk.repeat == first.repeat
    return follows and chunk.purpose == first.purpose and is_alike


def first_jobs(chunks: Sequence[Chunk], jobs: int) -> list[Chunk]:
    """Return the chunks without all but the first `jobs` jobs.

    The last one may be shorter than it was.
    """
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


class JobDurations:
    """Estimates how long jobs take.

    It is a linear fit of the logarithm, and its mean error for similar candidates. No result
    depends on it: the order in which jobs are handed out is all that follows from durations.
    """

    def __init__(self, choices: Mapping[int, int]) -> None:
        self._choices = choices  # number of categories by index of the coordinate
        self._vectors: Float64 | None = None  # float64[candidates, features]
        self._logarithms: Float64 = np.zeros(0)  # of the seconds, float64[candidates]

    def add(self, vectors: Float64, seconds: Float64) -> None:
        """Add candidates, float64[jobs, size], and their seconds, float64[jobs], NaN if unknown."""
        known = seconds > 0
        features = self._features(vectors[known])
        if self._vectors is not None:
            features = np.concatenate([self._vectors, features])
        self._vectors = features[-MOST_REMEMBERED:]
        self._logarithms = np.concatenate([self._logarithms, np.log(seconds[known])])[
            -MOST_REMEMBERED:
        ]

    def longest_first(self, vectors: Float64) -> tuple[int, ...]:
        """Return the indices of candidates, float64[jobs, size], the longest first.

        () if nothing is known.
        """
        if self._vectors is None or len(self._vectors) < NEIGHBOURS:
            return ()
        middle, scale = self._vectors.mean(axis=0), self._vectors.std(axis=0)
        scale[scale == 0] = 1.0
        known, new = (self._vectors - middle) / scale, (self._features(vectors) - middle) / scale
        size = known.shape[1]
        slopes, logarithms = np.zeros(size), self._logarithms - self._logarithms.mean()
        if size <= MOST_REMEMBERED:  # ridge regression
            slopes = np.linalg.solve(known.T @ known + size * np.eye(size), known.T @ logarithms)
        errors = logarithms - known @ slopes
        squared = (
            np.square(known).sum(axis=1)
            + np.square(new).sum(axis=1)[:, np.newaxis]
            - 2 * new @ known.T
        )
        nearest = np.argsort(squared, axis=1, kind="stable")[:, :NEIGHBOURS]
        weights = 1 / (np.take_along_axis(squared, nearest, axis=1).clip(min=0) + 1e-6)
        estimates = new @ slopes + (weights * errors[nearest]).sum(axis=1) / weights.sum(axis=1)
        return tuple(np.argsort(-estimates, kind="stable").tolist())

    def _features(self, vectors: Float64) -> Float64:
        """Return numbers, and indicators of the categories of choices, float64[jobs, features]."""
        numbers = np.delete(vectors, list(self._choices), axis=1)
        indicators = [
            vectors[:, [index]] == np.arange(count) for index, count in self._choices.items()
        ]
        return np.concatenate([numbers, *indicators], axis=1, dtype=np.float64)


def _choices(config: Config, problem: Problem) -> Mapping[int, int]:
    searched = vectors(config, problem)
    return searched.mixed.choices if searched is not None and searched.mixed is not None else {}


class ChunkPlanner:
    """Chooses the plan of the next generation; rank 0 broadcasts its own to the others.

    An evaluation of the centre has `evaluated` jobs. All `workers` evaluate, in place of the ranks
    of the world.
    """

    def __init__(
        self, config: Config, parts: Parts, world: World, evaluated: int, workers: int | None = None
    ) -> None:
        self._config, self._parts, self._world = config, parts, world
        self._has_workers, self._count = (
            workers is not None,
            world.size if workers is None else workers,
        )
        self._costs, self._evaluated = StepCosts(), evaluated
        self._plans, self._planned = 0, 0.0  # number of plans by costs; when the last one was made
        self._planning_seconds = 0.0  # that it took
        self._candidate_bytes = candidate_bytes(config, parts)
        self._durations, self._orders_jobs = JobDurations(_choices(config, parts.problem)), False
        chunk_size, cutting = config.mpi.chunk_size, parts.cutting
        self._closes = config.setup.offers.close_at is not None
        self.is_adaptive = cutting != "fixed" and chunk_size == "auto" and not self._closes
        self.plan = self._plan(
            Cut(1, 1) if self._closes else self._in_calls(first_cut(cutting, chunk_size)), 0
        )

    def _plan(self, cut: Cut, jobs: int, evaluation_first: bool = True) -> CutPlan:
        """Return a plan for the ranks that evaluate `jobs` jobs."""
        mpi, cutting, ranks = self._config.mpi, self._parts.cutting, range(self._count)
        if not self._has_workers:
            ranks = evaluating_ranks(
                jobs, self._count, cutting, mpi.chunk_size, mpi.master_evaluates
            )
        evaluated = evaluation_size(self._evaluated, cutting, mpi.chunk_size, len(ranks))
        return CutPlan(cut, evaluated, evaluation_first, len(ranks), 0 in ranks)

    def start(self, state: State) -> str | None:
        """Choose who evaluates the first generation.

        Returns:
            A warning about ranks without work, or None.
        """
        jobs = 0
        if self._config.setup.needs.asynchronous is None:
            jobs = usual_jobs(self._parts.algorithm, state, self._parts.row)
            if (repeating := self._parts.repeating) is not None:
                jobs *= repeating.repeats(state.shared)
        if not self._world.fault_handler.is_fault_tolerant:
            self.plan = self._plan(self.plan.cut, jobs)
            if self.is_adaptive and self._parts.cutting == "at once" and jobs:
                self.plan = replace(self.plan, cut=self._first_by_model(self.plan, jobs))
        return _idle_warning(self._config, jobs, self._parts.cutting, self._parts.unit, self._count)

    def _first_by_model(self, plan: CutPlan, jobs: int) -> Cut:
        most, multiple = most_jobs("at once", self._candidate_bytes), self._parts.problem.call_size
        return self._in_calls(
            first_cut_at_once(jobs, plan.ranks, most, self._candidate_bytes, multiple)
        )

    def add_durations(self, state: State, seconds: Float64) -> None:
        """Add the seconds of a generation's training jobs, float64[jobs], if they are long.

        They are NaN if unknown. `state` is the one that the generation was drawn from, before the
        update, which may overwrite it.
        """
        known = seconds[seconds > 0]
        is_long = len(known) > 0 and known.mean() >= ORDERED_SECONDS
        vectors = self._candidates(state) if is_long else None
        self._orders_jobs = vectors is not None
        if vectors is not None:
            self._durations.add(vectors, seconds[: len(vectors)])

    def order(self, state: State) -> None:
        """Choose the order of the next generation's jobs, which are drawn from `state`.

        `add_durations` and `update` come before.
        """
        self.plan = replace(self.plan, order=())
        vectors = self._candidates(state) if self._orders_jobs else None
        if vectors is not None and len(vectors) > self.plan.ranks:
            self.plan = replace(self.plan, order=self._durations.longest_first(vectors))

    def _candidates(self, state: State) -> Float64 | None:
        """Return the candidates of a generation's first round, float64[jobs, size].

        None if jobs have no order.
        """
        algorithm = self._parts.algorithm
        if not isinstance(algorithm, BaseStrategy) or not algorithm.has_candidates:
            return None  # searches for programs have no vectors
        if (
            self._parts.cutting != "one by one"
            or self._count == 1
            or self._parts.delay_line is not None
        ):
            return None
        if state.theta.size > MOST_COORDINATES:
            return None
        asked = algorithm.ask(state, 0, np.zeros(0, self._parts.row), NO_FITNESS)
        chunks = [chunk for chunk in asked if chunk.purpose == "train"]
        vectors: Float64 = np.concatenate(
            [
                algorithm.candidates(state, algorithm.source_chunk(chunk)).stacked()
                for chunk in chunks
            ]
        )
        return vectors.astype(np.float64)

    def update(self, rows: Rows, evaluation: Rows, chunks: npt.NDArray[np.void]) -> None:
        """Choose the plan of the next generation from the one before.

        Args:
            rows: rows[training jobs].
            evaluation: rows[evaluation jobs], empty without an evaluation.
            chunks: CHUNK_TIME[chunks] of the training jobs.
        """
        if self._world.fault_handler.is_fault_tolerant:
            # surviving ranks name the chunks that they have by index, so chunks must stay as they
            # were
            return
        evaluation_first = self.plan.evaluation_first
        if len(evaluation) and len(rows):
            evaluation_first = bool(evaluation["length"].mean() >= rows["length"].mean())
        if not self.is_adaptive or not len(rows):
            self.plan = replace(self.plan, evaluation_first=evaluation_first)
            return
        plan = self._plan(self.plan.cut, len(rows), evaluation_first)
        if self._parts.cutting == "one by one":
            job = float(np.nansum(chunks["environment"])) / max(int(chunks["jobs"].sum()), 1)
            self.plan = replace(plan, cut=self._in_calls(cut_by_time(len(rows), job, plan.ranks)))
        else:
            self.plan = replace(plan, cut=self._by_steps(plan, rows, chunks))

    def _by_steps(self, plan: CutPlan, rows: Rows, chunks: npt.NDArray[np.void]) -> Cut:
        """Return the cut by the costs of steps.

        It stays the same until planning takes less than 1 % of the time.
        """
        started = time.perf_counter()
        is_early = self._plans < FIRST_PLANS
        if not is_early and started - self._planned < self._planning_seconds / PLANNING_SHARE:
            return plan.cut
        self._costs.add(chunks)
        steps = rows["length"].astype(np.float64)
        if not self._costs.are_known or not steps.any():
            return plan.cut
        most = most_jobs(self._parts.cutting, self._candidate_bytes)
        multiple = self._parts.problem.call_size
        cut = best_cut(
            steps,
            self._costs,
            plan.ranks,
            most=most,
            multiple=multiple,
            today=plan.cut if self._plans else None,
        )
        self._plans += 1
        self._planned = time.perf_counter()
        self._planning_seconds = self._planned - started
        return self._in_calls(cut)

    def _in_calls(self, cut: Cut) -> Cut:
        """Return the cut into chunks that fill the calls of the problem.

        The config may set the size of chunks instead.
        """
        is_free = self.is_adaptive and cut != AS_ASKED
        return replace(cut, multiple=self._parts.problem.call_size) if is_free else cut

    def require_independent(self, mixed_chunks: int) -> None:
        """Raise RunError if results depend on the cut.

        That is so if jobs of `mixed_chunks` chunks affected each other.
        """
        if self.is_adaptive and mixed_chunks:
            raise RunError(MIXED_CHUNK)


def idle_warning(config: Config, problem: Problem, ranks: int) -> str | None:
    """Return a warning about ranks without work before a run on `ranks` ranks is built, or None."""
    jobs, unit = jobs_of_generation(config, problem), _unit(config, problem)
    return _idle_warning(config, jobs, cutting_of(config, problem), unit, ranks)


def _unit(config: Config, problem: Problem) -> int:
    return problem.chunk_size or unit_of(config)


def jobs_of_generation(config: Config, problem: Problem) -> int:
    """Return the number of training jobs of the first round before a run is built."""
    unit = _unit(config, problem)
    if algorithm_waits(config):  # the algorithm is not built, as that would use its library
        jobs = config.setup.needs.jobs or 0
    else:
        algorithm = build_kind(
            "algorithms", config.algorithm, problem, None, Keys(config.seed), unit
        )
        state = problem.carried().merge_into(algorithm.initial())
        jobs = usual_jobs(algorithm, state, row_dtype())
        if isinstance(problem, RepeatsJobs) and problem.has_repeats:
            jobs *= problem.repeats(state.shared)
    return jobs


def candidate_bytes(config: Config, parts: Parts) -> int:
    """Return the bytes of what is formed of a candidate: low-rank factors, or parameters."""
    if isinstance(parts.noise, FactorisedNoise):
        return 4 * parts.noise.factorisation.compact.size
    searched = vectors(config, parts.problem)
    return 4 * searched.layout.size if searched is not None else 0


def training_jobs(chunks: Sequence[Chunk]) -> int:
    """Return the number of training jobs in chunks."""
    return sum(chunk.jobs for chunk in chunks if chunk.purpose == "train")


def usual_jobs(algorithm: AnyAlgorithm, state: State, row: np.dtype[np.void]) -> int:
    """Return the number of training jobs of the first round of a generation, without those that
    evaluate candidates again.
    """
    chunks = algorithm.ask(state, 0, np.zeros(0, row), NO_FITNESS)
    if isinstance(algorithm, BaseStrategy):
        chunks = [chunk for chunk in chunks if algorithm.source_chunk(chunk) == chunk]
    return training_jobs(chunks)


def _idle_warning(config: Config, jobs: int, cutting: Cutting, unit: int, ranks: int) -> str | None:
    if not jobs:
        return None
    mpi = config.mpi
    size = unit if cutting == "fixed" else 1 if mpi.chunk_size == "auto" else mpi.chunk_size
    busy = len(evaluating_ranks(jobs, ranks, cutting, mpi.chunk_size, mpi.master_evaluates))
    return idle_message(jobs, size, busy, ranks, cutting != "fixed") or division_message(
        jobs, size, busy
    )


def idle_message(jobs: int, size: int, busy: int, ranks: int, is_free: bool = True) -> str | None:
    """Return a warning if `jobs` jobs per generation leave ranks idle, or None.

    Chunks have at least `size` jobs, and `busy` of the `ranks` ranks evaluate.
    """
    chunks = -(-jobs // size)
    if chunks >= busy:
        return None
    some_chunks = f"{chunks:,} chunk{'s' * (chunks != 1)}"
    idle_ranks = f"{busy - chunks:,} rank{'s' * (busy - chunks != 1)}"
    fill = f"{busy * size:,} jobs per generation (population, batch) would fill them"
    if size > 1 and jobs >= busy:
        fill += ", and so would mpi.chunk_size: " + ("auto" if is_free else str(jobs // busy))
    return (
        f"{jobs:,} jobs per generation are {some_chunks} for {busy:,} evaluating ranks, so {idle_ranks} of {ranks:,} "
        f"will be idle: {fill}"
    )


def fitting_jobs(jobs: int, size: int, busy: int) -> tuple[int, int]:
    """Return the next smaller and larger numbers of jobs that `busy` ranks share equally.

    They are in chunks of `size`, and even if `jobs` is, since mirrored perturbations come in pairs.
    The smaller one is 0 if there is none.
    """
    chunks = -(-jobs // size)
    smaller, larger = (busy * size * times for times in ((chunks - 1) // busy, -(-chunks // busy)))
    if jobs % 2 == 0:
        smaller, larger = smaller - smaller % 2, larger - larger % 2
    return smaller, larger


def division_message(jobs: int, size: int, busy: int) -> str | None:
    """Return a warning if `jobs` is little more than a multiple of what ranks share, or None.

    `busy` ranks evaluate.
    """
    chunks = -(-jobs // size)
    shares = -(-chunks // busy)
    if shares < 2 or chunks >= WELL_DIVIDED * busy * shares:
        return None
    smaller, larger = fitting_jobs(jobs, size, busy)
    rest = chunks - busy * (shares - 1)
    what = "job" if size == 1 else f"chunk of {size} jobs"
    plural = what.replace("job", "jobs") if size == 1 else what.replace("chunk", "chunks")
    return (
        f"{jobs:,} jobs per generation do not divide well among {busy:,} evaluating ranks: {rest:,} of them "
        f"evaluate{'s' * (rest == 1)} {shares} {plural}, the others {shares - 1} and wait. {smaller:,} jobs would take "
        f"{(shares - 1) / shares:.0%} of the time, {larger:,} no longer"
    )
