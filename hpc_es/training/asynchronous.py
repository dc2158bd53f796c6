"""Asynchronous updates: rank 0 sends parameters and applies each gradient as it arrives.

Mnih et al. 2016. A worker receives the shared arrays, evaluates one chunk, returns the result and
receives the next; no worker waits for another. When a result arrives, rank 0 has usually made
further updates since the worker received its theta: their number is the staleness of the result.
The order of the results depends on the machine, so results are not reproducible. A job of one rank
evaluates and updates in turn.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import numpy as np

from hpc_es.core.data import Outcome, Results, State
from hpc_es.mpi.scheduler import Work
from hpc_es.mpi.tags import Tag
from hpc_es.mpi.world import World
from hpc_es.training.build import Parts
from hpc_es.training.command import Command, failing_everywhere
from hpc_es.training.commander import Commander
from hpc_es.training.executors import MpiExecutor
from hpc_es.training.finished import FinishedGeneration
from hpc_es.training.generation import Evaluated, Generation, fitness_of
from hpc_es.training.messages import ChunkResult, EndTask, Header, StateTask, decoded, encoded
from hpc_es.training.this_rank import ThisRank


@dataclass(frozen=True)
class AsynchronousUpdate:
    """The result of one chunk."""

    evaluated: Evaluated
    staleness: int  # updates since the worker received its theta


class Asynchronous:
    """Asynchronous updates until the next evaluation is due:
    a phase of the training loop (`Phase`).
    """

    def __init__(self, rank: ThisRank, commander: Commander | None) -> None:
        self._rank, self._commander = rank, commander

    def generations(self, command: Command, started: float) -> Generator[FinishedGeneration]:
        """Yield updates, each as a generation.

        The first one has the evaluation that all ranks begin with.
        """
        rank, interval = self._rank, self._rank.evaluations.interval
        evaluation = np.zeros(0, rank.parts.row)
        if interval:
            evaluation = rank.evaluate_centre(command).evaluation
        exchange = AsynchronousExchange(rank.world, rank.work, rank.mpi_executor(), rank.parts)
        commander = self._commander
        if commander is None:
            exchange.serve_worker(rank.state)
            return
        # the next evaluation
        due = (rank.state.generation // interval + 1) * interval if interval else math.inf
        started = time.perf_counter()
        updates = exchange.updates(
            lambda: rank.state, lambda: commander.goes_on() and rank.state.generation < due
        )
        with contextlib.closing(updates):
            for update in updates:
                evaluated = replace(update.evaluated, evaluation=evaluation)
                with failing_everywhere(rank.world, updates.close):
                    staleness = {"staleness": float(update.staleness)}
                    finished = rank.finish(evaluated, started, rank.executor, metrics=staleness)
                yield finished
                started, evaluation = time.perf_counter(), evaluation[:0]
                if not commander.goes_on():
                    break


class AsynchronousExchange:
    """The messages of a phase of asynchronous updates.

    Rank 0 calls `updates`, every other rank `serve_worker`.
    """

    def __init__(self, world: World, work: Work, executor: MpiExecutor, parts: Parts) -> None:
        self._world, self._work, self._executor, self._parts = world, work, executor, parts
        assert executor.reports is not None
        self._reports = executor.reports
        self._workers = list(range(1, world.size))

    def updates(
        self, current: Callable[[], State], is_running: Callable[[], bool]
    ) -> Generator[AsynchronousUpdate]:
        """Yield results.

        The caller applies each to the state that `current` returns before it takes the next one.
        While `is_running` returns true, each worker receives a new chunk; after that, pending
        results are still yielded. If the generator is closed early they are lost. The generation
        that the random numbers of a chunk belong to is a counter of chunks.
        """
        number = current().generation
        if not self._workers:
            while is_running():
                state = current()
                evaluated = self._evaluated(
                    state, *self._executor.evaluate_here(Generation(self._parts, state))
                )
                if self._reports.pending:
                    self._reports.collect(self._world)
                yield AsynchronousUpdate(evaluated, 0)
            return
        versions: dict[int, int] = {}  # by worker: generation of the state that it received
        try:
            for worker in self._workers:
                versions[worker] = self._send_task(worker, number, current())
                number += 1
            while versions:
                worker, received = self._receive_result()
                staleness = current().generation - versions.pop(worker)
                yield AsynchronousUpdate(self._evaluated(current(), *received), staleness)
                if is_running():
                    versions[worker] = self._send_task(worker, number, current())
                    number += 1
        except GeneratorExit:  # not GiveUp of another rank: no rank would answer after it
            self._end(len(versions))
            raise
        self._end(0)

    def _end(self, pending: int) -> None:
        for _ in range(pending):
            self._receive_result()
        for worker in self._workers:
            self._world.send(worker, Tag.TASK, encoded(EndTask()))

    def _send_task(self, worker: int, number: int, state: State) -> int:
        """Send the state and the number of a chunk to a worker.

        Returns:
            The generation of the state.
        """
        self._world.send(worker, Tag.TASK, encoded(StateTask(number, state.shared)))
        return state.generation

    def _receive_result(self) -> tuple[int, tuple[Outcome, Header]]:
        """Return the rank of a worker, and the outcome of its chunk and HEADER[1]."""
        self._world.wait_until(lambda: bool(self._work.arrived))
        worker, words = self._work.arrived.popleft()
        result = decoded(words, self._parts.row)
        assert isinstance(result, ChunkResult)
        if result.failures is not None:
            self._reports.write([result.failures])
        return worker, (result.outcome, result.header)

    def _evaluated(self, state: State, outcome: Outcome, header: Header) -> Evaluated:
        rows = outcome.rows
        results = Results[None](
            rows, [outcome.arrays], fitness=fitness_of(self._parts, state, rows)
        )
        return Evaluated(header, results, np.zeros(0, self._parts.row))

    def serve_worker(self, state: State) -> None:
        """Evaluate chunks until rank 0 ends the phase."""
        while True:
            task = decoded(self._world.receive(0, Tag.TASK), self._parts.row)
            self._executor.clock.add_idle()
            if not isinstance(task, StateTask):
                return
            number = task.generation
            generation = Generation(
                self._parts, replace(state, generation=number, shared=task.shared)
            )
            outcome, header = self._executor.evaluate_here(generation)
            sent = Outcome(outcome.rows, outcome.arrays)
            failures = self._reports.take() if self._reports.pending else None
            self._world.send(0, Tag.RESULT, encoded(ChunkResult(number, 0, sent, header, failures)))
