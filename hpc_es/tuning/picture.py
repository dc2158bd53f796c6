"""Objective against each hyperparameter: one panel a key, a dot a complete trial, the best one ringed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpc_es.report.log_axis import label_log_axis
from hpc_es.report.plot import PALETTE, STYLE
from hpc_es.storage.files import written
from hpc_es.tuning.objective import BY_NAME, WEIGHT
from hpc_es.tuning.report import Report
from hpc_es.tuning.space import Range, Values, as_text, parse_space
from hpc_es.tuning.trial import COMPLETE

COLUMNS = 4
WIDE = 100.0  # positive values of a list that differ by this factor are drawn on a log axis


def draw(report: Report, output: Path) -> None:
    """Draw the complete trials into a PNG; RunError where it cannot be written."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        with written(output) as temporary:
            figure(report).savefig(temporary, format="png")


def figure(report: Report) -> Figure:
    """Return the figure; keys of one value are left out unless there is no other."""
    space, _ = parse_space(report.identity["space"], report.identity["search"])
    keys = [key for key in report.keys if len(set(map(str, space[key].ends))) > 1] or report.keys
    columns = min(len(keys), COLUMNS)
    lines = math.ceil(len(keys) / columns)
    result = Figure(figsize=(1.0 + 2.6 * columns, 0.5 + 2.6 * lines), dpi=150, layout="constrained")
    axes = result.subplots(lines, columns, sharey=True, squeeze=False).flat
    complete = [row for row in report.rows if row["state"] == COMPLETE]
    objectives = [row["objective"] for row in complete]
    for place, ax in enumerate(axes):
        if place >= len(keys):
            ax.set_axis_off()
            continue
        key = keys[place]
        positions = _positions(ax, space[key], [row["hyperparameters"][key] for row in complete])
        ax.plot(positions, objectives, "o", color=PALETTE[0], ms=4, alpha=0.7, mew=0)
        ax.plot(positions[:1], objectives[:1], "o", mfc="none", mec=PALETTE[1], ms=9, mew=1.5)
        ax.set_xlabel(key)
        if place % columns == 0:
            ax.set_ylabel(_goal(report))
    result.suptitle(f"{report.directory.name}: {len(complete)} complete of {len(report.rows)} trials", fontsize=10)
    return result


def _positions(ax: Axes, entry: Values | Range, values: Sequence[Any]) -> list[float]:
    """Return where the values stand on the axis, which is made ready for them."""
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in entry.ends)
    if not numeric:
        texts = [value if isinstance(value, str) else as_text(value) for value in entry.ends]
        ax.set_xticks(range(len(texts)), texts, rotation=20 if max(map(len, texts)) > 6 else 0)
        ax.set_xlim(-0.5, len(texts) - 0.5)
        return [float(list(entry.ends).index(value)) for value in values]
    low, high = min(entry.ends), max(entry.ends)
    if (isinstance(entry, Range) and entry.kind == "log_uniform") or (
        isinstance(entry, Values) and low > 0 and high / low >= WIDE
    ):
        ax.set_xscale("log")
        label_log_axis(ax.xaxis)
    return [float(value) for value in values]


def _goal(report: Report) -> str:
    objective = report.identity["objective"]
    return objective.replace("_", " ") if objective in BY_NAME else f"objective ({WEIGHT} {objective[WEIGHT]:g})"
