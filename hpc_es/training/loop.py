"""The only loop: generations until a limit, a signal or a failure; the same on every rank."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hpc_es.config.sections import Config
from hpc_es.core.data import Arrays, Results, State
from hpc_es.core.errors import RunError, RunFailedError
from hpc_es.mpi.launch import patience
from hpc_es.mpi.work import GIVE_UP, GiveUp, Work
from hpc_es.mpi.world import World
from hpc_es.training.asynchronous import Asynchronous
from hpc_es.training.build import Parts
from hpc_es.training.chunk_plan import ChunkPlan
from hpc_es.training.cutting import Plan
from hpc_es.training.failing import told_in_status
from hpc_es.training.generation import Evaluated, Generation
from hpc_es.training.last_words import last_words
from hpc_es.training.metrics_row import Row, row
from hpc_es.training.misfits import needs
from hpc_es.training.on_rank_0 import INTERRUPTED
from hpc_es.training.replay import LearnedFrom, updated
from hpc_es.training.shared_arrays import SharedState

if TYPE_CHECKING:
    from hpc_es.training.memory_writer import MemoryWriter
    from hpc_es.training.run_writer import RunWriter

RUN, EVALUATE, STOP, FAIL, REPLAY = 0, 1, 2, 3, 4  # what rank 0 tells the others to do
OTHERS_SAVE_SECONDS = 2.0
QUIET = 100  # generations in which a notice is not said again


@dataclass
class Training:
    """A run on one rank; `writer` is there on rank 0 only. `exit_status` is right once the loop has ended."""

    config: Config
    world: World
    parts: Parts
    signals: Callable[[], int]
    writer: RunWriter | MemoryWriter | None
    state: State
    log: Callable[[str], None]
    exit_status: int = 0

    def __post_init__(self) -> None:
        self._work = self._shared_work()
        self._replicated = self.config.mpi.update == "replicated" and needs(self.config).searches == "vectors"
        self._generation = Generation(
            self.world,
            self._work,
            self.parts.algorithm,
            self.parts.row,
            self.signals,
            self.log,
            self.parts.unit,
            self._replicated,
        )
        self._chunks = ChunkPlan(self.config, self.parts, self.world, self._evaluation_jobs())
        self._shared = SharedState(self.world, self._replicated, self.state)
        self._interrupted = self._trained = self._is_stopped = False
        self._noticed: dict[str, int] = {}  # when a notice was last due
        self.final: dict[str, float] = {}  # rank 0: what the final evaluation found

    def _shared_work(self) -> Work:
        mpi = self.config.mpi
        return Work(self.world, mpi.schedule, mpi.master_evaluates, self.signals)

    def insist(self) -> None:
        """Give the generation up where a chunk hangs; called after a second signal, amid anything."""
        self._work.insist()

    def go_on(self) -> None:
        """Ranks were lost: `run` may be called again, on those that are left."""
        self._work = self._shared_work()
        self._generation.go_on(self._work)
        self._shared.forget()
        if self.writer is not None:
            self.writer.progress.message(self.world.notes[-1])

    def run(self) -> Generator[Row]:
        """Yield the metrics of each generation; on ranks other than 0 nothing is yielded.

        If the caller leaves the loop early on rank 0 the others are told to stop too.
        """
        with told_in_status(self.world, self.writer):
            try:
                try:
                    if self.writer is not None and (told := self._chunks.idle(self.state)):
                        self.writer.progress.message(f"WARNING: {told}")
                    while (command := self._announce(self._decide())) in (RUN, REPLAY):
                        if command == RUN:
                            yield from self._phase()
                        else:
                            self._replay()
                except GeneratorExit:
                    self._announce(STOP)
                    self._finish()
                    raise
                self._finish()
            except GiveUp as reason:
                self._give_up(reason)

    def _decide(self) -> int:
        """Rank 0: go on or stop."""
        if self.writer is None:
            return RUN
        if self._interrupted or self._is_stopped:
            return STOP
        if self.writer.replay is not None:
            return REPLAY
        return STOP if self._reached() is not None else RUN

    def stop(self) -> None:
        """Rank 0: end after the generation in progress."""
        self._is_stopped = True

    def _reached(self) -> str | None:
        """Rank 0: why the run is over, or None."""
        assert self.writer
        return self.writer.stop_reason() or self.parts.algorithm.finished(self.state)

    def _announce(self, command: int, reason: str = "") -> int:
        """Every rank gets rank 0's command and, unless it is to stop, the shared arrays of its state.

        Raises RunFailedError on every rank for the command FAIL.
        """
        since = time.perf_counter()
        plan = self._shared.plan(self.state) if self.world.rank == 0 else (0, 0, 0)
        told = [command, self.state.generation, self._interrupted, *self._chunks.plan.words(), *plan]
        control = np.array(told, np.int64)
        self.world.broadcast(control)
        self._interrupted, self._generation.plan = bool(control[2]), Plan.of(control[3:7].tolist())
        if control[0] == FAIL:
            raise RunFailedError(self.world.broadcast_text(reason))
        if control[0] != STOP:
            to_send, same, reshaped = map(int, control[7:10])
            state = replace(self.state, generation=int(control[1]))
            self.state = state = self._shared.without_arrays(state, bool(to_send))
            self.state = self._shared.broadcast(state, (to_send, same, reshaped))
        self._generation.clock.timed("messages", since)
        return int(control[0])

    def _episodes(self) -> int:
        interval = self._evaluation_interval()
        return self._evaluation_jobs() if interval and self.state.generation % interval == 0 else 0

    def _evaluation_jobs(self) -> int:
        """Return how many jobs measure the centre; 0 where nothing does."""
        own = self.parts.problem.evaluation_episodes
        return self.config.evaluation.episodes if own is None else own

    def _evaluation_interval(self) -> int:
        """Generations between evaluations; 0: there are none."""
        return self.config.evaluation.interval if self._evaluation_jobs() else 0

    def _phase(self) -> Iterator[Row]:
        """One generation; or, of asynchronous updates, all up to the next evaluation."""
        self._trained = True
        return self._updates() if getattr(self.config.algorithm, "updates", "") == "asynchronous" else self._one()

    def _one(self) -> Iterator[Row]:
        since = time.perf_counter()
        evaluated = self._generation.run(self.state, self._episodes())
        self._interrupted = bool(evaluated.headers["signals"].max() > 0)
        if self.writer is not None:
            with self._failing():
                measured = self._tell(evaluated, since, {})
            yield measured
        elif self._replicated:
            self._update(evaluated.results, self._units(evaluated))

    def _units(self, evaluated: Evaluated) -> Sequence[Arrays]:
        """Return what the problem learned in a generation."""
        problem = self.parts.problem
        return [*map(problem.unit, evaluated.learned), *problem.measured(self.state, evaluated.evaluation)]

    def _update(self, results: Results, units: Sequence[Arrays]) -> None:
        """The others, where each updates its state itself; what fails here fails on rank 0 too, which says so."""
        with contextlib.suppress(RunError):
            _, self.state, _ = updated(self.parts.algorithm, self.parts.problem, self.state, results, units)

    def _replay(self) -> None:
        """Compute a generation again from what it learned from, after a restart between whole checkpoints."""
        replay = self.writer.replay if self.writer else None
        packed = np.frombuffer(replay.next(self.state) if replay else b"", np.uint8)
        learned_from = LearnedFrom.unpacked(self.world.allgather(packed)[0].tobytes(), self.parts.row)
        results = self._generation.again(self.state, learned_from.rows, learned_from.probes)
        if replay is None or self.writer is None:
            if self._replicated:
                self._update(results, learned_from.units)
            return
        with self._failing():
            _, self.state, _ = updated(
                self.parts.algorithm, self.parts.problem, self.state, results, learned_from.units
            )
            if not replay.is_due(self.state):
                self.writer.replayed(self.state)
        self._interrupted = bool(self.signals())

    def _updates(self) -> Iterator[Row]:
        evaluation = np.zeros(0, self.parts.row)
        interval = self._evaluation_interval()
        if interval:
            evaluation = self._generation.run(self.state, self._evaluation_jobs(), train=False).evaluation
        phase = Asynchronous(self.world, self._work, self._generation, self.parts.row)
        if self.writer is None:
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
            self._announce(FAIL, str(error))
            raise

    def _tell(self, evaluated: Evaluated, since: float, more: Mapping[str, float]) -> Row:
        """Rank 0: the update, then what it leaves behind."""
        assert self.writer
        before, learning = self.state, time.perf_counter()
        problem = self.parts.problem
        self._chunks.require_independent(evaluated)
        units = self._units(evaluated)
        after, self.state, learned = updated(self.parts.algorithm, problem, before, evaluated.results, units)
        self.writer.evaluated(before, evaluated.results, evaluated.evaluation, units)
        self._generation.clock.timed("update", learning)
        measured = row(
            before.generation,
            evaluated,
            problem.episodes_per_job,
            (self.world.size, len(self._work.evaluators)),
            {**learned, **problem.metrics(problem.carried().found_in(self.state)), **more},
            time.perf_counter() - since,
            self.writer.counters,
        )
        found = self.parts.algorithm.discoveries(before, evaluated.results)
        self.writer.add(self.state, measured, before.shared if len(evaluated.evaluation) else None, found)
        self._chunks.follow(evaluated, self.state.theta.nbytes)
        self._notice(before.generation, self.parts.algorithm.notices(before, evaluated.results, after))
        return measured

    def _notice(self, generation: int, notices: Sequence[str]) -> None:
        """Rank 0: write what the algorithm has to say, and not again what it said of one of the last generations."""
        assert self.writer
        for notice in notices:
            if generation - self._noticed.get(notice, -QUIET) >= QUIET:
                self.writer.progress.message(f"generation {generation}: {notice}")
            self._noticed[notice] = generation

    def _finish(self) -> None:
        """Checkpoint, then measure the last theta; neither the best theta nor a later run depends on this."""
        if self.writer is not None:
            self.writer.finish_triggers(whole=not self._interrupted)
        self.exit_status = INTERRUPTED if self._interrupted else 0
        if self._announce(EVALUATE if self._to_measure() else STOP) == EVALUATE:
            evaluated = self._generation.run(self.state, self._evaluation_jobs(), train=False)
            returns = evaluated.evaluation["return_"]
            returns = returns[~np.isnan(returns)]
            if len(returns):
                self.final = {"final_return_mean": float(returns.mean()), "final_return_std": float(returns.std())}
        if self.writer is not None:
            self._say_end(self.final)

    def _to_measure(self) -> bool:
        """Rank 0: whether there is a theta whose final evaluation is not known."""
        if self.writer is None or self.writer.replay is not None or not self._evaluation_interval():
            return False
        self.final = {} if self._trained else dict(self.writer.measured)
        return not self.final

    def _say_end(self, summary: dict[str, float]) -> None:
        assert self.writer
        reason = "a signal" if self._interrupted else self._reached() or "the caller"
        status = "interrupted" if self._interrupted else "finished"
        self.writer.status(status, exit_status=self.exit_status, reason=reason, **summary)
        text = last_words(self.config, status, reason, self.state.generation, self.writer, summary)
        self.writer.progress.finish(text)

    def _give_up(self, reason: GiveUp) -> None:
        """The last finished state goes to disk and the job ends; a worker leaves both to rank 0."""
        if self.writer is None:
            self.world.send(0, GIVE_UP, [])
            time.sleep(patience(os.environ))
            os._exit(INTERRUPTED)
        self.writer.save()
        self.writer.status("interrupted", exit_status=INTERRUPTED, reason=str(reason))
        self.writer.progress.finish(
            f"given up ({reason}); the same command carries on from the last finished generation"
        )
        self.writer.close()
        if self.config.repetition_groups > 1:
            time.sleep(OTHERS_SAVE_SECONDS)  # the other groups got the signal too
        self.world.abort(INTERRUPTED)
