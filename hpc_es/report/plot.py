"""Pictures of learning curves: the return against timesteps and wall time.

Objectives show the best value so far against evaluations, and finished ones the best parameters if
they have names; several objectives the hypervolume of the front, and the fronts below; program
searches the best reward against the number of programs executed. The runs
of a group (`curves.grouped`) are summed up by a centre and an interval, the shade
(`statistics.Summary`), with each run as a thin line; of a single run the shade is the standard
deviation over the population. A diamond is the final evaluation of all runs of a group.

A lower row shows the first metric of the search that has a logarithmic axis and is in progress
lines, such as the step size, with vertical lines at restarts; for programs, the entropy per token.
Each of the other metrics is a panel that can be chosen. Metrics that never change are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from hpc_es.core.errors import READING, UserError, unreadable_reason, visible, visible_lines
from hpc_es.core.paths import followed
from hpc_es.core.run_files import make_directory
from hpc_es.report.curves import (
    FRONTS,
    MEANS,
    OF_FRONTS,
    VALUES,
    X_AXES,
    Curve,
    RunCurves,
    RunGroup,
    X,
    by_task,
    evaluation,
    grouped,
    load,
    restarts,
    task_name,
)
from hpc_es.report.drawn import (
    MAIN,
    NARROW,
    DrawnLine,
    Style,
    csv_text,
    lines_of,
    metric_of,
    panels_of,
)
from hpc_es.report.fronts import DrawnFront, draw_fronts, height_of, read_front
from hpc_es.report.legends import add_legend
from hpc_es.report.ticks import UnitTicks, label_linear_axis, label_log_axis
from hpc_es.storage.answers import stated_goal, x_text
from hpc_es.storage.files import run_error, written
from hpc_es.storage.metrics_log import JSONL
from hpc_es.storage.results import repetition_directories

SUFFIXES = (".png", ".pdf", ".svg")
CSV = ".csv"
PLAIN = Style()
WIDTH = 8.0  # inches, for a screen
GREY = "#555555"
# Okabe and Ito 2008
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":")  # after the last colour, the colours repeat with the next dash pattern
BOLD: dict[str, Any] = {"color": GREY, "lw": 2.0}
MOST_MARKERS = 30
MOST_CHARTS = 40  # a picture of them takes a minute
MOST_LETTERS, MOST_LINES = 300, 5  # of a title
MOST_RESTARTS = 500
MOST_NAMED = 1000  # letters of the parameters of a best vector
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


def plot(
    runs: Sequence[Path],
    output: Path | Sequence[Path],
    x: X | None = None,
    title: str | None = None,
    unreadable: dict[Path, str] | None = None,
    *,
    style: Style = PLAIN,
) -> list[Path]:
    """Draw the learning curves of run directories to PNG, PDF or SVG files.

    A CSV file gets the numbers of the lines. `x` is the horizontal axis; None draws one panel for
    each. A directory of repetitions stands for those of its runs that have metrics. Each task has
    its own chart. Copies of a run are left out. Files are replaced atomically. With `unreadable`,
    runs that cannot be read are left out too if there are others, and added to it with the reason.

    Returns:
        The runs that are left out.

    Raises:
        UserError: an unknown suffix, a path that is not a run directory or has no metrics yet, or
            runs whose measures differ.
        RunError: an output cannot be written.
    """
    outputs = [output] if isinstance(output, Path) else list(output)
    for file in outputs:
        require_suffix(file, (*SUFFIXES, CSV))
    groups = groups_of(runs, unreadable)
    panels = _panels(groups, x, style)
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's matplotlibrc does not change the picture
        mpl.rcParams.update(STYLE)
        charts = _charts(groups, panels, style)
        picture = _picture(charts, panels, title, style)
        for file in outputs:
            _write(picture, charts, file)
    return [run.path for group in groups for run in group.copies]


def groups_of(runs: Sequence[Path], unreadable: dict[Path, str] | None = None) -> list[RunGroup]:
    """Return the runs of directories of runs or repetitions by configuration.

    Args:
        runs: the directories.
        unreadable: gets those that cannot be read, with the reason; None: they are errors.

    Raises:
        UserError: there is none that can be read.
    """
    if not runs:
        raise UserError("no run directory to plot; give at least one")
    single = [run for path in runs for run in (_repetitions(path) or [path])]
    # each once, by the way that leads there: a link of somebody else is refused when it is read
    named = dict[Path, Path]()
    for path in single:
        named.setdefault(followed(path), path)
    return grouped(_readable(named.values(), unreadable))


def _write(picture: Figure, charts: Mapping[str, Chart], file: Path) -> None:
    try:
        make_directory(file.parent)
    except OSError as error:
        raise run_error(file, error) from error
    kind = file.suffix.lower().removeprefix(".")
    with written(file) as temporary:
        if file.suffix.lower() == CSV:
            lines = {name: (chart.groups, chart.lines) for name, chart in charts.items()}
            temporary.write_text(csv_text(lines), encoding="utf-8")
        else:
            picture.savefig(temporary, format=kind, metadata=UNDATED[kind])


def require_suffix(output: Path, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Raise UserError unless the file has one of the suffixes."""
    if output.suffix.lower() not in suffixes:
        raise UserError(
            f"{output}: the suffix is {output.suffix!r}, expected one of {', '.join(suffixes)}"
        )


def check_picture(output: Path) -> None:
    """Raise UserError unless a picture can be written there: suffix and directory."""
    require_suffix(output)
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
    files = [run / JSONL for run in repetition_directories(path)]
    return [file.parent for file in files if _has_begun(file)]


def _has_begun(rows: Path) -> bool:
    """Whether a run has rows, or somebody keeps them from this user."""
    try:
        return rows.stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # as reading them will say
        return True


def _panels(groups: Sequence[RunGroup], x: X | None, style: Style) -> Sequence[X]:
    """Return the horizontal axis of each column of panels.

    Raises:
        UserError: the groups have different measures, or not this axis.
    """
    first = groups[0]
    for other in groups:
        if other.measure is not first.measure:
            pair = [f"{group.runs[0].path} has a {group.measure.label}" for group in (first, other)]
            raise UserError(
                f"{', '.join(pair)}, which one picture cannot compare; plot them separately"
            )
    known = first.measure.panels
    if x == "evaluations" and "timesteps" in known:
        x = "episodes"  # one is an evaluation of a policy
    if x is not None and x not in (*known, "generation", "episodes"):
        names = [*known, "generation"]
        raise UserError(
            f"--x is {x}: expected {', '.join(names[:-1])} or {names[-1]} for the "
            f"{first.measure.label}"
        )
    if x is None and style.width is not None and style.width < NARROW:
        return known[:1]
    return (x,) if x else known


@dataclass(frozen=True)
class Chart:
    """The runs on one task, and the panels and lines of their chart."""

    groups: Sequence[RunGroup]
    panels: Sequence[str]
    lines: Sequence[DrawnLine]
    fronts: Sequence[DrawnFront]


def _charts(groups: Sequence[RunGroup], axes: Sequence[X], style: Style) -> dict[str, Chart]:
    """Return the charts by task."""
    tasks = by_task(groups)
    if len(tasks) > MOST_CHARTS:
        raise UserError(
            f"the runs have {len(tasks)} tasks, each with a chart: expected at most "
            f"{MOST_CHARTS} in one picture"
        )
    charts = {}
    for name, same in tasks.items():
        panels = panels_of(same, style)
        lines = [line for panel in panels for x in axes for line in lines_of(panel, same, x, style)]
        charts[name] = Chart(same, panels, lines, () if style.panels else _fronts(same))
    return charts


def figure(
    groups: Sequence[RunGroup], axes: Sequence[X], title: str | None, style: Style = PLAIN
) -> Figure:
    """Return the figure at 150 dots per inch, with a chart for each task below each other.

    Without a width a chart has 1200 x 500 pixels, or 1200 x 750 with a metric below.
    """
    return _picture(_charts(groups, axes, style), axes, title, style)


def _picture(
    charts: Mapping[str, Chart], axes: Sequence[X], title: str | None, style: Style
) -> Figure:
    heights = [_height(chart, len(axes), style) for chart in charts.values()]
    width = style.width or WIDTH
    result = Figure(figsize=(width, sum(heights)), dpi=150, layout="constrained")
    FigureCanvasAgg(result)  # measures texts
    if len(charts) == 1:
        (chart,) = charts.values()
        _draw_task(result, chart, axes, title or _subject(chart.groups), style)
        return result
    parts = result.subfigures(len(charts), 1, squeeze=False, height_ratios=heights).flat
    for target, (name, chart) in zip(parts, charts.items(), strict=True):
        _draw_task(target, chart, axes, f"{title}: {name}" if title else name, style)
    return result


def _height(chart: Chart, columns: int, style: Style) -> float:
    """Return the height of a chart in inches."""
    fronts = height_of([drawn.front for drawn in chart.fronts])
    if style.width is None and not style.panels:
        return (5.0 if len(chart.panels) > 1 else 10 / 3) + fronts
    panel = min(max(0.7 * (style.width or WIDTH) / columns, 1.6), 2.7)
    legends = 0.2 * (len(chart.groups) + 4) if style.width else 0.8
    return panel * len(chart.panels) + legends + fronts


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
    target: Figure | SubFigure, chart: Chart, axes: Sequence[X], title: str, style: Style
) -> None:
    """Draw the curves of the runs on one task, and below them their fronts."""
    if not chart.fronts:
        _draw_chart(target, chart, axes, title, style)
        return
    fronts = height_of([drawn.front for drawn in chart.fronts])
    heights = (_height(chart, len(axes), style) - fronts, fronts)
    above, below = target.subfigures(2, 1, squeeze=False, height_ratios=heights).flat
    _draw_chart(above, chart, axes, title, style)
    draw_fronts(below, chart.fronts)


def _draw_chart(
    target: Figure | SubFigure, chart: Chart, axes: Sequence[X], title: str, style: Style
) -> None:
    """Draw the curves of the runs on one task."""
    heights = [3 if style.panels or panel == MAIN else 2 for panel in chart.panels]
    grid = target.subplots(
        len(heights),
        len(axes),
        sharex="col",
        sharey="row",
        squeeze=False,
        height_ratios=heights,
    )
    for row, panel in zip(grid, chart.panels, strict=True):
        for ax, x in zip(row, axes, strict=True):
            lines = [line for line in chart.lines if (line.panel, line.x) == (panel, x)]
            for line in lines:
                _draw_line(ax, line)
            if metric_of(panel, chart.groups):
                _draw_restarts(ax, chart.groups, x)
        _scale(row, panel, chart.groups)
        row[0].set_ylabel(_y_label(panel, chart.groups))
    for column, x in zip(grid.T, axes, strict=True):
        _label_x(column, x)
    _add_legends(target, chart, title, style)


def _y_label(panel: str, groups: Sequence[RunGroup]) -> str:
    """Return the vertical label of a panel."""
    metric = metric_of(panel, groups)
    if metric is not None:
        return metric.label + (f" ({metric.unit})" if metric.unit else "")
    return groups[0].measure.label + _direction(groups)


def _look(index: int) -> tuple[str, str]:
    """Return the colour and dash pattern of a line."""
    return PALETTE[index % len(PALETTE)], DASHES[index // len(PALETTE) % len(DASHES)]


def _draw_line(ax: Axes, line: DrawnLine) -> None:
    """Draw a line, its interval, and its points if they are few or evaluations."""
    color, dash = _look(line.group)
    curve = line.curve
    if line.role == "seed":
        ax.plot(curve.x, curve.y, dash, color=color, lw=0.6, alpha=0.35)
        return
    if line.role == "final":
        ax.plot(curve.x, curve.y, "D", color=color, ms=5.5, mec="white", mew=0.7, zorder=4)
        if curve.has_interval:
            ax.vlines(curve.x, curve.low, curve.high, color=color, lw=1.2, zorder=3.5)
        return
    marker = "." if len(curve.x) == 1 else None
    if line.role == "metric":
        ax.plot(curve.x, curve.y, dash, color=color, lw=1.3, marker=marker)
        _shade(ax, curve, color, 0.2)
        return
    if line.role == "population":
        ax.plot(curve.x, curve.y, dash, color=color, lw=0.8, alpha=0.75, marker=marker)
        _shade(ax, curve, color, 0.12)
        return
    _draw_centre(ax, line, marker)


def _draw_centre(ax: Axes, line: DrawnLine, marker: str | None) -> None:
    """Draw the main line of a group: steps for the best values of one run, dots at evaluations."""
    color, dash = _look(line.group)
    curve = line.curve
    more: dict[str, Any] = {"marker": marker}
    if line.is_evaluated:
        every = -(-len(curve.x) // MOST_MARKERS)
        more = {"marker": "o", "ms": 4, "mec": "white", "mew": 0.6, "markevery": every}
    if line.is_best_value and curve.runs == 1:
        more["drawstyle"] = "steps-post"
    ax.plot(curve.x, curve.y, dash, color=color, lw=2.0, **more)
    _shade(ax, curve, color, 0.22)


def _shade(ax: Axes, curve: Curve, color: str, alpha: float) -> None:
    if not curve.has_interval:
        return
    if len(curve.x) == 1:
        ax.vlines(curve.x, curve.low, curve.high, color=color, alpha=2 * alpha, lw=3)
    else:
        ax.fill_between(curve.x, curve.low, curve.high, color=color, alpha=alpha, lw=0)


def _scale(axes: Sequence[Axes], panel: str, groups: Sequence[RunGroup]) -> None:
    """Make the vertical axis logarithmic where its numbers need it, and give it round ticks.

    That are metrics that say so, and values that are positive and span more than LOG_DECADES.
    """
    metric = metric_of(panel, groups)
    is_log = metric is not None and metric.is_log
    if groups[0].measure in (VALUES, MEANS) and panel in (MAIN, VALUES.name):
        drawn = np.concatenate(
            [np.asarray(line.get_ydata(), np.float64) for ax in axes for line in ax.get_lines()]
        )
        is_log = bool(drawn.min() > 0 and drawn.max() / drawn.min() > 10**LOG_DECADES)
    for ax in axes:
        if is_log:
            ax.set_yscale("log")
            label_log_axis(ax.yaxis)
        else:
            label_linear_axis(ax.yaxis)


def _draw_restarts(ax: Axes, groups: Sequence[RunGroup], x: X) -> None:
    for index, group in enumerate(groups):
        positions = restarts(group, x)
        for position in positions[:: -(-len(positions) // MOST_RESTARTS) or 1]:
            ax.axvline(position, color=_look(index)[0], lw=0.7, alpha=0.6)


def _add_legends(target: Figure | SubFigure, chart: Chart, title: str, style: Style) -> None:
    """Add the meaning of the line styles above the panels, and the groups below.

    These have their colours.
    """
    width = style.width or WIDTH
    key = _key(chart, style)
    title = title if len(title) <= MOST_LETTERS else f"{title[:MOST_LETTERS]} ..."
    title = visible_lines(title) if title.count("\n") < MOST_LINES else visible(title)
    add_legend(target, key, "outside upper center", width, columns=4, title=title)
    lines = []
    for index, group in enumerate(chart.groups):
        color, dash = _look(index)
        label = _group_label(group, style)
        lines.append(Line2D([], [], color=color, ls=dash, lw=2.0, label=label))
    add_legend(target, lines, "outside lower center", width, columns=len(lines))


def _subject(groups: Sequence[RunGroup]) -> str:
    """Return the environment, program or type of task if all groups have the same one."""
    subjects = {task_name(group.config) for group in groups}
    return subjects.pop() if len(subjects) == 1 else "Learning curves"


def _direction(groups: Sequence[RunGroup]) -> str:
    """Return " (lower is better)" or " (higher is better)".

    "" unless these are objectives with the same goal.
    """
    if groups[0].measure in OF_FRONTS:
        return " (higher is better)" if groups[0].measure.y == FRONTS.y else ""
    goals = {stated_goal(group.runs[0].config) for group in groups}
    words = {"minimise": " (lower is better)", "maximise": " (higher is better)", None: ""}
    return words[goals.pop()] if len(goals) == 1 else ""


def _key(chart: Chart, style: Style) -> list[Line2D | Patch]:
    """Return what the kinds of lines mean, in grey."""
    measure = chart.groups[0].measure
    roles = {line.role for line in chart.lines}
    several = [len(group.runs) > 1 for group in chart.groups]
    over = f", {style.summary.centre_text()} over runs" * any(several)
    key: list[Line2D | Patch] = []
    evaluated = [line for line in chart.lines if line.role == "centre" and line.is_evaluated]
    if evaluated:
        key.append(
            Line2D(
                [],
                [],
                marker="o",
                ms=4,
                mec="white",
                label=f"evaluation of {'the centre' if measure is MEANS else 'theta'}{over}",
                **BOLD,
            )
        )
    elif "centre" in roles:
        text = "best value so far" if measure is VALUES else "best so far"
        text = "population mean" if measure.spread else text
        key.append(Line2D([], [], label=text + over, **BOLD))
    if "final" in roles:
        key.append(
            Line2D([], [], color=GREY, ls="none", marker="D", ms=5, label="final evaluation")
        )
    if "population" in roles:
        text = "population mean" + over * (not evaluated)
        key.append(Line2D([], [], color=GREY, lw=0.8, label=text))
    main = [line for line in chart.lines if line.role in ("centre", "population", "final")]
    if any(line.curve.runs > 1 and line.curve.has_interval for line in main):
        key.append(Patch(color=GREY, alpha=0.35, lw=0, label=style.summary.interval_text()))
    if any(line.curve.runs == 1 and line.curve.has_interval for line in main):
        key.append(Patch(color=GREY, alpha=0.15, lw=0, label="± std of the population"))
    if "seed" in roles:
        key.append(Line2D([], [], color=GREY, lw=0.6, alpha=0.6, label="single runs"))
    return key + _diagnostics_key(chart)


def _diagnostics_key(chart: Chart) -> list[Line2D | Patch]:
    if not {line.role for line in chart.lines} & {"metric"}:
        return []
    key: list[Line2D | Patch] = []
    if any(len(restarts(group, group.measure.panels[0])) for group in chart.groups):
        key.append(
            Line2D([], [], color=GREY, ls="none", marker="|", ms=9, mew=0.7, label="restart")
        )
    return key


def _group_label(group: RunGroup, style: Style = PLAIN) -> str:
    """Return the label of a group, with its number of seeds if it has several runs."""
    label = visible(group.label if len(group.label) <= 64 else f"{group.label[:63]}…")
    if len(group.runs) == 1:
        run = group.runs[0]
        # not of an earlier end
        is_last = run.rows > 0 and run.columns["best_value"][-1] == run.found.answer.value
        x = run.found.answer.x if is_last and style.width is None else None
        named = f": {visible(x_text(x, MOST_PARAMETERS))}" if isinstance(x, dict) else ""
        label += f" ({_copies(group)})" if group.copies else ""
        named = named if len(named) <= MOST_NAMED else f"{named[:MOST_NAMED]} ..."
        return label + named
    # Repetitions of one seed have different random numbers.
    seeds = len({(run.config.get("seed"), run.repetition) for run in group.runs})
    notes = [f"{seeds} seed{'s' if seeds > 1 else ''}"]
    if seeds < len(group.runs):
        notes.insert(0, f"{len(group.runs)} runs")
    # of objectives the best value is drawn, not the evaluations of the centre
    curve = None if group.measure.y == "best_value" else evaluation(group, "timesteps")
    if curve is not None and curve.runs < len(group.runs):
        notes.append(f"{curve.runs} with evaluations")
    if group.copies:
        notes.append(_copies(group))
    return f"{label} ({', '.join(notes)})"


def _copies(group: RunGroup) -> str:
    return f"{len(group.copies)} {'copy is' if len(group.copies) == 1 else 'copies are'} left out"


def _label_x(column: Sequence[Axes], x: X) -> None:
    """Label a horizontal axis below the lowest panel.

    Its unit is the largest one that is at most half its range.
    """
    name, units = X_AXES[x]
    lines = [line for ax in column for line in ax.get_lines()]
    top = max(float(np.max(line.get_xdata())) for line in lines)
    size, unit = next((pair for pair in units if top >= 2 * pair[0]), units[-1])
    ax = column[-1]
    ax.set_xlabel(f"{name} ({unit})" if unit else name)
    ax.set_xlim(left=0.0)
    ax.xaxis.set_major_locator(UnitTicks(size))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:,.12g}"))
