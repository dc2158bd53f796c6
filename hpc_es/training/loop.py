"""Rank 0 by itself for a while, where the messages of a generation cost more than the other ranks save.

Of a cheap function of few parameters rank 0 evaluates all vectors in any case. It tries then whether it is faster
alone, and if so runs generations alone for `SPELL_SECONDS` at a time, while the others wait for its next command. No
bit depends on who computes what. Between the spells a generation of all ranks tells rank 0 of their signals.


When the centre of a search is measured without noise, in how many jobs, and what came of the last time.

What an algorithm has to say of its generations, without saying it again and again.

The only loop: generations until a limit, a signal or a failure; the same on every rank."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from hpc_es.config.schema import Config
from hpc_es.core.data import Arrays, Results, Rows, State
from hpc_es.core.errors import RunError, RunFailedError
from hpc_es.core.interfaces import GradientAlgorithm, Problem
from hpc_es.mpi.scheduler import GiveUp, Work
from hpc_es.mpi.world import World
from hpc_es.training.asynchronous import Asynchronous
from hpc_es.training.build import Parts
from hpc_es.training.chunk_plan import ChunkPlan
from hpc_es.training.chunking import SHARED_SECONDS, CutPlan
from hpc_es.training.collective import INTERRUPTED
from hpc_es.training.compatibility import needs
from hpc_es.training.end_message import end_message
from hpc_es.training.executors import HEADER, Evaluated, Executor, MpiExecutor, SerialExecutor
from hpc_es.training.failure import give_up, told_in_status
from hpc_es.training.failure_reports import FailureReports
from hpc_es.training.generation import Generation
from hpc_es.training.metrics_row import Row, problem_metrics, row, used_after
from hpc_es.training.replay import LearnedFrom, updated
from hpc_es.training.shared_arrays import SharedState, contiguous

if TYPE_CHECKING:
    from hpc_es.training.recorder import Recorder


SPELL_SECONDS = 0.25
LONGEST_SECONDS = 0.05  # of a generation of all ranks, to whose messages that matters
COMPARED = 5  # generations of all ranks, and alone, whose medians are compared
TRIED_LESS = 10  # times as many generations until the next trial, after one that did not pay


class Alone:
    """Runs generations on rank 0 only, and says when."""

    def __init__(self, world: World, parts: Parts, signals: Callable[[], int], reports: FailureReports) -> None:
        self._ranks = world.size
        mine = World(world.library)  # of one rank
        self._parts, self._work = parts, Work(mine, "static", True, signals)
        self.executor = SerialExecutor(self._work, signals, reports)
        self._together, self._alone = (deque[float](maxlen=COMPARED) for _ in range(2))  # seconds of generations
        self._until = 0.0  # the end of a spell
        self._to_trial = self._interval = COMPARED  # generations of all ranks until the next trial

    @classmethod
    def of(
        cls, config: Config, world: World, parts: Parts, signals: Callable[[], int], reports: FailureReports
    ) -> Alone | None:
        """Return that of rank 0, where it may evaluate all and nobody's share is part of the result or a recovery."""
        mpi = config.mpi
        is_free = parts.cutting == "one by one" and mpi.chunk_size == "auto" and mpi.master_evaluates is not False
        if (
            not is_free
            or world.rank
            or world.size == 1
            or mpi.update == "replicated"
            or world.fault_handler.is_fault_tolerant
        ):
            return None
        return cls(world, parts, signals, reports)

    def abort_if_hung(self) -> None:
        """Give the generation up where an evaluation hangs."""
        self._work.abort_if_hung()

    def run(self, state: State, evaluation_jobs: int, plan: CutPlan) -> Evaluated:
        """Return a generation in which the other ranks do nothing; `state` is `contiguous`."""
        evaluated = self.executor.run(Generation(self._parts, state, evaluation_jobs, plan=plan))
        headers = np.zeros(self._ranks, HEADER)  # the others tell after the spell that they were idle
        headers[0] = evaluated.headers[0]
        return replace(evaluated, headers=headers)

    def is_next(self, was_alone: bool, measured: Row, evaluated: Evaluated) -> bool:
        """Return whether rank 0 runs the next generation alone, after this one and its metrics."""
        seconds = float(measured["seconds_this_generation"] or 0.0)
        (self._alone if was_alone else self._together).append(seconds)
        if float(evaluated.headers["environment"].sum()) >= SHARED_SECONDS:
            return False
        if was_alone:
            return time.perf_counter() < self._until
        if seconds > LONGEST_SECONDS or not (self._pays() or self._is_tried()):
            return False
        self._until = time.perf_counter() + SPELL_SECONDS
        return True

    def _pays(self) -> bool:
        return bool(self._alone) and median(self._alone) < median(self._together)

    def _is_tried(self) -> bool:
        """Count down to the next trial."""
        self._to_trial -= 1
        if self._to_trial > 0:
            return False
        self._alone.clear()
        self._interval *= TRIED_LESS
        self._to_trial = self._interval
        return True


@dataclass(frozen=True)
class Evaluations:
    """How often, and in how many jobs."""

    jobs: int  # that measure the centre; 0 where nothing does
    interval: int  # generations between evaluations; 0: there are none

    @classmethod
    def of(cls, config: Config, problem: Problem) -> Evaluations:
        """Return those of a config; some problems know how many jobs it takes."""
        own = problem.evaluation_episodes
        jobs = config.evaluation.episodes if own is None else own
        return cls(jobs, config.evaluation.interval if jobs else 0)

    def due(self, generation: int) -> int:
        """Return the evaluation jobs of a generation."""
        return self.jobs if self.interval and generation % self.interval == 0 else 0

    def next_after(self, generation: int) -> float:
        """Return the next generation with an evaluation."""
        return (generation // self.interval + 1) * self.interval if self.interval else math.inf


def final_returns(rows: Rows) -> dict[str, float]:
    """Return what the evaluation at the end of a run has found; nothing where every job failed."""
    returns = rows["return_"][~np.isnan(rows["return_"])]
    if not len(returns):
        return {}
    return {"final_return_mean": float(returns.mean()), "final_return_std": float(returns.std())}


QUIET = 100  # generations in which a notice is not said again


class Notices:
    """Remembers when a notice was last due."""

    def __init__(self) -> None:
        self._due: dict[str, int] = {}

    def new(self, generation: int, notices: Sequence[str]) -> Iterator[str]:
        """Yield those that were not due in one of the last `QUIET` generations."""
        for notice in notices:
            if generation - self._due.get(notice, -QUIET) >= QUIET:
                yield f"generation {generation}: {notice}"
            self._due[notice] = generation


AfterTrainStep = Callable[[Arrays, Mapping[str, float]], object]  # (sample, loss)
RUN, EVALUATE, STOP, FAIL, REPLAY = 0, 1, 2, 3, 4  # what rank 0 tells the others to do


@dataclass
class Training:
    """A run on one rank; `writer` is there on rank 0 only. `exit_status` is right once the loop has ended."""

    config: Config
    world: World
    parts: Parts
    signals: Callable[[], int]
    writer: Recorder | None
    state: State
    exit_status: int = 0
    after_train_step: AfterTrainStep | None = None  # of the caller; on rank 0

    def __post_init__(self) -> None:
        self._work = self._shared_work()
        self._replicated = self.config.mpi.update == "replicated" and needs(self.config).searches == "vectors"
        self._reports = FailureReports(self.world, self.writer.failed if self.writer else None)
        self._executor = MpiExecutor(self.world, self._work, self.signals, self._reports, self._replicated)
        self._plan = CutPlan()  # of the next generation
        self._is_asynchronous = getattr(self.config.algorithm, "updates", "") == "asynchronous"
        self._evaluations = Evaluations.of(self.config, self.parts.problem)
        self._chunks = ChunkPlan(self.config, self.parts, self.world, self._evaluations.jobs)
        self._shared = SharedState(self.world, self._replicated, self.state)
        self._alone = Alone.of(self.config, self.world, self.parts, self.signals, self._reports)
        self._interrupted = self._trained = self._is_stopped = False
        self._since = 0.0  # when the generation began, with its command
        self._notices = Notices()
        self._failure = ""  # rank 0: why the run has failed
        self.final: dict[str, float] = {}  # rank 0: what the final evaluation found

    def _shared_work(self) -> Work:
        mpi = self.config.mpi
        beat = [self.writer.beat] if self.writer else []
        return Work(self.world, mpi.schedule, mpi.master_evaluates, self.signals, *beat)

    def abort_if_hung(self) -> None:
        """Give the generation up where a chunk hangs; called after a second signal, amid anything."""
        self._work.abort_if_hung()
        if self._alone is not None:
            self._alone.abort_if_hung()

    def go_on(self) -> None:
        """Ranks were lost: `run` may be called again, on those that are left."""
        self._work = self._shared_work()
        self._executor.go_on(self._work)
        self._shared.forget()
        if self.writer is not None:
            self.writer.message(self.world.notes[-1])

    def run(self) -> Generator[Row]:
        """Yield the metrics of each generation; on ranks other than 0 nothing is yielded.

        If the caller leaves the loop early on rank 0 the others are told to stop too.
        """
        with told_in_status(self.world, self.writer):
            try:
                try:
                    if self.writer is not None and (told := self._chunks.idle(self.state)):
                        self.writer.message(f"WARNING: {told}")
                    while (command := self._announce(self._next(), self._failure)) in (RUN, REPLAY):
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
                give_up(self.world, self.writer, reason, others_save=self.config.repetition_groups > 1)

    def _next(self) -> int:
        """Rank 0: as `_decide`; a run that has failed is saved before the others are told."""
        command = self._decide()
        if command == FAIL and self.writer is not None:
            self.writer.finish_triggers(whole=True)
            self.writer.finish(
                end_message(self.config, "failed", self._failure, self.state.generation, self.writer, {})
            )
        return command

    def _decide(self) -> int:
        """Rank 0: go on, or how to end. A run that has failed before gets one more generation, if its limits allow."""
        if self.writer is None:
            return RUN
        if self._interrupted or self._is_stopped:
            return STOP
        if self.writer.replay is not None:
            return REPLAY
        is_over = self._reached() is not None
        if self._trained or is_over:
            self._failure = self._too_many_failed()
            if self._failure:
                return FAIL
        return STOP if is_over else RUN

    def _too_many_failed(self) -> str:
        """Rank 0: why `stop.failed_generations` ends the run, or nothing.

        Of asynchronous updates, each of one worker, those of all workers count as a generation.
        """
        assert self.writer
        limit, failed = self.config.stop.failed_generations, int(self.writer.counters["failed_generations"])
        if limit is None or not failed:
            return ""
        share = max(self.world.size - 1, 1) if self._is_asynchronous else 1
        nothing_succeeded = failed >= self.state.generation
        if failed < share * (1 if nothing_succeeded else limit):
            return ""
        cause = f", the first by {self._reports.first}" if self._reports.first else ""
        which = f"the last {failed} generations" if failed > 1 else f"generation {self.state.generation - 1}"
        text = f"all jobs of {which} failed{cause} (stop.failed_generations: {limit})"
        return "; ".join(filter(None, [text, self.writer.remedy]))

    def stop(self) -> None:
        """Rank 0: end after the generation in progress."""
        self._is_stopped = True

    def next_batch(self) -> Results[object]:
        """Rank 0: evaluate the next generation here and now, for a look at it; nothing goes on from that."""
        work = Work(World(self.world.library), "static", True, self.signals)  # of one rank
        executor = SerialExecutor(work, self.signals, self._reports)
        return executor.run(Generation(self.parts, self.state)).results

    def _reached(self) -> str | None:
        """Rank 0: why the run is over, or None."""
        assert self.writer
        return self.writer.stop_reason() or self.parts.algorithm.finished(self.state)

    def _announce(self, command: int, reason: str = "") -> int:
        """Every rank gets rank 0's command and, unless it is to stop, the shared arrays of its state.

        Raises RunFailedError on every rank for the command FAIL.
        """
        self._since = since = time.perf_counter()
        plan = self._shared.plan(self.state) if self.world.rank == 0 else (0, 0, 0)
        told = [command, self.state.generation, self._interrupted, *self._chunks.plan.words(), *plan]
        control = np.array(told, np.int64)
        self.world.broadcast(control)
        self._interrupted, self._plan = bool(control[2]), CutPlan.of(control[3:7].tolist())
        if control[0] == FAIL:
            raise RunFailedError(self.world.broadcast_text(reason))
        if control[0] != STOP:
            to_send, same, reshaped = map(int, control[7:10])
            state = replace(self.state, generation=int(control[1]))
            self.state = state = self._shared.without_arrays(state, bool(to_send))
            self.state = self._shared.broadcast(state, (to_send, same, reshaped))
        self._executor.clock.add("messages", since)
        return int(control[0])

    def _begin(self, evaluation_jobs: int, train: bool = True) -> Generation:
        """Begin the next generation of all ranks, with this number of evaluations of the centre."""
        return Generation(self.parts, self.state, evaluation_jobs, train, self._plan, self._executor.sharing)

    def _phase(self) -> Iterator[Row]:
        """One generation; or, of asynchronous updates, all up to the next evaluation."""
        self._trained = True
        return self._updates() if self._is_asynchronous else self._one()

    def _one(self) -> Iterator[Row]:
        """One generation of all ranks, and those that rank 0 runs alone after it."""
        evaluated = self._executor.run(self._begin(self._evaluations.due(self.state.generation)))
        self._interrupted = bool(evaluated.headers["signals"].max() > 0)
        if self.writer is not None:
            measured = self._told(evaluated, self._executor)
            yield measured
            if self._alone is not None and self._alone.is_next(False, measured, evaluated):
                yield from self._spell(self._alone)
        elif self._replicated:
            self._update(evaluated.results, self._units(evaluated))

    def _spell(self, alone: Alone) -> Iterator[Row]:
        """Rank 0: generations of its own, while the others wait for the next command."""
        goes_on = True
        while goes_on and self._decide() == RUN:
            self._since = time.perf_counter()
            self.state = replace(self.state, shared=contiguous(self.state.shared))
            evaluated = alone.run(self.state, self._evaluations.due(self.state.generation), self._chunks.plan)
            self._interrupted = bool(self.signals())
            measured = self._told(evaluated, alone.executor)
            yield measured
            goes_on = alone.is_next(True, measured, evaluated)

    def _told(self, evaluated: Evaluated, by: Executor) -> Row:
        with self._failing():
            return self._tell(evaluated, by, self._since, {})

    def _units(self, evaluated: Evaluated) -> Sequence[Arrays]:
        """Return what the problem learned in a generation."""
        problem = self.parts.problem
        return [*map(problem.unit, evaluated.learned), *problem.measured(self.state, evaluated.evaluation)]

    def _update(self, results: Results[object], units: Sequence[Arrays]) -> None:
        """The others, where each updates its state itself; what fails here fails on rank 0 too, which says so."""
        with contextlib.suppress(RunError):
            _, self.state, _ = updated(self.parts.algorithm, self.parts.problem, self.state, results, units)

    def _replay(self) -> None:
        """Compute a generation again from what it learned from, after a restart between whole checkpoints."""
        replay = self.writer.replay if self.writer else None
        packed = np.frombuffer(replay.next(self.state) if replay else b"", np.uint8)
        learned_from = LearnedFrom.unpacked(self.world.allgather(packed)[0].tobytes(), self.parts.row)
        results = self._executor.replay(self._begin(0), learned_from.rows, learned_from.probes)
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
        if self._evaluations.interval:
            evaluation = self._executor.run(self._begin(self._evaluations.jobs, train=False)).evaluation
        phase = Asynchronous(self.world, self._work, self._executor, self.parts)
        if self.writer is None:
            phase.serve_worker(self.state)
            return
        due = self._evaluations.next_after(self.state.generation)
        since = time.perf_counter()
        updates = phase.updates(lambda: self.state, lambda: self._decide() == RUN and self.state.generation < due)
        with contextlib.closing(updates):
            for update in updates:
                evaluated = replace(update.evaluated, evaluation=evaluation)
                self._interrupted = bool(self.signals() or evaluated.headers["signals"].max() > 0)
                with self._failing(updates.close):
                    staleness = {"staleness": float(update.staleness)}
                    measured = self._tell(evaluated, self._executor, since, staleness)
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

    def _tell(self, evaluated: Evaluated, by: Executor, since: float, more: Mapping[str, float]) -> Row:
        """Rank 0: the update, then what it leaves behind."""
        assert self.writer
        before, learning = self.state, time.perf_counter()
        problem, algorithm = self.parts.problem, self.parts.algorithm
        self._chunks.require_independent(evaluated)
        units = self._units(evaluated)
        after, self.state, learned = updated(algorithm, problem, before, evaluated.results, units)
        self.writer.evaluated(before, evaluated.results, evaluated.evaluation, units)
        if self.after_train_step is not None and isinstance(algorithm, GradientAlgorithm):
            self.after_train_step(algorithm.sample(evaluated.results), algorithm.losses(before, evaluated.results))
        by.clock.add("update", learning)
        measured = row(
            before.generation,
            evaluated,
            problem.episodes_per_job,
            (self.world.size, by.evaluating_ranks),
            {**learned, **problem_metrics(problem, before, self.state), **more},
            time.perf_counter() - since,
            self.writer.counters,
            self.config.report.reductions(),
            problem.is_objective,
        )
        self.writer.counters.update(used_after(self.writer.counters, measured, evaluated.results.rows))
        found = algorithm.discoveries(before, evaluated.results)
        self.writer.add(self.state, measured, before.shared if len(evaluated.evaluation) else None, found)
        self._chunks.follow(evaluated, self.state.theta.nbytes)
        for notice in self._notices.new(before.generation, algorithm.notices(before, evaluated.results, after)):
            self.writer.message(notice)
        return measured

    def _finish(self) -> None:
        """Checkpoint, then measure the last theta; a later run does not depend on this, nor does the best theta."""
        if self.writer is not None:
            self.writer.finish_triggers(whole=not self._interrupted)
        self.exit_status = INTERRUPTED if self._interrupted else 0
        if self._announce(EVALUATE if self._to_measure() else STOP) == EVALUATE:
            evaluated = self._executor.run(self._begin(self._evaluations.jobs, train=False))
            self.final = final_returns(evaluated.evaluation)
            if self.writer is not None and not self._interrupted:
                self.writer.measured_at_end(self.parts.problem.measured(self.state, evaluated.evaluation))
        if self.writer is not None:
            self._say_end(self.final)

    def _to_measure(self) -> bool:
        """Rank 0: whether there is a theta whose final evaluation is not known."""
        if self.writer is None or self.writer.replay is not None or not self._evaluations.interval:
            return False
        self.final = {} if self._trained else dict(self.writer.measured)
        return not self.final

    def _say_end(self, summary: dict[str, float]) -> None:
        assert self.writer
        reason = "a signal" if self._interrupted else self._reached() or "the caller"
        status = "interrupted" if self._interrupted else "finished"
        self.writer.status(status, exit_status=self.exit_status, reason=reason, **summary)
        text = end_message(self.config, status, reason, self.state.generation, self.writer, summary)
        self.writer.finish(text)
