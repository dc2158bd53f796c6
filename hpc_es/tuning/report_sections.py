"""The sections of an HTML report on a tuning.

These are importance, parallel coordinates, the table of trials and failed trials. Importance is the
share of the variance of the objective's ranks that a hyperparameter alone explains (one-way
analysis of variance with epsilon squared, which corrects for the number of values; in a full grid
this is the main effect of a functional ANOVA). Continuous hyperparameters are divided into BINS
classes of equal size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpc_es.core.data import Float64
from hpc_es.report.page import (
    MISSING,
    Cell,
    Content,
    Element,
    Section,
    badge,
    details,
    element,
    number_text,
    scrolling,
    table,
)
from hpc_es.report.run_summary import shortened
from hpc_es.tuning.report import AGAIN, NOT_STARTED, TrialRow, TuningReport
from hpc_es.tuning.space import Value, ValueList, ValueRange, as_text, parse_space
from hpc_es.tuning.trials import COMPLETE, FAILED, Trial

BINS = 4
MOST_DRAWN = 300  # trials in the picture, the best ones
# colors of the lines, from the worst to the best trial
WORST, BEST = (0x8A, 0x93, 0x9E), (0xD5, 0x5E, 0x00)


def tuning_sections(report: TuningReport) -> list[Section]:
    """Return overview, hyperparameters, trials and failed trials."""
    complete = [row for row in report.rows if row["state"] == COMPLETE]
    sections = [
        Section("tuning", "Tuning", [_tiles(report, complete)]),
        Section("trials", "Trials", [_trials(report)]),
    ]
    keys = varying(report)
    if len(complete) > 1 and keys:
        content: list[Content] = [
            _importance(complete, keys, report),
            *([parallel_coordinates(report, report.drawn, keys)] if report.drawn else []),
        ]
        sections.insert(1, Section("space", "Hyperparameters", content))
    failed = [row for row in report.rows if row["state"] == FAILED]
    if failed:
        blocks = [
            details(f"Trial {row['trial']}", element("pre", shortened(str(row["reason"]))))
            for row in failed
        ]
        sections.append(Section("failed-trials", "Failed trials", blocks))
    return sections


def varying(report: TuningReport) -> list[str]:
    """Return the keys of the space that have more than one value."""
    space, _ = parse_space(report.identity["space"], report.identity["search"])
    return [key for key in report.keys if len(set(map(str, space[key].ends))) > 1]


def trial_label(report: TuningReport, path: Path) -> str:
    """Return the label of the trial with a run in this directory: its number and what varies."""
    row = next(
        row for row in report.rows if Trial(report.directory, row["trial"]).name in path.parts
    )
    values = (
        f"{key.rpartition('.')[2]} {as_text(row['hyperparameters'].get(key))}"
        for key in varying(report)
    )
    return f"trial {row['trial']}: {', '.join(values)}"


def _tiles(report: TuningReport, complete: Sequence[TrialRow]) -> Element:
    states = Counter(str(row["state"]) for row in report.rows)
    pairs = (
        [(number_text(complete[0]["objective"]), f"best: trial {complete[0]['trial']}")]
        if complete
        else []
    )
    pairs += [
        (str(count), f"trial{'s' if count > 1 else ''} {state}")
        for state, count in states.most_common()
    ]
    tiles = element(
        "ul",
        *(element("li", element("strong", text), element("span", name)) for text, name in pairs),
        class_="tiles",
    )
    if complete:
        best = ", ".join(
            f"{key} = {as_text(value)}"
            for key, value in sorted(complete[0]["hyperparameters"].items())
        )
        lines: list[Content] = [
            element("p", element("strong", "Best hyperparameters: "), element("code", best))
        ]
        if report.repetitions == 1 and len(complete) > 1:
            text = f"Each trial was run once, so the best of {len(complete)} is in part the luckiest: {AGAIN}."
            lines.append(element("p", text, class_="note"))
        return element("div", tiles, *lines)
    return tiles


def importance(values: Sequence[Value], objectives: Sequence[float]) -> float | None:
    """Return epsilon squared of the ranks of the objectives by value, from 0 to 1.

    None if it is undetermined.
    """
    ranks = _ranks(np.asarray(objectives, np.float64))
    labels = _classes(values)
    classes = [ranks[labels == label] for label in np.unique(labels)]
    total = float(((ranks - ranks.mean()) ** 2).sum())
    if len(classes) < 2 or len(ranks) <= len(classes) or not total:
        return None
    within = sum(float(((one - one.mean()) ** 2).sum()) for one in classes)
    explained = total - within - (len(classes) - 1) * within / (len(ranks) - len(classes))
    return max(explained / total, 0.0)


def _ranks(values: Float64) -> Float64:
    """Return ranks from 0, equal values with their mean rank."""
    ordered = np.sort(values)
    return (
        np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") - 1
    ) / 2.0


def _classes(values: Sequence[Value]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return the class of each value: the values themselves if they repeat.

    Otherwise there are BINS classes of equal size.
    """
    texts = [as_text(value) for value in values]
    different = sorted(set(texts))
    is_number = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    if is_number and len(different) > max(BINS, len(values) // 3):
        ranks = _ranks(np.asarray(values, np.float64))
        return np.minimum((ranks * BINS / len(values)).astype(np.int64), BINS - 1)
    return np.array([different.index(text) for text in texts], np.int64)


def _importance(complete: Sequence[TrialRow], keys: Sequence[str], report: TuningReport) -> Element:
    objectives = [row["objective"] for row in complete]
    shares = {
        key: importance([row["hyperparameters"].get(key) for row in complete], objectives)
        for key in keys
    }
    rows: list[list[Cell | Content]] = []
    for key, share in sorted(shares.items(), key=lambda pair: -(pair[1] or 0.0)):
        bar = element(
            "span",
            element("i", style=f"width: {100 * (share or 0):.1f}%; background: var(--line-0)"),
            class_="bar",
            aria_hidden="true",
        )
        cell = Cell(MISSING if share is None else f"{100 * share:.0f} %", share)
        rows.append(
            [element("code", key), bar, cell, as_text(complete[0]["hyperparameters"].get(key))]
        )
    caption = "Share of the variance of the objective's ranks that a hyperparameter alone explains"
    head = ["hyperparameter", "importance", "", "best trial"]
    return element(
        "figure", element("figcaption", "Importance"), table(caption, head, rows),
        element("p", f"{caption}, over {len(complete)} complete trials; few trials give rough numbers.", class_="note"),
    )  # fmt: skip


def parallel_coordinates(
    report: TuningReport, complete: Sequence[TrialRow], keys: Sequence[str]
) -> Element:
    """Return a picture with a line per complete trial.

    It has an axis per hyperparameter and one for the objective.
    """
    space, _ = parse_space(report.identity["space"], report.identity["search"])
    width, height, top, bottom, left = 1000, 380, 56, 350, 70
    axes = [
        *keys,
        report.identity["objective"]
        if isinstance(report.identity["objective"], str)
        else "objective",
    ]
    spacing = (width - 2 * left) / max(len(axes) - 1, 1)
    drawn = list(reversed(complete[:MOST_DRAWN]))  # the best ones last, above the others
    objectives = [row["objective"] for row in drawn]
    positions = [
        _axis(space[key], [row["hyperparameters"].get(key) for row in drawn]) for key in keys
    ]
    positions.append(_scale(objectives, False))
    text = "Parallel coordinates: a line per trial; the table of trials has the numbers."
    picture = element(
        "svg",
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=text,
        style="min-width: 870px",
    )
    for index, name in enumerate(axes):
        x = left + index * spacing
        picture.append(
            element(
                "line", class_="rule", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=str(top), y2=str(bottom)
            )
        )
        anchor = "start" if index == 0 else "end" if index == len(axes) - 1 else "middle"
        shift = {"start": -left + 10, "end": left - 10, "middle": 0}[anchor]
        group, _, last = name.rpartition(".")
        picture.append(
            element(
                "text",
                last.replace("_", " "),
                x=f"{x + shift:.1f}",
                y="36",
                text_anchor=anchor,
                style="font-weight: 600",
            )
        )
        picture.append(
            element("text", group, x=f"{x + shift:.1f}", y="18", text_anchor=anchor, class_="dim")
        )
    for row_index, row in enumerate(drawn):
        points = [
            f"{left + index * spacing:.1f},{bottom - ats[row_index] * (bottom - top):.1f}"
            for index, (ats, _) in enumerate(positions)
        ]
        share = row_index / max(len(drawn) - 1, 1)
        color = ", ".join(
            f"{low + share * (high - low):.0f}" for low, high in zip(WORST, BEST, strict=True)
        )
        values = ", ".join(f"{key} {as_text(row['hyperparameters'].get(key))}" for key in keys)
        title = element("title", f"Trial {row['trial']}: {number_text(row['objective'])}; {values}")
        picture.append(
            element(
                "path",
                title,
                d="M" + " L".join(points),
                class_="trial",
                style=f"stroke: rgb({color})",
            )
        )
    for index, (_, ticks) in enumerate(positions):  # above the lines
        for label, at in ticks:
            x, y = left + index * spacing + 8, bottom - at * (bottom - top) + 4
            picture.append(element("text", label, x=f"{x:.1f}", y=f"{y:.1f}", class_="dim tick"))
    limit = f", the best {MOST_DRAWN}" if len(complete) > MOST_DRAWN else ""
    caption = f"Complete trials{limit}: orange is best, grey is worst"
    return element("figure", element("figcaption", caption), scrolling(caption, picture))


Ticks = list[tuple[str, float]]


def _axis(entry: ValueList | ValueRange, values: Sequence[Value]) -> tuple[list[float], Ticks]:
    """Return positions of values on the axis of a hyperparameter, and the labelled ones.

    Positions are from 0 to 1. The values of a list have equal distances.
    """
    if isinstance(entry, ValueList):
        texts = [as_text(value) for value in entry.ends]
        at_text = {text: index / max(len(texts) - 1, 1) for index, text in enumerate(texts)}
        return [at_text.get(as_text(value), 0.0) for value in values], list(at_text.items())
    ends = [float(value) for value in entry.ends]
    positions, ticks = _scale(
        [*(float(value) for value in values), *ends], entry.kind == "log_uniform"
    )
    return positions[: len(values)], ticks


def _scale(numbers: Sequence[float], is_log: bool) -> tuple[list[float], Ticks]:
    """Return positions from 0 to 1 of numbers, and five labelled positions."""
    values = np.asarray(numbers, np.float64)
    values = np.log(values) if is_log else values
    low, high = float(values.min()), float(values.max())
    size = high - low or 1.0
    marks = [low + size * part / 4 for part in range(5)] if high > low else [low]
    ticks = [
        (f"{float(np.exp(mark) if is_log else mark):.3g}", (mark - low) / size) for mark in marks
    ]
    return [(float(value) - low) / size for value in values], ticks


def _trials(report: TuningReport) -> Element:
    head = ["trial", "state", "objective", *report.measures, *report.keys, "generations"]
    rows: list[list[Cell | Content]] = []
    for row in report.rows:
        if row["state"] == NOT_STARTED and not row["hyperparameters"]:
            continue  # of Optuna, which chooses them later; the summary counts them
        line: list[Cell | Content] = [
            Cell(str(row["trial"]), row["trial"]),
            badge(str(row["state"])),
        ]
        for name in ("objective", *report.measures):
            line.append(Cell(number_text(row[name]), row[name]))
        for key in report.keys:
            value = row["hyperparameters"].get(key)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            line.append(
                Cell(
                    MISSING if value is None else as_text(value),
                    float(value) if is_number else None,
                )
            )
        line.append(Cell(number_text(row["generation"]), row["generation"]))
        rows.append(line)
    return table(
        "Trials",
        [name.replace("_", " ") if "." not in name else name for name in head],
        rows,
        sortable=True,
    )
