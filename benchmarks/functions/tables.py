"""Trials as Markdown tables and as CSV."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.functions.profiles import (
    REFERENCES,
    Rows,
    expected_evaluations,
    median_evaluations,
    of_group,
    share_solved,
    strategies,
    values,
    where,
)

COLUMNS = (
    "strategy",
    "function",
    "dimension",
    "instance",
    "solved",
    "evaluations",
    "best",
    "reason",
    "seconds",
)


def markdown(rows: Rows) -> str:
    """Return the tables of both groups: median evaluations relative to the reference,
    and the share solved.
    """
    parts = []
    for group, reference in REFERENCES.items():
        if some := of_group(rows, group):
            parts += [
                f"Searches {group}: median evaluations (over those of {reference}), trials solved\n"
            ]
            parts += [medians(some, reference)]
            parts += [f"Searches {group}: share of trials solved\n", shares(some)]
    return "\n".join(parts)


def medians(rows: Rows, reference: str) -> str:
    """Return one row per function and dimension, one column per strategy."""
    names = strategies(rows)
    lines = [_line(["function", "n", *names]), _line(["---"] * (len(names) + 2))]
    for function in values(rows, "function"):
        for dimension in values(rows, "dimension"):
            trials = where(rows, function=function, dimension=dimension)
            base = where(trials, strategy=reference)
            cells = [
                cell(where(trials, strategy=name), [] if name == reference else base)
                for name in names
            ]
            if trials:
                lines.append(_line([f"f{function}", str(dimension), *cells]))
    return "".join(lines)


def cell(rows: Rows, base: Rows) -> str:
    """Return "MEDIAN (RATIO TO BASE)", with the number of solved trials unless all are solved.

    If the median is infinite, since half of the trials are unsolved, the expected running time
    (ERT) replaces it.
    """
    if not rows:
        return ""
    middle, of_base = median_evaluations(rows), median_evaluations(base)
    mark = ""
    if math.isinf(middle):
        middle, of_base, mark = expected_evaluations(rows), expected_evaluations(base), "ERT "
    solved = sum(row["solved"] for row in rows)
    part = "" if solved == len(rows) else f"{solved}/{len(rows)}"
    if math.isinf(middle):
        return part
    ratio = f" ({middle / of_base:.2f})" if math.isfinite(of_base) else ""
    return f"{mark}{middle:.0f}{ratio}" + (f", {part}" if part else "")


def shares(rows: Rows) -> str:
    """Return one row per strategy, one column per dimension."""
    dimensions = values(rows, "dimension")
    lines = [
        _line(["strategy", *(f"n = {dimension}" for dimension in dimensions)]),
        _line(["---"] * (len(dimensions) + 1)),
    ]
    for name in strategies(rows):
        cells = [where(rows, strategy=name, dimension=dimension) for dimension in dimensions]
        lines.append(
            _line([name, *(f"{share_solved(trials):.2f}" if trials else "" for trials in cells)])
        )
    return "".join(lines)


def noise_markdown(rows: Rows, noise: str) -> str:
    """Return one row per strategy and dimension: trials with this kind of noise beside those with
    `counter`.

    Trials on the same function and instance are a pair. The ratio is the geometric mean over pairs:
    of evaluations if both are solved, or of distances to the optimum, the best value of all trials,
    if a strategy solves none.
    """
    lines = [
        _line(
            [
                "strategy",
                "n",
                "pairs",
                "solved",
                f"{noise}: solved",
                "ratio of",
                f"{noise} / counter (95 %)",
            ]
        )
    ]
    lines.append(_line(["---"] * 7))
    for name in [name for name in strategies(rows) if not name.endswith(f"+{noise}")]:
        for dimension in values(rows, "dimension"):
            trials = where(rows, dimension=dimension)
            optimum = _by_problem(sorted(trials, key=lambda row: -row["best"]))
            before, after = (
                _by_problem(where(trials, strategy=kind)) for kind in (name, f"{name}+{noise}")
            )
            keys = [key for key in before if key in after]
            solved = [sum(kind[key]["solved"] for key in keys) for kind in (before, after)]
            if any(solved):
                both = [key for key in keys if before[key]["solved"] and after[key]["solved"]]
                pairs = [(before[key]["evaluations"], after[key]["evaluations"]) for key in both]
            else:
                pairs = [
                    tuple(kind[key]["best"] - optimum[key]["best"] for kind in (before, after))
                    for key in keys
                ]
            if keys:
                cells = [name, str(dimension), str(len(keys)), *map(str, solved)]
                cells += [
                    "evaluations" if any(solved) else "distance",
                    _ratio_text([new / old for old, new in pairs]),
                ]
                lines.append(_line(cells))
    return "".join(lines)


def _by_problem(rows: Rows) -> dict[tuple[int, int], Mapping[str, Any]]:
    """Return the last trial of each function and instance."""
    return {(row["function"], row["instance"]): row for row in rows}


def _ratio_text(ratios: Sequence[float]) -> str:
    """Return the geometric mean, with the interval of 1.96
    standard errors of the mean logarithm.
    """
    logs = [math.log(ratio) for ratio in ratios]
    if len(logs) < 2:
        return ""
    middle, error = statistics.mean(logs), statistics.stdev(logs) / len(logs) ** 0.5
    low, high = (math.exp(middle + side * 1.96 * error) for side in (-1, 1))
    return f"{math.exp(middle):.3f} ({low:.3f} to {high:.3f})"


def csv_text(rows: Rows) -> str:
    """Return all trials as CSV, sorted."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(sorted([row[name] for name in COLUMNS] for row in rows))
    return text.getvalue()


def read_csv(text: str) -> Rows:
    """Return the trials in a text of `csv_text`."""
    rows: Rows = []
    for row in csv.DictReader(io.StringIO(text)):
        numbers = {
            name: int(row[name]) for name in ("function", "dimension", "instance", "evaluations")
        }
        floats = {name: float(row[name]) for name in ("best", "seconds")}
        rows.append({**row, **numbers, **floats, "solved": row["solved"] == "True"})
    return rows


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"
