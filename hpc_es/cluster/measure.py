"""What a generation is made of: seconds and bytes measured on one rank, and the constants of a cluster.

Generations on one rank, each part of which is timed."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hpc_es.config.schema import Config
from hpc_es.core.data import Arrays, Chunk, Float64, Outcome, Poll, State
from hpc_es.core.interfaces import Cutting
from hpc_es.mpi.connect import connect
from hpc_es.training.build import Parts, build_parts, build_task
from hpc_es.training.chunking import USUAL, Cut, CutPlan
from hpc_es.training.executors import SerialExecutor
from hpc_es.training.generation import Generation, update_state


@dataclass(frozen=True)
class Cluster:
    """Constants of a cluster that cannot be measured here; times in seconds, rates a second.

    Defaults: osu_latency on InfiniBand tells 1 to 2 microseconds, and a link of 100 Gbit/s carries 12 GB/s; times of
    rank 0 and of each rank are those of `python -m benchmarks.scale`.
    """

    latency: float = 2e-6  # of a small message
    bandwidth: float = 12e9  # bytes a second of a large one
    cores_a_node: int = 48
    dispatch: float = 15e-6  # of rank 0 for the answer to a rank that asks for work
    per_rank: float = 4e-6  # of every rank for what each other rank tells at a round's end


@dataclass(frozen=True)
class Costs:
    """What one rank was seen to take; seconds and bytes.

    The seconds of a job are the fitted ones, which are those of most jobs, plus one of `extras`. So a job that hangs
    until its time-out, is tried again, or just takes long costs in a simulation what was measured.
    """

    step: float  # of a step of one job
    call: float  # of a step of a chunk besides: the policy's call, the loop
    job: float  # of a job besides its steps: noise, parameters, reset
    chunk: float  # of a chunk besides its jobs
    prepare: float = 0.0  # of every rank, once a generation
    partial_update: float = 0.0  # of all blocks of the update together, for each job
    blocks: int = 0  # that the ranks share
    tell: float = 0.0  # of rank 0: the update, metrics, what is written
    theta: int = 0  # bytes that rank 0 sends to all
    row: int = 0  # bytes of a job that each rank sends to all
    sums: int = 0  # bytes of all blocks, which go to rank 0
    memory: int = 0  # of a rank
    lockstep: bool = True  # whether a chunk's jobs step together
    lengths: Sequence[int] = field(default_factory=tuple)  # of the jobs that were seen
    extras: Sequence[float] = field(default_factory=tuple)  # seconds of measured jobs beyond the fitted ones, or below

    def chunk_seconds(self, lengths: Sequence[int], extra: float = 0.0) -> float:
        """Return what a chunk of jobs of these lengths takes, whose extras add up to `extra`."""
        return max(self.fitted_seconds(len(lengths), sum(lengths), max(lengths)) + extra, 0.0)

    def fitted_seconds(self, jobs: int, steps: int, longest: int) -> float:
        """Return what a chunk of so many jobs and steps takes without extras; `longest` are the steps of one job."""
        calls = longest if self.lockstep else steps
        return self.chunk + self.job * jobs + self.step * steps + self.call * calls

    @property
    def evaluation_seconds(self) -> float:
        """The mean seconds of a job in the environment or the objective, from which `auto` chooses its chunks."""
        mean_length = sum(self.lengths) / max(len(self.lengths), 1)
        mean_extra = sum(self.extras) / max(len(self.extras), 1)
        return max(self.step * mean_length + mean_extra + (0.0 if self.lockstep else self.job), 0.0)


def broadcast_seconds(size: int, ranks: int, cluster: Cluster) -> float:
    """Return what it takes to send so many bytes to all: scattered and gathered again, where there are many."""
    if ranks == 1:
        return 0.0
    steps = math.ceil(math.log2(ranks))
    tree = steps * (cluster.latency + size / cluster.bandwidth)
    ring = (steps + ranks - 1) * cluster.latency + 2 * size / cluster.bandwidth
    return min(tree, ring)


def allgather_seconds(size: int, ranks: int, cluster: Cluster) -> float:
    """Return what it takes until each rank has all of so many bytes, and has taken in what every rank tells."""
    if ranks == 1:
        return 0.0
    return math.ceil(math.log2(ranks)) * cluster.latency + size / cluster.bandwidth + ranks * cluster.per_rank


def gather_seconds(size: int, ranks: int, cluster: Cluster) -> float:
    """Return what it takes until rank 0 has all of so many bytes."""
    return 0.0 if ranks == 1 else ranks * cluster.latency + size / cluster.bandwidth


SIZES = (USUAL, 1, 4)  # of chunks, in turn, so that what a chunk costs and what a job costs can be told apart
LEAST_GENERATIONS = 3
SLOW_SECONDS = 0.001  # of a job, beside which what a chunk costs is nothing: each job is timed by itself
MOST_EXTRAS = 4096  # numbers; those of more jobs are put together, in order of size
PAGE = 1024  # bytes of ru_maxrss


class TimedChunk(NamedTuple):
    """A chunk that was timed."""

    jobs: int
    steps: int
    longest: int  # steps of its longest job
    seconds: float
    failed: int  # jobs


@dataclass
class Timings:
    """What was timed."""

    chunks: list[TimedChunk] = field(default_factory=list)
    prepare: list[float] = field(default_factory=list)
    partial_update: list[float] = field(default_factory=list)
    tell: list[float] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)  # of a generation
    rounds: list[int] = field(default_factory=list)  # of a generation
    timesteps: list[int] = field(default_factory=list)  # of a generation
    lengths: list[int] = field(default_factory=list)  # of the jobs of the last generations
    blocks: int = 0
    sums: int = 0

    def job_seconds(self) -> float:
        """Return the mean seconds of a job."""
        return sum(chunk.seconds for chunk in self.chunks) / max(sum(chunk.jobs for chunk in self.chunks), 1)


@dataclass(frozen=True)
class MeasuredGeneration:
    """What generations of a config cost on one rank, and how large they are."""

    costs: Costs
    generations: int
    jobs: float  # of a generation, the mean
    rounds: float
    timesteps: float
    steps_per_second: float  # while evaluating
    unit: int
    cutting: Cutting
    failed: float = 0.0  # the share of all jobs
    is_objective: bool = False  # whether a job is an evaluation of a function or a command, not an episode

    def faster(self, speed: float) -> MeasuredGeneration:
        """Return the same of cores so many times as fast."""
        names = ("step", "call", "job", "chunk", "prepare", "partial_update", "tell")
        seconds = {name: getattr(self.costs, name) / speed for name in names}
        costs = replace(self.costs, **seconds, extras=tuple(extra / speed for extra in self.costs.extras))
        return replace(self, costs=costs, steps_per_second=self.steps_per_second * speed)

    def with_length(self, length: int) -> MeasuredGeneration:
        """Return the same of episodes that all last so many steps."""
        return replace(self, costs=replace(self.costs, lengths=(length,)), timesteps=self.jobs * length)


def measure(config: Config, seconds: float) -> MeasuredGeneration:
    """Run generations here for so many seconds, at least three; ConfigError. Nothing is written."""
    searched = build_task(config)
    try:
        return _measured(build_parts(config, connect(), searched), seconds)
    finally:
        searched.task.close()


def _measured(made: Parts, seconds: float) -> MeasuredGeneration:
    state, seen, first, since = made.initial(), Timings(), Timings(), time.perf_counter()
    _generation(made, state, first, USUAL)  # whose imports and caches are not counted
    slow = made.cutting == "one by one" and first.job_seconds() > SLOW_SECONDS
    sizes = (1,) if slow else SIZES
    while len(seen.jobs) < LEAST_GENERATIONS or time.perf_counter() - since < seconds:
        if made.algorithm.finished(state) is not None:
            break
        state = _generation(made, state, seen, sizes[len(seen.jobs) % len(sizes)])
    lockstep = made.cutting != "one by one"
    chunk, job, step, call = fitted(np.array([timed[:4] for timed in seen.chunks], np.float64), lockstep)
    evaluated, evaluating = sum(timed.jobs for timed in seen.chunks), sum(timed.seconds for timed in seen.chunks)
    costs = Costs(
        step=step,
        call=call,
        job=job,
        chunk=chunk,
        prepare=_median(seen.prepare),
        partial_update=_median(seen.partial_update) / max(float(np.mean(seen.jobs)), 1.0),
        tell=_median(seen.tell),
        blocks=seen.blocks,
        theta=sum(array.nbytes for array in state.shared.values()),
        row=made.row.itemsize,
        sums=seen.sums,
        memory=PAGE * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        lockstep=lockstep,
        lengths=tuple(seen.lengths),
    )
    costs = replace(costs, extras=extra_seconds(costs, seen.chunks))
    return MeasuredGeneration(
        costs,
        generations=len(seen.jobs),
        jobs=float(np.mean(seen.jobs)),
        rounds=float(np.mean(seen.rounds)),
        timesteps=float(np.mean(seen.timesteps)),
        steps_per_second=sum(seen.timesteps) / max(evaluating, 1e-9),
        unit=made.unit,
        cutting=made.cutting,
        failed=sum(timed.failed for timed in seen.chunks) / max(evaluated, 1),
        is_objective=bool(getattr(made.problem, "is_objective", False)),
    )


class TimedGeneration(Generation):
    """A generation whose steps are timed."""

    def __init__(self, made: Parts, state: State, seen: Timings, size: int) -> None:
        plan = CutPlan() if made.cutting == "fixed" else CutPlan(Cut(size, size))
        super().__init__(made, state, plan=plan)
        self._seen, self.seconds = seen, 0.0  # of all blocks

    def evaluate(self, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate a chunk, and take down what it took."""
        since = time.perf_counter()
        outcome = super().evaluate(chunk, poll)
        elapsed = time.perf_counter() - since
        lengths, failed = outcome.rows["length"], int(np.isnan(outcome.rows["return_"]).sum())
        self._seen.chunks.append(TimedChunk(chunk.jobs, int(lengths.sum()), int(lengths.max()), elapsed, failed))
        return outcome

    def prepare(self) -> None:
        """Prepare the update, and take down what it took."""
        since = time.perf_counter()
        super().prepare()
        self._seen.prepare.append(time.perf_counter() - since)

    def partial_update(self, block: int) -> Arrays:
        """Compute a block of the update, and add what it took."""
        since = time.perf_counter()
        arrays = super().partial_update(block)
        self.seconds += time.perf_counter() - since
        return arrays


def _generation(made: Parts, state: State, seen: Timings, size: int) -> State:
    """Run a generation in chunks of this many jobs, where they may be cut; return the state after it."""
    generation = TimedGeneration(made, state, seen, size)
    evaluated = SerialExecutor().run(generation)
    results = evaluated.results
    since = time.perf_counter()
    units = [made.problem.unit(build_parts) for build_parts in evaluated.learned]
    _, following, _ = update_state(made.algorithm, made.problem, state, results, units)
    seen.tell.append(time.perf_counter() - since)
    seen.partial_update.append(generation.seconds)
    seen.blocks = len(results.blocks)
    seen.sums = sum(array.nbytes for block in results.blocks for array in block.values())
    seen.jobs.append(len(results.rows))
    seen.rounds.append(generation.round)
    seen.timesteps.append(int(results.rows["length"].sum()))
    seen.lengths = results.rows["length"].tolist()
    return following


def fitted(chunks: Float64, lockstep: bool = True) -> tuple[float, float, float, float]:
    """Return what a chunk, a job, a step of a job, a step of a chunk take: least squares of relative errors, none < 0.

    `chunks` has a row each: jobs, steps, steps of the longest job, seconds. Without lockstep a step of a chunk is 0.
    """
    jobs, steps, longest, seconds = chunks.T
    columns = np.stack([np.ones(len(chunks)), jobs, steps, longest], axis=1)
    order = (1, 0) if (longest <= 1).all() else (2, 3, 1, 0) if lockstep else (2, 1, 0)
    used, found = _independent(columns, order), np.zeros(4)
    while used:
        values = np.linalg.lstsq(columns[:, used] / seconds[:, np.newaxis], np.ones(len(chunks)), rcond=1e-9)[0]
        if (values >= 0).all():
            found[used] = values
            break
        used.pop(int(values.argmin()))
    chunk, job, step, call = found.tolist()
    return chunk, job, step, call


def _independent(columns: Float64, order: Sequence[int]) -> list[int]:
    """Return the columns that are no multiple or sum of those before them: least squares would share a cost evenly."""
    scaled = columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    used: list[int] = []
    for column in order:
        if np.linalg.matrix_rank(scaled[:, [*used, column]], tol=1e-6) > len(used):
            used.append(column)
    return used


def extra_seconds(costs: Costs, chunks: Sequence[TimedChunk]) -> tuple[float, ...]:
    """Return what each job took beyond the fitted costs, or below them: all together took what was measured.

    In a chunk that took longer the time is that of the jobs that failed, or of all alike where none has.
    """
    extras: list[float] = []
    for timed in chunks:
        rest = timed.seconds - costs.fitted_seconds(timed.jobs, timed.steps, timed.longest)
        slow = timed.failed if timed.failed and rest > 0 else timed.jobs
        extras += [rest / slow] * slow + [0.0] * (timed.jobs - slow)
    if len(extras) <= MOST_EXTRAS:
        return tuple(extras)
    return tuple(float(group.mean()) for group in np.array_split(np.sort(extras), MOST_EXTRAS))


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else 0.0
