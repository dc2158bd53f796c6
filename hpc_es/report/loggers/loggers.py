"""What a logger is: the rows of a run, and its config, for a package that its users know.

A module of this folder has `make(report)`, which returns a Logger, and imports its package when that is started. All
names of metrics have the groups of `tag`.


All loggers of a run, on rank 0: one that fails warns and is left out, and the run goes on."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from hpc_es.config.schema import Report
from hpc_es.storage.metrics_log import Row

Status = Literal["finished", "interrupted", "failed"]
Param = str | int | float | bool | None

GROUPS = ("evaluation", "return", "length", "info", "time", "predict", "episodes", "timesteps", "seconds")


@dataclass(frozen=True)
class LoggedRun:
    """A run as its loggers are told of it."""

    directory: Path
    name: str
    params: Mapping[str, Param]  # the config, as `flat` returns it


@dataclass(frozen=True)
class Started:
    """Where a logger stands after its start."""

    run_id: str | None  # by which it finds its run again; the checkpoint holds it. None: the directory is enough
    next: int  # it has no row of this generation, nor of any later one


class Logger(Protocol):
    """Whatever its methods raise ends the logger with a warning, and never the run."""

    def start(self, run: LoggedRun, run_id: str | None, first: int) -> Started:
        """Begin, or go on with the run of that id; rows from generation `first` on are to be written (again).

        What an earlier session wrote of them is dropped.
        """

    def write(self, row: Row) -> None:
        """Add a generation's numbers; its step is the generation."""

    def close(self, status: Status) -> None:
        """Say how the run has ended."""


def tag(key: str) -> str:
    """Return a row's key with its group: return_mean is return/mean, a key of no group stands under train."""
    for group in GROUPS:
        if key.startswith(f"{group}_"):
            return f"{group}/{key.removeprefix(f'{group}_')}"
    return f"train/{key}"


def metrics(row: Row) -> dict[str, float]:
    """Return the numbers of a row by their tags; those that were not measured are left out."""
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


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Param]:
    """Return nested data as "algorithm.sigma": 0.1; lists, and empty mappings, as JSON text."""
    found: dict[str, Param] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            plain = value is None or isinstance(value, str | int | float)
            found[f"{prefix}{key}"] = value if plain else json.dumps(value)
    return found


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
