"""The sections of a report on runs grouped by configuration: charts, and a comparison.

There is a chart for each measure. The comparison is that of Agarwal et al. 2021, see statistics.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpc_es.core.data import ConfigData
from hpc_es.report.curves import (
    COLUMNS,
    MEANS,
    OF_FRONTS,
    REWARDS,
    VALUES,
    X_AXES,
    Curve,
    Measure,
    RunGroup,
    X,
    best_values,
    by_task,
    diagnostic,
    drawable,
    evaluation,
    grouped,
    of_one_run,
    population,
)
from hpc_es.report.declared import is_of_info
from hpc_es.report.page import (
    COLORS,
    MISSING,
    Axis,
    Cell,
    Content,
    Element,
    Line,
    Section,
    chart,
    details,
    element,
    large_text,
    number_cell,
    number_text,
    scrolling,
    swatch,
    table,
)
from hpc_es.report.run_summary import RunSummary
from hpc_es.report.statistics import (
    DEFAULT,
    FEW,
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
)
from hpc_es.storage.answers import MIXED

MOST_BANDS = 4  # groups with a band around the population mean as well
MOST_POINTS, ALL_POINTS = 600, 40_000  # per line, and of all lines of a chart


@dataclass(frozen=True)
class ReportedGroup:
    """Runs of one configuration, in one color."""

    label: str
    color: int
    runs: Sequence[RunSummary]
    curves: RunGroup | None  # of those runs that have metrics

    @property
    def config(self) -> ConfigData:
        return self.runs[0].task_config

    @property
    def scores(self) -> list[float]:
        """The scores of the finished runs, as far as they can be drawn."""
        final = [run.score.value for run in self.runs if run.score and run.score.is_final]
        return [value for value in final if not math.isnan(drawable(value))]


def groups_of(runs: Sequence[RunSummary]) -> tuple[list[ReportedGroup], dict[Path, RunSummary]]:
    """Group runs by configuration, in the order of their first members.

    Those without metrics come last. Return also the copies of runs, by path, which are in no group.
    """
    with_curves = {run.path: run for run in runs if run.curves}
    result: list[ReportedGroup] = []
    copies: dict[Path, RunSummary] = {}
    for group in grouped([run.curves for run in runs if run.curves]):
        members = [with_curves[curves.path] for curves in group.runs]
        for member, curves in zip(members, group.runs, strict=True):
            member.curves = curves  # as they are drawn beside the others
        copies |= {curves.path: with_curves[curves.path] for curves in group.copies}
        seeds = f" ({len(members)} runs)" if len(members) > 1 else ""
        result.append(ReportedGroup(group.label + seeds, len(result), members, group))
    for run in runs:
        if not run.curves:
            result.append(ReportedGroup(run.name, len(result), [run], None))
    return result, copies


def curve_sections(
    groups: Sequence[ReportedGroup], title: str = "Learning curves"
) -> list[Section]:
    """Return the section with a chart for each measure and task, and their diagnostics."""
    content: list[Content] = []
    diagnostics: list[Content] = []
    infos: list[Content] = []
    drawn = [group for group in groups if group.curves]
    for measure in dict.fromkeys(group.curves.measure for group in drawn if group.curves):
        tasks = by_task(
            [group for group in drawn if group.curves and group.curves.measure is measure]
        )
        for task, here in tasks.items():
            name = f": {task}" if len(tasks) > 1 else ""
            content.append(_measure_chart(here, measure, len(content), name))
            metrics = {
                column: metric
                for group in here
                if group.curves
                for column, metric in group.curves.metrics.items()
            }
            for column, metric in metrics.items():
                lines = _diagnostic_lines(here, column, measure)
                if lines:
                    id, label = (
                        f"diagnostic-{len(diagnostics) + len(infos)}",
                        metric.label[:1].upper() + metric.label[1:],
                    )
                    label += f" ({metric.unit})" if metric.unit else ""
                    charts = infos if is_of_info(column) else diagnostics
                    charts.append(
                        _chart(
                            id,
                            label + name,
                            label,
                            groups=here,
                            lines=lines,
                            measure=measure,
                            is_log=metric.is_log,
                            note="",
                        )
                    )
    if infos:
        content.append(details("Metrics from infos", *infos))
    if diagnostics:
        content.append(details("Diagnostics of the search", *diagnostics))
    return [Section("curves", title, content)] if content else []


def _measure_chart(
    groups: Sequence[ReportedGroup], measure: Measure, index: int, task: str
) -> Element:
    lines = []
    most = max(60, min(MOST_POINTS, ALL_POINTS // (4 * sum(len(group.runs) for group in groups))))
    for group in groups:
        lines += _lines(group, measure, most, len(groups) <= MOST_BANDS)
    first = measure.panels[0]
    y = np.concatenate([np.asarray(line.points[first][1], np.float64) for line in lines])
    of_values = measure in (VALUES, MEANS)
    is_log = of_values and bool(y.min() > 0 and y.max() / y.min() > 100)
    direction = ""
    if of_values:
        directions = {run.is_lower_better for group in groups for run in group.runs}
        direction = (
            ""
            if len(directions) > 1
            else ", lower is better"
            if directions.pop()
            else ", higher is better"
        )
    several = any(len(group.runs) > 1 for group in groups)
    if measure in (VALUES, REWARDS, *OF_FRONTS):
        note = f"Bands: {DEFAULT.interval_text()} over the runs." if several else ""
    else:
        what = "centre of the search" if measure is MEANS else "unperturbed parameters"
        note = f"Bold: evaluations of the {what}; thin: mean of the population. "
        if any(run.curves and run.curves.draws_means for group in groups for run in group.runs):
            note = f"Evaluations are noisy, so that the best one is good luck: lines are means of the population. {_stated_text(groups)}"
        if len(groups) <= MOST_BANDS or several:
            of_one = "± standard deviation over the population"
            note += (
                f"Bands: {DEFAULT.interval_text()} over the runs; of single runs {of_one}."
                if several
                else f"Bands: {of_one}."
            )
    if several:
        note += " A mean ends with the shortest run."
    caption = measure.label[0].upper() + measure.label[1:] + task + direction
    return _chart(
        f"curve-{index}",
        caption,
        measure.label,
        groups=groups,
        lines=lines,
        measure=measure,
        is_log=is_log,
        note=note,
    )


def _stated_text(groups: Sequence[ReportedGroup]) -> str:
    """Return the metrics whose last value is to be stated, of the runs of each configuration."""
    texts = []
    for group in groups:
        assert group.curves
        for name, metric in group.curves.metrics.items():
            columns = [run.columns[name] for run in group.curves.runs if name in run.columns]
            last = [float(one[np.isfinite(one)][-1]) for one in columns if np.isfinite(one).any()]
            if metric.is_stated and last:
                among = number_text(min(last))
                among += f" to {number_text(max(last))}" if max(last) > min(last) else ""
                of = f" ({group.label})" if len(groups) > 1 else ""
                texts.append(f"{metric.label}{of}: {among}")
    return "".join(f"{text[:1].upper()}{text[1:]}. " for text in texts)


def _lines(group: ReportedGroup, measure: Measure, most: int, has_bands: bool) -> list[Line]:
    """Return the lines of a group: mean and band over its runs, and single runs.

    Without `has_bands` the population mean has no band if there are evaluations.
    """
    assert group.curves
    panels, color = measure.panels, group.color
    if measure is VALUES:
        curves = {x: best_values(group.curves, x) for x in panels}
        lines = [_line(color, "main", group.label, curves, most, steps=len(group.runs) == 1)]
    else:
        theta = {x: evaluation(group.curves, x) for x in panels}
        bold = {x: curve for x, curve in theta.items() if curve is not None}
        style = "thin" if bold else "main"
        means = {x: population(group.curves, x) for x in panels}
        if bold and not has_bands:
            means = {x: of_one_run(curve.x, curve.y) for x, curve in means.items()}
        lines = [_line(color, style, group.label, means, most)]
        if bold:
            lines.append(_line(color, "main", group.label, bold, most))
    if len(group.runs) > 1:
        y = measure.y
        if measure.spread and any(line.style == "thin" for line in lines):
            y = measure.centre
        for run in group.curves.runs:
            series = {x: run.series(COLUMNS[x], y) for x in panels}
            if series[panels[0]][0].size:
                single = {x: of_one_run(points[0], points[1]) for x, points in series.items()}
                lines.append(
                    _line(color, "faint", run.path.name, single, most, steps=measure is VALUES)
                )
    return lines


def _line(
    color: int, style: str, name: str, curves: Mapping[X, Curve], most: int, *, steps: bool = False,
) -> Line:  # fmt: skip
    points: dict[str, list[list[float]]] = {}
    for x, full in curves.items():
        curve = full.thinned(most)
        columns = [curve.x, curve.y]
        if style != "faint" and curve.has_interval and (curve.high > curve.low).any():
            columns += [curve.low, curve.high]
        points[x] = [column.tolist() for column in columns]
    return Line(color, style, name, points, steps)


def _diagnostic_lines(groups: Sequence[ReportedGroup], column: str, measure: Measure) -> list[Line]:
    lines = []
    for group in groups:
        assert group.curves
        curves = {x: diagnostic(group.curves, column, x) for x in measure.panels}
        present = {x: curve for x, curve in curves.items() if curve is not None}
        if len(present) == len(curves):
            plain = {x: of_one_run(curve.x, curve.y) for x, curve in present.items()}
            lines.append(_line(group.color, "main", group.label, plain, MOST_POINTS // 2))
    return lines


def _chart(
    id: str, caption: str, label: str, *, groups: Sequence[ReportedGroup], lines: Sequence[Line], measure: Measure,
    is_log: bool, note: str,
) -> Element:  # fmt: skip
    axes = [Axis(x, *X_AXES[x]) for x in measure.panels]
    first = measure.panels[0]
    main = {line.group: line for line in reversed(lines) if line.style != "faint"}
    main |= {line.group: line for line in lines if line.style == "main"}
    parts, rows = [], []
    end = max(float(line.points[first][0][-1]) for line in main.values())
    positions = [end * part / 6 for part in range(1, 7)]
    labels = {group.color: group.label for group in groups if group.color in main}
    for color, line in sorted(main.items()):
        x, y = (np.asarray(column, np.float64) for column in line.points[first][:2])
        parts.append(
            f"{labels[color]}: {number_text(y[0])} at {number_text(x[0])}, {number_text(y[-1])} at {number_text(x[-1])}"
        )
        indices = np.searchsorted(x, positions, side="right") - 1
        cells = [
            number_text(y[i]) if i >= 0 and at <= x[-1] * 1.001 else MISSING
            for i, at in zip(indices, positions, strict=True)
        ]
        rows.append([labels[color], *cells])
    head = ["", *(f"{large_text(round(at))} {axes[0].label}" for at in positions)]
    values = table(f"{caption}: values", head, rows)
    summary = f"Line chart against {axes[0].label}. " + "; ".join(parts)
    return chart(
        id,
        caption,
        summary,
        axes=axes,
        label=label,
        lines=lines,
        is_log=is_log,
        values=values,
        groups=labels,
        note=note,
    )


# The comparison.


def comparison_sections(groups: Sequence[ReportedGroup]) -> list[Section]:
    """Return statistics over the finished runs of each group, for each task.

    Each group is beside the first, too.
    """
    content: list[Content] = []
    measures = dict.fromkeys(group.runs[0].measure for group in groups)
    for measure in measures:
        tasks = by_task([group for group in groups if group.runs[0].measure is measure])
        for task, same in tasks.items():
            here = [group for group in same if group.scores]
            if sum(len(group.scores) for group in here) < 2 or (
                len(here) == 1 and len(here[0].scores) < 2
            ):
                continue
            kinds = {run.found.answer.kind for group in here for run in group.runs}
            name = f": {task}" if len(tasks) > 1 else ""
            if kinds >= {"mean", "evaluation"}:
                content.append(element("p", f"Comparison{name}: {MIXED}.", class_="note"))
            else:
                content += _comparison(here, measure, name)
    return (
        [Section("comparison", "Spread over runs" if len(groups) == 1 else "Comparison", content)]
        if content
        else []
    )


def _comparison(groups: Sequence[ReportedGroup], measure: Measure, task: str) -> list[Content]:
    """Return the picture and the table of groups with scores on one task."""
    is_lower_better = groups[0].runs[0].is_lower_better
    head = ["configuration", "runs", "median", "interquartile mean", "95 % interval", "min", "max"]
    if len(groups) > 1:
        head.append(f"probability of a better run than {groups[0].label}")
    rows: list[list[Cell | Content]] = []
    for group in groups:
        scores = np.asarray(group.scores, np.float64)
        interval = bootstrap_interval(interquartile_mean, group.scores)
        cells = [
            Cell(number_text(len(scores)), len(scores)),
            number_cell(float(np.median(scores))),
            number_cell(float(interquartile_mean(scores))),
            Cell(
                MISSING
                if interval is None
                else f"{number_text(interval[0])} to {number_text(interval[1])}"
            ),
            number_cell(float(scores.min())),
            number_cell(float(scores.max())),
        ]
        if len(groups) > 1:
            cells.append(_improvement_cell(groups[0], group, is_lower_better))
        rows.append([element("span", swatch(group.color), group.label), *cells])
    smallest = min(len(group.scores) for group in groups)
    notes = [
        f"{_scores_text(measure)} of finished runs. Interquartile mean: without the lowest and highest quarter.",
        "Intervals: bootstrap over the runs (Agarwal et al. 2021).",
    ]
    if smallest < FEW:
        notes.append(
            f"With fewer than {FEW} runs the intervals are too short: the true ones are wider."
        )
    return [
        _strips(groups, measure),
        table(f"Comparison of {measure.label}{task}", head, rows),
        element("p", " ".join(notes), class_="note"),
    ]


def _scores_text(measure: Measure) -> str:
    return "Scores" if measure.label == "score" else f"Scores ({measure.label})"


def _improvement_cell(first: ReportedGroup, group: ReportedGroup, is_lower_better: bool) -> Cell:
    if group is first:
        return Cell(MISSING)
    sign = -1.0 if is_lower_better else 1.0
    samples = [[sign * score for score in one.scores] for one in (first, group)]
    value = float(
        probability_of_improvement(*(np.asarray(sample, np.float64) for sample in samples))
    )
    interval = bootstrap_interval(probability_of_improvement, *samples)
    text = f"{value:.2f}" + (
        "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"
    )
    return Cell(text, value)


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most so many round numbers between two numbers, at equal distances.

    Examples:
        >>> round_ticks(-0.1837, -0.1808)
        [-0.1835, -0.183, -0.1825, -0.182, -0.1815, -0.181]
        >>> round_ticks(340.0, 510.0)
        [350.0, 400.0, 450.0, 500.0]
    """
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (factor * power for factor in (1, 2, 5, 10, 20)):
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < most:
            break
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def _strips(groups: Sequence[ReportedGroup], measure: Measure) -> Element:
    """Return a picture of the scores: a dot for each run, the interquartile mean and interval."""
    scores = [score for group in groups for score in group.scores]
    low, high = min(scores), max(scores)
    margin = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    low, high = low - margin, high + margin
    width, row = 900, 34

    def at(value: float) -> str:
        return f"{20 + (width - 40) * (value - low) / (high - low):.1f}"

    height = row * len(groups) * 2 + 26
    picture = element(
        "svg",
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label="Scores of the runs, one dot for each; the table has the numbers.",
        style="min-width: 780px",
    )
    for tick in round_ticks(low, high):
        picture.append(
            element("line", class_="rule", x1=at(tick), x2=at(tick), y1="4", y2=str(height - 22))
        )
        picture.append(
            element(
                "text",
                number_text(tick),
                x=at(tick),
                y=str(height - 6),
                text_anchor="middle",
                class_="dim",
            )
        )
    for index, group in enumerate(groups):
        y, color = index * row * 2 + row, f"var(--line-{group.color % COLORS})"
        picture.append(element("text", group.label, x="20", y=str(y - 14), class_="tick"))
        interval = bootstrap_interval(interquartile_mean, group.scores)
        if interval:
            picture.append(
                element(
                    "line",
                    x1=at(interval[0]),
                    x2=at(interval[1]),
                    y1=str(y + 8),
                    y2=str(y + 8),
                    style=f"stroke: {color}; stroke-width: 8; stroke-opacity: .35",
                )
            )
        for score in group.scores:
            dot = element(
                "circle", element("title", number_text(score)), cx=at(score), cy=str(y + 8), r="5"
            )
            dot.set("style", f"fill: {color}; fill-opacity: .75")
            picture.append(dot)
        middle = at(float(interquartile_mean(np.asarray(group.scores, np.float64))))
        picture.append(
            element(
                "line",
                x1=middle,
                x2=middle,
                y1=str(y - 4),
                y2=str(y + 20),
                style=f"stroke: {color}; stroke-width: 3",
            )
        )
    caption = f"{_scores_text(measure)} of the finished runs: dots; interquartile mean: line; its 95 % interval: bar"
    return element("figure", element("figcaption", caption), scrolling(caption, picture))
