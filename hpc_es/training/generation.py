"""One generation on all ranks: chunks are evaluated, rows exchanged, blocks and chunk arrays brought to rank 0."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Arrays, Chunk, Outcome, Poll, Purpose, Results, Rows, State, cut, numbered
from hpc_es.core.interfaces import Algorithm
from hpc_es.mpi.serialize import decode, encode
from hpc_es.mpi.work import Work
from hpc_es.mpi.world import World
from hpc_es.training.cutting import Plan, recut
from hpc_es.training.failure_reports import FailureReports
from hpc_es.training.gathering import Gathered, first_units, pack, unpacked
from hpc_es.training.kept_outcomes import KeptOutcomes

# What each rank tells of its generation, in the header of its rows.
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


@dataclass(frozen=True)
class Evaluated:
    """A generation as rank 0 sees it before `tell`."""

    headers: npt.NDArray[np.void]  # HEADER[ranks]
    results: Results  # of training jobs
    evaluation: Rows  # [evaluation jobs], empty if there was no evaluation
    learned: Sequence[Sequence[Arrays]] = ()  # of training and probes, by units in their order: the parts of each
    tail_seconds: float = 0.0  # that the rank which was done first waited for the last one, of all rounds


class Clock:
    """Seconds of this rank by what they were spent on.

    They travel with the rows, so what comes after the rows (the update) is told with the next generation's.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.taken()

    def taken(self) -> dict[str, float]:
        """Return the seconds since the last call of this."""
        seconds = getattr(self, "seconds", {})
        self.seconds = dict.fromkeys((*TIMES, "policy_calls"), 0.0)
        return seconds

    def idled(self) -> None:
        """Book the time waited since the last booking."""
        self.seconds["idle"] += self._world.waited
        self._world.waited = 0.0

    def timed(self, name: str, since: float) -> None:
        """Book the time since then; what was spent waiting in it is idle time."""
        elapsed = time.perf_counter() - since
        waited = min(self._world.waited, elapsed)
        self._world.waited = 0.0
        self.seconds["idle"] += waited
        self.seconds[name] += elapsed - waited

    def outcome(self, outcome: Outcome, since: float) -> None:
        """Book a chunk: environment and policy as measured, the rest (noise) as update."""
        elapsed = time.perf_counter() - since
        for name, seconds in outcome.seconds.items():
            self.seconds[name] += seconds
        inside = outcome.seconds.get("environment", 0.0) + outcome.seconds.get("policy", 0.0)
        self.seconds["update"] += max(elapsed - inside, 0.0)


class Generation:
    """Runs the chunks of a generation; every rank calls the same methods in the same order."""

    def __init__(
        self,
        world: World,
        work: Work,
        algorithm: Algorithm,
        row: np.dtype[np.void],
        signals: Callable[[], int],
        reports: FailureReports,
        unit: int,
        replicated: bool = False,
    ) -> None:
        self._world, self._work, self._algorithm, self._row = world, work, algorithm, row
        self._signals, self.reports, self._unit = signals, reports, unit
        self._replicated = replicated  # whether every rank computes all blocks of the update
        self._sharing = len(work.evaluators)  # ranks that chunks are made for, also when some are lost
        self.clock = Clock(world)
        self.plan = Plan()
        self._held = KeptOutcomes(world)

    @property
    def evaluating_ranks(self) -> int:
        """How many ranks share the chunks."""
        return len(self._work.evaluators)

    def go_on(self, work: Work) -> None:
        """Ranks were lost: those that are left share the work anew, and keep what they have of this generation."""
        self._work = work
        self._held.to_tell = True

    def run(self, state: State, evaluation_episodes: int, train: bool = True) -> Evaluated:
        """Evaluate rounds until the algorithm asks for none, and the evaluation episodes with the first round."""
        self._held.begin(state.generation, train)
        outcomes: dict[int, Outcome] = {}
        chunks: list[Chunk] = []
        by_chunk: dict[int, Rows] = {}
        rows, headers = np.zeros(0, self._row), np.zeros(self._world.size, HEADER)
        first, round, tail = state, 0, 0.0
        while True:
            asked = self._algorithm.ask(state, round, rows) if train else []
            new = recut(asked, self.plan.cut, self._sharing)
            if round == 0:
                measuring = cut(evaluation_episodes, self.plan.evaluated, purpose="evaluate")
                new = [*measuring, *new] if self.plan.evaluation_first else [*new, *measuring]
            elif not new:
                break
            new = numbered(new, len(chunks))
            mine = self._evaluate(state, new)
            outcomes |= mine
            chunks += new
            told = self._exchange(new, mine, by_chunk)
            tail += self._tail(told)
            headers = summed(headers, told)
            rows = self._joined(by_chunk, chunks, "train")
            if any(chunk.purpose == "probe" for chunk in new):
                state = self._algorithm.probed(first, self._joined(by_chunk, chunks, "probe"))
            round += 1
            if not train:
                break
        evaluation = self._joined(by_chunk, chunks, "evaluate")
        if not train:
            return Evaluated(headers, Results(rows, []), evaluation, tail_seconds=tail)
        prepared = self._prepared(state, rows)
        gathered = self._gather(state, prepared, chunks, outcomes, bool(headers["arrays"].any()))
        probes = self._joined(by_chunk, chunks, "probe")
        results = Results(rows, gathered.chunk_arrays, gathered.blocks, prepared, probes)
        return Evaluated(headers, results, evaluation, gathered.learned, tail)

    def again(self, state: State, rows: Rows, probes: Rows) -> Results:
        """Return the results of a generation whose rows are known."""
        probed = self._algorithm.probed(state, probes) if len(probes) else state
        prepared = self._prepared(probed, rows)
        return Results(rows, [], self._gather(probed, prepared, [], {}, False).blocks, prepared, probes)

    def _tail(self, headers: npt.NDArray[np.void]) -> float:
        """Return how long the rank that was done first waited for the last one."""
        evaluating = headers["evaluating"][self._work.evaluators]
        return float(evaluating.max() - evaluating.min())

    def _joined(self, by_chunk: dict[int, Rows], chunks: Sequence[Chunk], purpose: Purpose) -> Rows:
        """Return the rows of the chunks of one purpose, in job order."""
        parts = [by_chunk[chunk.index] for chunk in chunks if chunk.purpose == purpose]
        return np.concatenate(parts) if parts else np.zeros(0, self._row)

    def _prepared(self, state: State, rows: Rows) -> Any:
        since = time.perf_counter()
        prepared = self._algorithm.prepare(state, rows)
        self.clock.timed("update", since)
        return prepared

    def _evaluate(self, state: State, chunks: Sequence[Chunk]) -> dict[int, Outcome]:
        held, left = self._held.shared_out(chunks)
        self._began = self._ended = time.perf_counter()
        new = self._work.evaluate(left, lambda chunk, poll: self._held.kept(chunk, self._timed(state, chunk, poll)))
        self.clock.idled()
        return held | new

    def _timed(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        since = time.perf_counter()
        with self._work.evaluating():
            outcome = self._algorithm.evaluate(state, chunk, poll)
        self.clock.outcome(outcome, since)
        self.reports.note(state.generation, chunk, outcome.failures)
        self._ended = time.perf_counter()
        return outcome

    def one_chunk(self, state: State) -> tuple[Rows, Arrays, npt.NDArray[np.void]]:
        """Return a generation of one chunk, evaluated by this rank alone: its rows, its arrays, HEADER[1]."""
        (chunk,) = self._algorithm.ask(state, 0, np.zeros(0, self._row))
        outcome = self._timed(state, chunk, self._work.poll)
        return outcome.rows, outcome.arrays, self._header(1)

    def _header(self, chunks: int) -> npt.NDArray[np.void]:
        header = np.zeros(1, HEADER)
        for name, value in self.clock.taken().items():
            header[name] = value
        header["signals"], header["chunks"] = self._signals(), chunks
        return header

    def _exchange(
        self, chunks: Sequence[Chunk], mine: dict[int, Outcome], by_chunk: dict[int, Rows]
    ) -> npt.NDArray[np.void]:
        """Give every rank the rows of all chunks (into `by_chunk`), and return what the ranks say of their time."""
        since = time.perf_counter()
        header = self._header(len(mine))
        # Not the clock's, which may have told already what was done before ranks were lost.
        header["policy_calls"] = sum(outcome.seconds.get("policy_calls", 0.0) for outcome in mine.values())
        header["arrays"] = sum(bool(outcome.arrays or any(map(any, outcome.learned))) for outcome in mine.values())
        header["mixed"] = sum(outcome.mixed for outcome in mine.values())
        header["evaluating"], header["failures"] = self._ended - self._began, len(self.reports)
        indices = np.array(sorted(mine), np.int64)
        message = b"".join([header.tobytes(), indices.tobytes(), *(mine[i].rows.tobytes() for i in indices)])
        jobs = {chunk.index: chunk.jobs for chunk in chunks}
        headers = np.zeros(self._world.size, HEADER)
        for rank, received in enumerate(self._world.allgather(np.frombuffer(message, np.uint8))):
            memory = received.tobytes()
            headers[rank : rank + 1] = np.frombuffer(memory, HEADER, 1)
            start = HEADER.itemsize
            told = np.frombuffer(memory, np.int64, int(headers[rank]["chunks"]), start)
            start += told.nbytes
            for index in told.tolist():
                by_chunk[index] = np.frombuffer(memory, self._row, jobs[index], start)
                start += by_chunk[index].nbytes
        if headers["failures"].any():
            self.reports.collect(self._world)
        self.clock.timed("messages", since)
        return headers

    def _gather(
        self, state: State, prepared: Any, chunks: Sequence[Chunk], outcomes: dict[int, Outcome], has_arrays: bool
    ) -> Gathered:
        """Compute this rank's blocks; bring all blocks and what the chunks gave to rank 0, in order.

        Without arrays of chunks, and with one block, rank 0 has all there is. Where the update is replicated every
        rank computes all blocks, and gets what the chunks gave.
        """
        since = time.perf_counter()
        rank, size, count = self._world.rank, self._world.size, self._algorithm.blocks(state)
        blocks, packed = dict[str, Array](), dict[str, Array]()
        for block in range(count) if self._replicated else range(rank, count, size):
            pack(blocks, f"block/{block}", self._algorithm.contribute(state, prepared, block))
        trained = [chunk.index for chunk in chunks if chunk.purpose == "train"]
        for index in trained:
            if index in outcomes:
                pack(packed, f"chunk/{index}", outcomes[index].arrays)
        units = first_units([chunk for chunk in chunks if chunk.purpose != "evaluate"], self._unit)
        for index in units:
            if index in outcomes:
                for unit, parts_of_it in enumerate(outcomes[index].learned, units[index]):
                    for number, arrays in enumerate(parts_of_it):
                        pack(packed, f"unit/{unit}.{index}.{number}", arrays)
        self.clock.timed("update", since)
        since = time.perf_counter()
        mine = {**blocks, **packed}
        parts: Sequence[Arrays] = [mine] if rank == 0 or self._replicated else []
        if self._replicated and size > 1 and has_arrays:
            parts = [blocks, *map(decode, self._world.allgather(encode(packed)))]
        elif not self._replicated and size > 1 and (has_arrays or count > 1):
            received = self._world.gather(encode(mine if rank else {}))
            parts = [] if received is None else [mine, *map(decode, received[1:])]
        self.clock.timed("messages", since)
        return unpacked(parts, count, trained) if parts else Gathered([], [], [])


def summed(headers: npt.NDArray[np.void], more: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Return the headers of several rounds as one; signals are counts since the start."""
    total: npt.NDArray[np.void] = more.copy()
    for name in ("policy_calls", *TIMES, "chunks", "arrays", "mixed", "evaluating"):
        total[name] = headers[name] + more[name]
    return total
