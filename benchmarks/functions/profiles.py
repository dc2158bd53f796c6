"""What trials say: the share that is solved within so many evaluations, medians, expected running times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

Rows = Sequence[Mapping[str, Any]]

# Contenders that are compared with each other, by whether they begin anew, and whom they are measured by.
REFERENCES = {"without restarts": "pycma", "with restarts": "pycma-bipop"}


def of_group(rows: Rows, group: str) -> Rows:
    """Return the trials of a group of REFERENCES."""
    restarted = group == "with restarts"
    return [row for row in rows if str(row["strategy"]).endswith(("-ipop", "-bipop")) == restarted]


def strategies(rows: Rows) -> list[str]:
    """Return who is there, references first."""
    names = sorted({str(row["strategy"]) for row in rows})
    return sorted(names, key=lambda name: name not in REFERENCES.values())


def values(rows: Rows, column: str) -> list[Any]:
    """Return the different values of a column, sorted."""
    return sorted({row[column] for row in rows})


def where(rows: Rows, **wanted: Any) -> Rows:
    """Return the rows with these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def data_profile(rows: Rows) -> tuple[list[float], list[float]]:
    """Return (x, y): from x_k evaluations per dimension on, the share y_k of the trials is solved."""
    solved = sorted(row["evaluations"] / row["dimension"] for row in rows if row["solved"])
    return solved, [count / len(rows) for count in range(1, len(solved) + 1)]


def share_solved(rows: Rows) -> float:
    """Return the share of trials that are solved; NaN of none."""
    return sum(row["solved"] for row in rows) / len(rows) if rows else math.nan


def median_evaluations(rows: Rows) -> float:
    """Return the median of evaluations to the target, those of an unsolved trial infinite; NaN of none."""
    return median(_evaluations(rows)) if rows else math.nan


def expected_evaluations(rows: Rows) -> float:
    """Return ERT, all evaluations over the successes (Hansen et al. 2021, arXiv:1603.08785); infinite without any."""
    successes = sum(row["solved"] for row in rows)
    return sum(row["evaluations"] for row in rows) / successes if successes else math.inf


def _evaluations(rows: Rows) -> Iterable[float]:
    return [row["evaluations"] if row["solved"] else math.inf for row in rows]
