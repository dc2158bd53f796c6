"""Comparison of configurations over their runs: statistics and the section of a report (Agarwal et al. 2021).

The interquartile mean leaves out the lowest and the highest quarter of the scores. Intervals are percentile bootstraps:
95 % of the statistics of RESAMPLES samples with replacement, with a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpc_es.core.data import Float64
from hpc_es.report.curve_sections import ReportedGroup
from hpc_es.report.page import (
    COLORS,
    MISSING,
    Cell,
    Content,
    Element,
    Section,
    element,
    number_cell,
    number_text,
    scrolling,
    swatch,
    table,
)

RESAMPLES = 2000
LEVEL = 0.95
FEW = 10  # runs below which bootstrap intervals are clearly too short
Interval = tuple[float, float]


def interquartile_mean(scores: Float64) -> Float64:
    """Return the mean over the last axis of float64[..., n] without its floor(n / 4) smallest and largest scores."""
    count = scores.shape[-1]
    cut = count // 4
    return np.asarray(np.sort(scores, axis=-1)[..., cut : count - cut].mean(axis=-1), np.float64)


def probability_of_improvement(first: Float64, second: Float64) -> Float64:
    """Return the probability that a score of `second`, float64[..., m], is higher than one of `first`, float64[..., n].

    Equal scores count one half.
    """
    above = second[..., :, None] > first[..., None, :]
    equal = second[..., :, None] == first[..., None, :]
    return np.asarray((above + 0.5 * equal).mean(axis=(-2, -1)), np.float64)


def bootstrap_interval(statistic: Callable[..., Float64], *samples: Sequence[float]) -> Interval | None:
    """Return the interval of a statistic of samples, which are drawn independently; None if one has under 3 scores.

    The statistic maps float64[RESAMPLES, n] for each sample to float64[RESAMPLES].
    """
    if min(map(len, samples)) < 3:
        return None
    generator = np.random.default_rng(0)
    drawn = []
    for sample in samples:
        scores = np.asarray(sample, np.float64)
        drawn.append(scores[generator.integers(0, len(scores), (RESAMPLES, len(scores)))])
    low, high = np.quantile(statistic(*drawn), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def comparison_sections(groups: Sequence[ReportedGroup]) -> list[Section]:
    """Return statistics over the finished runs of each group, and each group beside the first, for each measure."""
    content: list[Content] = []
    for measure in dict.fromkeys(group.runs[0].measure for group in groups):
        here = [group for group in groups if group.runs[0].measure is measure and group.scores]
        if sum(len(group.scores) for group in here) < 2 or (len(here) == 1 and len(here[0].scores) < 2):
            continue
        is_lower_better = here[0].runs[0].is_lower_better
        head = ["configuration", "runs", "median", "interquartile mean", "95 % interval", "min", "max"]
        if len(here) > 1:
            head.append(f"probability of a better run than {here[0].label}")
        rows: list[list[Cell | Content]] = []
        for group in here:
            scores = np.asarray(group.scores, np.float64)
            interval = bootstrap_interval(interquartile_mean, group.scores)
            cells = [
                Cell(number_text(len(scores)), len(scores)),
                number_cell(float(np.median(scores))),
                number_cell(float(interquartile_mean(scores))),
                Cell(MISSING if interval is None else f"{number_text(interval[0])} to {number_text(interval[1])}"),
                number_cell(float(scores.min())),
                number_cell(float(scores.max())),
            ]
            if len(here) > 1:
                cells.append(_improvement_cell(here[0], group, is_lower_better))
            rows.append([element("span", swatch(group.color), group.label), *cells])
        smallest = min(len(group.scores) for group in here)
        notes = [
            f"Scores ({measure.label}) of finished runs. Interquartile mean: without the lowest and highest quarter.",
            "Intervals: bootstrap over the runs (Agarwal et al. 2021).",
        ]
        if smallest < FEW:
            notes.append(f"With fewer than {FEW} runs the intervals are too short: the true ones are wider.")
        content += [
            _strips(here),
            table(f"Comparison of {measure.label}", head, rows),
            element("p", " ".join(notes), class_="note"),
        ]
    return [Section("comparison", "Spread over runs" if len(groups) == 1 else "Comparison", content)] if content else []


def _improvement_cell(first: ReportedGroup, group: ReportedGroup, is_lower_better: bool) -> Cell:
    if group is first:
        return Cell(MISSING)
    sign = -1.0 if is_lower_better else 1.0
    samples = [[sign * score for score in one.scores] for one in (first, group)]
    value = float(probability_of_improvement(*(np.asarray(sample, np.float64) for sample in samples)))
    interval = bootstrap_interval(probability_of_improvement, *samples)
    text = f"{value:.2f}" + ("" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})")
    return Cell(text, value)


def _strips(groups: Sequence[ReportedGroup]) -> Element:
    """Return a picture of the scores: a dot for each run, the interquartile mean, and its interval."""
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
        style="min-width: 34rem",
    )
    for tick in np.linspace(low + margin, high - margin, 5):
        picture.append(element("line", class_="rule", x1=at(tick), x2=at(tick), y1="4", y2=str(height - 22)))
        picture.append(
            element(
                "text",
                number_text(float(f"{tick:.3g}")),
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
            dot = element("circle", element("title", number_text(score)), cx=at(score), cy=str(y + 8), r="5")
            dot.set("style", f"fill: {color}; fill-opacity: .75")
            picture.append(dot)
        middle = at(float(interquartile_mean(np.asarray(group.scores, np.float64))))
        picture.append(
            element(
                "line", x1=middle, x2=middle, y1=str(y - 4), y2=str(y + 20), style=f"stroke: {color}; stroke-width: 3"
            )
        )
    caption = "Scores of the finished runs: dots; interquartile mean: line; its 95 % interval: bar"
    return element("figure", element("figcaption", caption), scrolling(caption, picture))
