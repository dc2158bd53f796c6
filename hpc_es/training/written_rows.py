"""Which generations leave a row: each `report.metrics_interval`, those with an evaluation, and the last one.

Which one is the last is known at the end only. Its row is then written behind what the checkpoint counts, so that a
run that goes on after all cuts it off and has the same file as one that was never stopped. If nothing is left to train
it is written again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from hpc_es.config.sections import Report
from hpc_es.core.errors import RunError
from hpc_es.report.loggers.contract import Status
from hpc_es.report.loggers.loggers import Loggers
from hpc_es.storage import metrics_log
from hpc_es.training.metrics_row import Row


class WrittenRows:
    """The rows of a run on their way to metrics.jsonl, log.csv and the loggers.

    `lengths` are the file lengths of the checkpoint that training goes on from, `generation` that of its state.
    """

    def __init__(
        self,
        run_dir: Path,
        report: Report,
        lengths: Mapping[str, int],
        generation: int,
        loggers: Loggers,
        warn: Callable[[str], object],
    ) -> None:
        self._interval = report.metrics_interval
        self._last: Row | None = _row_behind(run_dir, generation)
        self._log = metrics_log.MetricsLog(run_dir, warn, report.columns)
        self._log.cut(lengths)
        rows = metrics_log.read_metrics(run_dir)
        if self._last is not None and any(row["generation"] == generation - 1 for row in rows):
            self._last = None  # it is within what the checkpoint counts
        self._loggers = loggers
        self._loggers.start(generation if self._last is None else generation - 1, rows)
        self._lengths: dict[str, int] | None = None  # before the last row

    def add(self, row: Row, has_evaluation: bool) -> None:
        """Write a generation's row if it is due, or keep it, as it may be the last."""
        self._last = row
        if has_evaluation or int(row["generation"] or 0) % self._interval == 0:
            self._write()

    def end(self) -> None:
        """Write the last row where it is not there yet; `lengths` stays as it was before."""
        if self._last is not None and self._lengths is None:
            self._lengths = self._log.lengths()
            self._write()

    def lengths(self) -> dict[str, int]:
        """Return the bytes of each file that a checkpoint counts."""
        return self._lengths or self._log.lengths()

    def close(self, status: Status) -> None:
        """Close the files and the loggers."""
        with contextlib.suppress(OSError):
            self._log.close()
        self._loggers.close(status)

    def _write(self) -> None:
        assert self._last is not None
        self._log.write(self._last)
        self._loggers.write(self._last)
        self._last = None


def _row_behind(run_dir: Path, generation: int) -> Row | None:
    """Return the row of the last finished generation, if the file has it."""
    with contextlib.suppress(RunError):  # of a damaged file: `cut` says what is to be done
        rows = metrics_log.each_row(run_dir) if generation else iter(())
        return next((row for row in rows if row["generation"] == generation - 1), None)
    return None
