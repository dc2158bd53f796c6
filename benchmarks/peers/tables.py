"""The results of the comparison as a Markdown table, a CSV file and a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.works import WORKS

Row = dict[str, Any]
OURS = "hpc_es"


def cells(rows: Sequence[Row], work: str) -> dict[str, list[Row]]:
    """Return the rounds of each contender on a task, hpc_es first."""
    rounds: dict[str, list[Row]] = {}
    for row in rows:
        if row["work"] == work:
            rounds.setdefault(row["contender"], []).append(row)
    return dict(
        sorted(rounds.items(), key=lambda item: (not item[0].startswith(OURS), -_median(item[1])))
    )


def markdown(rows: Sequence[Row]) -> str:
    """Return the Markdown table."""
    lines = [
        "| work | | env-steps/s, median (range) | hpc_es over it | start-up, s | memory, MB (largest process) |",
        "|---|---|---|---|---|---|",
    ]
    for work in WORKS:
        contenders = cells(rows, work.name)
        ours = next((rounds for name, rounds in contenders.items() if name.startswith(OURS)), [])
        for name, rounds in contenders.items():
            rates = [row["steps_per_second"] for row in rounds]
            ratio = "" if rounds is ours or not ours else f"{_ratio(ours, rounds):.2f}"
            startup, memory, largest = (
                median(row[key] for row in rounds)
                for key in ("startup_seconds", "memory", "largest")
            )
            rate = f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
            version = f"{name} {rounds[0]['version']}"
            lines.append(
                f"| {work.name} | {version} | {rate} | {ratio} | {startup:.1f} | {memory:.0f} ({largest:.0f}) |"
            )
    return "\n".join(lines)


def _ratio(ours: Sequence[Row], theirs: Sequence[Row]) -> float:
    """Return the median over the rounds of the ratio of our rate to theirs."""
    rates = {row["round"]: row["steps_per_second"] for row in theirs}
    return median(
        row["steps_per_second"] / rates[row["round"]] for row in ours if row["round"] in rates
    )


def _median(rows: Sequence[Row]) -> float:
    return median(float(row["steps_per_second"]) for row in rows)


def rows_of(text: str) -> list[Row]:
    """Return the rows in a text of `csv_text`."""
    words = {"work", "contender", "version", "date"}
    lines = csv.DictReader(io.StringIO(text))
    return [
        {name: value if name in words else float(value) for name, value in line.items()}
        for line in lines
    ]


def csv_text(rows: Sequence[Row]) -> str:
    """Return a CSV text with one line per run."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the rates as bars, one panel per task."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    works = [work.name for work in WORKS if cells(rows, work.name)]
    figure = Figure(figsize=(10, 2.4 * ((len(works) + 1) // 2)), layout="constrained")
    panels = figure.subplots((len(works) + 1) // 2, 2, squeeze=False).ravel()
    for panel in panels[len(works) :]:
        panel.set_axis_off()
    for panel, work in zip(panels, works, strict=False):
        contenders = cells(rows, work)
        rates = [[row["steps_per_second"] for row in rounds] for rounds in contenders.values()]
        middle = [median(values) for values in rates]
        spread = [[mid - min(values) for mid, values in zip(middle, rates, strict=True)]]
        spread.append([max(values) - mid for mid, values in zip(middle, rates, strict=True)])
        colors = ["tab:blue" if name.startswith(OURS) else "tab:gray" for name in contenders]
        panel.barh(range(len(contenders)), middle, xerr=spread, color=colors)
        panel.set_yticks(range(len(contenders)), list(contenders))
        panel.invert_yaxis()
        panel.set(title=work, xlabel="environment steps per second")
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    figure.savefig(path, dpi=110)
