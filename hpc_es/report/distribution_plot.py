"""The lower row of curves: how broad a search is.

Of an objective it is the step size, and how long the distribution's axes are. A step size that falls says that the
search converges, one that rises that it is far away; the ratio of the longest to the shortest axis says how badly
scaled the objective is. Of programs that a network writes it is the entropy of a token, and how many programs of a
batch are distinct: 1 where the search has collapsed. All are logarithmic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from hpc_es.report.curves import COLUMNS, REWARDS, VALUES, Curve, Group, X, average

GREY = "#555555"
SHOWN = {  # columns of the metrics, by what is drawn above them
    VALUES: {"sigma": ("-", "sigma"), "axis_ratio": (":", "longest axis / shortest axis")},
    REWARDS: {"token_entropy": ("-", "entropy of a token"), "distinct_programs": (":", "distinct programs of a batch")},
}


def has_distribution(groups: Sequence[Group]) -> bool:
    """Return whether there is something to draw."""
    return bool(distribution_key(groups))


def _series(group: Group, column: str, x: X) -> Curve | None:
    """Return a metric of a group's runs, the geometric mean where there are several; None if no run has it."""
    series = [run.series(COLUMNS[x], column) for run in group.runs]
    logarithms = [(run_x[y > 0], np.log(y[y > 0])) for run_x, y in series if (y > 0).any()]
    if not logarithms:
        return None
    if len(logarithms) == 1:
        only_x, y = logarithms[0]
        return Curve(only_x, np.exp(y), np.full_like(y, np.nan), runs=1)
    mean = average(logarithms)
    return Curve(mean.x, np.exp(mean.mean), mean.spread, mean.runs)


def draw_distribution(ax: Axes, group: Group, x: X, color: str) -> None:
    """Draw what a group has of SHOWN."""
    for column, (dash, _) in SHOWN.get(group.measure, {}).items():
        series = _series(group, column, x)
        if series is not None:
            curve = series.drawn()
            ax.plot(curve.x, curve.mean, dash, color=color, lw=1.3, marker="." if len(curve.x) == 1 else None)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # plain text: formulas are off


def distribution_key(groups: Sequence[Group]) -> list[Line2D]:
    """Return what the dashes mean, of the columns that are drawn."""
    return [
        Line2D([], [], color=GREY, ls=dash, lw=1.3, label=label)
        for measure, columns in SHOWN.items()
        for column, (dash, label) in columns.items()
        if any(group.measure is measure and _series(group, column, measure.panels[0]) for group in groups)
    ]
