"""The training loop: generations until a limit, a signal or a failure; every rank of a job runs the same loop.

Rank 0 chooses a command (`_next_command`) and broadcasts it with the shared arrays of the state (`_broadcast_command`).
`_generation` then evaluates one generation on all ranks, and rank 0 completes it: update, metrics, logs, checkpoint
(`_complete`).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hpc_es.algorithms.common.delay import DelayLine, without_earlier
from hpc_es.config.schema import Config
from hpc_es.core.data import Arrays, JsonObject, Results, State
from hpc_es.core.errors import RunError, RunFailedError
from hpc_es.core.handlers import OwnProcess
from hpc_es.core.interfaces import GradientAlgorithm, Problem, RecordingAlgorithm
from hpc_es.core.machine import return_freed_memory
from hpc_es.mpi.scheduler import GiveUp, Work
from hpc_es.mpi.world import World
from hpc_es.training.budget import budget_warning, may_be_cut
from hpc_es.training.build import Parts
from hpc_es.training.chunking import ChunkPlanner
from hpc_es.training.collective import INTERRUPTED, FailureReports, SharedState, contiguous
from hpc_es.training.command import Command, Kind
from hpc_es.training.executors import Executor, MpiExecutor, Rank0Alone, SerialExecutor
from hpc_es.training.failure import give_up, report_failure
from hpc_es.training.found import CentreEvaluation
from hpc_es.training.generation import (
    Evaluated,
    Generation,
    MetricsRow,
    Update,
    UpdateInputs,
    counters_after,
    metrics_row,
    problem_metrics,
    update_state,
)
from hpc_es.training.messages import HEADER
from hpc_es.training.outcomes import StoredOutcomes
from hpc_es.training.recorder import Notices

if TYPE_CHECKING:
    from hpc_es.core.rank_output import RankLog
    from hpc_es.training.profiler import Profiler
    from hpc_es.training.recorder import Recorder

AfterTrainStep = Callable[[Arrays, Mapping[str, float]], object]  # called with (sample, loss)

NOTHING_FOUND: Sequence[JsonObject] = ()
OVERWRITTEN = 1 << 22  # parameters of theta from which updates overwrite theta and the optimizer's slots


@dataclass(frozen=True)
class EvaluationSchedule:
    """Interval and number of jobs of evaluations of the centre, without noise."""

    jobs: int  # of an evaluation; 0: none is needed
    interval: int  # generations between evaluations; 0: no evaluations

    @classmethod
    def from_config(cls, config: Config, problem: Problem) -> EvaluationSchedule:
        """Return the schedule of a config; some problems determine the number of jobs."""
        jobs = config.evaluation.episodes if problem.evaluation_episodes is None else problem.evaluation_episodes
        return cls(jobs, config.evaluation.interval if jobs else 0)

    def due(self, generation: int) -> int:
        """Return the number of evaluation jobs in a generation."""
        return self.jobs if self.interval and generation % self.interval == 0 else 0


@dataclass
class Training:
    """A run on one rank; only rank 0 has a `writer`. `exit_status` is valid after the loop has ended."""

    config: Config
    world: World
    parts: Parts
    signals: Callable[[], int]  # number of signals received so far
    writer: Recorder | None
    state: State
    exit_status: int = 0
    after_train_step: AfterTrainStep | None = None  # of the caller; on rank 0
    profiler: Profiler | None = None  # with `report.profile`
    rank_log: RankLog | None = None  # with `report.rank_logs`
    # In place of one for the ranks of the world, which then is a single one.
    make_executor: Callable[[Work, FailureReports], Executor] | None = None

    def __post_init__(self) -> None:
        self._generation_now: Generation | None = None  # while it is evaluated
        self._work = self._new_work()
        self._replicated = self.config.mpi.update == "replicated" and self.config.setup.needs.searches == "vectors"
        self._reports = FailureReports(self.world, self.writer.failed if self.writer else None)
        self.overwrites = self.state.theta.size >= OVERWRITTEN and self.parts.delay_line is None
        self._executor = self._new_executor()
        self._is_asynchronous = self.config.setup.needs.asynchronous is not None
        self._evaluations = EvaluationSchedule.from_config(self.config, self.parts.problem)
        self._closes = self.config.setup.offers.close_at is not None
        workers = self._executor.workers if self.make_executor is not None else None
        self._planner = ChunkPlanner(self.config, self.parts, self.world, self._evaluations.jobs, workers)
        self._command = Command(kind=Kind.RUN)  # the last one
        self._shared = SharedState(self.world, self._replicated, self.state)
        self._alone = Rank0Alone.from_config(self.config, self.world, self.parts, self.signals, self._reports)
        for executor in (self._executor, *([self._alone.executor] if self._alone else [])):
            executor.profiler, executor.rank_log = self.profiler, self.rank_log
        self._info_keys = list(self.config.report.reductions())
        self._interrupted = self._trained = self._is_stopped = False
        self._is_updated = self._is_cut = False  # rank 0: the state is new; a budget has cut a generation short
        self._stored: StoredOutcomes | None = None  # of the next generation, which was cut short before a restart
        self._may_cut = may_be_cut(self.config)
        self._started = 0.0  # when the current generation, including its command, started
        self._notices = Notices()
        self._failure = ""  # rank 0: why the run has failed
        self.final: dict[str, float] = {}  # rank 0: results of the final evaluation
        self.callers_results: Results[object] | None = None  # rank 0: of the next generation, from a sample

    def _new_executor(self) -> Executor:
        if self.make_executor is not None:
            return self.make_executor(self._work, self._reports)
        return MpiExecutor(self.world, self._work, self.signals, self._reports, self._replicated, self.overwrites)

    def _on_ranks(self) -> MpiExecutor:
        """Return the executor of a run that no other one can evaluate."""
        assert isinstance(self._executor, MpiExecutor)
        return self._executor

    def close(self) -> None:
        """End what the executor has started."""
        self._executor.close()

    def _new_work(self) -> Work:
        mpi = self.config.mpi
        beat = self.writer.beat if self.writer else lambda: None

        def may_close(generation: int) -> bool:
            # The jobs of a generation that is cut short are the budget: none of them is given up.
            is_cut = self._generation_now is not None and self._generation_now.is_cut
            return not is_cut and self.parts.closable().may_close(generation)

        return Work(
            self.world,
            mpi.schedule,
            mpi.master_evaluates,
            self.signals,
            beat,
            self.config.setup.offers.close_at,
            may_close,
            on_long_wait=lambda wait: self.writer.long_wait(wait, self.parts.task.name) if self.writer else None,
        )

    def check_messages(self) -> None:
        """Check for signals and requests of other ranks; called while this rank waits for others."""
        self._work.check_messages()

    def abort_if_hung(self) -> None:
        """Give the generation up if a chunk hangs; called after a second signal, at any point."""
        self._work.abort_if_hung()
        if self._alone is not None:
            self._alone.abort_if_hung()

    def continue_without_lost_ranks(self) -> None:
        """Prepare for another call of `run` on the surviving ranks."""
        self._work = self._new_work()
        self._on_ranks().continue_with(self._work)
        self._shared.reset()
        if self.writer is not None:
            self.writer.message(self.world.notes[-1])

    def stop(self) -> None:
        """Rank 0: stop after the current generation."""
        self._is_stopped = True

    def next_batch(self) -> Results[object]:
        """Rank 0: evaluate the next generation without an update; the run does not depend on it."""
        work = Work(World(self.world.library), "static", True, self.signals)  # a world of one rank
        executor = SerialExecutor(work, self.signals, self._reports)
        return executor.run(Generation(self.parts, self.state)).results

    # The loop.

    def run(self) -> Generator[MetricsRow]:
        """Yield the metrics of each generation on rank 0, nothing on other ranks.

        If the caller closes the generator early on rank 0, the others stop too.
        """
        process = OwnProcess()
        with report_failure(self.world, self.writer):
            try:
                with contextlib.closing(self._generations()) as generations:
                    for metrics in generations:
                        try:
                            yield metrics
                        except GeneratorExit:  # not one that code of the user's raised
                            if process.is_forked():  # at the end of a child that the caller has forked
                                return
                            generations.close()
                            self._broadcast_command(Kind.STOP)
                            break
                self._finish()
            except GiveUp as reason:
                give_up(self.world, self.writer, reason, others_save=self.config.repetition_groups > 1)

    def _generations(self) -> Generator[MetricsRow]:
        if self.writer is not None:
            used, generation = int(self.writer.standing.counters["episodes"]), self.state.generation
            over = budget_warning(self.config, self.parts.problem, used, generation)
            for warning in filter(None, (self._planner.start(self.state), over)):
                self.writer.message(f"WARNING: {warning}")
        if self.writer is not None and self.writer.pending is not None:
            self._stored = StoredOutcomes.unpack(self.writer.pending.outcomes, self.parts.row)
        while True:
            command = self._next_command()
            if command is Kind.FAIL and self.writer is not None:  # saved before the others learn of it
                self.writer.finish_triggers(whole=True)
                self.writer.finish(self.writer.standing.end_message("failed", self._failure, self.state.generation, {}))
            with self.world.patiently(not self._trained):
                command = self._broadcast_command(command)
            if command is Kind.REPLAY:
                self._replay()
            elif command is Kind.LEARN:
                self._trained = True
                yield from self._learn_from_caller()
            elif command is Kind.RUN:
                self._trained = True
                if self.parts.delay_line is not None:
                    yield from self._delayed_generations(self.parts.delay_line)
                else:
                    yield from self._asynchronous_updates() if self._is_asynchronous else self._generation()
            else:
                return

    def _next_command(self) -> Kind:
        """Rank 0: choose the next command. A resumed failed run gets one more generation, if its limits allow."""
        if self.writer is None:
            return Kind.RUN
        if self._interrupted or self._is_stopped:
            return Kind.STOP
        if self.writer.replay is not None:
            return Kind.REPLAY
        if self._stored is not None:
            return Kind.RUN
        is_over = self._is_cut or self._stop_reason() is not None
        if self._trained or is_over:
            self._failure = self._failure_reason()
            if self._failure:
                return Kind.FAIL
        return Kind.STOP if is_over else Kind.RUN if self.callers_results is None else Kind.LEARN

    def _stop_reason(self) -> str | None:
        """Rank 0: return the limit that was reached, or why the algorithm has finished, or None."""
        assert self.writer
        return self.writer.standing.stop_reason() or self.parts.algorithm.finished(self.state)

    def _failure_reason(self) -> str:
        """Rank 0: return why `stop.failed_generations` ends the run, or "".

        An asynchronous update comes from one worker; as many updates as there are workers count as a generation.
        """
        assert self.writer
        limit, failed = self.config.stop.failed_generations, int(self.writer.standing.counters["failed_generations"])
        if limit is None or not failed:
            return ""
        share = max(self.world.size - 1, 1) if self._is_asynchronous else 1
        nothing_succeeded = failed >= self.state.generation
        if failed < share * (1 if nothing_succeeded else limit):
            return ""
        cause = f"; first failure: {self._reports.first}" if self._reports.first else ""
        which = f"the last {failed} generations" if failed > 1 else f"generation {max(self.state.generation, 1)}"
        text = f"all jobs of {which} failed{cause} (stop.failed_generations: {limit})"
        return "; ".join(filter(None, [text, self.writer.remedy]))

    def _broadcast_command(self, kind: Kind, reason: str = "") -> Kind:
        """Broadcast rank 0's command and, unless it ends the run, the shared arrays of its state.

        Raises RunFailedError on every rank for FAIL.
        """
        self._started = time.perf_counter()
        newest, replays_earlier = self.state, kind is Kind.REPLAY and self.parts.delay_line is not None
        if self.world.rank == 0 and replays_earlier:
            self.state = self._drawn_around()
        command = self._command = self._decided(kind).broadcast(self.world)
        self._interrupted, self._stored = command.is_interrupted, command.stored
        self._work.set_evaluators(command.plan.rank_0_evaluates)
        # With an order, no job waits for a long one on the same rank.
        self._work.assigns_ahead = not (command.plan.order or self._closes)
        if command.kind is Kind.FAIL:
            raise RunFailedError(self.world.broadcast_text(reason or self._failure))
        if command.kind is not Kind.STOP:
            self.state = replace(self.state, generation=command.generation)
            # This frees memory for the new arrays.
            self.state = self._shared.without_arrays(self.state, command.transfer.to_send)
            self.state = self._shared.broadcast(self.state, command.transfer)
            if self.world.rank == 0 and replays_earlier:
                self.state = newest
        self._executor.clock.add("messages", self._started)
        return command.kind

    def _decided(self, kind: Kind) -> Command:
        """Return the command with what only rank 0 knows; that of other ranks is not used."""
        if self.world.rank:
            return Command(kind=kind)
        return Command(
            kind=kind,
            generation=self.state.generation,
            is_interrupted=self._interrupted,
            plan=self._planner.plan,
            transfer=self._shared.plan(self.state),
            limit=self._jobs_left() if kind is Kind.RUN else None,
            stored=self._stored,
        )

    # One generation.

    def _jobs_left(self) -> int | None:
        """Rank 0: return the number of jobs that `stop.episodes` leaves to the next generation; None: all of them.

        The last job may take the run beyond the limit if it has several episodes.
        """
        assert self.writer
        if not self._may_cut:
            return None
        standing = self.writer.standing
        left = standing.rule.evaluations_left(standing.counters)
        if left is not None:
            left = -(-left // self.parts.problem.episodes_per_job)
        if self._stored is None:
            return left
        known = self._stored.jobs(with_evaluations=self.parts.problem.is_objective)
        if self._stop_reason() is not None:  # of a limit that was lowered
            return known
        return None if left is None else max(left, known)

    def _drawn_around(self) -> State:
        """Rank 0: return the state that the next generation is drawn around, which with a delay is an earlier one."""
        line = self.parts.delay_line
        return self.state if line is None else line.drawn_around(self.state, self.state.generation)

    def _new_generation(self, evaluation_jobs: int, train: bool = True) -> Generation:
        state = self._drawn_around() if train and self.world.rank == 0 else self.state
        limit, stored = (self._command.limit, self._stored) if train else (None, None)
        return Generation(self.parts, state, evaluation_jobs, train, self._command.plan, limit=limit, stored=stored)

    def _generation(self) -> Iterator[MetricsRow]:
        """Run one generation on all ranks, and perhaps some on rank 0 alone after it."""
        self._generation_now = self._new_generation(self._evaluations.due(self.state.generation))
        evaluated = self._executor.run(self._generation_now)
        self._generation_now = None  # frees memory: it has the state before the update
        self._interrupted = bool(evaluated.headers["signals"].max() > 0)
        if self.writer is None:
            if self._replicated and not evaluated.is_cut:
                self._update(evaluated.results, self._units(evaluated, self.state))
            return
        with self._failing_everywhere():
            metrics = self._complete(evaluated, self._executor, self._started)
        yield metrics
        alone = self._alone
        if alone is None or evaluated.is_cut or not alone.is_next(False, metrics, evaluated):
            return
        while self._next_command() is Kind.RUN:
            self._started = time.perf_counter()
            self.state = replace(self.state, shared=contiguous(self.state.shared))
            evaluation_jobs = self._evaluations.due(self.state.generation)
            evaluated = alone.run(self.state, evaluation_jobs, self._planner.plan, self._jobs_left())
            self._interrupted = bool(self.signals())
            with self._failing_everywhere():
                metrics = self._complete(evaluated, alone.executor, self._started)
            yield metrics
            if not alone.is_next(True, metrics, evaluated):
                return

    def _learn_from_caller(self) -> Iterator[MetricsRow]:
        """Run one generation with `callers_results` in place of its jobs; all ranks evaluate if it is due."""
        evaluation = np.zeros(0, self.parts.row)
        if due := self._evaluations.due(self.state.generation):
            evaluation = self._executor.run(self._new_generation(due, train=False)).evaluation
        if self.writer is None:
            return
        assert self.callers_results is not None
        results, self.callers_results = self.callers_results, None
        self._interrupted = bool(self.signals())
        with self._failing_everywhere():
            evaluated = Evaluated(np.zeros(self.world.size, HEADER), results, evaluation)
            metrics = self._complete(evaluated, self._executor, self._started)
        yield metrics

    def _units(self, evaluated: Evaluated, measured: State) -> Sequence[Arrays]:
        """Return the updates of the problem's state in a generation, by unit."""
        problem = self.parts.problem
        return [*map(problem.unit, evaluated.learned), *problem.evaluation_units(measured, evaluated.evaluation)]

    def _updated(self, before: State, results: Results[object], units: Sequence[Arrays]) -> Update:
        """Rank 0: return `update_state` of a state, with the earlier states of a delay line."""
        assert self.writer
        line, algorithm, problem = self.parts.delay_line, self.parts.algorithm, self.parts.problem
        if line is None:
            results = self._overwriting(results)
            self.writer.state_is_whole = not self.overwrites
            update = Update(units, *update_state(algorithm, problem, before, results, units))
            self.writer.state_is_whole = True
            return update
        after, merged, metrics = update_state(algorithm, problem, without_earlier(before), results, units)
        return Update(units, after, line.advance(before, merged), metrics)

    def _complete(
        self,
        evaluated: Evaluated,
        executor: Executor,
        started: float,
        more_metrics: Mapping[str, float] | None = None,
        measured: State | None = None,
        update: Update | None = None,
    ) -> MetricsRow:
        """Rank 0: update the state, record the generation and return its metrics.

        `measured` is the state that its evaluation measured, by default the one before the update. `update` is the
        update if it is known.
        """
        assert self.writer
        if evaluated.is_cut:
            return self._record_cut(evaluated, executor, started)
        before, update_started = self.state, time.perf_counter()
        measured = measured or before
        problem, algorithm, results = self.parts.problem, self.parts.algorithm, evaluated.results
        self._planner.require_independent(int(evaluated.headers["mixed"].sum()))
        if before.generation in self._work.closed:
            self.parts.closable().close_generation(before.generation, results.rows)
        if self._closes:
            more_metrics = {**(more_metrics or {}), "given_up_jobs": float(evaluated.headers["given_up"].sum())}
        units = update.units if update else self._units(evaluated, measured)
        self.writer.evaluated(measured, results, evaluated.evaluation, units)  # before arrays are overwritten
        self._planner.add_durations(before, evaluated.job_seconds)  # likewise
        update = update or self._updated(before, results, units)
        self.state, self._is_updated, self._stored = update.state, True, None
        if self.after_train_step is not None and isinstance(algorithm, GradientAlgorithm):
            sample = {**algorithm.sample(results), "gradient": algorithm.gradient(before, results)}
            self.after_train_step(sample, algorithm.losses(before, results))
        executor.clock.add("update", update_started)
        metrics = metrics_row(
            problem,
            before,
            self.state,
            evaluated,
            {**update.metrics, **problem_metrics(problem, before, self.state), **(more_metrics or {})},
            self.writer.standing.counters,
            (self._executor.workers, len(executor.evaluators)),
            time.perf_counter() - started,
            self._info_keys,
        )
        self.writer.standing.count(metrics, counters_after(self.writer.standing.counters, metrics, results.rows))
        self.writer.add(self.state, metrics, algorithm.solutions(before, results))
        self._planner.update(results.rows, evaluated.evaluation, evaluated.chunk_times)
        self._planner.order(self.state)
        for line in self._notices.new(before.generation, algorithm.notices(before, results, update.after)):
            self.writer.message(line)
        return metrics

    def _record_cut(self, evaluated: Evaluated, executor: Executor, started: float) -> MetricsRow:
        """Rank 0: record a generation that a budget has cut short, without an update, and return its metrics.

        The state after it has what the jobs have found, such as the best vector, for reports only: a run whose budget
        is raised completes the generation from the state before it and from the stored outcomes.
        """
        assert self.writer and evaluated.outcomes is not None
        before, problem, results = self.state, self.parts.problem, evaluated.results
        self._planner.require_independent(int(evaluated.headers["mixed"].sum()))
        units = self._units(evaluated, before)
        algorithm, found, solutions = self.parts.algorithm, before, NOTHING_FOUND
        metrics: Mapping[str, float] = {}
        if len(results.rows):
            solutions = algorithm.solutions(before, results)
            if isinstance(algorithm, RecordingAlgorithm):
                found, metrics = algorithm.recorded(before, results)
        after = problem.merge(problem.carried().extract_from(before), units).merge_into(found)
        is_new = self._stored is None or list(self._stored.chunks) != list(evaluated.outcomes.chunks)
        failed = int(self.writer.standing.counters["failed_generations"])
        has_succeeded = bool(np.isfinite(results.rows["return_"]).any())
        nothing_succeeded = len(results.rows) > 0 and not has_succeeded and failed >= before.generation
        # Failures that end the run are repeated by the same command.
        self.writer.begin_cut(StoredOutcomes([]) if nothing_succeeded else evaluated.outcomes)
        self.writer.evaluated(before, results, evaluated.evaluation, units)
        row = metrics_row(
            problem,
            before,
            after,
            evaluated,
            {**metrics, **problem_metrics(problem, before, after), "skipped_update": 1.0},
            self.writer.standing.counters,
            (self._executor.workers, len(executor.evaluators)),
            time.perf_counter() - started,
            self._info_keys,
        )
        counters = counters_after(self.writer.standing.counters, row, results.rows)
        if not (has_succeeded or nothing_succeeded):  # the few jobs that are left say little
            counters["failed_generations"] = failed
        self.writer.standing.count(row, counters)
        self.writer.add_cut(before, after, row, solutions, is_new)
        if is_new:
            self.writer.message(
                f"generation {before.generation + 1}: stop.episodes: {self.config.stop.episodes} leaves "
                f"{row['episodes_this_generation']} {self.writer.standing.jobs_name}, so it makes no update"
            )
        self._stored, self._is_cut, self._is_updated = None, True, is_new
        return row

    def _update(self, results: Results[object], units: Sequence[Arrays]) -> None:
        """Ranks other than 0 in a replicated update; rank 0 has the same RunError and reports it."""
        since = time.perf_counter()
        with contextlib.suppress(RunError):
            results = self._overwriting(results)
            _, self.state, _ = update_state(self.parts.algorithm, self.parts.problem, self.state, results, units)
        self._executor.clock.add("update", since)

    def _overwriting(self, results: Results[object]) -> Results[object]:
        """Allow the update to overwrite the state if theta is large, after the memory of candidates was returned."""
        if not self.overwrites:
            return results
        return_freed_memory()
        return replace(results, overwrite=True)

    @contextlib.contextmanager
    def _failing_everywhere(self, before: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Rank 0: make a RunError in here, such as a full disk, end all ranks, which wait for the next command."""
        try:
            yield
        except RunError as error:
            before()
            self._broadcast_command(Kind.FAIL, str(error))
            raise

    def _replay(self) -> None:
        """Compute the next update since the last full checkpoint again, from its stored inputs, after a restart."""
        replay = self.writer.replay if self.writer else None
        packed = np.zeros(0, np.uint8)
        if replay is not None:
            line, number = self.parts.delay_line, self.state.generation
            measured = self.state if line is None else line.measured(self.state, number)
            packed = np.frombuffer(replay.next(self.state, measured), np.uint8)
        inputs = UpdateInputs.unpack(self.world.allgather(packed)[0].tobytes(), self.parts.row)
        results = self._executor.replay(self._new_generation(0), inputs.rows, inputs.probes)
        if replay is None or self.writer is None:
            if self._replicated:
                self._update(results, inputs.units)
            return
        with self._failing_everywhere():
            self.state = self._updated(self.state, results, inputs.units).state
            if not replay.is_due(self.state):
                self.writer.replayed(self.state)
        self._interrupted = bool(self.signals())

    def _asynchronous_updates(self) -> Iterator[MetricsRow]:
        """Run asynchronous updates until the next evaluation is due."""
        from hpc_es.training.asynchronous import AsynchronousPhase

        evaluation = np.zeros(0, self.parts.row)
        if self._evaluations.interval:
            evaluation = self._executor.run(self._new_generation(self._evaluations.jobs, train=False)).evaluation
        phase = AsynchronousPhase(self.world, self._work, self._on_ranks(), self.parts)
        if self.writer is None:
            phase.serve_worker(self.state)
            return
        interval = self._evaluations.interval
        due = (self.state.generation // interval + 1) * interval if interval else math.inf  # the next evaluation
        started = time.perf_counter()

        def goes_on() -> bool:
            return self._next_command() is Kind.RUN and self.state.generation < due

        updates = phase.updates(lambda: self.state, goes_on)
        with contextlib.closing(updates):
            for update in updates:
                evaluated = replace(update.evaluated, evaluation=evaluation)
                self._interrupted = bool(self.signals() or evaluated.headers["signals"].max() > 0)
                with self._failing_everywhere(updates.close):
                    staleness = {"staleness": float(update.staleness)}
                    metrics = self._complete(evaluated, self._executor, started, staleness)
                yield metrics
                started, evaluation = time.perf_counter(), evaluation[:0]
                if self._next_command() is not Kind.RUN:
                    break

    def _delayed_generations(self, line: DelayLine) -> Iterator[MetricsRow]:
        """Run generations, several of them at the same time, until the run ends."""
        from hpc_es.training.delayed import DelayedPhase

        phase = DelayedPhase(self.world, self._work, self._on_ranks(), self.parts, line)
        if self.writer is None:
            phase.serve_worker(self.state.master)
            return
        last = self.config.stop.generations
        generations = phase.generations(
            self.state,
            lambda before, evaluated, measured: self._updated(
                before, evaluated.results, self._units(evaluated, measured)
            ),
            lambda number: last is None or number < last,
            self._evaluations.due,
            lambda: self._planner.plan,
        )
        started = self._started
        with contextlib.closing(generations):
            for finished in generations:
                evaluated = finished.evaluated
                self._interrupted = bool(self.signals() or evaluated.headers["signals"].max() > 0)
                with self._failing_everywhere(generations.close):
                    metrics = self._complete(
                        evaluated, self._executor, started, measured=finished.measured, update=finished.update
                    )
                yield metrics
                started = time.perf_counter()
                if self._next_command() is not Kind.RUN:
                    break

    # The end.

    def _finish(self) -> None:
        """Save, then evaluate the last theta; neither the best theta nor a resumed run depends on this evaluation."""
        if self.writer is not None:
            self.writer.finish_triggers(whole=not self._interrupted)
        self.exit_status = INTERRUPTED if self._interrupted else 0
        with self.world.patiently():
            command = self._broadcast_command(Kind.EVALUATE if self._needs_final_evaluation() else Kind.STOP)
        if command is Kind.EVALUATE:
            evaluated = self._executor.run(self._new_generation(self._evaluations.jobs, train=False))
            self.final = CentreEvaluation(evaluated.evaluation, self.parts.problem.episodes_per_job).final()
            if self.writer is not None and self.final and self.parts.problem.derives_fitness:
                from hpc_es.storage.status import FINAL_IS_BEST

                self.final[FINAL_IS_BEST] = float(self.writer.standing.is_better(self.state, evaluated.evaluation))
            if self.writer is not None and not self._interrupted:
                self.writer.measured_at_end(self.parts.problem.evaluation_units(self.state, evaluated.evaluation))
        if self.profiler is not None:
            self.profiler.write(self.writer.message if self.writer else lambda text: None)
        if self.writer is None:
            return
        reason = "a signal" if self._interrupted else self._stop_reason() or "the caller"
        status = "interrupted" if self._interrupted else "finished"
        self.writer.status(status, exit_status=self.exit_status, reason=reason, **self.final)
        self.writer.finish(self.writer.standing.end_message(status, reason, self.state.generation, self.final))

    def _needs_final_evaluation(self) -> bool:
        """Rank 0: return whether the final evaluation of this theta is unknown."""
        if self.writer is None or self.writer.replay is not None or not self._evaluations.interval:
            return False
        self.final = {} if self._is_updated else dict(self.writer.measured)
        return not self.final
