"""What rank 0 records of a run: `RunWriter` writes a run directory, `MemoryRecorder` nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from hpc_es.core.data import Arrays, JsonObject, Rows, State
from hpc_es.core.streams import say_error
from hpc_es.training.collective import FailureReport
from hpc_es.training.finished import FinishedGeneration, Measured
from hpc_es.training.generation import Counters, MetricsRow
from hpc_es.training.standing import Standing

if TYPE_CHECKING:
    from hpc_es.core.elites import Elites
    from hpc_es.mpi.waiting import LongWait
    from hpc_es.storage.checkpoint import CutShort
    from hpc_es.storage.members import Again
    from hpc_es.training.journal import UpdateReplay
    from hpc_es.training.outcomes import StoredOutcomes

QUIET_GENERATIONS = 100  # for which a repeated notice is suppressed


class Recorder(Protocol):
    """What the training loop needs on rank 0."""

    standing: Standing
    state_is_whole: bool  # False while an update overwrites the state, and if it failed

    @property
    def replay(self) -> UpdateReplay | None:
        """Updates to compute again before the first new generation."""
        ...

    @property
    def pending(self) -> CutShort | None:
        """The next generation, if a budget cut it short before the run was resumed."""
        ...

    @property
    def measured(self) -> Mapping[str, float]:
        """Results of a final evaluation of this state, before the run was resumed."""
        ...

    @property
    def remedy(self) -> str:
        """What a user can do after a failed run, or ""."""
        ...

    # A generation.

    def keep(self, measured: State, evaluation: Rows, is_overwritten: bool) -> Measured:
        """Return the state that an evaluation measured, for `add`.

        It has copies of arrays that would change until then. Called before the update, which
        overwrites the state if `is_overwritten`.
        """
        ...

    def add(
        self, finished: FinishedGeneration, row: MetricsRow, solutions: Sequence[JsonObject]
    ) -> None:
        """Record a finished generation with its metrics and new correct programs.

        `standing` counts them already.
        """
        ...

    def add_cut(
        self,
        finished: FinishedGeneration,
        row: MetricsRow,
        solutions: Sequence[JsonObject],
        *,
        outcomes: StoredOutcomes,
        counters: Counters,
        is_new: bool,
    ) -> None:
        """Record a generation that a budget has cut short (see `add`).

        Args:
            outcomes: from which a run with a larger budget completes it.
            counters: before it.
            is_new: whether jobs were evaluated, and not all recalled from a checkpoint.
        """
        ...

    def replayed(self, state: State) -> None:
        """Continue from this state, the result of `replay`."""
        ...

    def failed(self, report: FailureReport) -> None:
        """Report the first failed job of a kind."""
        ...

    def beat(self) -> None:
        """Show that the run is alive; called often, also between the steps of an evaluation."""
        ...

    def long_wait(self, wait: LongWait, task: str) -> None:
        """Report that no evaluation of the task has finished for long."""
        ...

    def message(self, text: str) -> None:
        """Show a line to the user, if there is a log."""
        ...

    # The end.

    def finish_triggers(self, whole: bool) -> None:
        """Do what is due at the end of a run; with `whole` the last checkpoint must be whole."""
        ...

    def draw_at_end(self) -> None:
        """Draw the learning curve of a run that has ended."""
        ...

    def save(self) -> object:
        """Write a checkpoint of the last finished generation."""
        ...

    def measured_at_end(self, units: Sequence[Arrays]) -> None:
        """Add what the problem learned from the final evaluation."""
        ...

    def members_at_end(self, each: int) -> Elites | None:
        """Return the members to evaluate again; None: there are none, or the means of `each`
        evaluations are known.
        """
        ...

    def add_members(self, again: Again) -> None:
        """Record what the members returned again."""
        ...

    def status(self, state: str, **more: object) -> None:
        """Record that the run is running, finished, interrupted or failed, and why."""
        ...

    def finish(self, text: str) -> None:
        """Show the last line of the run."""
        ...

    def close(self) -> None:
        """Close files and release the directory."""
        ...


class ShowsProgress(Protocol):
    """Shows the rows and messages of a run."""

    def update(self, row: MetricsRow, *, is_noisy: bool) -> None:
        """Take the row of a generation; see `Progress`."""
        ...

    def message(self, text: str) -> None:
        """Show a message."""
        ...


class MemoryRecorder:
    """The recorder of runs that write no files."""

    replay = pending = None
    measured: Mapping[str, float] = {}
    remedy = ""

    def __init__(self, standing: Standing) -> None:
        self.standing, self.state_is_whole = standing, True
        self.reason = ""  # why the run has ended
        self.progress: ShowsProgress | None = None

    def keep(self, measured: State, evaluation: Rows, is_overwritten: bool) -> Measured:
        """Copy nothing: evaluations of the centre are not recorded."""
        return Measured(measured)

    def add(
        self, finished: FinishedGeneration, row: MetricsRow, solutions: Sequence[JsonObject]
    ) -> None:
        """Continue with the state after a generation."""
        self.standing.state = finished.state
        self._show(row)

    def _show(self, row: MetricsRow) -> None:
        if self.progress is not None:
            self.progress.update(row, is_noisy=self.standing.has_noisy_answer)

    def add_cut(
        self,
        finished: FinishedGeneration,
        row: MetricsRow,
        solutions: Sequence[JsonObject],
        *,
        outcomes: StoredOutcomes,
        counters: Counters,
        is_new: bool,
    ) -> None:
        """Keep what the jobs have found."""
        self.standing.cut_short(finished.update.state)
        self._show(row)

    def replayed(self, state: State) -> None:
        """Do nothing: no run without files is resumed."""

    def failed(self, report: FailureReport) -> None:
        """Write the report to standard error."""
        say_error(f"{report.line()}\n")

    def beat(self) -> None:
        """Do nothing: nobody looks for a heartbeat."""

    def long_wait(self, wait: LongWait, task: str) -> None:
        """Write the message to standard error, as there is no log."""
        say_error(f"hpc_es: {long_wait_message(self.standing, wait, task)}\n")

    def message(self, text: str) -> None:
        """Show a message, if there is somewhere to show it."""
        if self.progress is not None:
            self.progress.message(text)

    def finish_triggers(self, whole: bool) -> None:
        """Do nothing: there are no triggers."""

    def draw_at_end(self) -> None:
        """Draw nothing."""

    def save(self) -> None:
        """Save nothing."""

    def measured_at_end(self, units: Sequence[Arrays]) -> None:
        """Add what the problem learned."""
        self.standing.add_learned(units)

    def members_at_end(self, each: int) -> None:
        """Return None: there is no table of members."""

    def add_members(self, again: Again) -> None:
        """Do nothing: there is no table."""

    def status(self, state: str, **more: object) -> None:
        """Keep the reason."""
        self.reason = str(more.get("reason", ""))

    def finish(self, text: str) -> None:
        """Show nothing: the caller gets the result."""

    def close(self) -> None:
        """Do nothing: no file is open."""


class Notices:
    """The notices of an algorithm, each shown once.

    It is shown again if it was absent for QUIET_GENERATIONS.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}  # generation of each notice

    def new(self, generation: int, notices: Sequence[str]) -> Iterator[str]:
        """Yield the lines to show for a generation, counted from 0 as in metrics.jsonl."""
        for notice in notices:
            if generation - self._last.get(notice, -QUIET_GENERATIONS) >= QUIET_GENERATIONS:
                yield f"generation {generation + 1}: {notice}"  # as in progress lines
            self._last[notice] = generation


def long_wait_message(standing: Standing, wait: LongWait, task: str) -> str:
    """Say that no evaluation of the task has finished for long, and which limits there are.

    The latter are options of the task.
    """
    offers = standing.config.setup.offers
    unset = " or ".join(f"task.{key}" for key in offers.unset_limits)
    remedy = f"; if a job may not end, set {unset}" if unset else ""
    counted = "steps" if offers.counts_steps else ""
    generation = standing.state.generation + 1  # as progress lines count
    return f"generation {generation} of {task} {wait.text(counted)}{remedy}"
