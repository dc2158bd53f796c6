"""Loggers, one file per package (TensorBoard, MLflow, Weights & Biases): their contract, and the loggers of a run.

Each receives every row of metrics.jsonl. A module of this folder has a function `make(report)` that returns a Logger;
the logger imports its package in `start`. A logger that fails is dropped with a warning, and the run continues.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from hpc_es.config.schema import Report
from hpc_es.core.data import JsonObject
from hpc_es.storage.metrics_log import Row

Status = Literal["finished", "interrupted", "failed"]
Param = str | int | float | bool | None

GROUPS = ("evaluation", "return", "length", "info", "time", "predict", "episodes", "timesteps", "seconds")


@dataclass(frozen=True)
class LoggedRun:
    """The argument of `Logger.start`."""

    directory: Path
    name: str
    params: Mapping[str, Param]  # the config, as `flat` returns it


@dataclass(frozen=True)
class Started:
    """The state of a logger after its start."""

    run_id: str | None  # the package's id of the run, kept in checkpoints; None if the directory identifies the run
    next_generation: int  # the first generation whose row it lacks


class Logger(Protocol):
    """One package that records the rows of a run. Any error of its methods drops the logger, never the run."""

    def start(self, run: LoggedRun, run_id: str | None, first: int) -> Started:
        """Start a new run, or resume the run of this id and drop its rows from generation `first` on.

        These rows will be written again.
        """

    def write(self, row: Row) -> None:
        """Record the metrics of a generation; the generation is the step."""

    def close(self, status: Status) -> None:
        """Record how the run ended, and close the logger."""


def tag(key: str) -> str:
    """Return the name of a metric with its group: return/mean for return_mean, and train/sigma for sigma."""
    for group in GROUPS:
        if key.startswith(f"{group}_"):
            return f"{group}/{key.removeprefix(f'{group}_')}"
    return f"train/{key}"


def metrics(row: Row) -> dict[str, float]:
    """Return the measured numbers of a row by tag, without the generation."""
    return {
        tag(key): value
        for key, value in row.items()
        if key != "generation" and value is not None and math.isfinite(value)
    }


def step(row: Row) -> int:
    """Return the generation of a row."""
    generation = row["generation"]
    assert generation is not None
    return int(generation)


def flat(data: JsonObject, prefix: str = "") -> dict[str, Param]:
    """Flatten nested data to {"algorithm.sigma": 0.1}; lists and empty mappings become JSON text."""
    result: dict[str, Param] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            result |= flat(value, f"{prefix}{key}.")
        else:
            plain = value is None or isinstance(value, str | int | float)
            result[f"{prefix}{key}"] = value if plain else json.dumps(value)
    return result


class Loggers:
    """The loggers that `report` names, on rank 0; `run_ids` come from the checkpoint, by the name of the logger."""

    def __init__(
        self, report: Report, run: LoggedRun, run_ids: Mapping[str, str], warn: Callable[[str], object]
    ) -> None:
        self._report, self._run, self._warn = report, run, warn
        self.run_ids = dict(run_ids)  # including loggers that the config no longer names
        self._running: dict[str, Logger] = {}

    def start(self, first: int, rows: Iterable[Row]) -> None:
        """Start all loggers at generation `first`, and write the earlier rows that a logger lacks."""
        earlier = list(rows)
        for name in self._report.all_loggers():
            with self._drop_on_error(name):
                logger: Logger = importlib.import_module(f"hpc_es.report.loggers.{name}").make(self._report)
                started = logger.start(self._run, self.run_ids.get(name), first)
                if started.run_id is not None:
                    self.run_ids[name] = started.run_id
                self._running[name] = logger
                for row in earlier:
                    if step(row) >= started.next_generation:
                        logger.write(row)

    def write(self, row: Row) -> None:
        """Write the row of a generation to all loggers."""
        for name, logger in list(self._running.items()):
            with self._drop_on_error(name):
                logger.write(row)

    def close(self, status: Status) -> None:
        """Close all loggers; further calls do nothing."""
        for name, logger in list(self._running.items()):
            with self._drop_on_error(name):
                logger.close(status)
        self._running.clear()

    @contextlib.contextmanager
    def _drop_on_error(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._running.pop(name, None)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            text = "the run continues without it; metrics.jsonl has all rows, which the next start writes again"
            self._warn(f"report.loggers: {name} has failed ({reason}); {text}")
