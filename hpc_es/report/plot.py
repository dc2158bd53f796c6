"""Labels of logarithmic axes, as plain numbers: mathematical text is off in the pictures, so that a $ is a $.

Curves of objectives: the best value so far against evaluations, logarithmic where that helps.

The lower row of curves: how broad a search is.

Of a search for vectors it is what the strategy has of these: the step size, which falls where the search converges and
rises where the optimum is far away; the ratio of the longest axis of its distribution to the shortest, which says how
badly scaled the problem is; the length of the step-size path, 1 where sigma is right; the entries of a novelty
search's archive. Vertical lines are restarts. Of programs that a network writes it is the entropy of a token, and how
many programs of a batch are distinct: 1 where the search has collapsed. All are logarithmic, and what never changes is
left out.


Learning curves: return against timesteps and against wall time, one line a configuration.

Of searches for programs it is the best reward, against the number of programs executed and against wall time.

Runs whose configuration differs in nothing but seed, name and output are one line: their mean, interpolated linearly
on the timesteps (or seconds) of the shortest of them, and shaded their standard deviation (n - 1). A single run is
drawn as it was measured, shaded by the spread of its population.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, Locator, MaxNLocator, NullFormatter

from hpc_es.core.data import Float64
from hpc_es.core.errors import UserError
from hpc_es.report.curves import (
    COLUMNS,
    RETURNS,
    REWARDS,
    VALUES,
    Curve,
    Group,
    Measure,
    X,
    average,
    evaluation,
    grouped,
    load,
    population,
)
from hpc_es.storage.files import run_error, written
from hpc_es.storage.metrics_log import JSONL

FEWEST, MOST = 3, 7  # labels
WITHIN_A_DECADE = ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 6, 8))


def label_log_axis(axis: Axis) -> None:
    """Give an axis, which is logarithmic, some labelled ticks, however many decades it spans."""
    axis.set_major_locator(LogTicks())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


class LogTicks(Locator):
    """Powers of ten, every second or third of many; 3, or 2 and 5, or other digits between few of them."""

    def __call__(self) -> list[float]:
        """Return the ticks of the axis as it is."""
        assert self.axis is not None
        low, high = self.axis.get_view_interval()
        return self.tick_values(low, high)

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Return the ticks between two positive numbers."""
        low, high = sorted((vmin, vmax))
        if low <= 0:
            return []
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in WITHIN_A_DECADE:
            ticks = [digit * 10.0**exponent for exponent in exponents for digit in digits]
            inside = [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)]
            if len(inside) >= FEWEST:
                return inside[:: -(-len(inside) // MOST)]
        return [float(tick) for tick in MaxNLocator(MOST - 2).tick_values(low, high)]


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


SUFFIXES = (".png", ".pdf", ".svg")
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito 2008
DASHES = ("-", "--", ":")  # behind the last colour, the colours begin again
MOST_MARKERS = 30
LEGEND_LETTERS = 120  # in a line
UNDATED: dict[str, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "text.parse_math": False,  # a $ in a name is a $
    "pdf.fonttype": 42,  # text stays text
    "svg.hashsalt": "hpc_es",  # the same runs give the same file
}


AXES: dict[X, tuple[str, tuple[tuple[float, str], ...]]] = {  # name, units from large to small
    "timesteps": ("timesteps", ((1e9, "billion"), (1e6, "million"), (1e3, "thousand"), (1.0, ""))),
    "evaluations": ("evaluations", ((1e9, "billion"), (1e6, "million"), (1e3, "thousand"), (1.0, ""))),
    "programs": ("programs executed", ((1e9, "billion"), (1e6, "million"), (1e3, "thousand"), (1.0, ""))),
    "seconds": ("wall time", ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))),
}


def plot(runs: Sequence[Path], output: Path, x: X | None = None, title: str | None = None) -> None:
    """Draw the curves of run directories into a PNG, PDF or SVG, as the suffix says; without `x`, both panels.

    A directory of repetitions stands for those of them that have metrics.
    Raises UserError for what is not a run directory, has no metrics yet, for runs that do not go into one picture, and
    for another suffix; RunError where the output
    cannot be written. The output is replaced as a whole or not at all.
    """
    if output.suffix.lower() not in SUFFIXES:
        raise UserError(f"{output}: the suffix is {output.suffix!r}, expected one of {', '.join(SUFFIXES)}")
    if not runs:
        raise UserError("no run directory to plot; give at least one")
    single = [run for path in runs for run in (_repetitions(path) or [path])]
    groups = grouped([load(path) for path in dict.fromkeys(path.resolve() for path in single)])
    panels = _panels(groups, x)
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's matplotlibrc does not change the picture
        mpl.rcParams.update(STYLE)
        _save(figure(groups, panels, title), output)


def _repetitions(path: Path) -> list[Path]:
    """Return the repetitions in a directory that have metrics; none of a single run."""
    files = [run / JSONL for run in sorted(path.glob("repetition_*/"))]
    return [file.parent for file in files if file.exists() and file.stat().st_size]


def _panels(groups: Sequence[Group], x: X | None) -> Sequence[X]:
    """Return what stands on the horizontal axes; UserError where the runs have nothing like that in common."""
    first = groups[0]
    for other in groups:
        if other.measure is not first.measure:
            pair = [f"{each.runs[0].path} has a {each.measure.label}" for each in (first, other)]
            raise UserError(f"{', '.join(pair)}: draw them apart")
    if x is not None and x not in first.measure.panels:
        raise UserError(f"--x is {x}: expected {' or '.join(first.measure.panels)} for the {first.measure.label}")
    return (x,) if x else first.measure.panels


def figure(groups: Sequence[Group], panels: Sequence[X], title: str | None) -> Figure:
    """Return the figure, 1200 x 500 pixels at 150 dots an inch; 1200 x 750 with how broad the search is below."""
    values = groups[0].measure is VALUES
    lower = has_distribution(groups)
    result = Figure(figsize=(8.0, 5.0 if lower else 10 / 3), dpi=150, layout="constrained")
    heights = (3, 2) if lower else (1,)
    grid = result.subplots(len(heights), len(panels), sharey="row", squeeze=False, height_ratios=heights)
    axes = grid[0]
    for panel, (ax, x) in enumerate(zip(axes, panels, strict=True)):
        for index, members in enumerate(groups):
            if members.measure is VALUES:
                draw_values(ax, best_values(members, x).drawn(), *_look(index))
            else:
                theta = evaluation(members, x)
                people, theta = population(members, x).drawn(), theta.drawn() if theta else None
                _draw(ax, members.measure, people, theta, *_look(index))
        _label_x(ax, x)
        if panel == 0:
            ax.set_ylabel(groups[0].measure.label)
    if values:
        scale_values(axes)
    if lower:
        _draw_distributions(grid[1], groups, panels)
    lines = [
        Line2D([], [], color=color, ls=dash, lw=2.0, label=_legend_label(members))
        for members, (color, dash) in zip(groups, map(_look, range(len(groups))), strict=True)
    ]
    letters = max(len(str(line.get_label())) for line in lines) + 8  # the sample of the line
    columns = min(max(LEGEND_LETTERS // letters, 1), len(lines))
    heading = title or _subject(groups)
    key = [*(value_key(groups) if values else _key(groups)), *distribution_key(groups)]
    result.legend(
        handles=key,
        loc="outside upper center",
        ncols=4 if lower or len(key) == 4 else 3,
        fontsize=8,
        title=heading,
        title_fontsize=11,
    )
    result.legend(handles=lines, loc="outside lower center", ncols=columns, fontsize=8)
    return result


def _draw_distributions(axes: Sequence[Axes], groups: Sequence[Group], panels: Sequence[X]) -> None:
    """Draw the lower row, whose horizontal axes are those of the upper one."""
    for ax, x in zip(axes, panels, strict=True):
        for index, members in enumerate(groups):
            draw_distribution(ax, members, x, _look(index)[0])
        _label_x(ax, x)


def _look(index: int) -> tuple[str, str]:
    """Colour and dashes of a line."""
    return PALETTE[index % len(PALETTE)], DASHES[index // len(PALETTE) % len(DASHES)]


def _draw(ax: Axes, measure: Measure, people: Curve, theta: Curve | None, color: str, dash: str) -> None:
    few, bold = len(people.x) == 1, measure.spread is None
    width, alpha = (2.0, 1.0) if bold else (0.8, 0.75)
    ax.plot(people.x, people.mean, dash, color=color, lw=width, alpha=alpha, marker="." if few else None)
    _shade(ax, people, color, 0.22 if bold else 0.12)
    if theta is not None:
        every = -(-len(theta.x) // MOST_MARKERS)
        ax.plot(theta.x, theta.mean, dash, color=color, lw=2.0, marker="o", ms=4, mec="white", mew=0.6, markevery=every)
        _shade(ax, theta, color, 0.22)


def _shade(ax: Axes, curve: Curve, color: str, alpha: float) -> None:
    low, high = curve.mean - curve.spread, curve.mean + curve.spread
    if len(curve.x) == 1:
        ax.vlines(curve.x, low, high, color=color, alpha=2 * alpha, lw=3)
    else:
        ax.fill_between(curve.x, low, high, color=color, alpha=alpha, lw=0)


def _subject(groups: Sequence[Group]) -> str:
    """Return what was learned: the environment, the program, or the kind of task, where all groups have the same."""
    tasks = [members.runs[0].config.get("task") or {} for members in groups]
    keys = ("env_id", "name", "function", "kind")
    subjects = {next((str(task[key]) for key in keys if task.get(key)), "") for task in tasks}
    return subjects.pop() if len(subjects) == 1 else "Learning curves"


def _key(groups: Sequence[Group]) -> list[Line2D | Patch]:
    """Return what thin, bold and shaded mean."""
    several = [len(members.runs) > 1 for members in groups]
    if groups[0].measure is not RETURNS:
        line = Line2D([], [], color=GREY, lw=2.0, label="best so far" + ", mean over runs" * any(several))
        return [line, *([Patch(color=GREY, alpha=0.2, lw=0, label="± std over runs")] if any(several) else [])]
    spread = "± its std over runs" if all(several) else "± std of the population"
    if any(several) and not all(several):
        spread = "± its std over runs (of a single run: ± std of the population)"
    key: list[Line2D | Patch] = []
    if any(evaluation(members, "timesteps") for members in groups):
        key.append(Line2D([], [], color=GREY, lw=2.0, marker="o", ms=4, mec="white", label="evaluation of theta"))
        if any(several):
            key.append(Patch(color=GREY, alpha=0.35, lw=0, label="± its std over runs"))
    key.append(Line2D([], [], color=GREY, lw=0.8, label="population mean"))
    key.append(Patch(color=GREY, alpha=0.15, lw=0, label=spread))
    return key


def _legend_label(group: Group) -> str:
    if len(group.runs) == 1:
        return _short(group.label)
    # Repetitions of one seed have random numbers of their own.
    seeds = len({(run.config.get("seed"), run.repetition) for run in group.runs})
    notes = [f"{seeds} seed{'s' if seeds > 1 else ''}"]
    if seeds < len(group.runs):
        notes.insert(0, f"{len(group.runs)} runs")
    curve = evaluation(group, "timesteps")
    if curve is not None and curve.runs < len(group.runs):
        notes.append(f"{curve.runs} with evaluations")
    return f"{_short(group.label)} ({', '.join(notes)})"


def _short(label: str) -> str:
    return label if len(label) <= 64 else f"{label[:63]}…"


def _label_x(ax: Axes, x: X) -> None:
    name, units = AXES[x]
    top = max(float(np.max(line.get_xdata())) for line in ax.get_lines())
    size, unit = next((pair for pair in units if top >= 2 * pair[0]), units[-1])
    ax.set_xlabel(f"{name} ({unit})" if unit else name)
    ax.set_xlim(left=0.0)
    ax.xaxis.set_major_locator(_Steps(size))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:,.12g}"))


class _Steps(MaxNLocator):
    """Ticks at round numbers of a unit."""

    def __init__(self, size: float) -> None:
        super().__init__(6, steps=[1, 2, 2.5, 5, 10])
        self._size = size

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        return [self._size * tick for tick in super().tick_values(vmin / self._size, vmax / self._size)]


def _save(figure: Figure, output: Path) -> None:
    kind = output.suffix.lower().removeprefix(".")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise run_error(output, error) from error
    with written(output) as temporary:
        figure.savefig(temporary, format=kind, metadata=UNDATED[kind])
