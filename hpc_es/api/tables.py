"""`hpc_es.results(DIR)`: what runs have written, as NumPy arrays with named columns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hpc_es.core.data import Array, JsonObject
from hpc_es.core.errors import READING, UserError, unreadable_reason, visible
from hpc_es.core.paths import argument, expanded
from hpc_es.core.run_files import exists
from hpc_es.storage.answers import RESULT, number, read_config, read_found, read_object
from hpc_es.storage.evaluations import each_evaluation
from hpc_es.storage.metrics_log import each_row
from hpc_es.storage.results import find_runs, is_missing, repetition_directories
from hpc_es.storage.status import run_state

LARGEST_COLUMN = 1 << 26  # bytes of a column of texts of fixed width
# cells of the table of a run, and how many times more they may be than values beyond that
LARGEST_SPARSE, MOST_PADDING = 10_000_000, 10


@dataclass(frozen=True)
class Results:
    """The runs at and below a directory; see `hpc_es.results`."""

    paths: tuple[Path, ...]
    directory: Path
    named: Path  # the directory as it was given

    def _name(self, path: Path) -> str:
        """Return the path of a run below the directory as it was given."""
        return str(self.named / path.relative_to(self.directory))

    @property
    def runs(self) -> Array:
        """One row per run: path, name, algorithm, task, seed, repetition, state, generations,
        episodes, evaluations, timesteps, seconds, goal, value, standard_error,
        answer_evaluations, violation.

        `value` is that of the answer, with the sign of the objective, from `answer_evaluations`
        evaluations. A run of a function, program or model has `evaluations`, any other `episodes`.
        """
        return table({"path": self._name(path), **_run_row(path)} for path in self.paths)

    @property
    def metrics(self) -> Array:
        """One row per run and generation: path, and the columns of metrics.jsonl."""
        return self._rows(each_row)

    @property
    def evaluations(self) -> Array:
        """One row per evaluation of an objective: path, and the columns of evaluations.csv:
        generation, job (-1: the centre), value, and the parameters by name. A parameter that is
        called path has the column path_.
        """
        return self._rows(each_evaluation)

    def _rows(self, read: Callable[[Path], Iterable[Mapping[str, object]]]) -> Array:
        """Return the table of the rows of all runs; of several runs, one that is damaged is left
        out with a warning, so that it does not hide the others.
        """
        columns = _Columns()
        for path in self.paths:
            kept = columns.count, len(columns.values)
            try:
                name = self._name(path)
                for row in _dense(path, read(path)):
                    columns.add({"path": name, **_columns(row)})
            except (UserError, *READING) as error:
                text = str(error) if isinstance(error, UserError) else unreadable_reason(error)
                if len(self.paths) == 1:
                    raise UserError(text) from error
                columns.cut(*kept)
                warnings.warn(f"{visible(str(path))} is left out: {visible(text)}", stacklevel=3)
        return columns.table()


def results(directory: str | Path) -> Results:
    """Read the runs at and below a directory, which may be in progress.

    Paths in the tables begin with the directory as it is given. The tables are structured arrays,
    which `pandas.DataFrame` takes as they are:

        found = hpc_es.results("runs")
        best = found.runs[found.runs["value"].argmax()]
        frame = pandas.DataFrame(found.metrics)

    Args:
        directory: a run, the repetitions of an experiment, or a directory of such.

    Returns:
        An object with the tables `runs`, `metrics` and `evaluations`; numbers that are not known
        are NaN, texts "".

    Raises:
        UserError: there is no such directory, or no run in it.

    Warns:
        UserWarning: a run is damaged; of several runs the others are read.
    """
    path = argument(directory, "directory")
    if is_missing(path):
        raise UserError(f"{path}: no such directory")
    paths = tuple(run for found in find_runs(path) for run in _single(found))
    if not paths:
        raise UserError(f"{path}: expected a run, or a directory of runs, found none")
    return Results(paths, path, Path(expanded(directory)))


def table(rows: Iterable[Mapping[str, object]]) -> Array:
    """Return rows as a structured array with the columns of all rows, in order of appearance.

    A column is bool, int64, float64 or text by its values; where a row lacks it, it is NaN, or "".
    Text is of fixed width, or objects where that would take more than LARGEST_COLUMN bytes.
    """
    columns = _Columns()
    for row in rows:
        columns.add(row)
    return columns.table()


class _Columns:
    """The columns of a table that grows by rows, of which the last ones can be removed again."""

    def __init__(self) -> None:
        self.values: dict[str, list[object]] = {}
        self.count = 0

    def add(self, row: Mapping[str, object]) -> None:
        for name in row:
            if name not in self.values:
                self.values[name] = [None] * self.count
        for name, cells in self.values.items():
            cells.append(row.get(name))
        self.count += 1

    def cut(self, count: int, names: int) -> None:
        """Keep this many rows, with their columns."""
        self.count = count
        self.values = {name: cells[:count] for name, cells in islice(self.values.items(), names)}

    def table(self) -> Array:
        columns = {name: _column(cells) for name, cells in self.values.items()}
        array = np.empty(self.count, [(name, column.dtype) for name, column in columns.items()])
        for name, column in columns.items():
            array[name] = column
        return array


def _dense(path: Path, rows: Iterable[Mapping[str, object]]) -> Iterator[Mapping[str, object]]:
    """Yield the rows of a run; UserError if they take far more memory as a table than as a file."""
    names, entries = set[str](), 0
    for count, row in enumerate(rows, 1):
        names.update(row)
        entries += len(row)
        if (cells := len(names) * count) > max(LARGEST_SPARSE, MOST_PADDING * entries):
            raise UserError(
                f"{path}: the first {count:,} rows have {len(names):,} different columns, "
                f"{cells:,} cells for {entries:,} values: they are damaged"
            )
        yield row


def _columns(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row without a column of the name that the run's path has."""
    return {f"{name}_" if name == "path" else name: value for name, value in row.items()}


def _column(values: Sequence[object]) -> Array:
    if all(isinstance(value, bool) for value in values):
        return np.array(values, bool)
    if all(isinstance(value, int) and abs(value) < 1 << 63 for value in values):
        return np.array(values, np.int64)
    if all(value is None or isinstance(value, int | float) for value in values):
        return np.array([_float(value) for value in values])
    texts = ["" if value is None else str(value) for value in values]
    width = 4 * max(map(len, texts), default=0)
    return np.array(texts, np.str_ if width * len(texts) <= LARGEST_COLUMN else object)


def _float(value: Any) -> float:
    try:
        return math.nan if value is None else float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if value > 0 else -math.inf


def _single(path: Path) -> list[Path]:
    """Return the runs of an experiment."""
    return repetition_directories(path) or [path]


def _run_row(path: Path) -> JsonObject:
    config, state, found = read_config(path), run_state(path), read_found(path)
    result: Mapping[str, Any] = read_object(path / RESULT) if exists(path / RESULT) else {}
    answer = found.answer
    return {
        "name": str(config.get("name") or ""),
        "algorithm": _kind(config, "algorithm"),
        "task": _kind(config, "task"),
        "seed": _whole(config.get("seed")),
        "repetition": _whole(result.get("repetition")),
        "state": str(state["state"]),
        "generations": _whole(state.get("generation")),
        "episodes": _whole(result.get("episodes")),
        "evaluations": _whole(result.get("evaluations")),
        "timesteps": _whole(result.get("timesteps")),
        "seconds": number(result.get("seconds")),
        "goal": found.goal,
        "value": answer.value,
        "standard_error": answer.standard_error,
        "answer_evaluations": answer.evaluations,
        "violation": answer.violation,
    }


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _kind(config: Mapping[str, Any], section: str) -> str:
    value = config.get(section)
    return str(value.get("kind") or "") if isinstance(value, Mapping) else ""
