"""The only loop: generations until a limit, a signal or a failure; the same on every rank."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hpc_es.config import Config
from hpc_es.errors import RunError, RunFailedError
from hpc_es.experiment.agreed import INTERRUPTED
from hpc_es.experiment.asynchronous import Asynchronous
from hpc_es.experiment.build import Parts
from hpc_es.experiment.generation import Evaluated, Generation
from hpc_es.experiment.measure import Row, row
from hpc_es.interfaces import ROW, Arrays, State
from hpc_es.mpi.launch import patience
from hpc_es.mpi.work import GIVE_UP, GiveUp, Work
from hpc_es.mpi.world import World

if TYPE_CHECKING:
    from hpc_es.experiment.record import Record

RUN, EVALUATE, STOP, FAIL = 0, 1, 2, 3  # what rank 0 tells the others to do
OTHERS_SAVE_SECONDS = 2.0


@dataclass
class Training:
    """A run on one rank; `record` is there on rank 0 only. `exit_status` is right once the loop has ended."""

    config: Config
    world: World
    parts: Parts
    signals: Callable[[], int]
    record: Record | None
    state: State
    log: Callable[[str], None]
    exit_status: int = 0

    def __post_init__(self) -> None:
        self._work = self._shared_work()
        self._generation = Generation(self.world, self._work, self.parts.algorithm, self.signals, self.log)
        self._interrupted = False
        self._trained = False
        self.final: dict[str, float] = {}  # rank 0: what the final evaluation found

    def _shared_work(self) -> Work:
        mpi = self.config.mpi
        return Work(self.world, mpi.schedule, mpi.master_evaluates, self.signals)

    def go_on(self) -> None:
        """Ranks were lost: `run` may be called again, on those that are left."""
        self._work = self._shared_work()
        self._generation.go_on(self._work)
        if self.record is not None:
            self.record.progress.message(self.world.notes[-1])

    def run(self) -> Generator[Row]:
        """Yield the metrics of each generation; on ranks other than 0 nothing is yielded.

        If the caller leaves the loop early on rank 0 the others are told to stop too.
        """
        try:
            try:
                while self._told(self._decide()) == RUN:
                    yield from self._phase()
            except GeneratorExit:
                self._told(STOP)
                self._finish()
                raise
            self._finish()
        except GiveUp as reason:
            self._give_up(reason)
        except RunError as error:
            self._failed(error)
            raise

    def _decide(self) -> int:
        """Rank 0: go on or stop."""
        if self.record is None:
            return RUN
        return STOP if self._interrupted or self._reached() is not None else RUN

    def _reached(self) -> str | None:
        """Rank 0: why the run is over, or None."""
        assert self.record
        return self.record.stop_reason() or self.parts.algorithm.finished(self.state)

    def _told(self, command: int, reason: str = "") -> int:
        """Every rank gets rank 0's command and, unless it is to stop, the shared arrays of its state.

        Raises RunFailedError on every rank for the command FAIL.
        """
        since = time.perf_counter()
        control = np.array([command, self.state.generation, self._interrupted], np.int64)
        self.world.broadcast(control)
        self._interrupted = bool(control[2])
        if control[0] == FAIL:
            raise RunFailedError(self.world.broadcast_text(reason))
        if control[0] != STOP:
            shared = _broadcast(self.world, self.state.shared)
            self.state = replace(self.state, generation=int(control[1]), shared=shared)
        self._generation.clock.timed("messages", since)
        return int(control[0])

    def _episodes(self) -> int:
        evaluation = self.config.evaluation
        if self.parts.task.spaces is None:
            return 0
        due = evaluation.interval > 0 and self.state.generation % evaluation.interval == 0
        return evaluation.episodes if due else 0

    def _phase(self) -> Iterator[Row]:
        """One generation; or, of asynchronous updates, all up to the next evaluation."""
        self._trained = True
        return self._updates() if getattr(self.config.algorithm, "updates", "") == "asynchronous" else self._one()

    def _one(self) -> Iterator[Row]:
        since = time.perf_counter()
        evaluated = self._generation.run(self.state, self._episodes())
        self._interrupted = bool(evaluated.headers["signals"].max() > 0)
        if self.record is not None:
            with self._failing():
                measured = self._tell(evaluated, since, {})
            yield measured

    def _updates(self) -> Iterator[Row]:
        evaluation = np.zeros(0, ROW)
        interval = 0 if self.parts.task.spaces is None else self.config.evaluation.interval
        if interval:
            evaluation = self._generation.run(self.state, self.config.evaluation.episodes, train=False).evaluation
        phase = Asynchronous(self.world, self._work, self._generation)
        if self.record is None:
            phase.serve_worker(self.state)
            return
        due = (self.state.generation // interval + 1) * interval if interval else math.inf
        since = time.perf_counter()
        updates = phase.updates(lambda: self.state, lambda: self._decide() == RUN and self.state.generation < due)
        with contextlib.closing(updates):
            for update in updates:
                evaluated = replace(update.evaluated, evaluation=evaluation)
                self._interrupted = bool(self.signals() or evaluated.headers["signals"].max() > 0)
                with self._failing(updates.close):
                    measured = self._tell(evaluated, since, {"staleness": update.staleness})
                yield measured
                since, evaluation = time.perf_counter(), evaluation[:0]
                if self._decide() != RUN:
                    break

    @contextlib.contextmanager
    def _failing(self, before: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Rank 0: a RunError in here, such as a full disk, ends all ranks, once they wait for the next command."""
        try:
            yield
        except RunError as error:
            before()
            self._told(FAIL, str(error))
            raise

    def _tell(self, evaluated: Evaluated, since: float, more: Mapping[str, float]) -> Row:
        """Rank 0: the update, then what it leaves behind."""
        assert self.record
        before, learning = self.state, time.perf_counter()
        self.state, learned = self.parts.algorithm.tell(before, evaluated.results)
        self._generation.clock.timed("update", learning)
        measured = row(
            before.generation,
            evaluated,
            self.parts.task.episodes_per_job,
            (self.world.size, len(self._work.evaluators)),
            {**learned, **more},
            time.perf_counter() - since,
            self.record.counters,
        )
        self.record.add(self.state, measured, before.shared if len(evaluated.evaluation) else None)
        return measured

    def _finish(self) -> None:
        """Checkpoint, then measure the last theta; neither the best theta nor a later run depends on this."""
        if self.record is not None:
            self.record.finish_triggers()
        self.exit_status = INTERRUPTED if self._interrupted else 0
        if self._told(EVALUATE if self._to_measure() else STOP) == EVALUATE:
            evaluated = self._generation.run(self.state, self.config.evaluation.episodes, train=False)
            returns = evaluated.evaluation["return_"]
            returns = returns[~np.isnan(returns)]
            if len(returns):
                self.final = {"final_return_mean": float(returns.mean()), "final_return_std": float(returns.std())}
        if self.record is not None:
            self._say_goodbye(self.final)

    def _to_measure(self) -> bool:
        """Rank 0: whether there is a theta whose final evaluation is not known."""
        if self.record is None or self.config.evaluation.interval == 0 or self.parts.task.spaces is None:
            return False
        self.final = {} if self._trained else dict(self.record.measured)
        return not self.final

    def _say_goodbye(self, summary: dict[str, float]) -> None:
        assert self.record
        reason = "a signal" if self._interrupted else self._reached() or "the caller"
        status = "interrupted" if self._interrupted else "finished"
        self.record.status(status, exit_status=self.exit_status, reason=reason, **summary)
        counters = self.record.counters
        measured = f"  final evaluation {summary['final_return_mean']:.4g}" if summary else ""
        best = f"  best evaluation {self.record.best.return_:.4g}" if self.record.best else ""
        again = "; the same command carries on" if self._interrupted else ""
        self.record.progress.finish(
            f"{status} by {reason} after {self.state.generation} generations, {counters['timesteps']:,} timesteps"
            f"{measured}{best}{again}"
        )

    def _failed(self, error: RunError) -> None:
        """Rank 0: say so in status.json, if the disk takes it."""
        if self.record is not None:
            with contextlib.suppress(RunError):
                self.record.status("failed", exit_status=error.status, reason=str(error))

    def _give_up(self, reason: GiveUp) -> None:
        """The last finished state goes to disk and the job ends; a worker leaves both to rank 0."""
        if self.record is None:
            self.world.send(0, GIVE_UP, [])
            time.sleep(patience(os.environ))
            os._exit(INTERRUPTED)
        self.record.save()
        self.record.status("interrupted", exit_status=INTERRUPTED, reason=str(reason))
        self.record.progress.finish(
            f"given up ({reason}); the same command carries on from the last finished generation"
        )
        self.record.close()
        if self.config.repetition_groups > 1:
            time.sleep(OTHERS_SAVE_SECONDS)  # the other groups got the signal too
        self.world.abort(INTERRUPTED)


def _broadcast(world: World, shared: Arrays) -> Arrays:
    """Rank 0's arrays, on every rank, as one message; names, shapes and dtypes are the same everywhere."""
    packed = np.frombuffer(b"".join(np.ascontiguousarray(a).tobytes() for a in shared.values()), np.uint8).copy()
    world.broadcast(packed)
    arrays, start = {}, 0
    for name, array in shared.items():
        stop = start + array.nbytes
        arrays[name] = packed[start:stop].view(array.dtype).reshape(array.shape)
        start = stop
    return arrays
