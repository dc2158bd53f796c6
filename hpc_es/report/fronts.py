"""Fronts of several objectives: what the pictures and reports of runs show of them."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpc_es.core.array_files import load_arrays
from hpc_es.core.data import ConfigData, Float64
from hpc_es.core.domination import KNEE
from hpc_es.core.errors import visible
from hpc_es.core.quantities import OBJECTIVES
from hpc_es.storage.members import LARGEST_NUMBER, STEMS
from hpc_es.tasks.quantities import MOST_OBJECTIVES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

PAIRED = 4  # objectives of which pairs are drawn; of more, parallel coordinates
COLUMNS = 3  # of the panels of pairs
PANEL_HEIGHT = 3.0  # in inches
MOST_LINES = 200  # of parallel coordinates


@dataclass(frozen=True)
class SavedFront:
    """The front of a run, as its files have it."""

    names: Sequence[str]  # of the objectives
    maximised: Sequence[bool]  # of each objective
    values: Float64  # float64[members, objectives], in the user's sign
    members: Sequence[str]
    choices: Sequence[str]  # what speaks for each member, or ""

    def thinned(self, most: int) -> SavedFront:
        """Return a front of about `most` members: those that stand out, the worst of each
        objective, and others at equal distances in the order of the first one.
        """
        if len(self.values) <= most:
            return self
        ends = np.concatenate([self.values.argmin(axis=0), self.values.argmax(axis=0)])
        chosen = [row for row, text in enumerate(self.choices) if text][:most]
        spread = np.argsort(self.values[:, 0], kind="stable")[
            np.linspace(0, len(self.values) - 1, most).round().astype(int)
        ]
        rows = sorted({*ends.tolist(), *chosen, *spread.tolist()})
        return replace(
            self,
            values=self.values[rows],
            members=[self.members[row] for row in rows],
            choices=[self.choices[row] for row in rows],
        )

    @property
    def knee(self) -> int | None:
        """The row of the knee."""
        rows = [row for row, text in enumerate(self.choices) if KNEE in text.split(", ")]
        return rows[0] if rows else None

    def label(self, objective: int) -> str:
        """Return the name of an objective with its direction."""
        direction = "higher" if self.maximised[objective] else "lower"
        return f"{visible(self.names[objective])} ({direction} is better)"


def read_front(run: Path, config: ConfigData) -> SavedFront | None:
    """Return the front of a run directory; None if there is none, or its file is damaged."""
    path = run / f"{STEMS['front']}.npz"
    if not path.is_file():
        return None
    try:
        arrays = load_arrays(path, leave_out=("vectors",), may_be_compressed=False)
        values = np.asarray(arrays[OBJECTIVES], np.float64)
        members, choices = arrays["member"], arrays["choice"]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None
    if values.ndim != 2 or not 0 < values.shape[1] <= MOST_OBJECTIVES or not len(values):
        return None
    if any(
        texts.shape != (len(values),) or texts.dtype.kind != "U" for texts in (members, choices)
    ):
        return None
    if not (np.abs(values) <= LARGEST_NUMBER).all():
        return None
    goals = goals_of(config, values.shape[1])
    maximised = [goal == "maximise" for goal in goals.values()]
    return SavedFront(list(goals), maximised, values, members.tolist(), choices.tolist())


def goals_of(config: ConfigData, count: int) -> dict[str, str]:
    """Return the goals of the objectives of a config, by name; f1, f2, ... if they have no names
    there, as those of a custom task.
    """
    task = config.get("task")
    given = task.get(OBJECTIVES) if isinstance(task, Mapping) else None
    if not isinstance(given, Mapping) or len(given) != count:
        return {f"f{number}": "minimise" for number in range(1, count + 1)}
    return {
        str(name): str(item.get("goal", "minimise")) if isinstance(item, Mapping) else str(item)
        for name, item in given.items()
    }


def pairs_of(front: SavedFront) -> list[tuple[int, int]]:
    """Return the pairs of objectives that have a panel each; [] for parallel coordinates."""
    count = len(front.names)
    return list(combinations(range(count), 2)) if count <= PAIRED else []


def height_of(fronts: Sequence[SavedFront]) -> float:
    """Return the height of a picture of fronts, in inches; 0 if there is none."""
    if not fronts:
        return 0.0
    return PANEL_HEIGHT * math.ceil(max(len(pairs_of(fronts[0])), 1) / COLUMNS)


@dataclass(frozen=True)
class DrawnFront:
    """A front with its colour and its label in the picture."""

    front: SavedFront
    color: str


def draw_fronts(target: Figure | SubFigure, drawn: Sequence[DrawnFront]) -> None:
    """Draw fronts of the same objectives: each pair of them, or parallel coordinates."""
    first = drawn[0].front
    pairs = pairs_of(first)
    if not pairs:
        _draw_parallel(target.subplots(), drawn)
        return
    columns = min(len(pairs), COLUMNS)
    grid = target.subplots(math.ceil(len(pairs) / columns), columns, squeeze=False)
    for ax, pair in zip(grid.flat, pairs, strict=False):
        for one in drawn:
            _draw_pair(ax, one, pair)
        ax.set_xlabel(first.label(pair[0]))
        ax.set_ylabel(first.label(pair[1]))
    for ax in list(grid.flat)[len(pairs) :]:
        ax.set_visible(False)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    grid.flat[0].legend(handles[-1:], labels[-1:], fontsize=8)


def _draw_pair(ax: Axes, drawn: DrawnFront, pair: tuple[int, int]) -> None:
    """Draw two objectives; with two, the border of what the front dominates too."""
    front = drawn.front
    x, y = front.values[:, pair[0]], front.values[:, pair[1]]
    if len(front.names) == 2:
        order = np.argsort(x, kind="stable")
        # Between two members, what is dominated ends at the worse value of the second objective.
        style = "steps-pre" if front.maximised[0] else "steps-post"
        ax.plot(x[order], y[order], color=drawn.color, lw=0.7, alpha=0.7, drawstyle=style)
    ax.plot(x, y, ls="none", marker="o", ms=3, color=drawn.color, alpha=0.8)
    if (knee := front.knee) is not None:
        ax.plot(
            x[knee],
            y[knee],
            ls="none",
            marker="*",
            ms=12,
            color=drawn.color,
            mec="black",
            label="knee",
        )


def _draw_parallel(ax: Axes, drawn: Sequence[DrawnFront]) -> None:
    """Draw a line for each member over the objectives, whose axes are scaled from the worst value
    at the bottom to the best one at the top.
    """
    values = np.concatenate([one.front.values for one in drawn])
    low, high = values.min(axis=0), values.max(axis=0)
    first = drawn[0].front
    places = np.arange(len(first.names))
    for one in drawn:
        shares = scaled_to_best(one.front, low, high)
        for row in _spread_rows(len(shares)):
            ax.plot(places, shares[row], color=one.color, lw=0.6, alpha=0.4)
        if (knee := one.front.knee) is not None:
            ax.plot(places, shares[knee], color=one.color, lw=2.5, label="knee")
    ends = zip(first.names, first.maximised, low.tolist(), high.tolist(), strict=True)
    labels = [
        f"{visible(name)}\n{low if is_max else high:.4g} to {high if is_max else low:.4g}"
        for name, is_max, low, high in ends
    ]
    ax.set_xticks(places, labels)
    ax.set_yticks([0, 1], ["worst", "best"])
    ax.legend(fontsize=8)


def scaled_to_best(front: SavedFront, low: Float64, high: Float64) -> Float64:
    """Return the values with 0 for the worst and 1 for the best of each objective,
    float64[members, objectives].
    """
    span = np.where(high > low, high - low, 1.0)
    shares: Float64 = (front.values - low) / span
    return np.where(np.array(front.maximised), shares, 1 - shares)


def _spread_rows(count: int) -> Iterator[int]:
    """Yield at most MOST_LINES rows at equal distances."""
    yield from np.unique(np.linspace(0, count - 1, min(count, MOST_LINES)).round().astype(int))
