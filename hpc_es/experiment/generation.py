"""One generation on all ranks: chunks are evaluated, rows exchanged, blocks and chunk arrays brought to rank 0."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpc_es.experiment.held import Held
from hpc_es.interfaces import ROW, Algorithm, Array, Arrays, Chunk, Outcome, Poll, Results, Rows, State
from hpc_es.mpi.wire import decode, encode
from hpc_es.mpi.work import Work
from hpc_es.mpi.world import World

# What each rank tells of its generation, in the header of its rows.
TIMES = ("environment", "policy", "update", "messages", "idle")
HEADER = np.dtype([("signals", "<i8"), ("policy_calls", "<f8"), *((name, "<f8") for name in TIMES), ("chunks", "<i8")])
FAILURES_TOLD = 3  # by a rank in a round: a thousand jobs may fail alike
EVALUATION_CHUNK = 16  # episodes; as array shapes must not depend on ranks


@dataclass(frozen=True)
class Evaluated:
    """A generation as rank 0 sees it before `tell`."""

    results: Results  # of training jobs
    evaluation: Rows  # ROW[evaluation episodes], empty if there was no evaluation
    headers: npt.NDArray[np.void]  # HEADER[ranks]


class Clock:
    """Seconds of this rank by what they were spent on.

    They travel with the rows, so what comes after the rows (the update) is told with the next generation's.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.taken()

    def taken(self) -> dict[str, float]:
        """The seconds since the last call of this."""
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


def evaluation_chunks(episodes: int, first_index: int) -> list[Chunk]:
    """The chunks of an evaluation of the unperturbed theta."""
    return [
        Chunk(first_index + number, start, min(EVALUATION_CHUNK, episodes - start), training=False)
        for number, start in enumerate(range(0, episodes, EVALUATION_CHUNK))
    ]


class Generation:
    """Runs the chunks of a generation; every rank calls the same methods in the same order."""

    def __init__(
        self, world: World, work: Work, algorithm: Algorithm, signals: Callable[[], int], log: Callable[[str], None]
    ) -> None:
        self._world, self._work, self._algorithm = world, work, algorithm
        self._signals, self._log = signals, log
        self.clock = Clock(world)
        self._held = Held(world)

    def go_on(self, work: Work) -> None:
        """Ranks were lost: those that are left share the work anew, and keep what they have of this generation."""
        self._work = work
        self._held.to_tell = True

    def run(self, state: State, evaluation_episodes: int, train: bool = True) -> Evaluated:
        """Evaluate rounds until the algorithm has enough, and the evaluation episodes with the first round."""
        self._held.begin(state.generation, train)
        outcomes: dict[int, Outcome] = {}
        chunks: list[Chunk] = []
        by_chunk: dict[int, Rows] = {}
        rows, headers = np.zeros(0, ROW), np.zeros(self._world.size, HEADER)
        round = 0
        while True:
            new = self._algorithm.ask(state, round, len(chunks)) if train else []
            if round == 0:
                new = new + evaluation_chunks(evaluation_episodes, len(chunks) + len(new))
            mine = self._evaluate(state, new)
            outcomes |= mine
            chunks += new
            headers = summed(headers, self._exchange(new, mine, by_chunk))
            rows = joined(by_chunk, [chunk for chunk in chunks if chunk.training])
            round += 1
            if not train or self._algorithm.enough(rows):
                break
        evaluation = joined(by_chunk, [chunk for chunk in chunks if not chunk.training])
        return Evaluated(self._gather(state, rows, chunks, outcomes, train), evaluation, headers)

    def _evaluate(self, state: State, chunks: Sequence[Chunk]) -> dict[int, Outcome]:
        held, left = self._held.shared_out(chunks)
        new = self._work.evaluate(left, lambda chunk, poll: self._held.kept(chunk, self._timed(state, chunk, poll)))
        self.clock.idled()
        self._tell_failures(state, [failure for outcome in new.values() for failure in outcome.failures])
        return held | new

    def _timed(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        since = time.perf_counter()
        outcome = self._algorithm.evaluate(state, chunk, poll)
        self.clock.outcome(outcome, since)
        return outcome

    def _tell_failures(self, state: State, failures: Sequence[str]) -> None:
        for failure in failures[:FAILURES_TOLD]:
            self._log(f"generation {state.generation}: {failure}")
        if len(failures) > FAILURES_TOLD:
            self._log(f"generation {state.generation}: {len(failures) - FAILURES_TOLD} more failures of this rank")

    def one_chunk(self, state: State) -> tuple[Rows, Arrays, npt.NDArray[np.void]]:
        """A generation of one chunk, evaluated by this rank alone: its rows, its arrays, HEADER[1]."""
        (chunk,) = self._algorithm.ask(state, 0, 0)
        outcome = self._timed(state, chunk, self._work.poll)
        self._tell_failures(state, outcome.failures)
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
                by_chunk[index] = np.frombuffer(memory, ROW, jobs[index], start)
                start += by_chunk[index].nbytes
        self.clock.timed("messages", since)
        return headers

    def _gather(
        self, state: State, rows: Rows, chunks: Sequence[Chunk], outcomes: dict[int, Outcome], train: bool
    ) -> Results:
        """Compute this rank's blocks; bring all blocks and the chunks' arrays to rank 0, in order."""
        if not train:
            return Results(rows, [], [])
        since = time.perf_counter()
        rank, size, count = self._world.rank, self._world.size, self._algorithm.blocks()
        packed: dict[str, Array] = {}
        for block in range(rank, count, size):
            packed[f"block/{block}"] = self._algorithm.contribute(state, rows, block)
        for chunk in chunks:
            if chunk.training and chunk.index in outcomes:
                for name, array in outcomes[chunk.index].arrays.items():
                    packed[f"{chunk.index}/{name}"] = array
        self.clock.timed("update", since)
        since = time.perf_counter()
        received = self._world.gather(encode(packed))
        self.clock.timed("messages", since)
        if received is None:
            return Results(rows, [], [])
        merged = {name: array for part in received for name, array in decode(part).items()}
        arrays: dict[str, dict[str, Array]] = {str(chunk.index): {} for chunk in chunks if chunk.training}
        for name, array in merged.items():
            group, _, rest = name.partition("/")
            if group in arrays:
                arrays[group][rest] = array
        return Results(rows, list(arrays.values()), [merged[f"block/{block}"] for block in range(count)])


def summed(headers: npt.NDArray[np.void], more: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """The headers of several rounds as one; signals are counts since the start."""
    total: npt.NDArray[np.void] = more.copy()
    for name in ("policy_calls", *TIMES, "chunks"):
        total[name] = headers[name] + more[name]
    return total


def joined(by_chunk: dict[int, Rows], chunks: Sequence[Chunk]) -> Rows:
    """The rows of these chunks in job order."""
    return np.concatenate([by_chunk[chunk.index] for chunk in chunks]) if chunks else np.zeros(0, ROW)
