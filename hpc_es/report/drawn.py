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
from hpc_es.core.spreadsheets import spreadsheet_text
from hpc_es.report.curves import (
    COLUMNS,
    EPISODE_FRONT_SIZES,
    EPISODE_FRONTS,
    FINAL,
    FRONT_SIZES,
    FRONTS,
    RETURNS,
    REWARDS,
    SCORES,
    VALUES,
    Curve,
    Measure,
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

# A panel shows the measure, the mean of the population, or a metric by its name. Without a choice
# there is one of measure and population, and below it one of all metrics.
MEASURE_NAMES: Mapping[Measure, str] = {
    RETURNS: "return",
    SCORES: "score",
    VALUES: "value",
    FRONTS: "hypervolume",
    FRONT_SIZES: "front_size",
    EPISODE_FRONTS: "hypervolume",
    EPISODE_FRONT_SIZES: "front_size",
    REWARDS: "reward",
}
POPULATION = "population"
MAIN, DIAGNOSTICS = "main", "diagnostics"
MOST_SEEDS = 20  # runs of a chart up to which each is drawn, unless it is asked for
NARROW = 5.0  # inches below which a picture has one column of panels
Role: TypeAlias = Literal["centre", "population", "metric", "seed", "final"]


@dataclass(frozen=True)
class Style:
    """How runs are summed up and which panels there are.

    Attributes:
        panels: names of panels, from top to bottom; () is all of them.
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
    group: int  # its number, which gives its color
    role: Role
    curve: Curve
    metric: str = ""  # of a diagnostic
    run: Path | None = None  # of a seed
    column: str = ""  # of the metrics, that it shows

    @property
    def is_evaluated(self) -> bool:
        """Whether its points are evaluations of theta."""
        return self.column in FINAL.values()

    @property
    def is_best_value(self) -> bool:
        return self.column == VALUES.y


def panels_of(groups: Sequence[RunGroup], style: Style) -> tuple[str, ...]:
    """Return the panels of the groups on one task, from top to bottom.

    Raises:
        UserError: there is no such panel.
    """
    metrics = list(dict.fromkeys(name for group in groups for name in drawn_metrics(group)))
    measure = MEASURE_NAMES[groups[0].measure]
    known = [measure, *([POPULATION] * (groups[0].measure.spread is not None))]
    known += [name for group in groups for name in group.metrics if _is_drawn(group, name)]
    for name in style.panels:
        if name not in known:
            text = f"--panels {name}: expected {', '.join(dict.fromkeys(known))}"
            raise UserError(f"{text}{nearest(name, known)}")
    is_narrow = style.width is not None and style.width < NARROW
    return style.panels or (MAIN, *([DIAGNOSTICS] * (bool(metrics) and not is_narrow)))


def drawn_metrics(group: RunGroup) -> list[str]:
    """Return the metrics of the lower row, which has one logarithmic axis."""
    return [
        name for name, metric in group.metrics.items() if metric.is_log and _is_drawn(group, name)
    ]


def metric_of(panel: str, groups: Sequence[RunGroup]) -> Metric | None:
    """Return the metric that a panel shows; None for other panels."""
    return next((group.metrics[panel] for group in groups if panel in group.metrics), None)


def _is_drawn(group: RunGroup, name: str) -> bool:
    return diagnostic(group, name, group.measure.panels[0]) is not None


def lines_of(panel: str, groups: Sequence[RunGroup], x: X, style: Style) -> Iterator[DrawnLine]:
    """Yield the lines of a panel; single runs come first, so that the others are above them."""
    shows_seeds = style.shows_seeds(groups) and panel != DIAGNOSTICS
    for index, group in enumerate(groups):
        for role, curve, column in _curves(panel, group, x, style.summary):
            metric = column if role == "metric" else ""
            if shows_seeds and len(group.runs) > 1 and role != "final" and column:
                for run, single in _seeds(group, x, column):
                    yield DrawnLine(panel, x, index, "seed", single.thinned(), metric, run)
            yield DrawnLine(panel, x, index, role, curve.thinned(), metric, column=column)


def _curves(
    panel: str, group: RunGroup, x: X, summary: Summary
) -> Iterator[tuple[Role, Curve, str]]:
    """Yield role, curve and column of the lines of a group that are not single runs.

    The column is "" if the single runs are not to be drawn.
    """
    measure = group.measure
    if panel not in (MAIN, POPULATION, MEASURE_NAMES[measure]):
        for name in drawn_metrics(group) if panel == DIAGNOSTICS else (panel,):
            curve = diagnostic(group, name, x, summary)
            if curve is not None:
                yield "metric", curve, name
        return
    if measure is VALUES:
        yield "centre", best_values(group, x, summary), measure.y
        return
    theta = evaluation(group, x, summary) if panel != POPULATION else None
    final = final_evaluation(group, x, summary) if panel != POPULATION else None
    if theta is not None and final is not None and len(theta.x) == 1 and theta.runs == final.runs:
        theta = None  # the final one is a point of its own
    if panel in (MAIN, POPULATION) or theta is None:
        is_thin = measure.spread is not None and panel == MAIN
        column = "" if theta is not None else measure.y
        yield "population" if is_thin else "centre", population(group, x, summary), column
    if theta is not None:
        yield "centre", theta, measure.centre
    if final is not None:
        yield "final", final, ""


def _seeds(group: RunGroup, x: X, column: str) -> Iterator[tuple[Path, Curve]]:
    """Yield the single runs behind a line."""
    is_log = column in group.metrics and group.metrics[column].is_log
    for run in group.runs:
        if column in run.columns:
            points, y = run.series(COLUMNS[x], column)
            if is_log:
                points, y = points[y > 0], y[y > 0]
            if len(points):
                yield run.path, of_one_run(points, y)


# The numbers as a file.

HEAD = ("task", "label", "panel", "line", "run", "x_axis", "x", "y", "low", "high", "runs")


def csv_text(charts: Mapping[str, tuple[Sequence[RunGroup], Sequence[DrawnLine]]]) -> str:
    """Return all lines of a picture as CSV: a row for each point.

    Args:
        charts: groups and lines by task.
    """
    rows: list[Sequence[object]] = [HEAD]
    for task, (groups, lines) in charts.items():
        for line in lines:
            run = "" if line.run is None else str(line.run)
            what = (task, groups[line.group].label, line.metric or line.panel, line.role, run)
            curve = line.curve
            for point in zip(curve.x, curve.y, curve.low, curve.high, strict=True):
                rows.append([*what, line.x, *map(_number, point), curve.runs])
    return spreadsheet_text(rows)


def _number(value: float) -> str:
    return repr(float(value)) if np.isfinite(value) else ""
