"""Executors evaluate a generation: `SerialExecutor` here, `MpiExecutor` on all ranks of a job.

A third one, without MPI, is in `training/pool.py`. All of them run the same steps (`Executor.run`)
and differ in how rows and blocks are collected. Each rank sends its timings in a header in front of
its rows. `Rank0Alone` chooses between the first two in the jobs of cheap functions.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hpc_es.config.schema import Config
from hpc_es.core.data import Array, Arrays, Chunk, Outcome, Poll, Results, Rows, State
from hpc_es.core.errors import GIVEN_UP
from hpc_es.core.handlers import OwnProcess, has_forked
from hpc_es.mpi.scheduler import GiveUp, Work
from hpc_es.mpi.world import World, decode, encode
from hpc_es.training.build import Parts
from hpc_es.training.chunking import SHARED_SECONDS, CutPlan
from hpc_es.training.collective import FailureReports
from hpc_es.training.generation import BlocksOnDemand, Evaluated, Generation
from hpc_es.training.messages import (
    HEADER,
    TIMES,
    Gathered,
    Header,
    TimedChunk,
    gathered,
    packed_block,
    packed_chunk_arrays,
    packed_outcomes,
    packed_round,
    packed_unit,
    unpacked_outcomes,
    unpacked_round,
)
from hpc_es.training.outcomes import StoredOutcomes

# Over the rounds of a generation.
SUMMED = ("policy_calls", *TIMES, "chunks", "arrays", "mixed", "evaluating", "given_up")

# of small arrays that are put together, since only large ones are returned to the system
PACKED_BYTES = 1 << 26
ALONE_SECONDS = 0.25  # that rank 0 runs generations alone before the next one on all ranks
LONGEST_SECONDS = 0.05  # longest generation on all ranks for which messages matter
COMPARED = 5  # recent generations on all ranks, and alone, whose median times are compared
TRIAL_BACKOFF = 10  # factor between the intervals of trials, after one that was slower


class RankClock:
    """Seconds that this rank spent in a generation, by activity, with waiting counted separately.

    They are sent with the rows; later activities such as the update count for the next generation.
    """

    def __init__(
        self, world: World | None, generation: int = 0, previous: RankClock | None = None
    ) -> None:
        self._world, self.generation = world, generation
        self._seconds = (
            previous.take() if previous else dict.fromkeys((*TIMES, "policy_calls"), 0.0)
        )

    def next(self, generation: int) -> RankClock:
        """Return the clock of another generation, which takes over the seconds not yet sent."""
        return RankClock(self._world, generation, self)

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call of this method."""
        seconds, self._seconds = self._seconds, dict.fromkeys((*TIMES, "policy_calls"), 0.0)
        return seconds

    def add_idle(self) -> None:
        """Add the time spent waiting since the last call of a method."""
        self._seconds["idle"] += self._waited()

    def add(self, name: str, since: float) -> None:
        """Add the time since `since`; the part spent waiting counts as idle."""
        elapsed = time.perf_counter() - since
        waited = min(self._waited(), elapsed)
        self._seconds["idle"] += waited
        self._seconds[name] += elapsed - waited

    def add_outcome(self, outcome: Outcome, since: float) -> None:
        """Add a chunk: environment and policy as measured, the rest (noise) as update."""
        elapsed = time.perf_counter() - since
        for name, seconds in outcome.seconds.items():
            self._seconds[name] += seconds
        inside = outcome.seconds.get("environment", 0.0) + outcome.seconds.get("policy", 0.0)
        self._seconds["update"] += max(elapsed - inside, 0.0)

    def _waited(self) -> float:
        if self._world is None:
            return 0.0
        waited, self._world.waited = self._world.waited, 0.0
        return waited


class Executor(ABC):
    """Evaluates generations; in a job every rank calls the same methods in the same order."""

    def __init__(
        self, signals: Callable[[], int], reports: FailureReports | None, clock: RankClock
    ) -> None:
        self._signals, self.reports, self.clock = signals, reports, clock
        self._process = OwnProcess()
        self._round_started = self._last_chunk_ended = 0.0  # on this rank
        self._timed: dict[int, TimedChunk] = {}  # this generation's chunks, by index
        self._elapsed: dict[int, float] = {}  # seconds of this rank's chunks, by index

    workers = 1  # for which chunks are cut

    @property
    def evaluators(self) -> Sequence[int]:
        """Workers that share the chunks; in a job, ranks."""
        return (0,)

    def close(self) -> None:  # noqa: B027  most have started nothing
        """End what the executor has started."""

    def run(self, generation: Generation) -> Evaluated:
        """Evaluate all rounds, then compute the blocks of the update."""
        self.clock = self.clock.next(generation.number)
        outcomes: dict[int, Outcome] = {}
        self._timed, self._elapsed = {}, {}
        headers, tail = self._no_headers(), 0.0
        while chunks := generation.next_chunks():
            self._round_started = self._last_chunk_ended = time.perf_counter()
            missing, stored = generation.with_stored(chunks)
            own = stored | self._evaluate(generation, missing)
            round_headers = self._exchange(generation, chunks, own)
            evaluating = round_headers["evaluating"][list(self.evaluators)]
            tail += float(evaluating.max() - evaluating.min())
            headers = add_headers(headers, round_headers)
            outcomes |= own
        evaluation = generation.rows("evaluate")
        if not generation.train:
            return Evaluated(
                headers, Results(generation.rows("train"), []), evaluation, tail_seconds=tail
            )
        if generation.is_cut:
            return self._cut_short(generation, outcomes, headers, tail)
        update = self.update(generation, outcomes, bool(headers["arrays"].any()))
        times = generation.chunk_times(self._timed)
        seconds = generation.job_seconds(self._timed)
        return Evaluated(
            headers,
            generation.results(update),
            evaluation,
            update.learned,
            seconds,
            tail,
            times,
            passes=generation.passes,
            number=generation.number,
        )

    def _cut_short(
        self, generation: Generation, outcomes: Mapping[int, Outcome], headers: Header, tail: float
    ) -> Evaluated:
        """Return a generation without an update, and on rank 0 the outcomes of all chunks."""
        since = time.perf_counter()
        collected = self._collect(generation, outcomes)
        self.clock.add("messages", since)
        here = gathered_here(generation, collected or {}, ())
        return Evaluated(
            headers,
            generation.results(here),
            generation.rows("evaluate"),
            here.learned,
            tail_seconds=tail,
            is_cut=True,
            passes=generation.passes,
            number=generation.number,
            outcomes=None if collected is None else StoredOutcomes.of(generation.chunks, collected),
        )

    def replay(self, generation: Generation, rows: Rows, probes: Rows) -> Results[object]:
        """Return the results of a generation from stored rows of its training jobs and probes."""
        generation.replay(rows, probes)
        return generation.results(self.update(generation, {}, False), probes)

    def update(
        self, generation: Generation, outcomes: Mapping[int, Outcome], has_arrays: bool
    ) -> Gathered:
        """Compute the blocks of the update from all rows.

        They are collected on rank 0, as are the arrays of `outcomes`.
        """
        since = time.perf_counter()
        generation.prepare()
        self.clock.add("update", since)
        return self._gather(generation, outcomes, has_arrays)

    @abstractmethod
    def _no_headers(self) -> Header:
        """Return zeros, HEADER[ranks]."""

    @abstractmethod
    def _evaluate(self, generation: Generation, chunks: Sequence[Chunk]) -> dict[int, Outcome]:
        """Evaluate the chunks of a round; return the outcomes of this rank by chunk index."""

    @abstractmethod
    def _exchange(
        self, generation: Generation, chunks: Sequence[Chunk], own: Mapping[int, Outcome]
    ) -> Header:
        """Add the rows of the round to the generation, on every rank; return HEADER[ranks]."""

    @abstractmethod
    def _collect(
        self, generation: Generation, outcomes: Mapping[int, Outcome]
    ) -> Mapping[int, Outcome] | None:
        """Return the outcomes of all chunks by chunk index on rank 0, None on other ranks."""

    @abstractmethod
    def _gather(
        self, generation: Generation, outcomes: Mapping[int, Outcome], has_arrays: bool
    ) -> Gathered:
        """Compute the blocks of the update; collect them and chunks' arrays on rank 0, in order."""

    def _evaluate_chunk(self, generation: Generation, chunk: Chunk, poll: Poll) -> Outcome:
        since = time.perf_counter()
        self._process.end_forked()  # by a callback of the user
        try:
            outcome = generation.evaluate(chunk, poll)
        finally:
            self._process.end_forked()
        self.clock.add_outcome(outcome, since)
        self._elapsed[chunk.index] = time.perf_counter() - since
        # launchers send SIGTERM to child processes too
        if outcome.failures and has_forked() and self._signals():
            raise GiveUp(
                "an evaluation failed after a signal, which may have ended a process that it "
                f"needs: {outcome.failures[0].text}"
            )
        if outcome.failures and self.reports is not None:
            self.reports.add(generation.number, chunk, outcome.failures)
        self._last_chunk_ended = time.perf_counter()
        return outcome

    def _own_times(self, outcomes: Mapping[int, Outcome]) -> dict[int, TimedChunk]:
        """Return the times of this rank's chunks, by ascending index."""
        return {
            index: TimedChunk(
                outcomes[index].seconds.get("environment", math.nan),
                self._elapsed.get(index, 0.0),
                outcomes[index].seconds.get("policy_calls", 0.0),
            )
            for index in sorted(outcomes)
        }

    def header(self, outcomes: Mapping[int, Outcome]) -> Header:
        """Return HEADER[1] of this rank with its outcomes of a round."""
        header = np.zeros(1, HEADER)
        for name, value in self.clock.take().items():
            header[name] = value
        values = outcomes.values()
        # Not the clock's count: it may have been sent before ranks were lost.
        header["policy_calls"] = sum(outcome.seconds.get("policy_calls", 0.0) for outcome in values)
        header["signals"], header["chunks"] = self._signals(), len(outcomes)
        header["arrays"] = sum(
            bool(outcome.arrays or any(map(any, outcome.learned))) for outcome in values
        )
        header["given_up"] = sum(
            failure.text == GIVEN_UP for outcome in values for failure in outcome.failures
        )
        header["mixed"] = sum(outcome.mixed for outcome in values)
        header["evaluating"] = self._last_chunk_ended - self._round_started
        header["failures"] = 0 if self.reports is None else len(self.reports.pending)
        return header


class SerialExecutor(Executor):
    """Evaluates all chunks in this process, one after the other.

    In a job, `work` checks signals and hanging chunks.
    """

    def __init__(
        self,
        work: Work | None = None,
        signals: Callable[[], int] = lambda: 0,
        reports: FailureReports | None = None,
    ) -> None:
        super().__init__(signals, reports, RankClock(None))
        self._work = work

    def _no_headers(self) -> Header:
        return np.zeros(1, HEADER)

    def _evaluate(self, generation: Generation, chunks: Sequence[Chunk]) -> dict[int, Outcome]:
        outcomes = {}
        for chunk in chunks:
            if self._work is None:
                outcomes[chunk.index] = self._evaluate_chunk(generation, chunk, lambda: None)
                continue
            self._work.poll()
            with self._work.evaluating(chunk):
                outcomes[chunk.index] = self._evaluate_chunk(generation, chunk, self._work.poll)
        return outcomes

    def _exchange(
        self, generation: Generation, chunks: Sequence[Chunk], own: Mapping[int, Outcome]
    ) -> Header:
        header = self.header(own)
        generation.add({index: outcome.rows for index, outcome in own.items()})
        if self.reports is not None and self.reports.pending:
            self.reports.write([self.reports.take()])
        return header

    def _collect(
        self, generation: Generation, outcomes: Mapping[int, Outcome]
    ) -> Mapping[int, Outcome] | None:
        return outcomes

    def _gather(
        self, generation: Generation, outcomes: Mapping[int, Outcome], has_arrays: bool
    ) -> Gathered:
        since = time.perf_counter()
        result = gathered_here(generation, outcomes)
        self.clock.add("update", since)
        return result


class MpiExecutor(Executor):
    """Evaluates on all ranks of a job.

    Chunks are assigned on demand, rows go to every rank, blocks to rank 0. With `replicated` every
    rank computes all blocks and receives the arrays of all chunks. With `is_large` the blocks that
    a rank needs no message for are computed when the update reads them, if the algorithm
    `reads_blocks_once`.
    """

    def __init__(
        self,
        world: World,
        work: Work,
        signals: Callable[[], int],
        *,
        reports: FailureReports,
        replicated: bool = False,
        is_large: bool = False,
    ) -> None:
        super().__init__(signals, reports, RankClock(world))
        self._world, self._work, self.workers = world, work, world.size
        self._replicated, self._is_large = replicated, is_large
        self._cache = OutcomeCache(world)

    @property
    def evaluators(self) -> Sequence[int]:
        return self._work.evaluators

    def continue_with(self, work: Work) -> None:
        """Continue without lost ranks.

        The work is distributed again, and the outcomes of this generation are used again.
        """
        self._work = work
        self._cache.ranks_lost = True

    def run(self, generation: Generation) -> Evaluated:
        """Evaluate a generation.

        If it is repeated after the loss of ranks, the outcomes of surviving ranks are used again.
        """
        self._cache.start(generation.number, generation.train)
        return super().run(generation)

    def evaluate_here(self, generation: Generation) -> tuple[Outcome, Header]:
        """Evaluate a generation of one chunk on this rank; return its outcome and HEADER[1]."""
        (chunk,) = generation.next_chunks()
        return self.evaluate_one(generation, chunk, self._work.poll)

    def evaluate_one(
        self, generation: Generation, chunk: Chunk, poll: Poll
    ) -> tuple[Outcome, Header]:
        """Evaluate a chunk on this rank; return its outcome and HEADER[1]."""
        self._round_started = time.perf_counter()
        with self._work.evaluating(chunk):
            outcome = self._evaluate_chunk(generation, chunk, poll)
        return outcome, self.header({chunk.index: outcome})

    def _no_headers(self) -> Header:
        return np.zeros(self._world.size, HEADER)

    def _evaluate(self, generation: Generation, chunks: Sequence[Chunk]) -> dict[int, Outcome]:
        def evaluate(chunk: Chunk, poll: Poll) -> Outcome:
            with self._work.evaluating(chunk):
                outcome = self._evaluate_chunk(generation, chunk, poll)
            self._cache.add(chunk, outcome)
            return outcome

        cached, remaining = self._cache.split(generation.in_order(chunks))
        new = self._work.evaluate(remaining, evaluate)
        self.clock.add_idle()
        return cached | new

    def _exchange(
        self, generation: Generation, chunks: Sequence[Chunk], own: Mapping[int, Outcome]
    ) -> Header:
        since = time.perf_counter()
        header = self.header(own)
        if self._world.size == 1:
            headers, rows = header, {index: outcome.rows for index, outcome in own.items()}
            self._timed |= self._own_times(own)
        else:
            headers, rows = self._allgather_rows(generation, chunks, own, header)
        if headers["failures"].any():
            assert self.reports is not None
            self.reports.collect(self._world)
        self.clock.add("messages", since)
        generation.add(rows)
        return headers

    def _allgather_rows(
        self,
        generation: Generation,
        chunks: Sequence[Chunk],
        own: Mapping[int, Outcome],
        header: Header,
    ) -> tuple[Header, dict[int, Rows]]:
        """Return HEADER[ranks] and the rows of all chunks by index."""
        message = packed_round(
            header, self._own_times(own), {index: outcome.rows for index, outcome in own.items()}
        )
        jobs, row = {chunk.index: chunk.jobs for chunk in chunks}, generation.parts.row
        headers, rows = self._no_headers(), dict[int, Rows]()
        for rank, received in enumerate(self._world.allgather(message)):
            headers[rank : rank + 1], times, rows_of_rank = unpacked_round(received, row, jobs)
            self._timed |= times
            rows |= rows_of_rank
        return headers, rows

    def _collect(
        self, generation: Generation, outcomes: Mapping[int, Outcome]
    ) -> Mapping[int, Outcome] | None:
        if self._world.size == 1:
            return outcomes
        received = self._world.gather(encode(packed_outcomes(outcomes)))
        if received is None:
            return None
        collected: dict[int, Outcome] = {}
        for message in received:
            collected |= unpacked_outcomes(decode(message), generation.parts.row)
        return collected

    def _gather(
        self, generation: Generation, outcomes: Mapping[int, Outcome], has_arrays: bool
    ) -> Gathered:
        """Send nothing if there is one block and no chunk returned arrays:
        rank 0 then has all results.
        """
        since = time.perf_counter()
        rank, size, count = self._world.rank, self._world.size, generation.blocks
        blocks, packed = dict[str, Array](), dict[str, Array]()
        pending, pending_bytes = dict[str, Array](), 0
        own_blocks = range(count) if self._replicated else generation.blocks_of(rank, size)
        on_demand = (
            self._is_large
            and generation.parts.algorithm.reads_blocks_once
            and len(own_blocks) == count
        )
        for block in () if on_demand else own_blocks:
            sums = packed_block(block, generation.partial_update(block))
            pending |= sums
            pending_bytes += sum(array.nbytes for array in sums.values())
            if pending_bytes >= PACKED_BYTES:
                blocks |= packed_arrays(pending)
                pending, pending_bytes = {}, 0
        blocks |= pending
        trained = [chunk.index for chunk in generation.chunks if chunk.purpose == "train"]
        for index in trained:
            if index in outcomes:
                packed |= packed_chunk_arrays(index, outcomes[index].arrays)
        for index, unit, parts in learned_units(generation, outcomes):
            for part, arrays in enumerate(parts):
                packed |= packed_unit(unit, index, part, arrays)
        self.clock.add("update", since)
        since = time.perf_counter()
        own = {**blocks, **packed}
        messages: Sequence[Arrays] = [own] if rank == 0 or self._replicated else []
        if self._replicated and size > 1 and has_arrays:
            messages = [blocks, *map(decode, self._world.allgather(encode(packed)))]
        elif not self._replicated and size > 1 and (has_arrays or count > 1):
            received = self._world.gather(encode(own if rank else {}))
            messages = [] if received is None else [own, *map(decode, received[1:])]
        self.clock.add("messages", since)
        if on_demand:
            return replace(gathered(messages, 0, trained), blocks=BlocksOnDemand(generation))
        return gathered(messages, count, trained) if messages else Gathered()


class OutcomeCache:
    """This rank's outcomes of a generation, for fault tolerance.

    If it is repeated, also the ranks of the others.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._generation: tuple[int, bool] | None = None  # its number, and whether it trains
        # of this rank, by generation and chunk index
        self._outcomes: dict[tuple[int, int], Outcome] = {}
        self._owners: dict[int, int] = {}  # by chunk index: a rank that has the outcome
        self.ranks_lost = False  # since the last call of `start`; the same on every rank

    def start(self, number: int, train: bool) -> None:
        """Drop the outcomes of other generations.

        After the loss of ranks, exchange who has which outcomes.
        """
        if self._generation != (number, train):
            self._generation, self._outcomes = (number, train), {}
        self._owners = {}
        if self.ranks_lost:
            own = np.array(sorted(index for _, index in self._outcomes), np.int64)
            gathered = self._world.allgather(own.view(np.uint8))
            # of two ranks with the same outcome, the first owns it
            for rank in reversed(range(len(gathered))):
                self._owners |= dict.fromkeys(
                    np.frombuffer(gathered[rank].tobytes(), np.int64).tolist(), rank
                )
            self.ranks_lost = False

    def add(self, chunk: Chunk, outcome: Outcome) -> None:
        """Cache an outcome if ranks may be lost."""
        if self._world.fault_handler.is_fault_tolerant:
            self._outcomes[chunk.generation, chunk.index] = outcome

    def split(self, chunks: Sequence[Chunk]) -> tuple[dict[int, Outcome], list[Chunk]]:
        """Return the cached outcomes that this rank owns, and the chunks that no rank owns."""
        if not self._owners:
            return {}, list(chunks)
        own = [chunk for chunk in chunks if self._owners.get(chunk.index) == self._world.rank]
        remaining = [chunk for chunk in chunks if chunk.index not in self._owners]
        return {
            chunk.index: self._outcomes[chunk.generation, chunk.index] for chunk in own
        }, remaining


class Rank0Alone:
    """Runs generations on rank 0 alone when their messages cost more than the others save.

    For cheap functions with few parameters rank 0 tries whether it is faster alone, and if so runs
    generations alone for ALONE_SECONDS at a time, while the others wait for its next command.
    Results do not depend on which rank evaluates. The generations of all ranks in between inform
    rank 0 of the other ranks' signals.
    """

    def __init__(
        self, world: World, parts: Parts, signals: Callable[[], int], reports: FailureReports
    ) -> None:
        self._ranks, self._parts = world.size, parts
        # a world of one rank
        self._work = Work(World(world.library), "static", True, signals=signals)
        self.executor = SerialExecutor(self._work, signals, reports)
        self._seconds_together, self._seconds_alone = (
            deque[float](maxlen=COMPARED) for _ in range(2)
        )
        self._until = 0.0  # when to run the next generation on all ranks
        self._to_trial = self._interval = COMPARED  # generations of all ranks until the next trial

    @classmethod
    def from_config(
        cls,
        config: Config,
        world: World,
        parts: Parts,
        signals: Callable[[], int],
        reports: FailureReports,
    ) -> Rank0Alone | None:
        """Return an instance on rank 0 if it may evaluate everything, else None."""
        mpi = config.mpi
        is_free = (
            parts.cutting == "one by one"
            and mpi.chunk_size == "auto"
            and mpi.master_evaluates is not False
        )
        if (
            not is_free
            or world.rank
            or world.size == 1
            or mpi.update == "replicated"
            or world.fault_handler.is_fault_tolerant
        ):
            return None
        return cls(world, parts, signals, reports)

    def abort_if_hung(self) -> None:
        """Give the generation up if an evaluation hangs."""
        self._work.abort_if_hung()

    def run(
        self, state: State, evaluation_jobs: int, plan: CutPlan, limit: int | None
    ) -> Evaluated:
        """Evaluate a generation on rank 0; the arrays of `state` are contiguous."""
        plan = replace(plan, ranks=1)
        evaluated = self.executor.run(
            Generation(self._parts, state, evaluation_jobs, plan=plan, limit=limit)
        )
        # the idle time of the others arrives with their next headers
        headers = np.zeros(self._ranks, HEADER)
        headers[0] = evaluated.headers[0]
        return replace(evaluated, headers=headers)

    def is_next(self, was_alone: bool, seconds: float, evaluated: Evaluated) -> bool:
        """Whether rank 0 runs the next generation alone, after this one took so many seconds."""
        (self._seconds_alone if was_alone else self._seconds_together).append(seconds)
        if float(evaluated.headers["environment"].sum()) >= SHARED_SECONDS:
            return False
        if was_alone:
            return time.perf_counter() < self._until
        if seconds > LONGEST_SECONDS:
            return False
        from statistics import median  # here, since few ranks need it

        is_faster = bool(self._seconds_alone) and median(self._seconds_alone) < median(
            self._seconds_together
        )
        if not is_faster:
            self._to_trial -= 1
            if self._to_trial > 0:
                return False
            self._seconds_alone.clear()
            self._interval *= TRIAL_BACKOFF
            self._to_trial = self._interval
        self._until = time.perf_counter() + ALONE_SECONDS
        return True


def packed_arrays(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return copies of arrays in one piece of memory.

    Unlike many small ones, it can be freed at once.
    """
    memory, start, packed = (
        np.empty(sum(array.nbytes for array in arrays.values()), np.uint8),
        0,
        {},
    )
    for name, array in arrays.items():
        stop = start + array.nbytes
        packed[name] = memory[start:stop].view(array.dtype).reshape(array.shape)
        packed[name][...] = array
        start = stop
    return packed


def gathered_here(
    generation: Generation, outcomes: Mapping[int, Outcome], blocks: Sequence[Arrays] | None = None
) -> Gathered:
    """Collect the arrays of all chunks, whose outcomes this rank has.

    The blocks of the update are computed unless given.
    """
    if blocks is None:
        blocks = [generation.partial_update(block) for block in range(generation.blocks)]
    arrays = [
        outcomes[chunk.index].arrays
        for chunk in generation.chunks
        if chunk.purpose == "train" and outcomes
    ]
    learned: dict[int, list[Arrays]] = {}
    for _, unit, parts in learned_units(generation, outcomes):
        learned.setdefault(unit, []).extend(part for part in parts if part)
    return Gathered(blocks, arrays, [parts for parts in learned.values() if parts])


def add_headers(headers: Header, more: Header) -> Header:
    """Return the headers of two rounds as one, HEADER[ranks].

    Signals are counts since the start of the process.
    """
    total: Header = more.copy()
    for name in SUMMED:
        total[name] = headers[name] + more[name]
    return total


def learned_units(
    generation: Generation, outcomes: Mapping[int, Outcome]
) -> Iterator[tuple[int, int, Sequence[Arrays]]]:
    """Yield (chunk index, unit number, parts) of what the problem learned, in job order."""
    first = first_units(
        [chunk for chunk in generation.chunks if chunk.purpose != "evaluate"], generation.parts.unit
    )
    for index, unit in first.items():
        if index in outcomes:
            for number, parts in enumerate(outcomes[index].learned, unit):
                yield index, number, parts


def first_units(chunks: Sequence[Chunk], unit: int) -> dict[int, int]:
    """Return the number of the unit of each chunk's first job, by chunk index.

    Units have `unit` jobs.
    """
    numbers, following = {}, 0
    for chunk in chunks:
        numbers[chunk.index] = following - (chunk.offset > 0)
        following = numbers[chunk.index] - (-(chunk.offset + chunk.jobs) // unit)
    return numbers
