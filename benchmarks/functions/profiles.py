"""Statistics of trials: data profiles and their picture, medians and expected running times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

PANELS = ((2, 5), (10, 20), (40,))  # dimensions that are drawn together

Rows = Sequence[Mapping[str, Any]]

# Groups of contenders, and the reference of each group.
REFERENCES = {"without restarts": "pycma", "with restarts": "pycma-bipop"}


def of_group(rows: Rows, group: str) -> Rows:
    """Return the trials of a group of REFERENCES."""
    restarted = group == "with restarts"
    return [row for row in rows if str(row["strategy"]).endswith(("-ipop", "-bipop")) == restarted]


def strategies(rows: Rows) -> list[str]:
    """Return the names of the strategies, references first."""
    names = sorted({str(row["strategy"]) for row in rows})
    return sorted(names, key=lambda name: name not in REFERENCES.values())


def values(rows: Rows, column: str) -> list[Any]:
    """Return the different values of a column, sorted."""
    return sorted({row[column] for row in rows})


def where(rows: Rows, **wanted: Any) -> Rows:
    """Return the rows with these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def data_profile(rows: Rows) -> tuple[list[float], list[float]]:
    """Return (x, y): within x_k evaluations per dimension,
    the share y_k of the trials is solved.
    """
    solved = sorted(row["evaluations"] / row["dimension"] for row in rows if row["solved"])
    return solved, [count / len(rows) for count in range(1, len(solved) + 1)]


def share_solved(rows: Rows) -> float:
    """Return the share of trials that are solved; NaN without trials."""
    return sum(row["solved"] for row in rows) / len(rows) if rows else math.nan


def median_evaluations(rows: Rows) -> float:
    """Return the median of the evaluations to the target, infinite for unsolved trials;
    NaN without trials.
    """
    return median(_evaluations(rows)) if rows else math.nan


def expected_evaluations(rows: Rows) -> float:
    """Return ERT, all evaluations over the successes (Hansen et al. 2021, arXiv:1603.08785);
    infinite without any.
    """
    successes = sum(row["solved"] for row in rows)
    return sum(row["evaluations"] for row in rows) / successes if successes else math.inf


def _evaluations(rows: Rows) -> Iterable[float]:
    return [row["evaluations"] if row["solved"] else math.inf for row in rows]


def draw(rows: Rows, path: Path) -> None:
    """Draw one row of panels for each group of contenders,
    one panel for each group of dimensions.
    """
    from matplotlib.figure import Figure

    groups = [group for group in REFERENCES if of_group(rows, group)]
    there = set(values(rows, "dimension"))
    panels = [panel for panel in PANELS if there & set(panel)]
    figure = Figure(figsize=(4.6 * len(panels), 3.4 * len(groups)), layout="constrained")
    grid = figure.subplots(len(groups), len(panels), squeeze=False, sharey=True)
    for group, axes in zip(groups, grid, strict=True):
        for panel, ax in zip(panels, axes, strict=True):
            _panel(ax, of_group(rows, group), panel, strategies(of_group(rows, group)))
        axes[0].set_ylabel(f"share solved, {group}")
    figure.savefig(path, dpi=120, metadata={"Software": None})


def _panel(ax: Any, rows: Rows, panel: tuple[int, ...], names: list[str]) -> None:
    inside = [row for row in rows if row["dimension"] in panel]
    last = max((row["evaluations"] / row["dimension"] for row in inside), default=1.0)
    unsolved = []  # strategies whose lines would hide each other at 0
    for number, name in enumerate(names):
        x, y = data_profile([row for row in inside if row["strategy"] == name])
        if y:
            style = (
                {"color": "black", "linestyle": "--"}
                if name in REFERENCES.values()
                else {"color": f"C{number}"}
            )
            ax.step([1, *x, last], [0, *y, y[-1]], where="post", label=name, **style)
        elif any(row["strategy"] == name for row in inside):
            unsolved.append(name)
    if unsolved:
        ax.plot([1, last], [0, 0], color="0.4", linestyle=":", label=", ".join(unsolved))
    if ax.lines:
        ax.legend(fontsize="x-small", loc="upper left")
    functions = ", ".join(f"f{function}" for function in values(inside, "function"))
    ax.set(xscale="log", ylim=(-0.02, 1.02), title=f"n = {', '.join(map(str, panel))}: {functions}")
    ax.title.set_fontsize("small")
    ax.set_xlabel("evaluations / n")
    ax.grid(alpha=0.3)
