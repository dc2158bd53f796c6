"""What the phases of the loop use on one rank: its state, and who evaluates generations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc_es.config.schema import Config
from hpc_es.core.data import State
from hpc_es.core.interfaces import Problem
from hpc_es.mpi.scheduler import Work
from hpc_es.mpi.world import World
from hpc_es.training.build import Parts
from hpc_es.training.chunking import ChunkPlanner
from hpc_es.training.collective import FailureReports
from hpc_es.training.command import Command
from hpc_es.training.executors import Executor, MpiExecutor
from hpc_es.training.finished import FinishedGeneration, Measured, Update
from hpc_es.training.generation import Evaluated, Generation
from hpc_es.training.updates import NO_METRICS, Updates

if TYPE_CHECKING:
    from hpc_es.training.recorder import Recorder

MakeExecutor = Callable[[Work, FailureReports], Executor]


@dataclass(frozen=True)
class EvaluationSchedule:
    """Interval and number of jobs of evaluations of the centre, without noise."""

    jobs: int  # of an evaluation; 0: none is needed
    interval: int  # generations between evaluations; 0: no evaluations

    @classmethod
    def from_config(cls, config: Config, problem: Problem) -> EvaluationSchedule:
        """Return the schedule of a config; some problems determine the number of jobs."""
        jobs = (
            config.evaluation.episodes
            if problem.evaluation_episodes is None
            else problem.evaluation_episodes
        )
        return cls(jobs, config.evaluation.interval if jobs else 0)

    def due(self, generation: int) -> int:
        """Return the number of evaluation jobs in a generation."""
        return self.jobs if self.interval and generation % self.interval == 0 else 0


class ThisRank:
    """The state of a run on this rank, and what evaluates and updates it.

    Only rank 0 has a `recorder`. On ranks other than 0 only the shared arrays of `state` are valid,
    unless updates are replicated.
    """

    def __init__(
        self,
        config: Config,
        world: World,
        parts: Parts,
        *,
        signals: Callable[[], int],
        recorder: Recorder | None,
        state: State,
        make_executor: MakeExecutor | None,
    ) -> None:
        self.config, self.world, self.parts, self.recorder = config, world, parts, recorder
        self.signals, self.state = signals, state
        self.has_trained = False  # since the start of this process
        self._generation: Generation | None = None  # while it is evaluated
        self.is_replicated = (
            config.mpi.update == "replicated" and config.setup.needs.searches == "vectors"
        )
        self.closes = config.setup.offers.close_at is not None
        self.reports = FailureReports(world, recorder.failed if recorder else None)
        self.updates = Updates(parts, state, recorder)
        self.work = self._new_work()
        self.executor: Executor
        if make_executor is not None:
            self.executor = make_executor(self.work, self.reports)
        else:
            self.executor = MpiExecutor(
                world,
                self.work,
                signals,
                reports=self.reports,
                replicated=self.is_replicated,
                is_large=self.updates.overwrite,
            )
        self.evaluations = EvaluationSchedule.from_config(config, parts.problem)
        workers = None if make_executor is None else self.executor.workers
        self.planner = ChunkPlanner(config, parts, world, self.evaluations.jobs, workers)

    def _new_work(self) -> Work:
        mpi, recorder = self.config.mpi, self.recorder

        def may_close(generation: int) -> bool:
            # The jobs of a generation that is cut short are the budget: none of them is given up.
            is_cut = self._generation is not None and self._generation.is_cut
            return not is_cut and self.parts.closable().may_close(generation)

        return Work(
            self.world,
            mpi.schedule,
            mpi.master_evaluates,
            signals=self.signals,
            beat=recorder.beat if recorder else lambda: None,
            close_at=self.config.setup.offers.close_at,
            may_close=may_close,
            on_long_wait=lambda wait: (
                recorder.long_wait(wait, self.parts.task.name) if recorder else None
            ),
        )

    def mpi_executor(self) -> MpiExecutor:
        """Return the executor of a run that no other one can evaluate."""
        assert isinstance(self.executor, MpiExecutor)
        return self.executor

    def continue_without_lost_ranks(self) -> None:
        """Distribute the work of a generation that is repeated on the surviving ranks."""
        self.work = self._new_work()
        self.mpi_executor().continue_with(self.work)

    def drawn_around(self) -> State:
        """Rank 0: return the state that the next generation is drawn around.

        With a delay it is an earlier one.
        """
        line = self.parts.delay_line
        return self.state if line is None else line.drawn_around(self.state, self.state.generation)

    # One generation.

    def evaluate(self, command: Command, jobs: int) -> Evaluated:
        """Evaluate the next generation on all ranks, with so many jobs that evaluate the centre."""
        plan, limit, stored = command.plan, command.limit, command.stored
        self._generation = Generation(
            self.parts, self.state, jobs, plan=plan, limit=limit, stored=stored
        )
        evaluated = self.executor.run(self._generation)
        self._generation = None  # frees memory: it has the state before the update
        return evaluated

    def evaluate_centre(self, command: Command) -> Evaluated:
        """Evaluate the centre on all ranks, without a training job."""
        return self.executor.run(
            Generation(self.parts, self.state, self.final_jobs, False, command.plan)
        )

    @property
    def final_jobs(self) -> int:
        """Jobs of an evaluation of the centre alone: more than usual if noise was measured."""
        if self.has_noisy_objective:
            return self.config.evaluation.evaluations
        return self.evaluations.jobs

    @property
    def has_noisy_objective(self) -> bool:
        """Whether noise was measured on an objective."""
        is_objective = self.parts.problem.is_objective
        return is_objective and self.config.setup.has_noise(self.state.shared)

    def finish(
        self,
        evaluated: Evaluated,
        started: float,
        executor: Executor,
        *,
        metrics: Mapping[str, float] = NO_METRICS,
    ) -> FinishedGeneration:
        """Rank 0: update the state by a generation that was drawn from it.

        There is no update if a budget has cut it short.
        """
        before, since, updates = self.state, time.perf_counter(), self.updates
        if evaluated.is_cut:
            return self._finish_cut(evaluated, started, executor)
        measured = self.look_before_update(before, before, evaluated)
        update = updates.update(before, evaluated.results, updates.units(evaluated, before))
        self.state = update.state
        executor.clock.add("update", since)
        return self.finished(
            before, measured, evaluated, update, started=started, executor=executor, metrics=metrics
        )

    def _finish_cut(
        self, evaluated: Evaluated, started: float, executor: Executor
    ) -> FinishedGeneration:
        self._require_independent(evaluated)
        before = self.state
        update = self.updates.found(
            before, evaluated.results, self.updates.units(evaluated, before)
        )
        measured = self._keep(before, evaluated, is_overwritten=False)
        return FinishedGeneration(
            before=before,
            measured=measured,
            evaluated=evaluated,
            update=update,
            started=started,
            workers=(self.executor.workers, len(executor.evaluators)),
            metrics={"skipped_update": 1.0},
        )

    def look_before_update(self, before: State, measured: State, evaluated: Evaluated) -> Measured:
        """Rank 0: check a generation, and keep what is needed of its states.

        They are overwritten after this. The generation was drawn before the update of `before`; its
        evaluation measured the other state.
        """
        self._require_independent(evaluated)
        if before.generation in self.work.closed:
            self.parts.closable().close_generation(before.generation, evaluated.results.rows)
        self.planner.add_durations(before, evaluated.job_seconds)
        return self._keep(measured, evaluated, is_overwritten=self.updates.overwrite)

    def finished(
        self,
        before: State,
        measured: Measured,
        evaluated: Evaluated,
        update: Update,
        *,
        started: float,
        executor: Executor,
        metrics: Mapping[str, float] = NO_METRICS,
    ) -> FinishedGeneration:
        """Rank 0: return a generation with its update."""
        given_up = (
            {"given_up_jobs": float(evaluated.headers["given_up"].sum())} if self.closes else {}
        )
        return FinishedGeneration(
            before=before,
            measured=measured,
            evaluated=evaluated,
            update=update,
            started=started,
            workers=(self.executor.workers, len(executor.evaluators)),
            metrics={**metrics, **given_up},
        )

    def _require_independent(self, evaluated: Evaluated) -> None:
        self.planner.require_independent(int(evaluated.headers["mixed"].sum()))

    def _keep(self, measured: State, evaluated: Evaluated, is_overwritten: bool) -> Measured:
        assert self.recorder is not None, "only rank 0 finishes generations"
        return self.recorder.keep(measured, evaluated.evaluation, is_overwritten)
