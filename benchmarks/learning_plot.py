"""Pictures of the comparison of strategies, one panel per task: final returns of every seed,
and learning curves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpc_es.core.data import Float64
from hpc_es.report.curves import load

POINTS = 40  # per line; a point is the mean of the evaluations since the previous point
COLUMNS = 3  # of panels

Seeds = Mapping[str, Sequence[Path]]  # run directories by strategy


def draw(tasks: Mapping[str, Seeds], path: Path) -> None:
    """Draw the runs of each task; a strategy whose runs have no evaluation yet is left out."""
    from matplotlib.figure import Figure

    rows = -(-len(tasks) // COLUMNS)
    figure = Figure(figsize=(4.4 * COLUMNS, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    strategies = sorted({strategy for seeds in tasks.values() for strategy in seeds})
    lines = {}
    for ax, (task, seeds) in zip(axes, tasks.items(), strict=False):
        for strategy, paths in seeds.items():
            if (curve := median(paths)) is not None:
                (lines[strategy],) = ax.plot(
                    curve[0] / 1e6, curve[1], color=f"C{strategies.index(strategy)}", lw=1.3
                )
        ax.set_title(task, fontsize="medium")
        ax.set_xlabel("timesteps (million)")
        ax.grid(alpha=0.3)
    for ax in axes[len(tasks) :]:
        ax.set_axis_off()
    for ax in axes[::COLUMNS]:
        ax.set_ylabel("return of theta")
    names = [strategy for strategy in strategies if strategy in lines]
    key: Any = [lines[name] for name in names]
    figure.legend(key, names, loc="outside lower center", ncols=len(names), frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def draw_returns(tasks: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    """Draw the final return of every seed as a dot and the median as a bar,
    by task and strategy.
    """
    from matplotlib.figure import Figure

    rows = -(-len(tasks) // COLUMNS)
    figure = Figure(figsize=(4.4 * COLUMNS, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for ax, (task, strategies) in zip(axes, tasks.items(), strict=False):
        for index, returns in enumerate(strategies.values()):
            ax.plot([index] * len(returns), returns, "o", color=f"C{index}", ms=5, alpha=0.6, mew=0)
            ax.hlines(np.median(returns), index - 0.35, index + 0.35, color=f"C{index}", lw=2)
        ax.set_title(task, fontsize="medium")
        ax.set_xticks(
            range(len(strategies)), list(strategies), rotation=45, ha="right", fontsize="small"
        )
        ax.grid(axis="y", alpha=0.3)
    for ax in axes[len(tasks) :]:
        ax.set_axis_off()
    for ax in axes[::COLUMNS]:
        ax.set_ylabel("return, 100 episodes")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def median(paths: Sequence[Path]) -> tuple[Float64, Float64] | None:
    """Return timesteps and the median over the runs of the evaluations, float64[points] each;
    None without any.
    """
    series = [load(path).series("timesteps_total", "evaluation_return_mean") for path in paths]
    series = [(x, y) for x, y in series if x.size]
    if not series:
        return None
    end = min(float(x[-1]) for x, _ in series)
    grid = np.linspace(0, end, POINTS + 1)
    return grid[1:], np.median([means(x, y, grid) for x, y in series], axis=0)


def means(x: Float64, y: Float64, grid: Float64) -> Float64:
    """Return the mean y in each interval of the grid, float64[points - 1];
    empty intervals are interpolated.
    """
    interval = np.digitize(x, grid[1:], right=True)
    inside = interval < len(grid) - 1
    counts, sums = (
        np.bincount(interval[inside], weights, len(grid) - 1) for weights in (None, y[inside])
    )
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.interp(grid[1:], x, y))
