"""Data profiles: the share of trials that is solved, against evaluations per dimension."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.functions.profiles import REFERENCES, Rows, data_profile, of_group, strategies, values

PANELS = ((2, 5), (10, 20), (40,))  # dimensions that are drawn together


def draw(rows: Rows, path: Path) -> None:
    """Draw one row of panels for each group of contenders, one panel for each group of dimensions."""
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
            style = {"color": "black", "linestyle": "--"} if name in REFERENCES.values() else {"color": f"C{number}"}
            ax.step([1, *x, last], [0, *y, y[-1]], where="post", label=name, **style)
        elif any(row["strategy"] == name for row in inside):
            unsolved.append(name)
    if unsolved:
        ax.plot([1, last], [0, 0], color="0.4", linestyle=":", label=", ".join(unsolved))
    if ax.lines:
        ax.legend(fontsize="x-small", loc="upper left")
    functions = ", ".join(f"f{each}" for each in values(inside, "function"))
    ax.set(xscale="log", ylim=(-0.02, 1.02), title=f"n = {', '.join(map(str, panel))}: {functions}")
    ax.title.set_fontsize("small")
    ax.set_xlabel("evaluations / n")
    ax.grid(alpha=0.3)
