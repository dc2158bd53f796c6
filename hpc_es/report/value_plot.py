"""Curves of objectives: the best value so far against evaluations, logarithmic where that helps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hpc_es.report.curves import COLUMNS, VALUES, Curve, Group, X, average
from hpc_es.report.log_axis import label_log_axis

DECADES = 2  # values that span more of them get a logarithmic axis, where all are positive
GREY = "#555555"


def best_values(group: Group, x: X) -> Curve:
    """Return the best value so far of a group's runs, their mean where there are several."""
    series = [run.series(COLUMNS[x], VALUES.y) for run in group.runs]
    if len(series) > 1:
        return average([(run_x, values) for run_x, values in series])
    only_x, values = series[0]
    return Curve(only_x, values, np.full_like(values, np.nan), runs=1)


def draw_values(ax: Axes, curve: Curve, color: str, dash: str) -> None:
    """Draw a group: the best value changes in steps, a mean over runs does not."""
    style = "steps-post" if curve.runs == 1 else "default"
    marker = "." if len(curve.x) == 1 else None
    ax.plot(curve.x, curve.mean, dash, color=color, lw=1.8, drawstyle=style, marker=marker)
    if curve.runs > 1:
        low, high = curve.mean - curve.spread, curve.mean + curve.spread
        if curve.mean.min() > 0:  # a logarithmic axis has no place for less
            low = np.maximum(low, curve.mean / 10)
        ax.fill_between(curve.x, low, high, color=color, alpha=0.2, lw=0)


def scale_values(axes: Sequence[Axes]) -> None:
    """Make the axis logarithmic where all values are positive and span more than DECADES."""
    drawn = np.concatenate([np.asarray(line.get_ydata(), np.float64) for ax in axes for line in ax.get_lines()])
    if drawn.min() > 0 and drawn.max() / drawn.min() > 10**DECADES:
        axes[0].set_yscale("log")  # the panels share it
        for ax in axes:
            label_log_axis(ax.yaxis)


def value_key(groups: Sequence[Group]) -> list[Line2D | Patch]:
    """Return what the line and the shade mean."""
    key: list[Line2D | Patch] = [Line2D([], [], color=GREY, lw=1.8, label="best value so far")]
    if any(len(group.runs) > 1 for group in groups):
        key.append(Patch(color=GREY, alpha=0.2, lw=0, label="± std over runs"))
    return key
