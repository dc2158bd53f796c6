"""All loggers of a run, on rank 0: one that fails warns and is left out, and the run goes on."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from hpc_es.config.sections import Report
from hpc_es.report.loggers.contract import LoggedRun, Logger, Status, step
from hpc_es.storage.metrics_log import Row


class Loggers:
    """The loggers that `report` names; `run_ids` are those of the checkpoint that training goes on from, by name."""

    def __init__(
        self, report: Report, run: LoggedRun, run_ids: Mapping[str, str], warn: Callable[[str], object]
    ) -> None:
        self._report, self._run, self._warn = report, run, warn
        self.run_ids = dict(run_ids)  # of loggers that are not used any more too
        self._running: dict[str, Logger] = {}

    def start(self, first: int, rows: Iterable[Row]) -> None:
        """Start all of them. `rows` are those so far, which each gets as far as it lacks them; `first` is the next."""
        known = list(rows)
        for name in self._report.all_loggers():
            with self._warning(name):
                logger: Logger = importlib.import_module(f"hpc_es.report.loggers.{name}").make(self._report)
                started = logger.start(self._run, self.run_ids.get(name), first)
                if started.run_id is not None:
                    self.run_ids[name] = started.run_id
                self._running[name] = logger
                for row in known:
                    if step(row) >= started.next:
                        logger.write(row)

    def write(self, row: Row) -> None:
        """Give a generation's row to all of them."""
        for name, logger in list(self._running.items()):
            with self._warning(name):
                logger.write(row)

    def close(self, status: Status) -> None:
        """Close all of them; a second call does nothing."""
        for name, logger in list(self._running.items()):
            with self._warning(name):
                logger.close(status)
        self._running.clear()

    @contextlib.contextmanager
    def _warning(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._running.pop(name, None)
            came = " ".join(f"{type(error).__name__}: {error}".split())
            text = "the run goes on without it, and metrics.jsonl has all rows; the next start tries again"
            self._warn(f"report.loggers: {name} has failed ({came}): {text}")
