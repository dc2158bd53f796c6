"""Asynchronous updates: rank 0 serves the parameters and follows each gradient as it comes (Mnih et al. 2016).

A worker takes the shared arrays, evaluates one chunk, sends what that gives and takes the next; nobody waits for
another worker. When an update arrives rank 0 has mostly made others since the worker took its theta: the number of
those is the update's staleness. Which gradient comes first depends on the machine, so the bits are not reproducible.
A job of one rank does both parts, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Arrays, Results, Rows, State
from hpc_es.mpi.scheduler import Work
from hpc_es.mpi.serialize import decode, encode, from_words, to_words
from hpc_es.mpi.world import World
from hpc_es.training.build import Parts
from hpc_es.training.executors import HEADER, Evaluated, MpiExecutor
from hpc_es.training.generation import Generation, fitness_of

TASK, RESULT = 4, 5  # tags beside those of Work
END = -1
ARRAY, FAILURES = "array/", "failures"


@dataclass(frozen=True)
class AsynchronousUpdate:
    """What one chunk gave."""

    evaluated: Evaluated
    staleness: int  # updates that were made since its theta was taken


class AsynchronousPhase:
    """One phase of asynchronous updates; rank 0 calls `updates`, every other rank `serve_worker`."""

    def __init__(self, world: World, work: Work, executor: MpiExecutor, parts: Parts) -> None:
        self._world, self._work, self._executor, self._parts = world, work, executor, parts
        assert executor.reports is not None
        self._reports = executor.reports
        self._workers = list(range(1, world.size))

    def updates(self, current: Callable[[], State], go_on: Callable[[], bool]) -> Generator[AsynchronousUpdate]:
        """Yield what comes; the caller makes the update, so that `current` is the new state, before the next.

        While `go_on` holds each worker gets a new chunk; then what is on its way still comes. Closed early, that is
        lost. Chunks have numbers of their own as the generation that their random numbers belong to.
        """
        number = current().generation
        if not self._workers:
            while go_on():
                state = current()
                evaluated = self._evaluated(state, *self._executor.evaluate_here(Generation(self._parts, state)))
                if self._reports.pending:
                    self._reports.collect(self._world)
                yield AsynchronousUpdate(evaluated, 0)
            return
        versions: dict[int, int] = {}
        try:
            for worker in self._workers:
                versions[worker] = self._hand_out(worker, number, current())
                number += 1
            while versions:
                worker, received = self._arrived()
                yield AsynchronousUpdate(
                    self._evaluated(current(), *received), current().generation - versions.pop(worker)
                )
                if go_on():
                    versions[worker] = self._hand_out(worker, number, current())
                    number += 1
        except GeneratorExit:  # not where a rank has given up: nobody would answer
            self._end(len(versions))
            raise
        self._end(0)

    def _end(self, on_their_way: int) -> None:
        for _ in range(on_their_way):
            self._arrived()
        for worker in self._workers:
            self._world.send(worker, TASK, [END])

    def _hand_out(self, worker: int, number: int, state: State) -> int:
        self._world.send(worker, TASK, to_words(encode({"number": np.array(number), **state.shared})))
        return state.generation

    def _arrived(self) -> tuple[int, tuple[Rows, Arrays, npt.NDArray[np.void]]]:
        """Return what a worker sent: its rank, the rows and arrays of its chunk, HEADER[1]."""
        self._world.wait_until(lambda: bool(self._work.arrived))
        worker, words = self._work.arrived.popleft()
        told = decode(from_words(words))
        if FAILURES in told:
            self._reports.write([told.pop(FAILURES)])
        rows = np.frombuffer(told.pop("rows").tobytes(), self._parts.row)
        header = np.frombuffer(told.pop("header").tobytes(), HEADER)
        return worker, (rows, {name.removeprefix(ARRAY): told[name] for name in told}, header)

    def _evaluated(self, state: State, rows: Rows, arrays: Arrays, header: npt.NDArray[np.void]) -> Evaluated:
        results = Results[None](rows, [arrays], fitness=fitness_of(self._parts, state, rows))
        return Evaluated(header, results, np.zeros(0, self._parts.row))

    def serve_worker(self, state: State) -> None:
        """Evaluate chunk after chunk until rank 0 ends the phase."""
        while True:
            words = self._world.receive(0, TASK)
            self._executor.clock.add_idle()
            if words[0] == END:
                return
            shared = decode(from_words(words))
            number = int(shared.pop("number"))
            generation = Generation(self._parts, replace(state, generation=number, shared=shared))
            rows, arrays, header = self._executor.evaluate_here(generation)
            message = {"rows": rows.view(np.uint8), "header": header.view(np.uint8)}
            if self._reports.pending:
                message[FAILURES] = self._reports.take()
            message |= {ARRAY + name: array for name, array in arrays.items()}
            self._world.send(0, RESULT, to_words(encode(message)))
