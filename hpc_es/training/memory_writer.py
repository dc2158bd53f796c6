"""In place of a RunWriter where nothing is to be written: what the loop asks of rank 0, in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpc_es.config.sections import Config
from hpc_es.core.data import Arrays, Results, Rows, State
from hpc_es.core.interfaces import Problem
from hpc_es.storage.checkpoint import Best
from hpc_es.training.failure_reports import Report
from hpc_es.training.journal import Replay
from hpc_es.training.limits import stop_reason
from hpc_es.training.metrics_row import NOTHING_USED, Row


class Silence:
    """A progress display that shows nothing."""

    def message(self, text: str) -> None:
        """Say nothing."""

    def finish(self, text: str) -> None:
        """Say nothing."""


class MemoryWriter:
    """Counts what a run has used, and knows when it is over; `on_row` gets each generation's metrics."""

    def __init__(self, config: Config, problem: Problem, state: State, on_row: Callable[[Row], None]) -> None:
        self._config, self._problem, self._state, self._on_row = config, problem, state, on_row
        self.counters = dict(NOTHING_USED)
        self.best: Best | None = None
        self.measured: Mapping[str, float] = {}
        self.progress = Silence()
        self.replay: Replay | None = None  # nothing is restored
        self.reason, self.remedy = "", ""

    def replayed(self, state: State) -> None:
        """There is no replay."""

    def evaluated(self, state: State, results: Results, evaluation: Rows, units: Sequence[Arrays]) -> None:
        """Write nothing."""

    def add(self, state: State, row: Row, evaluated: Arrays | None, found: Sequence[Mapping[str, Any]]) -> None:
        """Take note of a finished generation."""
        self._state = state
        self._on_row(row)

    def stop_reason(self) -> str | None:
        """Return the first limit of `stop:` that is reached, or None."""
        used = {**self.counters, "generations": self._state.generation}
        return stop_reason(self._config.stop, used, None, self._is_reached)

    def _is_reached(self, target: float) -> bool:
        return self._problem.is_reached(self._problem.carried().found_in(self._state), target)

    def finish_triggers(self, whole: bool) -> None:
        """There are none."""

    def save(self) -> None:
        """Save nothing."""

    def status(self, state: str, **more: object) -> None:
        """Remember why the run has ended."""
        self.reason = str(more.get("reason", ""))

    def measured_at_end(self, units: Sequence[Arrays]) -> None:
        """There is no final evaluation of what is only in memory."""

    def beat(self) -> None:
        """There is no status.json."""

    def failed(self, report: Report) -> None:
        """Say why a job failed."""
        sys.stderr.write(report.line() + "\n")

    def close(self) -> None:
        """Nothing is held."""
