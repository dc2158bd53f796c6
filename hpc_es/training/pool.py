"""An executor without MPI: processes, or any map-like callable, evaluate the chunks.

The processes are on this machine. A worker builds the parts of the run itself, as a rank does, and
gets with each chunk the state from which it is drawn. Results do not depend on which worker
evaluates a chunk, nor on the number of workers.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np

from hpc_es.config.schema import Config
from hpc_es.core.data import Chunk, Outcome
from hpc_es.core.errors import ConfigError, RunError, UserError
from hpc_es.devices.decision import current_decision
from hpc_es.mpi.launch import tasks_started
from hpc_es.mpi.scheduler import Work
from hpc_es.mpi.world import World, encode
from hpc_es.training.collective import FailureReports
from hpc_es.training.executors import SerialExecutor
from hpc_es.training.generation import Generation
from hpc_es.training.messages import HEADER, Header
from hpc_es.training.processes import Processes
from hpc_es.training.worker import Item, Recipe, Reply, evaluate

# A number of processes, or a callable with the arguments and the result of the built-in `map`.
Workers: TypeAlias = "int | Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]"

HERE_SECONDS = 0.002  # of a round's evaluations, below which sending them costs more than it saves


class PoolExecutor(SerialExecutor):
    """Evaluates the chunks with workers, and very cheap ones and updates in this process."""

    def __init__(
        self,
        recipe: Recipe,
        workers: Workers,
        signals: Callable[[], int],
        work: Work,
        reports: FailureReports,
    ) -> None:
        super().__init__(work, signals, reports)
        self._poll, self._recipe = work.poll, recipe
        self._last_seconds = math.inf  # of the evaluations of the last round
        self._processes: Processes | None = None
        self._map = workers
        self.workers = os.cpu_count() or 1  # of a pool elsewhere the number is unknown
        if not callable(workers):
            self.workers = int(workers)
            self._processes = Processes(self.workers, recipe, work.poll)
        self._numbers: dict[tuple[str, int, int], int] = {}  # of workers
        self._round = self._no_headers()

    @property
    def evaluators(self) -> Sequence[int]:
        return range(self.workers)

    def close(self) -> None:
        """End the processes."""
        if self._processes is not None:
            self._processes.close()

    def _no_headers(self) -> Header:
        return np.zeros(self.workers, HEADER)

    def _evaluate(self, generation: Generation, chunks: Sequence[Chunk]) -> dict[int, Outcome]:
        self._round = self._no_headers()
        ordered = list(generation.in_order(chunks))
        if self._last_seconds < HERE_SECONDS:
            outcomes = super()._evaluate(generation, ordered)
        else:
            outcomes = self._evaluate_elsewhere(generation, ordered)
        self._last_seconds = sum(
            outcome.seconds.get("environment", 0.0) for outcome in outcomes.values()
        )
        return outcomes

    def _evaluate_elsewhere(
        self, generation: Generation, chunks: Sequence[Chunk]
    ) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        for chunk, reply in zip(chunks, self._replies(generation, chunks), strict=True):
            outcome = outcomes[chunk.index] = reply.outcome
            self._elapsed[chunk.index] = reply.seconds
            if outcome.failures and self.reports is not None:
                self.reports.add(generation.number, chunk, outcome.failures)
            self._count(reply)
            self._poll()
        return outcomes

    def _replies(self, generation: Generation, chunks: Sequence[Chunk]) -> Iterable[Reply]:
        state = encode(generation.state.shared).tobytes()
        recipe = self._recipe if self._processes is None else None
        items = [
            Item(self._recipe.key, generation.number, state, chunk, recipe) for chunk in chunks
        ]
        if self._processes is not None:
            return self._processes.evaluate(items)
        assert callable(self._map)
        return _as_replies(self._map(evaluate, items), len(items))

    def _count(self, reply: Reply) -> None:
        """Add the seconds of a reply to those of its worker.

        Those of more workers than expected are the last one's.
        """
        number = self._numbers.setdefault(reply.worker, min(len(self._numbers), self.workers - 1))
        row, seconds = self._round[number], reply.outcome.seconds
        for name in ("environment", "policy"):
            row[name] += seconds.get(name, 0.0)
        row["update"] += max(
            reply.seconds - seconds.get("environment", 0.0) - seconds.get("policy", 0.0), 0.0
        )
        row["evaluating"] += reply.seconds
        row["chunks"] += 1

    def _exchange(
        self, generation: Generation, chunks: Sequence[Chunk], own: Mapping[int, Outcome]
    ) -> Header:
        here, headers = super()._exchange(generation, chunks, own), self._round
        if headers["chunks"].any():
            here["chunks"] = here["evaluating"] = 0  # they are those of the workers
        for name in HEADER.names or ():
            headers[0][name] += here[0][name]
        elapsed = time.perf_counter() - self._round_started
        headers["idle"] += np.maximum(elapsed - headers["evaluating"], 0.0)
        self._timed |= self._own_times(own)
        return headers


def _as_replies(results: Iterable[object], count: int) -> Iterator[Reply]:
    """Yield what a map-like callable returns.

    Raises:
        RunError: these are not the results of the evaluations, in order.
    """
    expected = f"expected {count} results from the callable in `workers`, as those of `map`"
    number = 0
    for result in results:
        if not isinstance(result, Reply):
            raise RunError(
                f"{expected}, found {type(result).__name__}: wait for it in the callable"
            )
        number += 1
        yield result
    if number != count:
        raise RunError(f"{expected}, found {number}")


def alone(workers: object) -> World:
    """Return the world of a process that has workers in place of other ranks.

    Raises ConfigError unless `workers` is a positive number or a callable. Raises UserError for a
    number if a launcher has started other ranks; a callable may use them, as that of
    `mpi4py.futures` does.
    """
    is_number = (
        isinstance(workers, Integral) and not isinstance(workers, bool) and int(workers) >= 1
    )
    if not is_number and not callable(workers):
        raise ConfigError(
            [
                (
                    "workers",
                    f"is {workers!r}: expected a number of processes, "
                    "or a callable such as the map of a pool",
                )
            ]
        )
    count, variable = tasks_started(os.environ)
    if count > 1 and is_number:
        raise UserError(
            f"workers are for a single process, but {variable} says that {count} ranks were started"
        )
    return World("none")


@contextlib.contextmanager
def one_thread(workers: Workers | None) -> Iterator[None]:
    """Let linear algebra use one thread, as in jobs, if there are workers:
    results depend on the number.
    """
    if workers is None:
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        yield


def require_pool(config: Config) -> None:
    """Raise UserError if workers without MPI cannot evaluate this config."""
    needs, decision = config.setup.needs, current_decision()
    why = str(needs.asynchronous or needs.in_flight or config.setup.offers.closes or "")
    if needs.gradients:
        why = why or f"algorithm.kind is {config.algorithm.kind}, which follows gradients"
    if decision is not None and decision.kind == "gpu":
        why = why or f"{decision.request.key} is gpu, which workers would share"
    if why:
        raise UserError(
            f"{why}: start the config with MPI instead of workers (mpiexec or srun hpc-es train)"
        )
    if config.mpi.fault_tolerance:
        raise ConfigError(
            [("mpi.fault_tolerance", "is true, which needs MPI: expected false with workers")]
        )
