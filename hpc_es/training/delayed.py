"""Generations in flight, for `algorithm.delay`: ranks evaluate the next ones meanwhile.

Generation t needs the updates up to t - delay only (see `delay_line.py`), so up to
delay + 1 generations are open at the same time. Rank 0 hands out their chunks, those of the oldest
one first, collects the rows, and makes each update as soon as its generation is complete, even
between the steps of a chunk that it evaluates itself; the caller records the updates afterwards, in
order. While ranks evaluate, they exchange messages only: a collective operation would wait for all
of them. Results do not depend on which rank was ready first.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hpc_es.core.data import Arrays, Chunk, Outcome, Poll, State
from hpc_es.core.errors import RunError
from hpc_es.mpi.scheduler import Work
from hpc_es.mpi.tags import Tag
from hpc_es.mpi.world import Int64, World
from hpc_es.training.build import Parts
from hpc_es.training.chunking import CutPlan
from hpc_es.training.command import Command, failing_everywhere
from hpc_es.training.commander import Commander
from hpc_es.training.delay_line import DelayLine
from hpc_es.training.executors import MpiExecutor, add_headers, gathered_here
from hpc_es.training.finished import FinishedGeneration, Update
from hpc_es.training.generation import Evaluated, Generation
from hpc_es.training.messages import (
    HEADER,
    BlockResult,
    BlocksTask,
    ChunkResult,
    ChunkTask,
    EndTask,
    Header,
    Message,
    StateTask,
    TimedChunk,
    decoded,
    encoded,
)
from hpc_es.training.this_rank import ThisRank

# mean of chunks below which workers get the next one ahead, since they would wait for the answer
AHEAD_SECONDS = 0.02
# of the blocks of an update; waiting workers compute some of them if it takes longer
SHARED_UPDATE_SECONDS = 0.005

Key = tuple[int, int]  # number of a generation and index of a chunk
# called with the newest state, results, and the measured state
Apply = Callable[[State, Evaluated, State], Update]


@dataclass
class OpenGeneration:
    """A generation whose chunks are being evaluated, on rank 0."""

    generation: Generation
    measured: State  # what its evaluation measures
    headers: Header  # HEADER[ranks]
    missing: int = 0  # chunks of the current round without an outcome
    outcomes: dict[int, Outcome] = field(default_factory=dict)  # by chunk index
    timed: dict[int, TimedChunk] = field(default_factory=dict)  # by chunk index
    # workers that have its state: of jobs, or of evaluations
    sent: set[tuple[int, bool]] = field(default_factory=set)
    # these two states as messages, if they were sent
    messages: dict[bool, Int64] = field(default_factory=dict)
    is_prepared: bool = False
    # of the update, as far as they are known
    blocks: dict[int, Arrays] = field(default_factory=dict)

    def state_message(self, is_evaluation: bool) -> Int64:
        """Return the message with the state of jobs or of evaluations, int64[...]."""
        if is_evaluation not in self.messages:
            state = self.measured if is_evaluation else self.generation.state
            self.messages[is_evaluation] = encoded(
                StateTask(self.generation.number, state.shared, is_evaluation)
            )
        return self.messages[is_evaluation]


@dataclass(frozen=True)
class UpdatedGeneration:
    """A generation whose update is made, but which is not recorded yet, on rank 0."""

    evaluated: Evaluated
    measured: State  # what its evaluation measured
    update: Update | RunError  # an error is raised when this generation is next


class Delayed:
    """Generations, several of them at the same time, until the run ends:
    a phase of the training loop (`Phase`).
    """

    def __init__(self, rank: ThisRank, commander: Commander | None, line: DelayLine) -> None:
        self._rank, self._commander, self._line = rank, commander, line

    def generations(self, command: Command, started: float) -> Generator[FinishedGeneration]:
        """Yield generations in order."""
        rank, commander = self._rank, self._commander
        exchange = DelayedExchange(
            rank.world, rank.work, rank.mpi_executor(), rank.parts, self._line
        )
        if commander is None:
            exchange.serve_worker(rank.state.master)
            return
        last = rank.config.stop.generations
        generations = exchange.generations(
            rank.state,
            self._update,
            lambda number: last is None or number < last,
            rank.evaluations.due,
            lambda: rank.planner.plan,
        )
        with contextlib.closing(generations):
            for updated in generations:
                with failing_everywhere(rank.world, generations.close):
                    finished = self._finish(updated, started)
                yield finished
                started = time.perf_counter()
                if not commander.goes_on():
                    break

    def _update(self, before: State, evaluated: Evaluated, measured: State) -> Update:
        updates = self._rank.updates
        return updates.update(before, evaluated.results, updates.units(evaluated, measured))

    def _finish(self, updated: UpdatedGeneration, started: float) -> FinishedGeneration:
        """Take over the update of the next generation."""
        rank, before, evaluated, update = (
            self._rank,
            self._rank.state,
            updated.evaluated,
            updated.update,
        )
        measured = rank.look_before_update(before, updated.measured, evaluated)
        if isinstance(update, RunError):
            raise update
        rank.state = update.state
        return rank.finished(
            before, measured, evaluated, update, started=started, executor=rank.executor
        )


class DelayedExchange:
    """The messages of such a phase, until rank 0 ends it.

    Rank 0 calls `generations`, others `serve_worker`.
    """

    def __init__(
        self, world: World, work: Work, executor: MpiExecutor, parts: Parts, line: DelayLine
    ) -> None:
        self._world, self._work, self._executor, self._parts, self._line = (
            world,
            work,
            executor,
            parts,
            line,
        )
        assert executor.reports is not None
        self._reports = executor.reports
        self._open: dict[int, OpenGeneration] = {}
        self._finished: deque[UpdatedGeneration] = deque()
        self._queue: deque[Key] = deque()
        self._chunks: dict[Key, Chunk] = {}
        self._tasks: dict[int, int] = {}  # number of tasks that each worker has
        self._chunk_seconds = math.inf  # of recent chunks, a moving average
        self._has_new_chunks = False  # which may be for workers whose outcomes arrived earlier
        self._blocks_sent = 0  # blocks that workers compute
        self._block_seconds = 0.0  # of a block of the last update, on rank 0

    # Rank 0.

    def generations(
        self,
        state: State,
        apply: Apply,
        may_open: Callable[[int], bool],
        evaluation_jobs: Callable[[int], int],
        plan: Callable[[], CutPlan],
    ) -> Generator[UpdatedGeneration]:
        """Yield one generation after the other, on rank 0, with its update.

        `apply` makes an update. It may be called before the previous generation is yielded, also
        during a chunk of rank 0, because other ranks may wait for the next state. `may_open(t)`
        says whether generation t may begin.
        """
        self._newest, self._apply, self._plan = state, apply, plan
        self._may_open, self._evaluation_jobs = may_open, evaluation_jobs
        self._tasks = dict.fromkeys(range(1, self._world.size), 0)
        try:
            self._open_generations()
            while self._finished or self._open:
                self._evaluate_until_finished()
                yield self._finished.popleft()
            self._end()
        except GeneratorExit:
            self._end()
            raise

    def _open_generations(self) -> None:
        """Open the generations whose states are known."""
        state, plan = self._newest, self._plan()
        self._work.set_evaluators(plan.rank_0_evaluates)
        for number in range(state.generation, state.generation + self._line.delay + 1):
            if number in self._open or not self._may_open(number):
                continue
            drawn = self._line.drawn_around(state, number)
            generation = Generation(self._parts, drawn, self._evaluation_jobs(number), plan=plan)
            headers = np.zeros(self._world.size, HEADER)
            self._open[number] = OpenGeneration(
                generation, self._line.measured(state, number), headers
            )
            self._next_round(self._open[number])

    def _next_round(self, opened: OpenGeneration) -> None:
        chunks = {
            (chunk.generation, chunk.index): chunk for chunk in opened.generation.next_chunks()
        }
        opened.missing = len(chunks)
        self._chunks |= chunks
        # a later round of an older generation comes first
        self._queue = deque(sorted([*self._queue, *chunks]))
        self._has_new_chunks |= bool(chunks)

    def _evaluate_until_finished(self) -> None:
        """Hand out chunks, collect outcomes and make updates until that of a generation is made."""
        while not self._finished:
            self._work.poll()
            self._serve()
            since = time.perf_counter()
            self._update()
            self._executor.clock.add("update", since)
            self._hand_out()
            if self._finished:
                return
            if self._may_evaluate():
                self._evaluate_here(self._queue.popleft())
            else:
                self._world.wait_until(lambda: bool(self._work.arrived))
                self._executor.clock.add_idle()

    def _may_evaluate(self) -> bool:
        """Return whether rank 0 evaluates the next chunk.

        If it cannot make updates meanwhile, it leaves the youngest generation to others: an update
        that waited for such a chunk would keep all of them waiting for the next generation.
        """
        if 0 not in self._work.evaluators or not self._queue:
            return False
        youngest = self._newest.generation + self._line.delay
        return self._updates_while_evaluating or not self._tasks or self._queue[0][0] < youngest

    @property
    def _updates_while_evaluating(self) -> bool:
        """Whether `poll` of a chunk may make an update.

        That of functions may be called from a signal handler.
        """
        return self._parts.cutting != "one by one"

    def _evaluate_here(self, key: Key) -> None:
        chunk, opened = self._chunks.pop(key), self._open[key[0]]

        def poll() -> None:
            self._work.poll()
            self._serve()
            if self._updates_while_evaluating:
                self._update()  # its time is that of the chunk which no activity accounts for
                self._hand_out()

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
        """Collect outcomes and blocks that have arrived, and hand out chunks to their workers."""
        workers: list[int] = []
        while self._work.arrived:
            worker, words = self._work.arrived.popleft()
            result = decoded(words, self._parts.row)
            if isinstance(result, BlockResult):
                self._collect_block(result)
                continue
            assert isinstance(result, ChunkResult)
            if result.failures is not None:
                self._reports.write([result.failures])
            self._tasks[worker] -= 1
            self._collect((result.generation, result.index), worker, result.outcome, result.header)
            workers.append(worker)
        self._hand_out(workers)

    def _hand_out(self, workers: Sequence[int] = ()) -> None:
        """Send chunks to these workers, to all if there are new ones: first to workers without any.

        Short ones are also sent ahead. A long one could wait for a still longer one, while another
        worker has none.
        """
        if self._has_new_chunks:
            workers, self._has_new_chunks = list(self._tasks), False
        for tasks in range(1 + (self._chunk_seconds < AHEAD_SECONDS)):
            for worker in workers:
                is_plenty = len(self._queue) >= (len(self._work.evaluators) if tasks else 1)
                if self._tasks[worker] == tasks and is_plenty:
                    self._send(worker, self._queue.popleft())

    def _send(self, worker: int, key: Key) -> None:
        chunk, opened = self._chunks.pop(key), self._open[key[0]]
        is_evaluation = chunk.purpose == "evaluate"
        if (worker, is_evaluation) not in opened.sent:
            opened.sent.add((worker, is_evaluation))
            self._world.send(worker, Tag.TASK, opened.state_message(is_evaluation))
        self._world.send(worker, Tag.TASK, encoded(ChunkTask(chunk)))
        self._tasks[worker] += 1

    def _collect(self, key: Key, rank: int, outcome: Outcome, header: Header) -> None:
        """Keep an outcome; after the last one of a round, begin the next round."""
        opened = self._open.get(key[0])
        if opened is None:  # after an update that failed
            return
        seconds = float(header["evaluating"][0])
        recent = self._chunk_seconds if math.isfinite(self._chunk_seconds) else seconds
        self._chunk_seconds = 0.9 * recent + 0.1 * seconds
        opened.headers[rank : rank + 1] = add_headers(opened.headers[rank : rank + 1], header)
        opened.outcomes[key[1]] = outcome
        opened.timed[key[1]] = _timed(header)
        opened.missing -= 1
        if not opened.missing:
            own = {
                chunk.index: opened.outcomes[chunk.index].rows for chunk in opened.generation.chunks
            }
            opened.generation.add(own)
            self._next_round(opened)

    # Updates, on rank 0.

    def _update(self) -> None:
        """Make the updates of complete generations, in order, as far as their blocks are known."""
        while (
            opened := self._open.get(self._newest.generation)
        ) is not None and not opened.missing:
            generation = opened.generation
            if not opened.is_prepared:
                generation.prepare()
                opened.is_prepared = True
                self._compute_blocks(opened)
            if len(opened.blocks) < generation.blocks:
                return
            del self._open[generation.number]
            blocks = [opened.blocks[block] for block in range(generation.blocks)]
            gathered = gathered_here(generation, opened.outcomes, blocks)
            results, evaluation = generation.results(gathered), generation.rows("evaluate")
            opened.headers[:1] = add_headers(opened.headers[:1], self._executor.header({}))
            evaluated = Evaluated(
                opened.headers,
                results,
                evaluation,
                gathered.learned,
                chunk_times=generation.chunk_times(opened.timed),
                passes=generation.passes,
                number=generation.number,
            )
            try:
                update = self._apply(self._newest, evaluated, opened.measured)
            except RunError as error:
                self._finished.append(UpdatedGeneration(evaluated, opened.measured, error))
                self._open.clear()
                self._queue.clear()
                return
            self._finished.append(UpdatedGeneration(evaluated, opened.measured, update))
            self._newest = update.state
            self._open_generations()

    def _compute_blocks(self, opened: OpenGeneration) -> None:
        """Compute the blocks of an update.

        If it takes long, workers that have nothing else to do compute some of them.
        """
        generation = opened.generation
        count, helpers = generation.blocks, list[int]()
        if count * self._block_seconds > SHARED_UPDATE_SECONDS:
            waiting = [
                worker
                for worker, tasks in self._tasks.items()
                if not tasks and (worker, False) in opened.sent
            ]
            helpers = waiting[: count - 1]
        parts = len(helpers) + 1  # rank 0 computes the last one
        for part, worker in enumerate(helpers):
            blocks = range(part, count, parts)
            task = BlocksTask(generation.number, blocks, generation.rows("train"))
            self._world.send(worker, Tag.TASK, encoded(task))
            self._blocks_sent += len(blocks)
        own, since = range(parts - 1, count, parts), time.perf_counter()
        for block in own:
            opened.blocks[block] = generation.partial_update(block)
        self._block_seconds = (time.perf_counter() - since) / max(len(own), 1)

    def _collect_block(self, result: BlockResult) -> None:
        self._blocks_sent -= 1
        if result.generation in self._open:
            self._open[result.generation].blocks[result.block] = result.sums

    def _end(self) -> None:
        """Drop what is being evaluated, and end the phase of the workers."""
        self._queue.clear()
        while any(self._tasks.values()) or self._blocks_sent:
            self._world.wait_until(lambda: bool(self._work.arrived))
            while self._work.arrived:
                worker, words = self._work.arrived.popleft()
                is_block = isinstance(decoded(words, self._parts.row), BlockResult)
                self._blocks_sent -= is_block
                self._tasks[worker] -= not is_block
        for worker in range(1, self._world.size):
            self._world.send(worker, Tag.TASK, encoded(EndTask()))

    # Workers.

    def serve_worker(self, master: Arrays) -> None:
        """Evaluate chunks until rank 0 ends the phase.

        `master` are the worker's own arrays of these names.
        """
        tasks: deque[Message] = deque()
        states: dict[tuple[int, bool], State] = {}  # by generation, of jobs or of evaluations

        def poll() -> None:
            self._work.poll()
            while (words := self._world.receive_now(0, Tag.TASK)) is not None:
                tasks.append(decoded(words, self._parts.row))

        while True:
            if not tasks:
                tasks.append(decoded(self._world.receive(0, Tag.TASK), self._parts.row))
                self._executor.clock.add_idle()
            match tasks.popleft():
                case StateTask(number, shared, is_evaluation):
                    # a rank gets the chunks of older generations first
                    oldest = number - self._line.delay
                    states = {key: state for key, state in states.items() if key[0] >= oldest}
                    states[number, is_evaluation] = State(number, shared, master)
                case BlocksTask() as task:
                    self._send_blocks(states[task.generation, False], task)
                case ChunkTask(chunk):
                    self._send_outcome(states, chunk, poll)
                case _:
                    return

    def _send_outcome(
        self, states: Mapping[tuple[int, bool], State], chunk: Chunk, poll: Poll
    ) -> None:
        state = states[chunk.generation, chunk.purpose == "evaluate"]
        outcome, header = self._executor.evaluate_one(Generation(self._parts, state), chunk, poll)
        failures = self._reports.take() if self._reports.pending else None
        result = ChunkResult(chunk.generation, chunk.index, outcome, header, failures)
        self._world.send(0, Tag.RESULT, encoded(result))

    def _send_blocks(self, state: State, task: BlocksTask) -> None:
        """Compute blocks of the update of a generation, from the rows of all of its jobs."""
        since, generation = time.perf_counter(), Generation(self._parts, state)
        generation.replay(task.rows, np.zeros(0, self._parts.row))
        generation.prepare()
        for block in task.blocks:
            result = BlockResult(state.generation, block, generation.partial_update(block))
            self._world.send(0, Tag.RESULT, encoded(result))
        self._executor.clock.add("update", since)


def _timed(header: Header) -> TimedChunk:
    """Return the times of a chunk.

    It took as long as its steps, because updates are made between them.
    """
    environment, policy = float(header["environment"][0]), float(header["policy"][0])
    return TimedChunk(environment, environment + policy, float(header["policy_calls"][0]))
