"""The evaluations of functions and programs as designs: typed parameters, value, constraints.

The best ones come first: feasible before infeasible, then by value. A rank correlation says how a
parameter and the value go together among the best quarter. It is an indication only, since a search
does not draw its designs independently.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpc_es.core.data import ConfigData, Float64
from hpc_es.core.errors import ConfigError
from hpc_es.core.run_files import is_regular, read_text
from hpc_es.core.spreadsheets import spreadsheet_text
from hpc_es.storage.answers import CENTRE_JOB, Found
from hpc_es.storage.evaluations import each_evaluation
from hpc_es.storage.line_logs import FIRST_COLUMNS

FEWEST_CORRELATED = 8  # designs
LARGEST_POINTS = 1 << 24  # bytes of a file of initial points
MOST_CELLS = 10_000_000  # of all evaluations, which take 100 bytes each
Value = object  # bool, int, float or str


@dataclass(frozen=True)
class Design:
    """One evaluation."""

    run: Path
    generation: int
    job: int
    value: float  # NaN if it has failed
    cells: Mapping[str, Value]  # parameters, then constraints and other quantities
    violation: float
    is_initial: bool  # one of the points that the user has given

    @property
    def name(self) -> str:
        """Its generation and job, as members of fronts are named."""
        return "centre" if self.job == CENTRE_JOB else f"g{self.generation}j{self.job}"

    @property
    def has_failed(self) -> bool:
        return math.isnan(self.value)


@dataclass(frozen=True)
class Designs:
    """The evaluations of the runs of one configuration."""

    parameters: tuple[str, ...]
    quantities: tuple[str, ...]  # constraints and what else an evaluation returns
    successful: Sequence[Design]  # the best first
    failed: Sequence[Design]  # in the order of their evaluation


class TooManyError(ConfigError):
    """A table is too large for a report."""

    def __init__(self, text: str) -> None:
        super().__init__([("", text)])


def read_designs(runs: Sequence[tuple[Path, ConfigData, Found]]) -> Designs | None:
    """Read the designs of runs of one configuration; None if they have recorded none.

    Raises:
        TooManyError: they have recorded more than a report shows.
    """
    designs: list[Design] = []
    left = MOST_CELLS
    names: list[str] = []
    read: dict[tuple[Path | None, tuple[str, ...]], set[tuple[Value, ...]]] = {}  # initial points
    for path, config, _ in runs:
        constraints = _constraints(config)
        given: set[tuple[Value, ...]] | None = None
        for row in each_evaluation(path):
            left -= len(row) + len(names)
            if left < 0:
                raise TooManyError(
                    f"more than {MOST_CELLS:,} numbers in evaluations.csv, which are not shown"
                )
            names = names or [name for name in row if name not in FIRST_COLUMNS]
            cells = {name: row.get(name) for name in names}
            parameters = _parameters(config, names)
            if given is None:
                source = _initial_file(path, config), parameters
                if source not in read:
                    read[source] = _initial_points(*source)
                given = read[source]
            value = row.get("value")
            violation = sum(max(_number(cells.get(name)), 0.0) for name in constraints)
            designs.append(
                Design(
                    path,
                    int(_number(row.get("generation"))),
                    int(_number(row.get("job"))),
                    _number(value, missing=math.nan),
                    cells,
                    violation,
                    tuple(cells[name] for name in parameters) in given,
                )
            )
    if not designs:
        return None
    sign = runs[0][2].sign
    parameters = _parameters(runs[0][1], names)
    good = [design for design in designs if not design.has_failed]
    good.sort(key=lambda design: (design.violation, -sign * design.value))
    failed = [design for design in designs if design.has_failed]
    quantities = tuple(name for name in names if name not in parameters)
    return Designs(parameters, quantities, good, failed)


def _constraints(config: ConfigData) -> list[str]:
    names = (config.get("task") or {}).get("constraints")
    return [str(name) for name in names] if isinstance(names, list | Mapping) else []


def _parameters(config: ConfigData, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of evaluations.csv that are parameters: x0, x1, ... without names."""
    known = (config.get("task") or {}).get("parameters")
    if isinstance(known, Mapping):
        return tuple(name for name in names if name in known)
    return tuple(name for name in names if name[:1] == "x" and name[1:].isdigit())


def _initial_file(run: Path, config: ConfigData) -> Path | None:
    """Return the CSV file of points that a config names.

    None if there is none, or if its owner is not that of the run: somebody else's run could name a
    file of this user, whose points the report would then tell.
    """
    name = (config.get("task") or {}).get("initial_points")
    file = Path(str(config.get("directory") or "."), str(name))
    if isinstance(name, str) and name.endswith(".csv") and is_regular(file):
        owners = {run.stat().st_uid, (run / "config.yaml").lstat().st_uid}
        if owners == {file.lstat().st_uid}:
            return file
    return None


def _initial_points(file: Path | None, parameters: Sequence[str]) -> set[tuple[Value, ...]]:
    """Return the points of a CSV file; none if it cannot be read."""
    if file is None:
        return set()
    try:
        names, *rows = csv.reader(io.StringIO(read_text(file, most=LARGEST_POINTS)))
    except (OSError, ValueError, csv.Error, ConfigError):
        return set()
    columns = [names.index(name) if name in names else None for name in parameters]
    return {
        tuple(_typed(None if column is None else row[column]) for column in columns)
        for row in rows
        if len(row) == len(names)
    }


def _typed(text: str | None) -> Value:
    """Return a cell with the type that it has in evaluations.csv."""
    plain = (text or "").strip()
    if plain in ("true", "false"):
        return plain == "true"
    try:
        return float(plain)
    except ValueError:
        return plain


def _number(value: object, missing: float = 0.0) -> float:
    return float(value) if isinstance(value, int | float) else missing


# Statistics.


def best_quarter(designs: Sequence[Design]) -> Sequence[Design]:
    """Return the best quarter of sorted designs, and at least FEWEST_CORRELATED."""
    return designs[: max(len(designs) // 4, FEWEST_CORRELATED)]


def rank_correlation(first: Float64, second: Float64) -> float | None:
    """Return Spearman's rank correlation of float64[n] and float64[n].

    None for under FEWEST_CORRELATED numbers, or if all of one are equal. Equal numbers have their
    mean rank.
    """
    if len(first) < FEWEST_CORRELATED or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    ranks = [_ranks(numbers) - (len(numbers) - 1) / 2 for numbers in (first, second)]
    scale = math.sqrt(float((ranks[0] ** 2).sum()) * float((ranks[1] ** 2).sum()))
    return float((ranks[0] * ranks[1]).sum()) / scale


def _ranks(values: Float64) -> Float64:
    """Return ranks from 0, equal values with their mean rank."""
    ordered = np.sort(values)
    left, right = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return (left + right - 1) / 2.0


def correlations(designs: Designs) -> dict[str, float | None]:
    """Return the rank correlation of each parameter with the value among the best quarter.

    None where it is undetermined, and for categories, which have no order.
    """
    best = best_quarter([design for design in designs.successful if not design.violation])
    values = np.array([design.value for design in best])
    result: dict[str, float | None] = {}
    for name in designs.parameters:
        cells = [design.cells[name] for design in best]
        is_ordered = all(isinstance(cell, int | float) for cell in cells)
        numbers = np.array([_number(cell) for cell in cells])
        result[name] = rank_correlation(numbers, values) if is_ordered else None
    return result


def csv_text(designs: Sequence[Design]) -> str:
    """Return designs as CSV, with run, generation, job, value and the cells."""
    names = list(designs[0].cells) if designs else []
    rows: list[list[object]] = [["run", *FIRST_COLUMNS, *names]]
    for design in designs:
        cells = [
            str(cell).lower() if isinstance(cell, bool) else cell for cell in design.cells.values()
        ]
        first = (str(design.run), design.generation, design.job, repr(design.value))
        rows.append([*first, *cells])
    return spreadsheet_text(rows)
