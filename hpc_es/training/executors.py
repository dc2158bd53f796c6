"""Who evaluates a generation: this process alone (`SerialExecutor`), or all ranks of a job (`MpiExecutor`).

Both run the same steps (`Executor.run`) and differ in how rows and blocks come together. Ranks tell each other how they
spent their time in a header before their rows.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Arrays, Chunk, Outcome, Poll, Results, Rows
from hpc_es.mpi.scheduler import Work
from hpc_es.mpi.serialize import decode, encode
from hpc_es.mpi.world import World
from hpc_es.training.failure_reports import FailureReports
from hpc_es.training.generation import Gathered, Generation

TIMES = ("environment", "policy", "update", "messages", "idle")
HEADER = np.dtype(
    [
        *(("signals", "<i8"), ("policy_calls", "<f8"), *((name, "<f8") for name in TIMES), ("chunks", "<i8")),
        ("arrays", "<i8"),  # chunks that gave more than rows
        ("mixed", "<i8"),  # chunks whose jobs changed each other's numbers
        ("evaluating", "<f8"),  # seconds from the begin of a round to the end of the rank's last chunk
        ("failures", "<i8"),  # new kinds of failure that the rank has to report
    ]
)
SUMMED = ("policy_calls", *TIMES, "chunks", "arrays", "mixed", "evaluating")  # over the rounds of a generation


@dataclass(frozen=True)
class Evaluated:
    """A generation as rank 0 sees it before the update."""

    headers: npt.NDArray[np.void]  # HEADER[ranks]
    results: Results[object]  # of training jobs
    evaluation: Rows  # [evaluation jobs], empty if there was no evaluation
    learned: Sequence[Sequence[Arrays]] = ()  # of training and probes, by units in their order: the parts of each
    tail_seconds: float = 0.0  # that the rank which was done first waited for the last one, of all rounds


class Clock:
    """Seconds of this rank in a generation by what they were spent on, waiting apart.

    They travel with the rows; what comes after the rows, such as the update, is carried over to the next clock.
    """

    def __init__(self, world: World | None, number: int = 0, before: Clock | None = None) -> None:
        self._world, self.number = world, number
        self._seconds = before.take() if before else dict.fromkeys((*TIMES, "policy_calls"), 0.0)

    def following(self, number: int) -> Clock:
        """Return the clock of another generation, which goes on from this one."""
        return Clock(self._world, number, self)

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call of this."""
        seconds, self._seconds = self._seconds, dict.fromkeys((*TIMES, "policy_calls"), 0.0)
        return seconds

    def add_idle(self) -> None:
        """Add the time that was waited since the last call of a method of this."""
        self._seconds["idle"] += self._waited()

    def add(self, name: str, since: float) -> None:
        """Add the time since then; what was spent waiting in it is idle time."""
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

    evaluating_ranks: int  # ranks that share the chunks

    def __init__(self, signals: Callable[[], int], reports: FailureReports | None, clock: Clock) -> None:
        self._signals, self.reports, self.clock = signals, reports, clock
        self._began = self._ended = 0.0  # of the chunks of a round, on this rank

    def run(self, generation: Generation) -> Evaluated:
        """Evaluate rounds until there are no more, then compute the blocks of the update."""
        self.clock = self.clock.following(generation.number)
        outcomes: dict[int, Outcome] = {}
        headers, tail = self._no_headers(), 0.0
        while chunks := generation.next_chunks():
            self._began = self._ended = time.perf_counter()
            mine = self._evaluate(generation, chunks)
            of_round = self._exchange(generation, chunks, mine)
            tail += self._tail(of_round)
            headers = summed(headers, of_round)
            outcomes |= mine
        evaluation = generation.rows("evaluate")
        if not generation.train:
            return Evaluated(headers, Results(generation.rows("train"), []), evaluation, tail_seconds=tail)
        gathered = self.update(generation, outcomes, bool(headers["arrays"].any()))
        return Evaluated(headers, generation.results(gathered), evaluation, gathered.learned, tail)

    def replay(self, generation: Generation, rows: Rows, probes: Rows) -> Results[object]:
        """Return the results of a generation whose rows are known."""
        generation.replay(rows, probes)
        return generation.results(self.update(generation, {}, False), probes)

    def update(self, generation: Generation, outcomes: Mapping[int, Outcome], has_arrays: bool) -> Gathered:
        """Compute the blocks of the update, once all rows are there, and bring them and the outcomes to rank 0."""
        since = time.perf_counter()
        generation.prepare()
        self.clock.add("update", since)
        return self._gather(generation, outcomes, has_arrays)

    @abstractmethod
    def _no_headers(self) -> npt.NDArray[np.void]:
        """Return HEADER[ranks] of zeros."""

    @abstractmethod
    def _evaluate(self, generation: Generation, chunks: Sequence[Chunk]) -> dict[int, Outcome]:
        """Evaluate the chunks of a round; return the outcomes of this rank by the index of the chunk."""

    @abstractmethod
    def _exchange(
        self, generation: Generation, chunks: Sequence[Chunk], mine: Mapping[int, Outcome]
    ) -> npt.NDArray[np.void]:
        """Add the rows of the round to the generation, on every rank; return HEADER[ranks]."""

    @abstractmethod
    def _gather(self, generation: Generation, outcomes: Mapping[int, Outcome], has_arrays: bool) -> Gathered:
        """Compute the blocks of the update; bring them, and what chunks gave besides rows, to rank 0 in order."""

    def _tail(self, headers: npt.NDArray[np.void]) -> float:
        """Return how long the rank that was done first waited for the last one."""
        return 0.0

    def _evaluate_one(self, generation: Generation, chunk: Chunk, poll: Poll) -> Outcome:
        since = time.perf_counter()
        outcome = generation.evaluate(chunk, poll)
        self.clock.add_outcome(outcome, since)
        if self.reports is not None:
            self.reports.note(generation.number, chunk, outcome.failures)
        self._ended = time.perf_counter()
        return outcome

    def _header(self, outcomes: Mapping[int, Outcome]) -> npt.NDArray[np.void]:
        """Return HEADER[1] of this rank, which has these outcomes of a round."""
        header = np.zeros(1, HEADER)
        for name, value in self.clock.take().items():
            header[name] = value
        every = outcomes.values()
        # Not the clock's, which may have been told already before ranks were lost.
        header["policy_calls"] = sum(outcome.seconds.get("policy_calls", 0.0) for outcome in every)
        header["signals"], header["chunks"] = self._signals(), len(outcomes)
        header["arrays"] = sum(bool(outcome.arrays or any(map(any, outcome.learned))) for outcome in every)
        header["mixed"] = sum(outcome.mixed for outcome in every)
        header["evaluating"] = self._ended - self._began
        header["failures"] = 0 if self.reports is None else len(self.reports)
        return header


class SerialExecutor(Executor):
    """All chunks in this process, one after the other. In a job `work` looks for signals and for chunks that hang."""

    evaluating_ranks = 1

    def __init__(
        self,
        work: Work | None = None,
        signals: Callable[[], int] = lambda: 0,
        reports: FailureReports | None = None,
    ) -> None:
        super().__init__(signals, reports, Clock(None))
        self._work = work

    def _no_headers(self) -> npt.NDArray[np.void]:
        return np.zeros(1, HEADER)

    def _evaluate(self, generation: Generation, chunks: Sequence[Chunk]) -> dict[int, Outcome]:
        poll = _no_poll if self._work is None else self._work.poll
        outcomes = {}
        for chunk in chunks:
            poll()
            with contextlib.nullcontext() if self._work is None else self._work.evaluating():
                outcomes[chunk.index] = self._evaluate_one(generation, chunk, poll)
        return outcomes

    def _exchange(
        self, generation: Generation, chunks: Sequence[Chunk], mine: Mapping[int, Outcome]
    ) -> npt.NDArray[np.void]:
        header = self._header(mine)
        generation.add({index: outcome.rows for index, outcome in mine.items()})
        if self.reports is not None and len(self.reports):
            self.reports.receive([self.reports.taken()])
        return header

    def _gather(self, generation: Generation, outcomes: Mapping[int, Outcome], has_arrays: bool) -> Gathered:
        since = time.perf_counter()
        blocks = [generation.partial_update(block) for block in range(generation.blocks)]
        arrays = [outcomes[chunk.index].arrays for chunk in generation.chunks if chunk.purpose == "train" and outcomes]
        learned: dict[int, list[Arrays]] = {}
        for _, unit, parts in learned_units(generation, outcomes):
            learned.setdefault(unit, []).extend(part for part in parts if part)
        self.clock.add("update", since)
        return Gathered(blocks, arrays, [parts for parts in learned.values() if parts])


class MpiExecutor(Executor):
    """All ranks of a job: chunks are handed out on demand, rows travel to every rank, blocks to rank 0."""

    def __init__(
        self, world: World, work: Work, signals: Callable[[], int], reports: FailureReports, replicated: bool = False
    ) -> None:
        super().__init__(signals, reports, Clock(world))
        self._world, self._work, self.evaluating_ranks = world, work, len(work.evaluators)
        self._replicated = replicated  # whether every rank computes all blocks of the update
        self.sharing = len(work.evaluators)  # ranks that chunks are cut for, also when some are lost
        self._kept = KeptOutcomes(world)

    def go_on(self, work: Work) -> None:
        """Ranks were lost: those that are left share the work anew, and keep what they have of this generation."""
        self._work, self.evaluating_ranks = work, len(work.evaluators)
        self._kept.to_tell = True

    def run(self, generation: Generation) -> Evaluated:
        """Evaluate a generation; again where ranks were lost in it, with what is left of it."""
        self._kept.begin(generation.number, generation.train)
        return super().run(generation)

    def evaluate_here(self, generation: Generation) -> tuple[Rows, Arrays, npt.NDArray[np.void]]:
        """Evaluate a generation of one chunk on this rank alone; return its rows, its arrays and HEADER[1]."""
        (chunk,) = generation.next_chunks()
        self._began = time.perf_counter()
        with self._work.evaluating():
            outcome = self._evaluate_one(generation, chunk, self._work.poll)
        return outcome.rows, outcome.arrays, self._header({chunk.index: outcome})

    def _no_headers(self) -> npt.NDArray[np.void]:
        return np.zeros(self._world.size, HEADER)

    def _evaluate(self, generation: Generation, chunks: Sequence[Chunk]) -> dict[int, Outcome]:
        def evaluate(chunk: Chunk, poll: Poll) -> Outcome:
            with self._work.evaluating():
                return self._kept.keep(chunk, self._evaluate_one(generation, chunk, poll))

        offered, left = self._kept.split(chunks)
        new = self._work.evaluate(left, evaluate)
        self.clock.add_idle()
        return offered | new

    def _exchange(
        self, generation: Generation, chunks: Sequence[Chunk], mine: Mapping[int, Outcome]
    ) -> npt.NDArray[np.void]:
        since = time.perf_counter()
        header = self._header(mine)
        if self._world.size == 1:
            headers, rows = header, {index: outcome.rows for index, outcome in mine.items()}
        else:
            headers, rows = self._allgather_rows(generation, chunks, mine, header)
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
        mine: Mapping[int, Outcome],
        header: npt.NDArray[np.void],
    ) -> tuple[npt.NDArray[np.void], dict[int, Rows]]:
        """Return HEADER[ranks] and the rows of all chunks by index, from all ranks."""
        indices = np.array(sorted(mine), np.int64)
        message = b"".join([header.tobytes(), indices.tobytes(), *(mine[i].rows.tobytes() for i in indices)])
        jobs = {chunk.index: chunk.jobs for chunk in chunks}
        headers, rows = self._no_headers(), dict[int, Rows]()
        for rank, received in enumerate(self._world.allgather(np.frombuffer(message, np.uint8))):
            memory = received.tobytes()
            headers[rank : rank + 1] = np.frombuffer(memory, HEADER, 1)
            start = HEADER.itemsize
            listed = np.frombuffer(memory, np.int64, int(headers[rank]["chunks"]), start)
            start += listed.nbytes
            for index in listed.tolist():
                rows[index] = np.frombuffer(memory, generation.parts.row, jobs[index], start)
                start += rows[index].nbytes
        return headers, rows

    def _gather(self, generation: Generation, outcomes: Mapping[int, Outcome], has_arrays: bool) -> Gathered:
        """Without arrays of chunks, and with one block, rank 0 has all there is.

        Where the update is replicated every rank computes all blocks, and gets what the chunks gave.
        """
        since = time.perf_counter()
        rank, size, count = self._world.rank, self._world.size, generation.blocks
        blocks, packed = dict[str, Array](), dict[str, Array]()
        for block in range(count) if self._replicated else range(rank, count, size):
            _pack(blocks, f"block/{block}", generation.partial_update(block))
        trained = [chunk.index for chunk in generation.chunks if chunk.purpose == "train"]
        for index in trained:
            if index in outcomes:
                _pack(packed, f"chunk/{index}", outcomes[index].arrays)
        for index, unit, parts_of_it in learned_units(generation, outcomes):
            for number, arrays in enumerate(parts_of_it):
                _pack(packed, f"unit/{unit}.{index}.{number}", arrays)
        self.clock.add("update", since)
        since = time.perf_counter()
        mine = {**blocks, **packed}
        messages: Sequence[Arrays] = [mine] if rank == 0 or self._replicated else []
        if self._replicated and size > 1 and has_arrays:
            messages = [blocks, *map(decode, self._world.allgather(encode(packed)))]
        elif not self._replicated and size > 1 and (has_arrays or count > 1):
            received = self._world.gather(encode(mine if rank else {}))
            messages = [] if received is None else [mine, *map(decode, received[1:])]
        self.clock.add("messages", since)
        return _unpacked(messages, count, trained) if messages else Gathered()

    def _tail(self, headers: npt.NDArray[np.void]) -> float:
        evaluating = headers["evaluating"][self._work.evaluators]
        return float(evaluating.max() - evaluating.min())


class KeptOutcomes:
    """The outcomes that this rank has of a generation, and, where it is run again without lost ranks, who has which."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._generation: tuple[int, bool] | None = None  # its number, and whether it trains
        self._outcomes: dict[tuple[int, int], Outcome] = {}  # of this rank, by generation and index of the chunk
        self._owners: dict[int, int] = {}  # ranks that have an outcome already
        self.to_tell = False  # whether ranks were lost since the last call of `begin`; the same on every rank

    def begin(self, number: int, train: bool) -> None:
        """Forget the outcomes of another generation; tell the others which there are of this one, if it is repeated."""
        if self._generation != (number, train):
            self._generation, self._outcomes = (number, train), {}
        self._owners = {}
        if self.to_tell:
            indices = sorted(index for _, index in self._outcomes)
            every = self._world.allgather(np.array(indices, np.int64).view(np.uint8))
            for rank in reversed(range(len(every))):  # of two that have it the first
                self._owners |= dict.fromkeys(np.frombuffer(every[rank].tobytes(), np.int64).tolist(), rank)
            self.to_tell = False

    def keep(self, chunk: Chunk, outcome: Outcome) -> Outcome:
        """Return the outcome, which is kept where it may be asked for again."""
        if self._world.fault_handler.is_fault_tolerant:
            self._outcomes[chunk.generation, chunk.index] = outcome
        return outcome

    def split(self, chunks: Sequence[Chunk]) -> tuple[dict[int, Outcome], list[Chunk]]:
        """Return the outcomes that this rank has already, and the chunks that no rank has."""
        mine = [chunk for chunk in chunks if self._owners.get(chunk.index) == self._world.rank]
        left = [chunk for chunk in chunks if chunk.index not in self._owners]
        return {chunk.index: self._outcomes[chunk.generation, chunk.index] for chunk in mine}, left


def summed(headers: npt.NDArray[np.void], more: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Return the headers of several rounds as one; signals are counts since the start."""
    total: npt.NDArray[np.void] = more.copy()
    for name in SUMMED:
        total[name] = headers[name] + more[name]
    return total


def learned_units(
    generation: Generation, outcomes: Mapping[int, Outcome]
) -> Iterator[tuple[int, int, Sequence[Arrays]]]:
    """Yield (index of the chunk, number of the unit, parts of it) of what the problem learned, in job order."""
    first = first_units([chunk for chunk in generation.chunks if chunk.purpose != "evaluate"], generation.parts.unit)
    for index, unit in first.items():
        if index in outcomes:
            for number, parts in enumerate(outcomes[index].learned, unit):
                yield index, number, parts


def first_units(chunks: Sequence[Chunk], unit: int) -> dict[int, int]:
    """Return, by the index of the chunk, the number of the unit that its first job belongs to."""
    numbers, following = {}, 0
    for chunk in chunks:
        numbers[chunk.index] = following - (chunk.offset > 0)
        following = numbers[chunk.index] - (-(chunk.offset + chunk.jobs) // unit)
    return numbers


def _pack(packed: dict[str, Array], where: str, arrays: Arrays) -> None:
    for name, array in arrays.items():
        packed[f"{where}/{name}"] = array


def _unpacked(messages: Sequence[Arrays], blocks: int, chunks: Sequence[int]) -> Gathered:
    """Return what `_pack` has packed on all ranks."""
    groups: dict[str, dict[str, dict[str, Array]]] = {"block": {}, "chunk": {}, "unit": {}}
    for message in messages:
        for where, array in message.items():
            group, place, name = where.split("/", 2)
            groups[group].setdefault(place, {})[name] = array
    learned: dict[int, list[Arrays]] = {}
    for unit, index, number in sorted(tuple(map(int, place.split("."))) for place in groups["unit"]):
        learned.setdefault(unit, []).append(groups["unit"][f"{unit}.{index}.{number}"])
    return Gathered(
        [groups["block"].get(str(block), {}) for block in range(blocks)],
        [groups["chunk"].get(str(index), {}) for index in chunks],
        list(learned.values()),
    )


def _no_poll() -> None:
    pass
