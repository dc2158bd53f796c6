"""The training loop: generations until a limit, a signal or a failure.

Every rank of a job runs the same loop. Rank 0 chooses a command (`Commander`) and broadcasts it
with the shared arrays of the state. In the phase that follows from it (`phases.py`, `delayed.py`,
`asynchronous.py`) all ranks evaluate; on rank 0 it yields generations with their updates, which are
recorded (`Recording`).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from hpc_es.config.schema import Config
from hpc_es.core.data import Results, State
from hpc_es.core.errors import INTERRUPTED, RunFailedError
from hpc_es.core.handlers import OwnProcess
from hpc_es.mpi.scheduler import GiveUp, Work
from hpc_es.mpi.world import World
from hpc_es.training.budget import budget_warning
from hpc_es.training.build import Parts
from hpc_es.training.centre_evaluation import CentreEvaluation
from hpc_es.training.collective import SharedState
from hpc_es.training.command import Command, Kind, fail, failing_everywhere
from hpc_es.training.commander import Commander
from hpc_es.training.executors import Rank0Alone, SerialExecutor
from hpc_es.training.failure import give_up, report_failure
from hpc_es.training.finished import AfterTrainStep, FinishedGeneration
from hpc_es.training.generation import Generation, MetricsRow
from hpc_es.training.phases import InStep, Learning, Phase, Replay
from hpc_es.training.this_rank import MakeExecutor, ThisRank

if TYPE_CHECKING:
    from hpc_es.training.recorder import Recorder
    from hpc_es.training.recording import Recording


class Training:
    """A run on one rank; only rank 0 has a `recorder`.

    `exit_status` and `final` are valid after the loop has ended.

    Args:
        signals: returns the number of signals received so far.
        after_train_step: of the caller; on rank 0.
        make_executor: of an executor in place of one for the ranks of the world, which then is a
            single one.
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
        after_train_step: AfterTrainStep | None = None,
        make_executor: MakeExecutor | None = None,
    ) -> None:
        self.config, self.world, self.parts, self.recorder = config, world, parts, recorder
        self._rank = rank = ThisRank(
            config,
            world,
            parts,
            signals=signals,
            recorder=recorder,
            state=state,
            make_executor=make_executor,
        )
        self._alone = Rank0Alone.from_config(config, world, parts, signals, rank.reports)
        self._shared = SharedState(world, rank.is_replicated, state)
        self._commander: Commander | None = None
        self._recording: Recording | None = None
        if recorder is not None:
            from hpc_es.training.recording import Recording

            self._commander = Commander(rank, recorder)
            self._recording = Recording(rank, recorder, after_train_step)
        self.exit_status = 0
        self.final: dict[str, float] = {}  # rank 0: results of the final evaluation

    @property
    def state(self) -> State:
        """The state after the last finished generation.

        On ranks other than 0 only its shared arrays are valid.
        """
        return self._rank.state

    def close(self) -> None:
        """End what the executor has started."""
        self._rank.executor.close()

    def check_messages(self) -> None:
        """Check for signals and requests of other ranks, while this rank waits for others."""
        self._rank.work.check_messages()

    def abort_if_hung(self) -> None:
        """Give the generation up if a chunk hangs; called after a second signal, at any point."""
        self._rank.work.abort_if_hung()
        if self._alone is not None:
            self._alone.abort_if_hung()

    def continue_without_lost_ranks(self) -> None:
        """Prepare for another call of `run` on the surviving ranks."""
        self._rank.continue_without_lost_ranks()
        self._shared.reset()
        if self.recorder is not None:
            self.recorder.message(self.world.notes[-1])

    def stop(self) -> None:
        """Rank 0: stop after the current generation."""
        if self._commander is not None:
            self._commander.is_stopped = True

    def learn_next(self, results: Results[object]) -> None:
        """Rank 0: let the next generation learn from these results instead of its jobs'."""
        assert self._commander is not None
        self._commander.callers_results = results

    def next_batch(self) -> Results[object]:
        """Rank 0: evaluate the next generation without an update; the run does not depend on it."""
        rank = self._rank
        # a world of one rank
        work = Work(World(self.world.library), "static", True, signals=rank.signals)
        return (
            SerialExecutor(work, rank.signals, rank.reports)
            .run(Generation(self.parts, rank.state))
            .results
        )

    # The loop.

    def run(self) -> Generator[MetricsRow]:
        """Yield the metrics of each generation on rank 0, nothing on other ranks.

        If the caller closes the generator early on rank 0, the others stop too.
        """
        process = OwnProcess()
        with report_failure(self.world, self.recorder):
            try:
                with contextlib.closing(self._generations()) as generations:
                    for metrics in generations:
                        try:
                            yield metrics
                        except GeneratorExit:  # not one that code of the user's raised
                            # at the end of a child that the caller has forked
                            if process.is_forked():
                                return
                            generations.close()
                            self._broadcast(Kind.STOP)
                            break
                self._finish()
            except GiveUp as reason:
                give_up(
                    self.world, self.recorder, reason, others_save=self.config.repetition_groups > 1
                )

    def _generations(self) -> Generator[MetricsRow]:
        rank = self._rank
        self._start()
        while True:
            kind = Kind.RUN if self._commander is None else self._commander.next()
            started = time.perf_counter()
            with self.world.patiently(not rank.has_trained):
                command = self._broadcast(kind)
            if command.kind is Kind.STOP:
                return
            rank.has_trained = rank.has_trained or command.kind is not Kind.REPLAY
            generations = self._phase(command.kind).generations(command, started)
            with contextlib.closing(generations):
                for finished in generations:
                    with failing_everywhere(self.world, generations.close):
                        metrics = self._record(finished)
                    del finished  # frees the state before the update
                    yield metrics

    def _start(self) -> None:
        """Show warnings on rank 0, and restore a generation that was cut short.

        This was before the run was resumed.
        """
        if self.recorder is None or self._commander is None:
            return
        used, generation = int(self.recorder.standing.counters["episodes"]), self.state.generation
        over = budget_warning(self.config, self.parts.problem, used, generation)
        for warning in filter(None, (self._rank.planner.start(self.state), over)):
            self.recorder.message(f"WARNING: {warning}")
        self._commander.start()

    def _phase(self, kind: Kind) -> Phase:
        """Return what a command asks for."""
        rank, commander = self._rank, self._commander
        if kind is Kind.REPLAY:
            return Replay(rank, commander)
        if kind is Kind.LEARN:
            return Learning(rank, commander)
        if self.parts.delay_line is not None:
            from hpc_es.training.delayed import Delayed

            return Delayed(rank, commander, self.parts.delay_line)
        if self.config.setup.needs.asynchronous is not None:
            from hpc_es.training.asynchronous import Asynchronous

            return Asynchronous(rank, commander)
        return InStep(rank, commander, self._alone)

    def _record(self, finished: FinishedGeneration) -> MetricsRow:
        assert self._commander is not None and self._recording is not None, (
            "only rank 0 finishes generations"
        )
        self._commander.note_signals(int(finished.evaluated.headers["signals"].max()))
        if finished.evaluated.is_cut:
            metrics = self._recording.add_cut(finished, self._commander.stored)
        else:
            metrics = self._recording.add(finished)
        self._commander.note_recorded(finished)
        return metrics

    def _broadcast(self, kind: Kind) -> Command:
        """Broadcast rank 0's command and, unless it ends the run, the shared arrays of its state.

        Raises RunFailedError on every rank for FAIL, which rank 0 records before the others learn
        of it.
        """
        rank, since, command, newest = self._rank, time.perf_counter(), Command(kind=kind), None
        if self._commander is not None:
            if kind is Kind.FAIL:
                self._fail(self._commander.failure)
            if kind is Kind.REPLAY and self.parts.delay_line is not None:
                newest, rank.state = rank.state, rank.drawn_around()
            command = self._commander.command(kind, self._shared.plan(rank.state))
        command = command.broadcast(self.world)
        rank.work.set_evaluators(command.plan.rank_0_evaluates)
        rank.work.plenty = math.inf if rank.closes else command.plan.plenty
        if command.kind is Kind.FAIL:
            raise RunFailedError(self.world.broadcast_text(None))
        if command.kind is not Kind.STOP:
            rank.state = replace(rank.state, generation=command.generation)
            # This frees memory for the new arrays.
            rank.state = self._shared.without_arrays(rank.state, command.transfer.to_send)
            rank.state = self._shared.broadcast(rank.state, command.transfer)
            if newest is not None:
                rank.state = newest
        rank.executor.clock.add("messages", since)
        self.exit_status = INTERRUPTED if command.is_interrupted else 0
        return command

    def _fail(self, reason: str) -> None:
        assert self.recorder is not None
        self.recorder.finish_triggers(whole=True)
        standing = self.recorder.standing
        self.recorder.finish(standing.end_message("failed", reason, self.state.generation, {}))
        self.recorder.draw_at_end()
        fail(self.world, reason)

    # The end.

    def _finish(self) -> None:
        """Save, then evaluate the last theta.

        Neither the best theta nor a resumed run depends on this evaluation.
        """
        is_interrupted = self.exit_status == INTERRUPTED
        if self.recorder is not None:
            self.recorder.finish_triggers(whole=not is_interrupted)
        with self.world.patiently():
            command = self._broadcast(
                Kind.EVALUATE if self._needs_final_evaluation() else Kind.STOP
            )
        if command.kind is Kind.EVALUATE:
            self._evaluate_at_end(command)
        needs = self.config.setup.needs
        if needs.incumbent != "one" and needs.searches == "vectors":  # few runs need it
            self._evaluate_members(is_interrupted)
        if self.recorder is None or self._commander is None:
            return
        reason = "a signal" if is_interrupted else self._commander.stop_reason() or "the caller"
        status, standing = "interrupted" if is_interrupted else "finished", self.recorder.standing
        if text := standing.noise_text(self.final):
            self.recorder.message(text)
        self.recorder.status(status, exit_status=self.exit_status, reason=reason, **self.final)
        self.recorder.finish(
            standing.end_message(status, reason, self.state.generation, self.final)
        )
        self.recorder.draw_at_end()

    def _evaluate_members(self, is_interrupted: bool) -> None:
        """Evaluate the members of a front or archive again, if results may be noisy."""
        from hpc_es.training.members_again import evaluated_again, evaluations_of_each

        each = evaluations_of_each(self.config.evaluation.members, self.parts.problem)
        if not each:
            return
        recorder, members = self.recorder, None
        if recorder is not None and not is_interrupted and recorder.replay is None:
            members = recorder.members_at_end(each)
        with self.world.patiently():
            command = self._broadcast(Kind.STOP if members is None else Kind.MEMBERS)
        if command.kind is Kind.STOP:
            return
        again = evaluated_again(self._rank, members)
        if recorder is not None and again is not None:
            recorder.add_members(again)

    def _needs_final_evaluation(self) -> bool:
        """Rank 0: return whether the final evaluation of this theta is unknown."""
        recorder = self.recorder
        if recorder is None or recorder.replay is not None:
            return False
        if not self._rank.evaluations.interval and not self._rank.has_noisy_objective:
            return False
        self.final = dict(recorder.measured)
        return not self.final

    def _evaluate_at_end(self, command: Command) -> None:
        evaluation, problem = self._rank.evaluate_centre(command).evaluation, self.parts.problem
        self.final = CentreEvaluation(evaluation, problem.episodes_per_job).final()
        if self.recorder is None:
            return
        if self.final and problem.derives_fitness:
            from hpc_es.storage.status import FINAL_IS_BEST

            self.final[FINAL_IS_BEST] = float(
                self.recorder.standing.is_better(self.state, evaluation)
            )
        if not command.is_interrupted:
            self.recorder.measured_at_end(problem.evaluation_units(self.state, evaluation))
