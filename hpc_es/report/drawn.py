"""What a picture of learning curves shows, before it is drawn: the lines of each panel.

The picture and its CSV file come from the same lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from hpc_es.core.declarations import Metric
from hpc_es.core.errors import UserError, nearest
from hpc_es.core.paths import shown
from hpc_es.core.spreadsheets import spreadsheet_text
from hpc_es.report.curves import (
    COLUMNS,
    FINAL,
    VALUES,
    Curve,
    RunGroup,
    X,
    best_values,
    diagnostic,
    evaluation,
    final_evaluation,
    of_one_run,
    population,
)
from hpc_es.report.statistics import DEFAULT, Summary

# A panel has the name of what it shows: of the measure, of the mean of the population, or of a
# metric. Unless panels are chosen, MAIN has measure and population.
POPULATION = "population"
MAIN = "main"
MOST_SEEDS = 20  # runs of a chart up to which each is a line of its own, unless `seeds` says it
NARROW = 5.0  # inches below which a picture has one column of panels
Role: TypeAlias = Literal["centre", "population", "metric", "seed", "final"]


@dataclass(frozen=True)
class Style:
    """How runs are summed up and which panels there are.

    Attributes:
        panels: names of panels, from top to bottom; (): see `panels_of`.
        seeds: whether each run is a thin line too; None: if they are few.
        width: of the picture in inches; None: that of a screen.
    """

    summary: Summary = DEFAULT
    panels: tuple[str, ...] = ()
    seeds: bool | None = None
    width: float | None = None

    def shows_seeds(self, groups: Sequence[RunGroup]) -> bool:
        """Whether the single runs are drawn, too."""
        if self.seeds is not None:
            return self.seeds
        return sum(len(group.runs) for group in groups) <= MOST_SEEDS


@dataclass(frozen=True)
class DrawnLine:
    """One line of a panel, or with the role `final` one point."""

    panel: str
    x: X
    group: int  # index of its group, which gives its color
    role: Role
    curve: Curve
    metric: str = ""  # with the role `metric`: its name
    run: Path | None = None  # with the role `seed`: the directory of the run
    column: str = ""  # of metrics.jsonl; "" for single runs and final evaluations

    @property
    def is_evaluated(self) -> bool:
        """Whether its points are evaluations of theta."""
        return self.column in FINAL.values()

    @property
    def is_best_value(self) -> bool:
        return self.column == VALUES.y


def panels_of(groups: Sequence[RunGroup], style: Style) -> tuple[str, ...]:
    """Return the panels of the groups on one task, from top to bottom.

    By default there is one below MAIN, unless the picture is narrow: that of the first metric with
    a logarithmic axis which progress lines show too, such as the step size.

    Raises:
        UserError: the style names a panel that these groups do not have.
    """
    if style.panels:
        known = _panel_names(groups)
        for name in style.panels:
            if name not in known:
                raise UserError(
                    f"--panels {name}: expected {', '.join(known)}{nearest(name, known)}"
                )
        return style.panels
    is_narrow = style.width is not None and style.width < NARROW
    shown = (
        name
        for group in groups
        for name, metric in group.metrics.items()
        if metric.is_log and metric.short and _is_drawn(group, name)
    )
    first = None if is_narrow else next(shown, None)
    return (MAIN,) if first is None else (MAIN, first)


def _panel_names(groups: Sequence[RunGroup]) -> list[str]:
    measure = groups[0].measure
    names = [measure.name]
    if measure.spread is not None:
        names.append(POPULATION)
    names += [name for group in groups for name in group.metrics if _is_drawn(group, name)]
    return list(dict.fromkeys(names))


def metric_of(panel: str, groups: Sequence[RunGroup]) -> Metric | None:
    """Return the metric that a panel shows; None for other panels."""
    return next((group.metrics[panel] for group in groups if panel in group.metrics), None)


def _is_drawn(group: RunGroup, name: str) -> bool:
    return diagnostic(group, name, group.measure.panels[0]) is not None


def lines_of(panel: str, groups: Sequence[RunGroup], x: X, style: Style) -> Iterator[DrawnLine]:
    """Yield the lines of a panel; single runs come first, so that the others are above them."""
    shows_seeds = style.shows_seeds(groups)
    for index, group in enumerate(groups):
        for role, curve, column in _curves(panel, group, x, style.summary):
            metric = column if role == "metric" else ""
            if shows_seeds and len(group.runs) > 1 and column:
                for run, single in _single_runs(group, x, column):
                    yield DrawnLine(panel, x, index, "seed", single.thinned(), metric, run)
            yield DrawnLine(panel, x, index, role, curve.thinned(), metric, column=column)


# Role, curve and column of a line that is not a single run. The column is "" if single runs are not
# to be drawn with it.
RoleCurve: TypeAlias = tuple[Role, Curve, str]


def _curves(panel: str, group: RunGroup, x: X, summary: Summary) -> Iterator[RoleCurve]:
    measure = group.measure
    if panel not in (MAIN, POPULATION, measure.name):
        curve = diagnostic(group, panel, x, summary)
        if curve is not None:
            yield "metric", curve, panel
    elif measure is VALUES:
        yield "centre", best_values(group, x, summary), measure.y
    elif panel == POPULATION:
        yield "centre", population(group, x, summary), measure.y
    else:
        yield from _evaluated_curves(panel, group, x, summary)


def _evaluated_curves(panel: str, group: RunGroup, x: X, summary: Summary) -> Iterator[RoleCurve]:
    """Yield the evaluations of theta, with the population behind them in the panel MAIN.

    Where theta was not evaluated during the runs, the population takes its place.
    """
    measure = group.measure
    evaluated = evaluation(group, x, summary)
    final = final_evaluation(group, x, summary)
    if evaluated is not None and final is not None:
        # a curve of the final evaluations only would cover their points
        is_final = len(evaluated.x) == 1 and evaluated.runs == final.runs
        evaluated = None if is_final else evaluated
    if panel == MAIN or evaluated is None:
        is_behind = panel == MAIN and measure.spread is not None
        column = "" if evaluated is not None else measure.y
        yield "population" if is_behind else "centre", population(group, x, summary), column
    if evaluated is not None:
        yield "centre", evaluated, measure.centre
    if final is not None:
        yield "final", final, ""


def _single_runs(group: RunGroup, x: X, column: str) -> Iterator[tuple[Path, Curve]]:
    """Yield the runs behind a line, with their directories."""
    is_log = column in group.metrics and group.metrics[column].is_log
    for run in group.runs:
        if column in run.columns:
            points, y = run.series(COLUMNS[x], column)
            if is_log:
                points, y = points[y > 0], y[y > 0]
            if len(points):
                yield run.path, of_one_run(points, y)


# The numbers as a file.

COLUMN_NAMES = ("task", "label", "panel", "line", "run", "x_axis", "x", "y", "low", "high", "runs")


def csv_text(charts: Mapping[str, tuple[Sequence[RunGroup], Sequence[DrawnLine]]]) -> str:
    """Return all lines of a picture as CSV: a row for each point.

    Args:
        charts: groups and lines by task.
    """
    rows: list[Sequence[object]] = [COLUMN_NAMES]
    for task, (groups, lines) in charts.items():
        for line in lines:
            label, panel = groups[line.group].label, line.metric or line.panel
            run = "" if line.run is None else shown(line.run)
            curve = line.curve
            for point in zip(curve.x, curve.y, curve.low, curve.high, strict=True):
                numbers = map(_number, point)
                rows.append([task, label, panel, line.role, run, line.x, *numbers, curve.runs])
    return spreadsheet_text(rows)


def _number(value: float) -> str:
    return repr(float(value)) if np.isfinite(value) else ""
