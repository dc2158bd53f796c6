"""The lower row of curves: how broad a search is.

Of a search for vectors it is what the strategy has of these: the step size, which falls where the search converges and
rises where the optimum is far away; the ratio of the longest axis of its distribution to the shortest, which says how
badly scaled the problem is; the length of the step-size path, 1 where sigma is right; the entries of a novelty
search's archive. Vertical lines are restarts. Of programs that a network writes it is the entropy of a token, and how
many programs of a batch are distinct: 1 where the search has collapsed. All are logarithmic, and what never changes is
left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hpc_es.core.data import Float64
from hpc_es.report.curves import COLUMNS, RETURNS, REWARDS, VALUES, Curve, Group, X, average
from hpc_es.report.log_axis import label_log_axis

GREY = "#555555"
OF_VECTORS = {
    "sigma": ("-", "sigma"),
    "axis_ratio": (":", "longest axis / shortest axis"),
    "path_length": ("--", "|p_s| / its expected length"),
    "archive_size": ("-.", "entries of the archive"),
}
SHOWN = {  # columns of the metrics, by what is drawn above them
    VALUES: OF_VECTORS,
    RETURNS: OF_VECTORS,
    REWARDS: {"token_entropy": ("-", "entropy of a token"), "distinct_programs": (":", "distinct programs of a batch")},
}


def has_distribution(groups: Sequence[Group]) -> bool:
    """Return whether there is something to draw."""
    return any(_columns(group) for group in groups)


def _columns(group: Group) -> list[str]:
    """Return the columns of SHOWN that a group has."""
    x = group.measure.panels[0]
    return [column for column in SHOWN[group.measure] if _series(group, column, x) is not None]


def _series(group: Group, column: str, x: X) -> Curve | None:
    """Return a metric of a group's runs, the geometric mean where there are several; None if there is none to show."""
    series = [run.series(COLUMNS[x], column) for run in group.runs]
    logarithms = [(run_x[y > 0], np.log(y[y > 0])) for run_x, y in series if (y > 0).any()]
    if not logarithms or all(len(y) > 1 and np.ptp(y) == 0 for _, y in logarithms):
        return None
    if len(logarithms) == 1:
        only_x, y = logarithms[0]
        return Curve(only_x, np.exp(y), np.full_like(y, np.nan), runs=1)
    mean = average(logarithms)
    return Curve(mean.x, np.exp(mean.mean), mean.spread, mean.runs)


def _restarts(group: Group, x: X) -> Float64:
    """Return where the searches of a group's runs have begun anew, float64[restarts]."""
    series = [run.series(COLUMNS[x], "restarts") for run in group.runs]
    places: Float64 = np.concatenate([run_x[1:][np.diff(count) > 0] for run_x, count in series])
    return places


def draw_distribution(ax: Axes, group: Group, x: X, color: str) -> None:
    """Draw what a group has of SHOWN."""
    for column, (dash, _) in SHOWN[group.measure].items():
        series = _series(group, column, x)
        if series is not None:
            curve = series.drawn()
            width, marker = 1.3 if dash == "-" else 0.9, "." if len(curve.x) == 1 else None
            ax.plot(curve.x, curve.mean, dash, color=color, lw=width, marker=marker)
    for place in _restarts(group, x):
        ax.axvline(place, color=color, lw=0.7, alpha=0.6)
    ax.set_yscale("log")
    label_log_axis(ax.yaxis)


def distribution_key(groups: Sequence[Group]) -> list[Line2D]:
    """Return what the dashes mean, of the columns that are drawn."""
    looks = dict.fromkeys(SHOWN[group.measure][column] for group in groups for column in _columns(group))
    key = [Line2D([], [], color=GREY, ls=dash, lw=1.3, label=label) for dash, label in looks]
    if any(len(_restarts(group, group.measure.panels[0])) for group in groups):
        key.append(Line2D([], [], color=GREY, ls="none", marker="|", ms=9, mew=0.7, label="restart"))
    return key
