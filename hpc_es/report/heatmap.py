"""The success rates of searches for programs as a picture: a line for each task, a column for each algorithm."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from hpc_es.core.errors import UserError
from hpc_es.report.plot import STYLE, SUFFIXES
from hpc_es.report.programs import Table
from hpc_es.storage.files import written

DARK = 0.6  # from this rate on, letters are white


def draw(table: Table, output: Path) -> None:
    """Draw the table into a PNG, PDF or SVG; UserError for another suffix, RunError where it cannot be written."""
    if output.suffix.lower() not in SUFFIXES:
        raise UserError(f"{output}: the suffix is {output.suffix!r}, expected one of {', '.join(SUFFIXES)}")
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**STYLE, "axes.grid": False})
        with written(output) as temporary:
            figure(table).savefig(temporary, format=output.suffix[1:].lower())


def figure(table: Table) -> Figure:
    """Return the figure; in a field the rate, and below it the mean NPE. What was not run stays white."""
    tasks, algorithms = table.tasks, table.algorithms
    rates = np.full((len(tasks), len(algorithms)), np.nan)
    size = (2.6 + 1.25 * len(algorithms), 0.9 + 0.36 * len(tasks))
    result = Figure(figsize=size, dpi=150, layout="constrained")
    ax = result.subplots()
    for (task, algorithm), cell in table.cells.items():
        line, column = tasks.index(task), algorithms.index(algorithm)
        rates[line, column] = cell.success_rate
        shown = f"{cell.success_rate:.2f}{'*' * bool(cell.missing)}\n{short(cell.npe)} NPE"
        color = "white" if cell.success_rate >= DARK else "black"
        ax.text(column, line, shown, ha="center", va="center", fontsize=6, color=color, linespacing=1.1)
    image = ax.imshow(rates, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    ax.set_xticks(range(len(algorithms)), algorithms, rotation=20 if max(map(len, algorithms)) > 12 else 0)
    ax.set_yticks(range(len(tasks)), tasks)
    ax.tick_params(length=0)
    result.colorbar(image, ax=ax, label="success rate", shrink=0.8)
    repetitions = sorted({len(cell.rows) for cell in table.cells.values()})
    ax.set_title(f"{' to '.join(map(str, dict.fromkeys((repetitions[0], repetitions[-1]))))} repetitions", fontsize=9)
    return result


def short(number: float) -> str:
    """Three digits: 12.3M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return f"{number:.0f}"
