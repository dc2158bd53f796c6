"""Measures a few generations on one rank: the seconds and bytes of each part.

The constants of a cluster are here, too.
"""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hpc_es.config.schema import USUAL_CHUNK, Config
from hpc_es.core.closing import close
from hpc_es.core.data import Arrays, Chunk, Float64, Outcome, Poll, State
from hpc_es.core.interfaces import Cutting
from hpc_es.mpi.connect import connect
from hpc_es.training.build import Parts, build_parts, build_task, decide_device
from hpc_es.training.chunk_sizes import Cut
from hpc_es.training.chunking import CutPlan
from hpc_es.training.executors import SerialExecutor
from hpc_es.training.generation import Generation, update_state
from hpc_es.training.sizes import with_sizes


@dataclass(frozen=True)
class Cluster:
    """Constants of a cluster that cannot be measured on one rank.

    Times are in seconds, rates per second. Defaults: osu_latency measures 1 to 2 microseconds on
    InfiniBand, and a link of 100 Gbit/s transfers 12 GB/s; times of rank 0 and of each rank are
    those of `python -m benchmarks.scale`.
    """

    latency: float = 2e-6  # of a small message
    bandwidth: float = 12e9  # bytes per second of a large message
    cores_a_node: int = 48
    dispatch: float = 15e-6  # of rank 0 to answer a request for work
    per_rank: float = 4e-6  # of every rank, per other rank, to read its rows at the end of a round


@dataclass(frozen=True)
class Costs:
    """Measured costs on one rank; seconds and bytes.

    The seconds of a simulated job are the fitted ones, which hold for most jobs, plus one of
    `extras`, so that jobs that hang until their time-out, are repeated or just take long cost what
    was measured.
    """

    step: float  # of a step of one job
    call: float  # of a step of a chunk in addition: the policy's call, the loop
    job: float  # of a job in addition to its steps: noise, parameters, reset
    chunk: float  # of a chunk in addition to its jobs
    prepare: float = 0.0  # of every rank, per generation
    partial_update: float = 0.0  # of all blocks of the update, per job
    blocks: int = 0  # of the update, shared by the ranks
    tell: float = 0.0  # of rank 0: update, metrics, files
    theta: int = 0  # bytes that rank 0 sends to all
    row: int = 0  # bytes of a job that each rank sends to all
    sums: int = 0  # bytes of all blocks, which go to rank 0
    memory: int = 0  # of a rank
    lockstep: bool = True  # whether a chunk's jobs step together
    lengths: Sequence[int] = field(default_factory=tuple)  # of measured jobs
    # seconds of measured jobs minus the fitted ones
    extras: Sequence[float] = field(default_factory=tuple)

    def chunk_seconds(self, lengths: Sequence[int], extra: float = 0.0) -> float:
        """Return the seconds of a chunk of jobs with these lengths.

        Their extras add up to `extra`.
        """
        return max(self.fitted_seconds(len(lengths), sum(lengths), max(lengths)) + extra, 0.0)

    def fitted_seconds(self, jobs: int, steps: int, longest: int) -> float:
        """Return the seconds of a chunk without extras.

        They follow from its jobs, their steps and those of the longest job.
        """
        calls = longest if self.lockstep else steps
        return self.chunk + self.job * jobs + self.step * steps + self.call * calls

    @property
    def evaluation_seconds(self) -> float:
        """Mean seconds of a job in the environment or objective.

        `mpi.chunk_size: auto` is chosen from it.
        """
        mean_length = sum(self.lengths) / max(len(self.lengths), 1)
        mean_extra = sum(self.extras) / max(len(self.extras), 1)
        return max(self.step * mean_length + mean_extra + (0.0 if self.lockstep else self.job), 0.0)

    @property
    def evaluation_spread(self) -> float:
        """Standard deviation of these seconds, apart from those of different lengths."""
        return statistics.pstdev(self.extras) if self.extras else 0.0


def broadcast_seconds(size: int, ranks: int, cluster: Cluster) -> float:
    """Return the seconds to send `size` bytes to all ranks.

    They are sent as a tree or, if faster, by scatter and allgather.
    """
    if ranks == 1:
        return 0.0
    steps = math.ceil(math.log2(ranks))
    tree = steps * (cluster.latency + size / cluster.bandwidth)
    ring = (steps + ranks - 1) * cluster.latency + 2 * size / cluster.bandwidth
    return min(tree, ring)


def allgather_seconds(size: int, ranks: int, cluster: Cluster) -> float:
    """Return the seconds until each rank has all of `size` bytes.

    It has then read the rows of every rank.
    """
    if ranks == 1:
        return 0.0
    return (
        math.ceil(math.log2(ranks)) * cluster.latency
        + size / cluster.bandwidth
        + ranks * cluster.per_rank
    )


def gather_seconds(size: int, ranks: int, cluster: Cluster) -> float:
    """Return the duration in seconds of a gather of `size` bytes on rank 0."""
    return 0.0 if ranks == 1 else ranks * cluster.latency + size / cluster.bandwidth


SIZES = (USUAL_CHUNK, 1, 4)  # of chunks, in turn, to separate the costs of chunks and jobs
LEAST_GENERATIONS = 3
SLOW_SECONDS = 0.001  # of a job, compared to which a chunk costs nothing: jobs are timed one by one
MOST_EXTRAS = 4096  # numbers; above, those of similar size are averaged
PAGE = 1024  # bytes of ru_maxrss


class TimedChunk(NamedTuple):
    """Size, timesteps and duration of an evaluated chunk."""

    jobs: int
    steps: int
    longest: int  # steps of its longest job
    seconds: float
    failed: int  # jobs


@dataclass
class Timings:
    """Times and sizes of the measured generations."""

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


@dataclass(frozen=True)
class MeasuredGeneration:
    """Costs and sizes of the generations of a config on one rank."""

    costs: Costs
    generations: int
    jobs: float  # of a generation, the mean
    rounds: float
    timesteps: float
    steps_per_second: float  # while evaluating
    unit: int
    cutting: Cutting
    failed: float = 0.0  # fraction of all jobs
    has_evaluations: bool = False  # a job is an evaluation of a function or model, not an episode

    def faster(self, speed: float) -> MeasuredGeneration:
        """Return the costs on cores that are faster by this factor."""
        names = ("step", "call", "job", "chunk", "prepare", "partial_update", "tell")
        seconds = {name: getattr(self.costs, name) / speed for name in names}
        costs = replace(
            self.costs, **seconds, extras=tuple(extra / speed for extra in self.costs.extras)
        )
        return replace(self, costs=costs, steps_per_second=self.steps_per_second * speed)

    def with_length(self, length: int) -> MeasuredGeneration:
        """Return the costs of episodes that all have this length."""
        return replace(
            self, costs=replace(self.costs, lengths=(length,)), timesteps=self.jobs * length
        )


def measure(config: Config, seconds: float) -> MeasuredGeneration:
    """Run at least three generations on this rank, for at least `seconds`, without writing files.

    Raises ConfigError if the config is invalid.
    """
    world = connect()
    decide_device(config, world)
    config, searched, _ = with_sizes(config, build_task(config))
    try:
        measured = _measured(build_parts(config, world, searched), seconds)
        return replace(measured, has_evaluations=not config.setup.vocabulary.has_episodes)
    finally:
        close(searched.task.name, searched.task.close)


def _measured(parts: Parts, seconds: float) -> MeasuredGeneration:
    state, timings, first, since = parts.initial(), Timings(), Timings(), time.perf_counter()
    _generation(parts, state, first, USUAL_CHUNK)  # imports and caches are not counted
    job_seconds = sum(timed.seconds for timed in first.chunks) / max(
        sum(timed.jobs for timed in first.chunks), 1
    )
    slow = parts.cutting == "one by one" and job_seconds > SLOW_SECONDS
    sizes = (1,) if slow else SIZES
    while len(timings.jobs) < LEAST_GENERATIONS or time.perf_counter() - since < seconds:
        if parts.algorithm.finished(state) is not None:
            break
        state = _generation(parts, state, timings, sizes[len(timings.jobs) % len(sizes)])
    lockstep = parts.cutting != "one by one"
    chunk, job, step, call = fitted(
        np.array([timed[:4] for timed in timings.chunks], np.float64), lockstep
    )
    evaluated, evaluating = (
        sum(timed.jobs for timed in timings.chunks),
        sum(timed.seconds for timed in timings.chunks),
    )
    costs = Costs(
        step=step,
        call=call,
        job=job,
        chunk=chunk,
        prepare=_median(timings.prepare),
        partial_update=_median(timings.partial_update) / max(float(np.mean(timings.jobs)), 1.0),
        tell=_median(timings.tell),
        blocks=timings.blocks,
        theta=sum(array.nbytes for array in state.shared.values()),
        row=parts.row.itemsize,
        sums=timings.sums,
        memory=PAGE * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        lockstep=lockstep,
        lengths=tuple(timings.lengths),
    )
    costs = replace(costs, extras=extra_seconds(costs, timings.chunks))
    return MeasuredGeneration(
        costs,
        generations=len(timings.jobs),
        jobs=float(np.mean(timings.jobs)),
        rounds=float(np.mean(timings.rounds)),
        timesteps=float(np.mean(timings.timesteps)),
        steps_per_second=sum(timings.timesteps) / max(evaluating, 1e-9),
        unit=parts.unit,
        cutting=parts.cutting,
        failed=sum(timed.failed for timed in timings.chunks) / max(evaluated, 1),
    )


class TimedGeneration(Generation):
    """A generation that times its steps."""

    def __init__(self, parts: Parts, state: State, timings: Timings, size: int) -> None:
        plan = CutPlan() if parts.cutting == "fixed" else CutPlan(Cut(size, size))
        super().__init__(parts, state, plan=plan)
        self._timings, self.seconds = timings, 0.0  # of all blocks

    def evaluate(self, chunk: Chunk, poll: Poll) -> Outcome:
        since = time.perf_counter()
        outcome = super().evaluate(chunk, poll)
        elapsed = time.perf_counter() - since
        lengths, failed = outcome.rows["length"], int(np.isnan(outcome.rows["return_"]).sum())
        self._timings.chunks.append(
            TimedChunk(chunk.jobs, int(lengths.sum()), int(lengths.max()), elapsed, failed)
        )
        return outcome

    def prepare(self) -> None:
        """Prepare the update and time it."""
        since = time.perf_counter()
        super().prepare()
        self._timings.prepare.append(time.perf_counter() - since)

    def partial_update(self, block: int) -> Arrays:
        """Compute a block of the update and add its time."""
        since = time.perf_counter()
        arrays = super().partial_update(block)
        self.seconds += time.perf_counter() - since
        return arrays


def _generation(parts: Parts, state: State, timings: Timings, size: int) -> State:
    """Run a generation, and return the state after it.

    Chunks are of `size` jobs unless they are fixed.
    """
    generation = TimedGeneration(parts, state, timings, size)
    evaluated = SerialExecutor().run(generation)
    results = evaluated.results
    since = time.perf_counter()
    units = [parts.problem.unit(unit_parts) for unit_parts in evaluated.learned]
    if parts.repeating is not None:
        units += parts.repeating.repeat_units(state.generation, results, evaluated.passes)
    _, following, _ = update_state(parts.algorithm, parts.problem, state, results, units)
    timings.tell.append(time.perf_counter() - since)
    timings.partial_update.append(generation.seconds)
    timings.blocks = generation.blocks
    timings.sums = sum(array.nbytes for block in results.blocks for array in block.values())
    timings.jobs.append(len(evaluated.training_evaluations))
    timings.rounds.append(generation.round - 1)  # the last call of `next_chunks` returned none
    lengths = evaluated.training_evaluations["length"]
    timings.timesteps.append(int(lengths.sum()))
    timings.lengths = lengths.tolist()
    return following


def fitted(chunks: Float64, lockstep: bool = True) -> tuple[float, float, float, float]:
    """Return the seconds of a chunk, a job, a step of a job and a step of a chunk.

    They are fitted by nonnegative least squares of relative errors. `chunks` is float64[chunks, 4]:
    jobs, steps, steps of the longest job, seconds. Without lockstep a step of a chunk takes 0.
    """
    jobs, steps, longest, seconds = chunks.T
    columns = np.stack([np.ones(len(chunks)), jobs, steps, longest], axis=1)
    order = (1, 0) if (longest <= 1).all() else (2, 3, 1, 0) if lockstep else (2, 1, 0)
    used, result = _independent(columns, order), np.zeros(4)
    while used:
        values = np.linalg.lstsq(
            columns[:, used] / seconds[:, np.newaxis], np.ones(len(chunks)), rcond=1e-9
        )[0]
        if (values >= 0).all():
            result[used] = values
            break
        used.pop(int(values.argmin()))
    chunk, job, step, call = result.tolist()
    return chunk, job, step, call


def _independent(columns: Float64, order: Sequence[int]) -> list[int]:
    """Return the linearly independent columns:
    least squares would divide a cost among dependent ones.
    """
    scaled = columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    used: list[int] = []
    for column in order:
        if np.linalg.matrix_rank(scaled[:, [*used, column]], tol=1e-6) > len(used):
            used.append(column)
    return used


def extra_seconds(costs: Costs, chunks: Sequence[TimedChunk]) -> tuple[float, ...]:
    """Return the seconds of each job minus the fitted ones; their sum is exact.

    The excess of a chunk is divided among its failed jobs, or among all of its jobs if none failed.
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
