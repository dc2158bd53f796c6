"""The files of a run that grow with its generations; a checkpoint counts their bytes, a resume cuts them to those."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc_es.config.sections import Report
from hpc_es.core.data import Results, Rows, State
from hpc_es.core.interfaces import Problem
from hpc_es.report.loggers.contract import Status
from hpc_es.report.loggers.loggers import Loggers
from hpc_es.storage.evaluations_log import EvaluationsLog
from hpc_es.storage.programs_log import ProgramsLog
from hpc_es.training.metrics_row import Row
from hpc_es.training.written_rows import WrittenRows


class RunLogs:
    """metrics.jsonl, log.csv and the loggers; programs.jsonl; evaluations.csv.

    `lengths` are those of the checkpoint that training goes on from, `generation` that of its state.
    """

    def __init__(
        self,
        directory: Path,
        report: Report,
        problem: Problem,
        lengths: Mapping[str, int],
        generation: int,
        loggers: Loggers,
        warn: Callable[[str], object],
    ) -> None:
        self._problem = problem
        self._metrics = WrittenRows(directory, report, lengths, generation, loggers, warn)
        self._programs = ProgramsLog(directory, warn)
        self._programs.cut(lengths)
        self._evaluations = EvaluationsLog(directory, problem.coordinate_names, warn)
        self._evaluations.cut(lengths)

    def add_evaluations(self, state: State, results: Results, evaluation: Rows) -> None:
        """Write down what a generation has evaluated, before its update."""
        self._evaluations.write(state.generation, self._problem.evaluations(state, results, evaluation))

    def add(self, row: Row, is_evaluation: bool, found: Sequence[Mapping[str, Any]]) -> None:
        """Write down a generation's metrics, and the correct programs that it has found."""
        self._metrics.add(row, is_evaluation)
        self._programs.write(found)

    def end(self) -> None:
        """Write the last row of the metrics."""
        self._metrics.end()

    def lengths(self) -> dict[str, int]:
        """Return the bytes of each file, all of them on the disk: what a checkpoint stores."""
        return {**self._metrics.lengths(), **self._programs.lengths(), **self._evaluations.lengths()}

    def close(self, status: Status) -> None:
        """Close the files; `status` is how the run has ended."""
        self._metrics.close(status)
        self._programs.close()
        self._evaluations.close()
