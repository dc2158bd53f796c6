"""Pictures of docs whose runs take hours, drawn from the committed tables of their evaluations.

`python -m benchmarks.curves NAME ...` writes docs/NAME.png; without names, all of them.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hpc_es.report.plot import PALETTE, STYLE, WIDTH
from hpc_es.report.ticks import label_linear_axis

DOCS = Path(__file__).parents[1] / "docs"
HEIGHT = 10 / 3  # inches
Row = Mapping[str, str]


@dataclass(frozen=True)
class Picture:
    """What is drawn of a table.

    Attributes:
        table: name of the CSV file.
        title: above the picture.
        x: column of the horizontal axis, its unit and its label.
        y: column of the evaluations and the label.
        label: of the curve to which a row belongs; rows without one are left out.
        population: columns of mean and standard deviation of the population, if there are any.
        factor: of y.
    """

    table: str
    title: str
    x: tuple[str, float, str]
    y: tuple[str, str]
    label: Callable[[Row], str] = lambda _: "evaluation of theta"
    population: tuple[str, str] | None = None
    factor: float = 1.0


PICTURES: Mapping[str, Picture] = {
    "pong": Picture(
        "pong",
        "First 300 steps of Pong",
        ("timesteps", 1e6, "timesteps (million)"),
        ("return_mean", "return per episode"),
        population=("population_return_mean", "population_return_std"),
    ),
    "a3c_minatar_breakout": Picture(
        "a3c_minatar_breakout",
        "Breakout of MinAtar, actor-critic",
        ("timesteps", 1e3, "timesteps (thousand)"),
        ("return_mean", "return per episode"),
    ),
    "bytes": Picture(
        "bytes",
        "Byte-level language model",
        ("evaluations", 1e3, "evaluations (thousand)"),
        ("bits_per_byte", "score: bits per byte, negative"),
        label=lambda row: f"population {row['population']}" if row["device"] == "cpu" else "",
        factor=-1.0,
    ),
    "low_rank_halfcheetah": Picture(
        "low_rank_learning",
        "HalfCheetah, three layers of 256 units",
        ("timesteps", 1e6, "timesteps (million)"),
        ("return_mean", "return per episode"),
        label=lambda row: _noise(row["rank"]) if row["task"] == "HalfCheetah" else "",
    ),
    "sorting_gpu": Picture(
        "sorting_gpu",
        "Sorting, 1,024 candidates on one GPU",
        ("evaluations", 1e3, "evaluations (thousand)"),
        ("exact_matches", "share of exact matches"),
        label=lambda row: f"learning rate {row['learning_rate']}",
    ),
}


def _noise(rank: str) -> str:
    return "full noise" if rank == "full" else f"rank {rank}"


def draw(picture: Picture) -> Figure:
    """Draw a picture: a line for each label, the mean over its seeds, which are thin lines."""
    with (DOCS / f"{picture.table}.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    curves: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in table:
        if label := picture.label(row):
            curves[label][row.get("seed", "")].append(row)

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT), dpi=150, layout="constrained")
        ax = figure.subplots()
        for (label, seeds), color in zip(curves.items(), PALETTE, strict=False):
            _draw_label(ax, picture, label, [*seeds.values()], color=color)
        ax.set_xlabel(picture.x[2])
        ax.set_ylabel(picture.y[1])
        ax.set_xlim(left=0)
        label_linear_axis(ax.xaxis)
        label_linear_axis(ax.yaxis)
        figure.suptitle(picture.title, fontsize=11)
        figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _draw_label(
    ax: Axes, picture: Picture, label: str, seeds: Sequence[Sequence[Row]], *, color: str
) -> None:
    """Draw the rows of each seed of one label."""
    if picture.population is not None:
        mean, std = picture.population
        x, centre = _points(picture, seeds[0], mean)
        _, spread = _points(picture, seeds[0], std)
        ax.plot(x, centre, color=color, lw=0.8, alpha=0.6, label="population mean")
        ax.fill_between(x, centre - spread, centre + spread, color=color, alpha=0.15, lw=0)

    drawn = [_points(picture, rows, picture.y[0]) for rows in seeds]
    if len(drawn) > 1:
        label = f"{label} (mean of {len(drawn)} seeds)"
        for x, y in drawn:
            ax.plot(x, y, color=color, lw=0.7, alpha=0.5)
    shortest = min(len(x) for x, _ in drawn)
    x = np.mean([x[:shortest] for x, _ in drawn], axis=0)
    y = np.mean([y[:shortest] for _, y in drawn], axis=0)
    ax.plot(x, y, color=color, lw=1.8, label=label)


def _points(
    picture: Picture, rows: Sequence[Row], name: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return x, in its unit, and the column `name` of the rows that have it."""
    column, unit, _ = picture.x
    found = [row for row in rows if row[name]]
    x = np.array([float(row[column]) for row in found])
    y = np.array([float(row[name]) for row in found])
    return x / unit, y * picture.factor


def main() -> None:
    """Draw the pictures that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], metavar="NAME")
    for name in parser.parse_args().names or PICTURES:
        draw(PICTURES[name]).savefig(DOCS / f"{name}.png")
        print(f"docs/{name}.png")


if __name__ == "__main__":
    main()
