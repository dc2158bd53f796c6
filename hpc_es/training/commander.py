"""What rank 0 decides: whether the run goes on, and how many jobs a generation may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_es.core.data import Results
from hpc_es.training.budget import may_be_cut
from hpc_es.training.collective import Transfer
from hpc_es.training.command import Command, Kind
from hpc_es.training.finished import FinishedGeneration
from hpc_es.training.outcomes import StoredOutcomes
from hpc_es.training.this_rank import ThisRank

if TYPE_CHECKING:
    from hpc_es.training.recorder import Recorder


class Commander:
    """Chooses what all ranks do next, on rank 0."""

    def __init__(self, rank: ThisRank, recorder: Recorder) -> None:
        self._rank, self._recorder = rank, recorder
        self._may_cut = may_be_cut(rank.config)
        # of the next generation, which was cut short before a restart
        self.stored: StoredOutcomes | None = None
        self.callers_results: Results[object] | None = None  # of the next generation, from a sample
        self.is_interrupted = self.is_stopped = False  # by a signal, by the caller
        self._is_cut = False  # a budget has cut a generation short
        self.failure = ""  # why the run has failed

    def start(self) -> None:
        """Begin with a generation that was cut short before the run was resumed, if any."""
        if self._recorder.pending is not None:
            self.stored = StoredOutcomes.unpack(
                self._recorder.pending.outcomes, self._rank.parts.row
            )

    def next(self) -> Kind:
        """Choose the next command.

        A resumed failed run gets one more generation, if its limits allow.
        """
        if self.is_interrupted or self.is_stopped:
            return Kind.STOP
        if self._recorder.replay is not None:
            return Kind.REPLAY
        if self.stored is not None:
            return Kind.RUN
        is_over = self._is_cut or self.stop_reason() is not None
        if self._rank.has_trained or is_over:
            self.failure = self._failure_reason()
            if self.failure:
                return Kind.FAIL
        return Kind.STOP if is_over else Kind.RUN if self.callers_results is None else Kind.LEARN

    def goes_on(self) -> bool:
        """Return whether the next command is another generation."""
        return self.next() is Kind.RUN

    def command(self, kind: Kind, transfer: Transfer) -> Command:
        """Return a command with what the ranks need for it."""
        return Command(
            kind=kind,
            generation=self._rank.state.generation,
            is_interrupted=self.is_interrupted,
            plan=self._rank.planner.plan,
            transfer=transfer,
            limit=self.jobs_left() if kind is Kind.RUN else None,
            stored=self.stored,
        )

    def take_results(self) -> Results[object]:
        """Return the caller's results for this generation, and forget them."""
        assert self.callers_results is not None
        results, self.callers_results = self.callers_results, None
        return results

    def note_signals(self, others: int = 0) -> None:
        """Note whether this rank or one of the others has received a signal, after a generation."""
        self.is_interrupted = bool(self._rank.signals() or others)

    def note_recorded(self, finished: FinishedGeneration) -> None:
        """Note that a generation has been recorded."""
        self.stored, self._is_cut = None, finished.evaluated.is_cut

    def stop_reason(self) -> str | None:
        """Return the limit that was reached, or why the algorithm has finished, or None."""
        return self._recorder.standing.stop_reason() or self._rank.parts.algorithm.finished(
            self._rank.state
        )

    def jobs_left(self) -> int | None:
        """Return how many jobs `stop.episodes` leaves to the next generation; None: all.

        The last job may take the run beyond the limit if it has several episodes.
        """
        if not self._may_cut:
            return None
        problem, standing = self._rank.parts.problem, self._recorder.standing
        left = standing.rule.evaluations_left(standing.counters)
        if left is not None:
            left = -(-left // problem.episodes_per_job)
        if self.stored is None:
            return left
        known = self.stored.jobs(with_evaluations=problem.is_objective)
        if self.stop_reason() is not None:  # of a limit that was lowered
            return known
        return None if left is None else max(left, known)

    def _failure_reason(self) -> str:
        """Return why `stop.failed_generations` ends the run, or "".

        An asynchronous update comes from one worker; as many updates as there are workers count as
        a generation.
        """
        rank, failed = self._rank, int(self._recorder.standing.counters["failed_generations"])
        limit, generation = rank.config.stop.failed_generations, rank.state.generation
        if limit is None or not failed:
            return ""
        is_asynchronous = rank.config.setup.needs.asynchronous is not None
        share = max(rank.world.size - 1, 1) if is_asynchronous else 1
        nothing_succeeded = failed >= generation
        if failed < share * (1 if nothing_succeeded else limit):
            return ""
        cause = f"; first failure: {rank.reports.first}" if rank.reports.first else ""
        which = (
            f"the last {failed} generations" if failed > 1 else f"generation {max(generation, 1)}"
        )
        text = f"all jobs of {which} failed{cause} (stop.failed_generations: {limit})"
        return "; ".join(filter(None, [text, self._recorder.remedy]))
