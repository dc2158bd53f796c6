"""How the jobs of a round are cut into chunks and in which order chunks are handed out.

Unless `cutting` is "fixed" no result depends on either, so rank 0 adapts both to the seconds that
jobs take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.config.schema import USUAL_CHUNK, Config
from hpc_es.core.data import NO_FITNESS, Chunk, Float64, Rows, State
from hpc_es.core.errors import RunError
from hpc_es.core.interfaces import Cutting, Problem
from hpc_es.core.population import FactorisedNoise
from hpc_es.mpi.world import World
from hpc_es.training.build import Parts
from hpc_es.training.chunk_sizes import (
    AS_ASKED,
    CHUNK_BYTES,
    FIRST_JOBS,
    Cut,
    StepCosts,
    best_cut,
    ceil_div,
    evenly,
    first_cut_at_once,
)
from hpc_es.training.compatibility import vectors
from hpc_es.training.evaluating_ranks import ChunkSize, evaluating_ranks, work_warning
from hpc_es.training.generation_jobs import usual_jobs
from hpc_es.training.job_durations import JobDurations

# A chunk usually has up to USUAL_CHUNK jobs: batching more of them hardly speeds a policy up.
SMALLEST_USUAL = 4  # jobs of a chunk at the end of a round

# Cheap evaluations, by the seconds that they take.
LARGEST_SECONDS, SMALLEST_SECONDS = 0.05, 0.002  # of a chunk
FEW_SECONDS = 0.01  # of a generation, below which each rank gets one chunk
EVEN_SECONDS = 0.25  # at most, of chunks of equal size
OVERHEAD_SECONDS = 0.3e-3  # of a chunk of calls, measured between calls of a millisecond
SHARED_SECONDS = 0.0005  # of a generation, below which messages cost more than they save

ORDERED_SECONDS = 0.02  # mean seconds of a job from which long jobs are handed out first
# of candidates whose durations are estimated; those that are remembered then take 64 MiB
MOST_COORDINATES = 1 << 14
FIRST_PLANS = 4  # plans that are made in successive generations, before planning gets rarer
PLANNING_SHARE = 0.01  # largest share of the time that planning may then take

MIXED_CHUNK = (
    "steps of the environment draw from Python's or NumPy's global random generator, so episodes of one chunk affect "
    "each other and results would depend on the number of ranks. Set mpi.chunk_size to a number, such as 16, which "
    "then is part of the result, or have the environment draw from self.np_random"
)


@dataclass(frozen=True)
class CutPlan:
    """Sizes and order of the chunks of a generation, and who evaluates them; chosen by rank 0."""

    cut: Cut = AS_ASKED
    evaluation_size: int = USUAL_CHUNK  # episodes per chunk of an evaluation
    # hand out the chunks of the evaluation first, because their episodes are longer
    evaluation_first: bool = True
    ranks: int = 1  # number of ranks that chunks are cut for
    rank_0_evaluates: bool = True
    # training jobs of the first round, the longest first; (): in the order of the jobs
    order: tuple[int, ...] = ()
    # so many chunks have to be left for ranks that still evaluate one to get another one
    plenty: int = 0

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
        """Return the plan without `order` as nine integers, for a message."""
        return (
            self.cut.largest,
            self.cut.smallest,
            self.cut.multiple,
            int(self.cut.is_even),
            self.evaluation_size,
            int(self.evaluation_first),
            self.ranks,
            int(self.rank_0_evaluates),
            self.plenty,
        )

    @staticmethod
    def from_numbers(numbers: Sequence[int]) -> CutPlan:
        """Return the plan that `to_numbers` converted."""
        largest, smallest, multiple, is_even, *rest = numbers
        evaluation_size, evaluation_first, ranks, rank_0_evaluates, plenty = rest
        return CutPlan(
            cut=Cut(largest, smallest, multiple, bool(is_even)),
            evaluation_size=evaluation_size,
            evaluation_first=bool(evaluation_first),
            ranks=ranks,
            rank_0_evaluates=bool(rank_0_evaluates),
            plenty=plenty,
        )


def first_cut(cutting: Cutting, chunk_size: ChunkSize) -> Cut:
    """Return the cut of the first generation, before any job was timed."""
    if cutting == "fixed":
        return AS_ASKED
    if chunk_size != "auto":
        return Cut(chunk_size, chunk_size)
    if cutting == "one by one":
        return AS_ASKED
    return Cut(FIRST_JOBS if cutting == "at once" else USUAL_CHUNK, SMALLEST_USUAL)


def cut_by_time(jobs: int, job: float, ranks: int, spread: float = 0.0) -> Cut:
    """Return the cut of a generation of jobs "one by one", cheap calls.

    The sizes of chunks fall towards the end of the generation, unless these further chunks are
    expected to cost more time than ranks wait for the slowest one of equal chunks.

    Args:
        jobs: their number.
        job: mean seconds of a job.
        ranks: that share them.
        spread: standard deviation of the seconds of a job.
    """
    job = max(job, 1e-9)
    seconds = job * jobs
    timed = Cut(max(1, int(LARGEST_SECONDS / job)), max(1, round(SMALLEST_SECONDS / job)))
    if ranks == 1 or seconds < SHARED_SECONDS:
        return Cut(max(jobs, 1), max(jobs, 1)) if seconds < LARGEST_SECONDS else timed
    share = ceil_div(jobs, ranks)
    if seconds < FEW_SECONDS:
        return evenly(share)
    if job >= ORDERED_SECONDS:
        return timed
    even = evenly(min(share, max(1, int(EVEN_SECONDS / job))))
    # the largest of some normal numbers (David & Nagaraja 2003, section 10.5)
    wait = spread * math.sqrt(2 * even.largest * math.log(ranks))
    last = timed.smallest * job
    more = _falling_chunks(share, timed) - ceil_div(share, even.largest)  # for each rank
    return even if wait < more * OVERHEAD_SECONDS + last else timed


def _falling_chunks(share: int, cut: Cut) -> float:
    """Return about how many chunks of falling size a rank gets: each has half of its share of the
    remaining jobs, which r chunks reduce to (1 - 1 / 2r)^r, about exp(-1/2).
    """
    begin = min(share, 2 * cut.largest)
    halved = 2 * math.log(max(begin / (2 * cut.smallest), 1.0))
    return (share - begin) / cut.largest + halved + 2


def seconds_of_jobs(chunks: npt.NDArray[np.void]) -> tuple[float, float]:
    """Return the mean and the standard deviation of the seconds that jobs take in the environment,
    from CHUNK_TIME[chunks]: a chunk's mean varies less than a single job.
    """
    known = chunks[np.isfinite(chunks["environment"]) & (chunks["jobs"] > 0)]
    if not len(known):
        return 0.0, 0.0
    jobs, seconds = known["jobs"], known["environment"]
    mean = float(seconds.sum() / jobs.sum())
    squares = float((jobs * np.square(seconds / jobs - mean)).sum())
    return mean, math.sqrt(squares / max(len(known) - 1, 1))


def most_jobs(cutting: Cutting, candidate_bytes: int) -> int:
    """Return the largest size of chunks whose jobs advance together.

    Environments that are stepped one after the other ("free") gain little from larger batches,
    and each job of a chunk has an environment of its own.
    """
    most = max(1, CHUNK_BYTES // max(candidate_bytes, 1))
    return most if cutting == "at once" else min(most, USUAL_CHUNK)


def evaluation_size(episodes: int, cutting: Cutting, chunk_size: ChunkSize, ranks: int) -> int:
    """Return the number of episodes per chunk of an evaluation."""
    if cutting == "fixed" or chunk_size != "auto":
        return USUAL_CHUNK
    share = max(1, ceil_div(episodes, ranks))
    return share if cutting == "at once" else min(share, USUAL_CHUNK)


def _choices(config: Config, problem: Problem) -> Mapping[int, int]:
    searched = vectors(config, problem)
    return searched.mixed.choices if searched is not None and searched.mixed is not None else {}


def candidate_bytes(config: Config, parts: Parts) -> int:
    """Return the bytes of what is formed of a candidate: low-rank factors, or parameters."""
    if isinstance(parts.noise, FactorisedNoise):
        return 4 * parts.noise.factorisation.compact.size
    searched = vectors(config, parts.problem)
    return 4 * searched.layout.size if searched is not None else 0


class ChunkPlanner:
    """Chooses the plan of the next generation; rank 0 broadcasts its own to the others.

    An evaluation of the centre has `evaluated` jobs. All `workers` evaluate, in place of the ranks
    of the world.
    """

    def __init__(
        self, config: Config, parts: Parts, world: World, evaluated: int, workers: int | None = None
    ) -> None:
        self._config, self._parts, self._world = config, parts, world
        self._has_workers = workers is not None
        self._count = world.size if workers is None else workers
        self._evaluated = evaluated
        self._candidate_bytes = candidate_bytes(config, parts)
        self._costs = StepCosts(self._candidate_bytes)
        self._plans = 0  # plans by costs so far
        self._planned = 0.0  # when the last one was made
        self._planning_seconds = 0.0  # that it took
        self._durations = JobDurations(_choices(config, parts.problem))
        self._orders_jobs = False
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
        return CutPlan(
            cut,
            evaluation_size(self._evaluated, cutting, mpi.chunk_size, len(ranks)),
            evaluation_first=evaluation_first,
            ranks=len(ranks),
            rank_0_evaluates=0 in ranks,
        )

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
        return work_warning(
            self._config,
            jobs,
            self._parts.cutting,
            unit=self._parts.unit,
            ranks=self._count,
        )

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
        self.plan = replace(self.plan, order=(), plenty=0)
        vectors = self._candidates(state) if self._orders_jobs else None
        if vectors is not None and len(vectors) > self.plan.ranks:
            order = self._durations.longest_first(vectors)
            # A job may wait for the longest one on its rank, if others are left to do meanwhile.
            plenty = min(2 * self.plan.ranks * order.longest, len(order.jobs))
            self.plan = replace(self.plan, order=order.jobs, plenty=math.ceil(plenty))

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
            job, spread = seconds_of_jobs(chunks)
            cut = cut_by_time(len(rows), job, plan.ranks, spread)
            self.plan = replace(plan, cut=self._in_calls(cut))
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
