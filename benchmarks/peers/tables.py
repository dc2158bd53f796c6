"""What the runs showed, as tables and as a picture."""

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
    """Return the rounds of each contender of a work, ours first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["work"] == work:
            found.setdefault(row["contender"], []).append(row)
    return dict(sorted(found.items(), key=lambda item: (not item[0].startswith(OURS), -_median(item[1]))))


def markdown(rows: Sequence[Row]) -> str:
    """Return the table."""
    lines = [
        "| work | | env-steps/s, median (range) | hpc_es over it | start-up, s | memory, MB (largest process) |",
        "|---|---|---|---|---|---|",
    ]
    for work in WORKS:
        found = cells(rows, work.name)
        ours = next((each for name, each in found.items() if name.startswith(OURS)), [])
        for name, rounds in found.items():
            rates = [row["steps_per_second"] for row in rounds]
            ratio = "" if rounds is ours or not ours else f"{_ratio(ours, rounds):.2f}"
            startup, memory, largest = (
                median(row[key] for row in rounds) for key in ("startup_seconds", "memory", "largest")
            )
            shown = f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
            what = f"{name} {rounds[0]['version']}"
            lines.append(f"| {work.name} | {what} | {shown} | {ratio} | {startup:.1f} | {memory:.0f} ({largest:.0f}) |")
    return "\n".join(lines)


def _ratio(ours: Sequence[Row], theirs: Sequence[Row]) -> float:
    """Return the median over the rounds of ours over theirs."""
    rates = {row["round"]: row["steps_per_second"] for row in theirs}
    return median(row["steps_per_second"] / rates[row["round"]] for row in ours if row["round"] in rates)


def _median(rows: Sequence[Row]) -> float:
    return median(float(row["steps_per_second"]) for row in rows)


def rows_of(text: str) -> list[Row]:
    """Return the rows that `csv_text` wrote."""
    words = {"work", "contender", "version", "date"}
    lines = csv.DictReader(io.StringIO(text))
    return [{name: value if name in words else float(value) for name, value in line.items()} for line in lines]


def csv_text(rows: Sequence[Row]) -> str:
    """Return a line a run."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw bars, a panel a work."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    works = [work.name for work in WORKS if cells(rows, work.name)]
    figure = Figure(figsize=(10, 2.4 * ((len(works) + 1) // 2)), layout="constrained")
    panels = figure.subplots((len(works) + 1) // 2, 2, squeeze=False).ravel()
    for panel in panels[len(works) :]:
        panel.set_axis_off()
    for panel, work in zip(panels, works, strict=False):
        found = cells(rows, work)
        rates = [[row["steps_per_second"] for row in rounds] for rounds in found.values()]
        middle = [median(each) for each in rates]
        spread = [[mid - min(each) for mid, each in zip(middle, rates, strict=True)]]
        spread.append([max(each) - mid for mid, each in zip(middle, rates, strict=True)])
        colors = ["tab:blue" if name.startswith(OURS) else "tab:gray" for name in found]
        panel.barh(range(len(found)), middle, xerr=spread, color=colors)
        panel.set_yticks(range(len(found)), list(found))
        panel.invert_yaxis()
        panel.set(title=work, xlabel="environment steps per second")
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    figure.savefig(path, dpi=110)
