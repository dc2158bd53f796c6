"""Generations in flight, for `algorithm.delay`: ranks evaluate the next generations until an update is known.

Generation t needs the updates up to t - delay only (see `algorithms/common/delay.py`), so up to delay + 1 generations
are open at the same time. Rank 0 hands out their chunks, those of the oldest one first, collects the rows, and makes
each update when its generation is complete. While ranks evaluate, they exchange messages only: a collective operation
would wait for all of them. Results do not depend on which rank was ready first.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hpc_es.algorithms.common.delay import DelayLine
from hpc_es.core.data import Array, Arrays, Chunk, Outcome, Purpose, State
from hpc_es.mpi.scheduler import Work
from hpc_es.mpi.world import World, decode, encode, from_words, to_words
from hpc_es.training.build import Parts
from hpc_es.training.chunking import CutPlan
from hpc_es.training.executors import MpiExecutor, add_headers, gathered_here
from hpc_es.training.generation import HEADER, Evaluated, Generation

TASK = 7  # tag of messages to workers, in addition to those of Work
PURPOSES: tuple[Purpose, ...] = ("train", "probe", "evaluate")
ARRAY, LEARNED, SHARED, FAILURES = "array/", "learned/", "shared/", "failures"
TASKS_AHEAD = 2  # tasks of a worker, including the one that it evaluates


@dataclass
class OpenGeneration:
    """A generation whose chunks are being evaluated, on rank 0."""

    generation: Generation
    measured: State  # what its evaluation measures
    headers: npt.NDArray[np.void]  # HEADER[ranks]
    missing: int = 0  # chunks of the current round without an outcome
    outcomes: dict[int, Outcome] = field(default_factory=dict)  # by chunk index
    sent: set[tuple[int, bool]] = field(default_factory=set)  # workers that have its state: of jobs, or of evaluations


Key = tuple[int, int]  # number of a generation and index of a chunk


class DelayedPhase:
    """Evaluates generations until rank 0 ends the phase; rank 0 calls `generations`, others `serve_worker`."""

    def __init__(self, world: World, work: Work, executor: MpiExecutor, parts: Parts, line: DelayLine) -> None:
        self._world, self._work, self._executor, self._parts, self._line = world, work, executor, parts, line
        assert executor.reports is not None
        self._reports = executor.reports
        self._open: dict[int, OpenGeneration] = {}
        self._queue: deque[Key] = deque()
        self._chunks: dict[Key, Chunk] = {}
        self._tasks: dict[int, int] = {}  # number of tasks that each worker has
        self._has_new_chunks = False  # which may be for workers whose outcomes arrived earlier
        self._is_ending = False

    # Rank 0.

    def generations(
        self,
        current: Callable[[], State],
        may_open: Callable[[int], bool],
        evaluation_jobs: Callable[[int], int],
        plan: Callable[[], CutPlan],
    ) -> Generator[tuple[Evaluated, State]]:
        """Yield (results, state that the evaluation measured) of one generation after the other, on rank 0.

        The caller applies each to the state that `current` returns before it takes the next one. `may_open(t)` says
        whether generation t may begin.
        """
        self._tasks = dict.fromkeys(range(1, self._world.size), 0)
        try:
            while True:
                number = current().generation
                self._begin(current(), may_open, evaluation_jobs, plan())
                if number not in self._open:
                    break
                self._evaluate_until_complete(number)
                opened = self._open.pop(number)
                yield self._evaluated(opened), opened.measured
            self._end()
        except GeneratorExit:
            self._end()
            raise

    def _begin(
        self,
        state: State,
        may_open: Callable[[int], bool],
        evaluation_jobs: Callable[[int], int],
        plan: CutPlan,
    ) -> None:
        """Open the generations whose states are known."""
        self._work.set_evaluators(plan.rank_0_evaluates)
        for number in range(state.generation, state.generation + self._line.delay + 1):
            if number in self._open or not may_open(number):
                continue
            drawn = self._line.drawn_around(state, number)
            generation = Generation(self._parts, drawn, evaluation_jobs(number), plan=plan)
            headers = np.zeros(self._world.size, HEADER)
            self._open[number] = OpenGeneration(generation, self._line.measured(state, number), headers)
            self._next_round(self._open[number])

    def _next_round(self, opened: OpenGeneration) -> None:
        chunks = {(chunk.generation, chunk.index): chunk for chunk in opened.generation.next_chunks()}
        opened.missing = len(chunks)
        self._chunks |= chunks
        self._queue = deque(sorted([*self._queue, *chunks]))  # a later round of an older generation comes first
        self._has_new_chunks |= bool(chunks)

    def _evaluate_until_complete(self, number: int) -> None:
        """Hand out chunks and collect outcomes until this generation, the oldest one, is complete.

        If rank 0 evaluates, it leaves the youngest generation to others: an update that waited for such a chunk would
        keep all of them waiting for the next generation.
        """
        opened = self._open[number]
        youngest = number + self._line.delay if self._tasks else math.inf
        while opened.missing:
            self._work.poll()
            self._serve()
            if 0 in self._work.evaluators and self._queue and self._queue[0][0] < youngest:
                self._evaluate_here(self._queue.popleft())
            elif opened.missing:
                self._world.wait_until(lambda: bool(self._work.arrived))

    def _evaluate_here(self, key: Key) -> None:
        chunk, opened = self._chunks.pop(key), self._open[key[0]]

        def poll() -> None:
            self._work.poll()
            self._serve()

        generation = self._evaluates(opened, chunk)
        outcome, header = self._executor.evaluate_one(generation, chunk, poll)
        if self._reports.pending:
            self._reports.write([self._reports.take()])
        self._collect(key, 0, outcome, header)

    @staticmethod
    def _evaluates(opened: OpenGeneration, chunk: Chunk) -> Generation:
        """Return the generation with the state that a chunk is evaluated with."""
        if chunk.purpose == "evaluate":
            return Generation(opened.generation.parts, opened.measured)
        return opened.generation

    def _serve(self) -> None:
        """Collect the outcomes that have arrived, and hand out chunks: first to workers without any, then ahead."""
        workers: list[int] = []
        while self._work.arrived:
            worker, words = self._work.arrived.popleft()
            self._tasks[worker] -= 1
            message = decode(from_words(words))
            if FAILURES in message:
                self._reports.write([message.pop(FAILURES)])
            self._collect(*_unpacked(worker, message, self._parts))
            workers.append(worker)
        if self._has_new_chunks:
            workers, self._has_new_chunks = list(self._tasks), False
        for tasks in range(TASKS_AHEAD):
            for worker in workers:
                is_plenty = len(self._queue) >= (len(self._work.evaluators) if tasks else 1)
                if self._tasks[worker] == tasks and is_plenty:
                    self._send(worker, self._queue.popleft())

    def _send(self, worker: int, key: Key) -> None:
        chunk, opened = self._chunks.pop(key), self._open[key[0]]
        is_evaluation = chunk.purpose == "evaluate"
        message: dict[str, Array] = {"chunk": _numbers(chunk)}
        if (worker, is_evaluation) not in opened.sent:
            opened.sent.add((worker, is_evaluation))
            state = opened.measured if is_evaluation else opened.generation.state
            message |= {SHARED + name: array for name, array in state.shared.items()}
        self._world.send(worker, TASK, to_words(encode(message)))
        self._tasks[worker] += 1

    def _collect(self, key: Key, rank: int, outcome: Outcome, header: npt.NDArray[np.void]) -> None:
        """Keep an outcome; after the last one of a round, begin the next round."""
        if self._is_ending:
            return
        opened = self._open[key[0]]
        opened.headers[rank : rank + 1] = add_headers(opened.headers[rank : rank + 1], header)
        opened.outcomes[key[1]] = outcome
        opened.missing -= 1
        if not opened.missing:
            own = {chunk.index: opened.outcomes[chunk.index].rows for chunk in opened.generation.chunks}
            opened.generation.add(own)
            self._next_round(opened)

    def _evaluated(self, opened: OpenGeneration) -> Evaluated:
        """Compute the blocks of the update of a complete generation."""
        generation, since = opened.generation, time.perf_counter()
        generation.prepare()
        gathered = gathered_here(generation, opened.outcomes)
        self._executor.clock.add("update", since)
        evaluation = generation.rows("evaluate")
        return Evaluated(opened.headers, generation.results(gathered), evaluation, gathered.learned)

    def _end(self) -> None:
        """Drop what is being evaluated, and end the phase of the workers."""
        self._is_ending = True
        self._queue.clear()
        while any(self._tasks.values()):
            self._world.wait_until(lambda: bool(self._work.arrived))
            while self._work.arrived:
                worker, _ = self._work.arrived.popleft()
                self._tasks[worker] -= 1
        for worker in range(1, self._world.size):
            self._world.send(worker, TASK, to_words(encode({"end": np.array(True)})))

    # Workers.

    def serve_worker(self, master: Arrays) -> None:
        """Evaluate chunks until rank 0 ends the phase; `master` are the worker's own arrays of these names."""
        tasks: deque[Mapping[str, Array]] = deque()
        states: dict[tuple[int, bool], State] = {}

        def poll() -> None:
            self._work.poll()
            if (words := self._world.receive_now(0, TASK)) is not None:
                tasks.append(decode(from_words(words)))

        while True:
            if not tasks:
                tasks.append(decode(from_words(self._world.receive(0, TASK))))
                self._executor.clock.add_idle()
            message = tasks.popleft()
            if "end" in message:
                return
            chunk = _chunk(message["chunk"])
            key = chunk.generation, chunk.purpose == "evaluate"
            shared = {name.removeprefix(SHARED): a for name, a in message.items() if name.startswith(SHARED)}
            if shared:
                oldest = chunk.generation - self._line.delay  # a rank gets the chunks of older generations first
                states = {old: state for old, state in states.items() if old[0] >= oldest}
                states[key] = State(chunk.generation, shared, master)
            outcome, header = self._executor.evaluate_one(Generation(self._parts, states[key]), chunk, poll)
            packed = _packed(chunk, outcome, header)
            if self._reports.pending:
                packed[FAILURES] = self._reports.take()
            self._world.send(0, TASK, to_words(encode(packed)))


def _numbers(chunk: Chunk) -> Array:
    purpose = PURPOSES.index(chunk.purpose)
    numbers = chunk.index, chunk.first_job, chunk.jobs, purpose, chunk.parent, chunk.offset, chunk.generation
    return np.array(numbers, np.int64)


def _chunk(numbers: Array) -> Chunk:
    index, first_job, jobs, purpose, parent, offset, generation = numbers.tolist()
    return Chunk(index, first_job, jobs, PURPOSES[purpose], parent, offset, generation)


def _packed(chunk: Chunk, outcome: Outcome, header: npt.NDArray[np.void]) -> dict[str, Array]:
    """Return the outcome of a chunk as arrays of a message."""
    packed: dict[str, Array] = {
        "key": np.array([chunk.generation, chunk.index], np.int64),
        "rows": outcome.rows.view(np.uint8),
        "header": header.view(np.uint8),
        "learned": np.array([len(parts) for parts in outcome.learned], np.int64),
    }
    packed |= {ARRAY + name: array for name, array in outcome.arrays.items()}
    for unit, parts in enumerate(outcome.learned):
        for part, arrays in enumerate(parts):
            packed |= {f"{LEARNED}{unit}/{part}/{name}": array for name, array in arrays.items()}
    return packed


def _unpacked(
    worker: int, message: Mapping[str, Array], parts: Parts
) -> tuple[Key, int, Outcome, npt.NDArray[np.void]]:
    generation, index = message["key"].tolist()
    rows = np.frombuffer(message["rows"].tobytes(), parts.row)
    learned: list[list[dict[str, Array]]] = [[{} for _ in range(count)] for count in message["learned"].tolist()]
    for key, array in message.items():
        if key.startswith(LEARNED):
            unit, part, name = key.removeprefix(LEARNED).split("/", 2)
            learned[int(unit)][int(part)][name] = array
    arrays = {name.removeprefix(ARRAY): array for name, array in message.items() if name.startswith(ARRAY)}
    header = np.frombuffer(message["header"].tobytes(), HEADER)
    return (generation, index), worker, Outcome(rows, arrays, learned=learned), header
