"""Pictures of learning curves: the return against timesteps and wall time.

Objectives show the best value so far against evaluations, and finished ones the best parameters if
they have names; several objectives the hypervolume of the front, and the fronts below; program
searches the best reward against the number of programs executed. The runs
of a group (`curves.grouped`) are averaged, and the shade is their standard deviation (n - 1); for a
single run it is the standard deviation over the population.

If the runs have such metrics, a lower row shows diagnostics of the search on a logarithmic axis:
step size, axis ratio of the distribution, length of the step-size path, archive size, and with
constraints the violation of the best vector and the share of feasible vectors, with vertical lines
at restarts; for programs, the entropy per token and the number of distinct programs per batch.
Metrics that never change are left out.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, Locator, MaxNLocator, NullFormatter

from hpc_es.core.errors import READING, UserError, unreadable_reason, visible, visible_lines
from hpc_es.report.curves import (
    FRONTS,
    OF_FRONTS,
    REWARDS,
    VALUES,
    X_AXES,
    Curve,
    RunCurves,
    RunGroup,
    X,
    best_values,
    by_task,
    diagnostic,
    evaluation,
    grouped,
    load,
    population,
    restarts,
    task_name,
)
from hpc_es.report.fronts import DrawnFront, draw_fronts, height_of, read_front
from hpc_es.storage.answers import stated_goal, x_text
from hpc_es.storage.files import run_error, written
from hpc_es.storage.metrics_log import JSONL

SUFFIXES = (".png", ".pdf", ".svg")
GREY = "#555555"
# Okabe and Ito 2008
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":")  # after the last colour, the colours repeat with the next dash pattern
MOST_MARKERS = 30
MOST_CHARTS = 40  # a picture of them takes a minute
MOST_LETTERS, MOST_LINES = 300, 5  # of a title
MOST_RESTARTS = 500
MOST_NAMED = 1000  # letters of the parameters of a best vector
LEGEND_LETTERS = 120  # per line of the legend
MOST_PARAMETERS = 12  # of a best vector in the legend
LOG_DECADES = 2  # positive values that span more decades get a logarithmic axis
UNDATED: dict[str, dict[str, None]] = {
    "png": {},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}
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
# a name, or offset and lengths of dashes and gaps
LineStyle: TypeAlias = str | tuple[int, tuple[int, ...]]
# Of the metrics that a group declares, in their order.
DIAGNOSTIC_DASHES: Sequence[LineStyle] = (
    "-",
    ":",
    "--",
    "-.",
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (1, 3)),
)


def plot(
    runs: Sequence[Path],
    output: Path,
    x: X | None = None,
    title: str | None = None,
    unreadable: dict[Path, str] | None = None,
) -> list[Path]:
    """Draw the learning curves of run directories to a PNG, PDF or SVG file.

    `x` is the horizontal axis; None draws one panel for each. A directory of repetitions stands for
    those of its runs that have metrics. Each task has its own chart. Copies of a run are left out.
    The output is replaced atomically. With `unreadable`, runs that cannot be read are left out too
    if there are others, and added to it with the reason.

    Returns:
        The runs that are left out.

    Raises:
        UserError: an unknown suffix, a path that is not a run directory or has no metrics yet, or
            runs whose measures differ.
        RunError: the output cannot be written.
    """
    if output.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"{output}: the suffix is {output.suffix!r}, expected one of {', '.join(SUFFIXES)}"
        )
    if not runs:
        raise UserError("no run directory to plot; give at least one")
    single = [run for path in runs for run in (_repetitions(path) or [path])]
    groups = grouped(_readable(dict.fromkeys(path.resolve() for path in single), unreadable))
    panels = _panels(groups, x)
    kind = output.suffix.lower().removeprefix(".")
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's matplotlibrc does not change the picture
        mpl.rcParams.update(STYLE)
        picture = figure(groups, panels, title)
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise run_error(output, error) from error
        with written(output) as temporary:
            picture.savefig(temporary, format=kind, metadata=UNDATED[kind])
    return [run.path for group in groups for run in group.copies]


def check_picture(output: Path) -> None:
    """Raise UserError unless a picture can be written there: suffix and directory."""
    if output.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"{output}: the suffix is {output.suffix!r}, expected one of {', '.join(SUFFIXES)}"
        )
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no directory {output.parent}")


def _readable(paths: Iterable[Path], unreadable: dict[Path, str] | None) -> list[RunCurves]:
    """Return the curves of the runs that can be read and grouped; UserError if there are none."""
    loaded: list[RunCurves] = []
    first: UserError | None = None
    for path in paths:
        try:
            run = load(path)
            grouped([run])
            loaded.append(run)
        except (UserError, *READING) as error:
            reason = unreadable_reason(error)
            text = reason if isinstance(error, UserError | OSError) else f"{path}: {reason}"
            first = first or UserError(text)
            if unreadable is not None:
                unreadable[path] = text
    if first and (unreadable is None or not loaded):
        raise first
    return loaded


def _repetitions(path: Path) -> list[Path]:
    """Return the repetitions in a directory that have metrics; none for a single run."""
    files = [run / JSONL for run in sorted(path.glob("repetition_*/"))]
    return [file.parent for file in files if file.exists() and file.stat().st_size]


def _panels(groups: Sequence[RunGroup], x: X | None) -> Sequence[X]:
    """Return the horizontal axis of each panel.

    Raises:
        UserError: the groups have different measures, or not this axis.
    """
    first = groups[0]
    for other in groups:
        if other.measure is not first.measure:
            pair = [f"{group.runs[0].path} has a {group.measure.label}" for group in (first, other)]
            raise UserError(f"{', '.join(pair)}: plot them separately")
    if x is not None and x not in first.measure.panels:
        raise UserError(
            f"--x is {x}: expected {' or '.join(first.measure.panels)} for the {first.measure.label}"
        )
    return (x,) if x else first.measure.panels


def figure(groups: Sequence[RunGroup], panels: Sequence[X], title: str | None) -> Figure:
    """Return the figure at 150 dots per inch, with a chart for each task below each other.

    A chart has 1200 x 500 pixels, or 1200 x 750 with a lower row of diagnostics.
    """
    tasks = by_task(groups)
    if len(tasks) > MOST_CHARTS:
        text = (
            f"the runs have {len(tasks)} tasks, each with a chart: expected at most {MOST_CHARTS}"
        )
        raise UserError(f"{text} in one picture")
    fronts = {name: _fronts(same) for name, same in tasks.items()}
    heights = [
        (5.0 if any(_diagnostics(group) for group in same) else 10 / 3)
        + height_of([drawn.front for drawn in fronts[name]])
        for name, same in tasks.items()
    ]
    result = Figure(figsize=(8.0, sum(heights)), dpi=150, layout="constrained")
    if len(tasks) == 1:
        (of_task,) = fronts.values()
        _draw_task(result, groups, panels, title or _subject(groups), of_task)
        return result
    charts = result.subfigures(len(tasks), 1, squeeze=False, height_ratios=heights).flat
    for chart, (name, same) in zip(charts, tasks.items(), strict=True):
        _draw_task(chart, same, panels, f"{title}: {name}" if title else name, fronts[name])
    return result


def _fronts(groups: Sequence[RunGroup]) -> list[DrawnFront]:
    """Return the fronts of the runs on one task that have the objectives of the first one."""
    drawn: list[DrawnFront] = []
    for index, group in enumerate(groups):
        for run in group.runs if group.measure in OF_FRONTS else ():
            front = read_front(run.path, run.config)
            if front is not None and (not drawn or front.names == drawn[0].front.names):
                drawn.append(DrawnFront(front, _look(index)[0]))
    return drawn


def _draw_task(
    target: Figure | SubFigure,
    groups: Sequence[RunGroup],
    panels: Sequence[X],
    title: str,
    fronts: Sequence[DrawnFront],
) -> None:
    """Draw the curves of the runs on one task, and below them their fronts."""
    if not fronts:
        _draw_chart(target, groups, panels, title)
        return
    curves = 5.0 if any(_diagnostics(group) for group in groups) else 10 / 3
    heights = (curves, height_of([drawn.front for drawn in fronts]))
    above, below = target.subfigures(2, 1, squeeze=False, height_ratios=heights).flat
    _draw_chart(above, groups, panels, title)
    draw_fronts(below, fronts)


def _draw_chart(
    target: Figure | SubFigure, groups: Sequence[RunGroup], panels: Sequence[X], title: str
) -> None:
    """Draw the curves of the runs on one task."""
    measure = groups[0].measure
    has_lower_row = any(_diagnostics(group) for group in groups)
    heights = (3, 2) if has_lower_row else (1,)
    grid = target.subplots(
        len(heights), len(panels), sharey="row", squeeze=False, height_ratios=heights
    )
    for ax, x in zip(grid[0], panels, strict=True):
        for index, group in enumerate(groups):
            if measure is VALUES:
                _draw_values(ax, best_values(group, x).thinned(), *_look(index))
            else:
                _draw_returns(ax, group, x, *_look(index))
        _label_x(ax, x)
    grid[0][0].set_ylabel(measure.label + _direction(groups))
    if measure is VALUES:
        _scale_values(grid[0])
    if has_lower_row:
        looks = _looks(groups)
        for ax, x in zip(grid[1], panels, strict=True):
            for index, group in enumerate(groups):
                _draw_diagnostics(ax, group, x, _look(index)[0], looks)
            _label_x(ax, x)
    _add_legends(target, groups, title, has_lower_row)


def _look(index: int) -> tuple[str, str]:
    """Return the colour and dash pattern of a line."""
    return PALETTE[index % len(PALETTE)], DASHES[index // len(PALETTE) % len(DASHES)]


def _draw_returns(ax: Axes, group: RunGroup, x: X, color: str, dash: str) -> None:
    """Draw the population mean, thin, and the evaluations of theta, bold.

    Of program searches it is the best reward, bold.
    """
    curve, is_bold = population(group, x).thinned(), group.measure.spread is None
    width, alpha = (2.0, 1.0) if is_bold else (0.8, 0.75)
    marker = "." if len(curve.x) == 1 else None
    ax.plot(curve.x, curve.mean, dash, color=color, lw=width, alpha=alpha, marker=marker)
    _shade(ax, curve, color, 0.22 if is_bold else 0.12)
    theta = evaluation(group, x)
    if theta is not None:
        theta = theta.thinned()
        every = -(-len(theta.x) // MOST_MARKERS)
        ax.plot(
            theta.x,
            theta.mean,
            dash,
            color=color,
            lw=2.0,
            marker="o",
            ms=4,
            mec="white",
            mew=0.6,
            markevery=every,
        )
        _shade(ax, theta, color, 0.22)


def _shade(ax: Axes, curve: Curve, color: str, alpha: float) -> None:
    low, high = curve.mean - curve.spread, curve.mean + curve.spread
    if len(curve.x) == 1:
        ax.vlines(curve.x, low, high, color=color, alpha=2 * alpha, lw=3)
    else:
        ax.fill_between(curve.x, low, high, color=color, alpha=alpha, lw=0)


def _draw_values(ax: Axes, curve: Curve, color: str, dash: str) -> None:
    """Draw the best value of an objective.

    A single run is drawn as steps, a mean over runs as a line with its spread.
    """
    style = "steps-post" if curve.runs == 1 else "default"
    marker = "." if len(curve.x) == 1 else None
    ax.plot(curve.x, curve.mean, dash, color=color, lw=1.8, drawstyle=style, marker=marker)
    if curve.runs > 1:
        low, high = curve.mean - curve.spread, curve.mean + curve.spread
        if curve.mean.min() > 0:  # a logarithmic axis cannot show zero or less
            low = np.maximum(low, curve.mean / 10)
        ax.fill_between(curve.x, low, high, color=color, alpha=0.2, lw=0)


def _scale_values(axes: Sequence[Axes]) -> None:
    """Make the vertical axis logarithmic if all values are positive and span much.

    That is more than LOG_DECADES.
    """
    drawn = np.concatenate(
        [np.asarray(line.get_ydata(), np.float64) for ax in axes for line in ax.get_lines()]
    )
    if drawn.min() > 0 and drawn.max() / drawn.min() > 10**LOG_DECADES:
        axes[0].set_yscale("log")  # the panels share it
        for ax in axes:
            label_log_axis(ax.yaxis)


def _diagnostics(group: RunGroup) -> list[str]:
    """Return the metrics of the lower row that a group has."""
    x = group.measure.panels[0]
    # the panel has one axis
    drawn = [column for column, metric in group.metrics.items() if metric.is_log]
    return [column for column in drawn if diagnostic(group, column, x) is not None]


def _looks(groups: Sequence[RunGroup]) -> dict[str, tuple[LineStyle, str]]:
    """Return dash pattern and label of each metric of the lower row."""
    labels = {
        column: group.metrics[column].label for group in groups for column in _diagnostics(group)
    }
    pairs = zip(labels.items(), cycle(DIAGNOSTIC_DASHES), strict=False)
    return {column: (dash, label) for (column, label), dash in pairs}


def _draw_diagnostics(
    ax: Axes, group: RunGroup, x: X, color: str, looks: Mapping[str, tuple[LineStyle, str]]
) -> None:
    for column in _diagnostics(group):
        dash, _ = looks[column]
        series = diagnostic(group, column, x)
        if series is not None:
            curve = series.thinned()
            width, marker = 1.3 if dash == "-" else 0.9, "." if len(curve.x) == 1 else None
            ax.plot(curve.x, curve.mean, ls=dash, color=color, lw=width, marker=marker)
    positions = restarts(group, x)
    for position in positions[:: -(-len(positions) // MOST_RESTARTS) or 1]:
        ax.axvline(position, color=color, lw=0.7, alpha=0.6)
    ax.set_yscale("log")
    label_log_axis(ax.yaxis)


def _add_legends(
    target: Figure | SubFigure, groups: Sequence[RunGroup], title: str, has_lower_row: bool
) -> None:
    """Add the meaning of the line styles above the panels, and the groups below.

    These have their colours.
    """
    key = _value_key(groups) if groups[0].measure is VALUES else _return_key(groups)
    key += _diagnostics_key(groups)
    title = title if len(title) <= MOST_LETTERS else f"{title[:MOST_LETTERS]} ..."
    target.legend(
        handles=key,
        loc="outside upper center",
        ncols=4 if has_lower_row or len(key) == 4 else 3,
        fontsize=8,
        title=visible_lines(title) if title.count("\n") < MOST_LINES else visible(title),
        title_fontsize=11,
    )
    lines = []
    for index, group in enumerate(groups):
        color, dash = _look(index)
        lines.append(Line2D([], [], color=color, ls=dash, lw=2.0, label=_group_label(group)))
    # about the width of the line sample
    letters = max(len(str(line.get_label())) for line in lines) + 8
    columns = min(max(LEGEND_LETTERS // letters, 1), len(lines))
    target.legend(handles=lines, loc="outside lower center", ncols=columns, fontsize=8)


def _subject(groups: Sequence[RunGroup]) -> str:
    """Return the environment, program or type of task if all groups have the same one."""
    subjects = {task_name(group.config) for group in groups}
    return subjects.pop() if len(subjects) == 1 else "Learning curves"


def _direction(groups: Sequence[RunGroup]) -> str:
    """Return " (lower is better)" or " (higher is better)".

    "" unless these are objectives with the same goal.
    """
    if groups[0].measure in OF_FRONTS:
        return " (higher is better)" if groups[0].measure is FRONTS else ""
    goals = {stated_goal(group.runs[0].config) for group in groups}
    words = {"minimise": " (lower is better)", "maximise": " (higher is better)", None: ""}
    return words[goals.pop()] if len(goals) == 1 else ""


def _value_key(groups: Sequence[RunGroup]) -> list[Line2D | Patch]:
    key: list[Line2D | Patch] = [Line2D([], [], color=GREY, lw=1.8, label="best value so far")]
    if any(len(group.runs) > 1 for group in groups):
        key.append(Patch(color=GREY, alpha=0.2, lw=0, label="± std over runs"))
    return key


def _return_key(groups: Sequence[RunGroup]) -> list[Line2D | Patch]:
    several = [len(group.runs) > 1 for group in groups]
    key: list[Line2D | Patch] = []
    if groups[0].measure in (REWARDS, *OF_FRONTS):
        key.append(
            Line2D(
                [], [], color=GREY, lw=2.0, label="best so far" + ", mean over runs" * any(several)
            )
        )
        if any(several):
            key.append(Patch(color=GREY, alpha=0.2, lw=0, label="± std over runs"))
        return key
    if any(evaluation(group, "timesteps") for group in groups):
        key.append(
            Line2D(
                [],
                [],
                color=GREY,
                lw=2.0,
                marker="o",
                ms=4,
                mec="white",
                label="evaluation of theta",
            )
        )
        if any(several):
            key.append(Patch(color=GREY, alpha=0.35, lw=0, label="± its std over runs"))
    spread = "± its std over runs" if all(several) else "± std of the population"
    if any(several) and not all(several):
        spread = "± its std over runs (single runs: ± std of the population)"
    key.append(Line2D([], [], color=GREY, lw=0.8, label="population mean"))
    key.append(Patch(color=GREY, alpha=0.15, lw=0, label=spread))
    return key


def _diagnostics_key(groups: Sequence[RunGroup]) -> list[Line2D | Patch]:
    looks = _looks(groups).values()
    key: list[Line2D | Patch] = [
        Line2D([], [], color=GREY, ls=dash, lw=1.3, label=label) for dash, label in looks
    ]
    if any(len(restarts(group, group.measure.panels[0])) for group in groups):
        key.append(
            Line2D([], [], color=GREY, ls="none", marker="|", ms=9, mew=0.7, label="restart")
        )
    return key


def _group_label(group: RunGroup) -> str:
    """Return the label of a group, with its number of seeds if it has several runs."""
    label = group.label if len(group.label) <= 64 else f"{group.label[:63]}…"
    if len(group.runs) == 1:
        run = group.runs[0]
        # not of an earlier end
        is_last = run.rows > 0 and run.columns["best_value"][-1] == run.found.answer.value
        x = run.found.answer.x if is_last else None
        named = f": {x_text(x, MOST_PARAMETERS)}" if isinstance(x, dict) else ""
        label += f" ({_copies(group)})" if group.copies else ""
        named = named if len(named) <= MOST_NAMED else f"{named[:MOST_NAMED]} ..."
        return textwrap.fill(label + named, LEGEND_LETTERS) if named else label
    # Repetitions of one seed have different random numbers.
    seeds = len({(run.config.get("seed"), run.repetition) for run in group.runs})
    notes = [f"{seeds} seed{'s' if seeds > 1 else ''}"]
    if seeds < len(group.runs):
        notes.insert(0, f"{len(group.runs)} runs")
    curve = evaluation(group, "timesteps")
    if curve is not None and curve.runs < len(group.runs):
        notes.append(f"{curve.runs} with evaluations")
    if group.copies:
        notes.append(_copies(group))
    return f"{label} ({', '.join(notes)})"


def _copies(group: RunGroup) -> str:
    return f"{len(group.copies)} {'copy is' if len(group.copies) == 1 else 'copies are'} left out"


def _label_x(ax: Axes, x: X) -> None:
    """Label the horizontal axis in the largest unit that is at most half its range."""
    name, units = X_AXES[x]
    top = max(float(np.max(line.get_xdata())) for line in ax.get_lines())
    size, unit = next((pair for pair in units if top >= 2 * pair[0]), units[-1])
    ax.set_xlabel(f"{name} ({unit})" if unit else name)
    ax.set_xlim(left=0.0)
    ax.xaxis.set_major_locator(_UnitTicks(size))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:,.12g}"))


class _UnitTicks(MaxNLocator):
    """Ticks at round multiples of a unit."""

    def __init__(self, size: float) -> None:
        super().__init__(6, steps=[1, 2, 2.5, 5, 10])
        self._size = size

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        return [
            self._size * tick for tick in super().tick_values(vmin / self._size, vmax / self._size)
        ]


def label_log_axis(axis: Axis) -> None:
    """Give a logarithmic axis 3 to 7 labelled ticks, however many decades it spans.

    The labels are plain numbers, since mathematical text is switched off in the pictures.
    """
    axis.set_major_locator(LogTicks())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


class LogTicks(Locator):
    """Ticks at powers of ten.

    If the range has few of them, at further digits; if it has many, at every nth.
    """

    fewest, most = 3, 7
    digits = ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 6, 8))  # within a decade, tried in this order

    def __call__(self) -> list[float]:
        """Return the ticks for the current range of the axis."""
        assert self.axis is not None
        low, high = self.axis.get_view_interval()
        return self.tick_values(low, high)

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Return the ticks between two positive numbers; none if one is not positive."""
        low, high = sorted((vmin, vmax))
        if low <= 0:
            return []
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in self.digits:
            ticks = [digit * 10.0**exponent for exponent in exponents for digit in digits]
            inside = [
                tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)
            ]
            if len(inside) >= self.fewest:
                return inside[:: -(-len(inside) // self.most)]
        return [float(tick) for tick in MaxNLocator(self.most - 2).tick_values(low, high)]
