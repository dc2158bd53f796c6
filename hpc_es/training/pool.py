"""An executor without MPI: processes on this machine, or any map-like callable, evaluate the chunks of a generation.

A worker builds the parts of the run itself, as a rank does, and gets with each chunk the state from which it is drawn.
Results do not depend on which worker evaluates a chunk, nor on the number of workers.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hpc_es.config.schema import Config
from hpc_es.core.data import Chunk, Outcome
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.devices.decision import current_decision
from hpc_es.mpi.launch import tasks_started
from hpc_es.mpi.scheduler import Work
from hpc_es.mpi.world import World, encode
from hpc_es.training.collective import FailureReports
from hpc_es.training.executors import Executor, RankClock, gathered_here
from hpc_es.training.generation import HEADER, Gathered, Generation
from hpc_es.training.processes import Processes
from hpc_es.training.worker import Item, Recipe, Reply, evaluate

# A number of processes, or a callable with the arguments and the result of the built-in `map`.
Workers: TypeAlias = "int | Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]"

HERE = ("", 0, 0)  # as a worker: this process
HERE_SECONDS = 0.002  # of a generation's evaluations, below which sending them costs more than it saves


class PoolExecutor(Executor):
    """Evaluates the chunks with workers, and computes updates in this process."""

    def __init__(
        self, recipe: Recipe, workers: Workers, signals: Callable[[], int], work: Work, reports: FailureReports
    ) -> None:
        super().__init__(signals, reports, RankClock(None))
        self._work, self._recipe, self._last_seconds = work, recipe, float("inf")
        self._processes: Processes | None = None
        self._map: Callable[[Callable[[Item], Reply], Sequence[Item]], Iterable[Reply]]
        if isinstance(workers, int):
            self.workers = workers
            self._processes = Processes(workers, recipe, work.poll)
            self._map = self._processes.map
        else:
            self.workers = os.cpu_count() or 1  # of a pool elsewhere the number is unknown
            self._map = workers
        self._numbers: dict[tuple[str, int, int], int] = {}  # of workers
        self._round = np.zeros(self.workers, HEADER)

    @property
    def evaluators(self) -> Sequence[int]:
        return range(self.workers)

    def close(self) -> None:
        """End the processes."""
        if self._processes is not None:
            self._processes.close()

    def _no_headers(self) -> npt.NDArray[np.void]:
        return np.zeros(self.workers, HEADER)

    def _evaluate(self, generation: Generation, chunks: Sequence[Chunk]) -> dict[int, Outcome]:
        self._round = self._no_headers()
        outcomes: dict[int, Outcome] = {}
        ordered = list(generation.in_order(chunks))
        for chunk, reply in zip(ordered, self._replies(generation, ordered), strict=True):
            outcome = outcomes[chunk.index] = reply.outcome
            self._elapsed[chunk.index] = reply.seconds
            if outcome.failures and reply.worker != HERE and self.reports is not None:
                self.reports.add(generation.number, chunk, outcome.failures)
            self._count(reply)
            self._work.poll()
        self._last_seconds = float(self._round["environment"].sum())
        return outcomes

    def _replies(self, generation: Generation, chunks: Sequence[Chunk]) -> Iterable[Reply]:
        if self._last_seconds < HERE_SECONDS:
            return self._evaluated_here(generation, chunks)
        state = encode(generation.state.shared).tobytes()
        recipe = self._recipe if self._processes is None else None
        items = [Item(self._recipe.key, generation.number, state, chunk, recipe) for chunk in chunks]
        return self._map(evaluate, items)

    def _evaluated_here(self, generation: Generation, chunks: Sequence[Chunk]) -> Iterator[Reply]:
        for chunk in chunks:
            since = time.perf_counter()
            with self._work.evaluating(chunk):
                outcome = self._evaluate_chunk(generation, chunk, self._work.poll)
            yield Reply(outcome, HERE, time.perf_counter() - since)

    def _count(self, reply: Reply) -> None:
        """Add the seconds of a reply to those of its worker; of more workers than expected to the last one's."""
        number = self._numbers.setdefault(reply.worker, min(len(self._numbers), self.workers - 1))
        row = self._round[number]
        inside = 0.0
        for name in ("environment", "policy"):
            row[name] += reply.outcome.seconds.get(name, 0.0)
            inside += reply.outcome.seconds.get(name, 0.0)
        if reply.worker != HERE:  # else the clock has them
            row["update"] += max(reply.seconds - inside, 0.0)
        row["evaluating"] += reply.seconds
        row["chunks"] += 1

    def _exchange(
        self, generation: Generation, chunks: Sequence[Chunk], own: Mapping[int, Outcome]
    ) -> npt.NDArray[np.void]:
        header, headers = self.header(own)[0], self._round
        for name in header.dtype.names or ():
            if name not in {"chunks", "evaluating", "environment", "policy"}:
                headers[0][name] += header[name]
        elapsed = time.perf_counter() - self._round_started
        headers["idle"] += np.maximum(elapsed - headers["evaluating"], 0.0)
        self._timed |= self._own_times(own)
        generation.add({index: outcome.rows for index, outcome in own.items()})
        if self.reports is not None and self.reports.pending:
            self.reports.write([self.reports.take()])
        return headers

    def _collect(self, generation: Generation, outcomes: Mapping[int, Outcome]) -> Mapping[int, Outcome] | None:
        return outcomes

    def _gather(self, generation: Generation, outcomes: Mapping[int, Outcome], has_arrays: bool) -> Gathered:
        since = time.perf_counter()
        gathered = gathered_here(generation, outcomes)
        self.clock.add("update", since)
        return gathered


def alone(workers: object) -> World:
    """Return the world of a process that has workers in place of other ranks.

    Raises ConfigError unless `workers` is a positive number or a callable. Raises UserError for a number if a launcher
    has started other ranks; a callable may use them, as that of `mpi4py.futures` does.
    """
    is_number = isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1
    if not is_number and not callable(workers):
        text = f"is {workers!r}: expected a number of processes, or a callable such as the map of a pool"
        raise ConfigError([("workers", text)])
    count, variable = tasks_started(os.environ)
    if count > 1 and is_number:
        raise UserError(f"workers are for a single process, but {variable} says that {count} ranks were started")
    return World("none")


@contextlib.contextmanager
def one_thread(workers: Workers | None) -> Iterator[None]:
    """Let linear algebra use one thread, as in jobs, if there are workers: results depend on the number."""
    if workers is None:
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        yield


def require_pool(config: Config) -> None:
    """Raise UserError if workers without MPI cannot evaluate this config."""
    needs, decision = config.setup.needs, current_decision()
    why = str(needs.asynchronous or needs.in_flight or "")
    if needs.gradients:
        why = why or f"algorithm.kind is {config.algorithm.kind}, which follows gradients"
    if decision is not None and decision.kind == "gpu":
        why = why or f"{decision.request.key} is gpu, which workers would share"
    if why:
        raise UserError(f"{why}: start the config with MPI instead of workers (mpiexec or srun hpc-es train)")
    for key, value in (
        ("report.profile", config.report.profile),
        ("report.rank_logs", config.report.rank_logs),
        ("mpi.fault_tolerance", config.mpi.fault_tolerance),
    ):
        if value:
            raise ConfigError([(key, "is true, which needs MPI: expected false with workers")])
