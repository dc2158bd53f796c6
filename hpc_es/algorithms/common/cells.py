"""Division of the space of measures into the cells of an archive.

Cells are numbered from 0. Those of a grid and of a centroidal Voronoi tessellation (CVT) are known
before a run; those of an unstructured archive are founded by the solutions that are far from all
others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import numpy as np

from hpc_es.algorithms.common.nearest import Int64, nearest_of
from hpc_es.config.options import Count, Positive, option, options, unused
from hpc_es.core.data import Float64
from hpc_es.core.elites import Division
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.quantities import Quantities

EPSILON = 1e-6  # cells; a measure that lies on an edge up to rounding belongs to the cell above it
LLOYD_STEPS = 30  # at most, of the k-means that places the centres of a CVT
STILL = 1e-3  # movement of all centres, as a fraction of the range, at which it ends early


@options
class CellOptions:
    """`algorithm.archive:`, as far as it divides the space of measures."""

    kind: Literal["grid", "cvt", "unstructured"] = option(
        "cells of equal size along each measure, around the centres of a Voronoi tessellation, or around solutions",
        "grid",
    )
    cells: Count | tuple[Count, ...] = option(
        "number of cells; of a grid along each measure, such as [100, 100]", (100, 100)
    )
    samples: Count = option("cvt: random points per cell, whose clusters are the cells", 10)
    distance: Positive = option(
        "unstructured: least distance between two cells, where each measure has a range of 1", 0.05
    )

    @property
    def count(self) -> int:
        """Number of cells."""
        return math.prod(self.axes)

    @property
    def axes(self) -> tuple[int, ...]:
        """Number of cells along each axis; one axis unless it is a grid."""
        return (self.cells,) if isinstance(self.cells, int) else tuple(self.cells)

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield options without effect: (key, text)."""
        for name, kind in (("samples", "cvt"), ("distance", "unstructured")):
            if self.kind != kind:
                yield from unused(self, (name,), f"kind is {self.kind}")


class Located(NamedTuple):
    """The cells of the solutions of a generation."""

    cells: Int64  # int64[solutions]; -1: none
    outside: int  # number of solutions with a measure outside its range
    # measures of the cells that the solutions found, float64[new, measures], and their numbers
    founded: Float64
    numbers: Int64


class Cells(Protocol):
    """A division of the space of measures."""

    @property
    def count(self) -> int:
        """Number of cells."""
        ...

    @property
    def founds(self) -> bool:
        """Whether solutions found cells, whose centres are a part of the state."""
        ...

    def locate(self, measures: Float64, centres: Float64) -> Located:
        """Return the cells of solutions.

        Args:
            measures: float64[solutions, measures], finite.
            centres: float64[count, measures] of the cells that were founded; NaN: not yet.
        """
        ...

    def coordinates(self, cells: Int64) -> Int64:
        """Return the cells as tables show them, int64[cells, axes]."""
        ...

    def middles(self, cells: Int64) -> Float64:
        """Return the measures in the middle of cells that are known before a run,
        float64[cells, measures].
        """
        ...

    def division(self, centres: Float64) -> Division:
        """Return how tables and pictures show the cells; `centres` are those of `locate`."""
        ...


@dataclass(frozen=True)
class Space:
    """The ranges of the measures."""

    low: Float64  # float64[measures]
    high: Float64

    def outside(self, measures: Float64) -> int:
        """Return how many of float64[solutions, measures] have a measure outside its range."""
        return int(((measures < self.low) | (measures > self.high)).any(axis=1).sum())

    def unit(self, measures: Float64) -> Float64:
        """Return measures with a range of 0 to 1; those beyond count as its ends."""
        scaled: Float64 = (measures - self.low) / (self.high - self.low)
        clipped: Float64 = np.clip(scaled, 0.0, 1.0)
        return clipped


NO_CENTRES: Float64 = np.zeros((0, 0))
NO_NUMBERS: Int64 = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Grid:
    """Cells of equal size; the last axis varies fastest. A measure outside belongs to the edge."""

    space: Space
    shape: tuple[int, ...]
    founds = False

    @property
    def count(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)

    def locate(self, measures: Float64, centres: Float64) -> Located:
        """Return the cells, float64 arithmetic in the order of pyribs."""
        low, high, dims = self.space.low, self.space.high, np.array(self.shape)
        positions = (dims * (measures - low) + EPSILON) / (high - low)
        indices = np.clip(positions, 0, dims - 1).astype(np.int64)
        cells = np.ravel_multi_index(tuple(indices.T), self.shape).astype(np.int64)
        return Located(cells, self.space.outside(measures), NO_CENTRES, NO_NUMBERS)

    def coordinates(self, cells: Int64) -> Int64:
        """Return the index along each measure."""
        return np.stack(np.unravel_index(cells, self.shape), axis=1).astype(np.int64)

    def middles(self, cells: Int64) -> Float64:
        """Return the middle of cells."""
        shares: Float64 = (self.coordinates(cells) + 0.5) / np.array(self.shape)
        return self.space.low + shares * (self.space.high - self.space.low)

    def division(self, centres: Float64) -> Division:
        """Return the grid."""
        shape, none = np.array(self.shape, np.int64), np.zeros((0, len(self.shape)))
        return Division(self.space.low, self.space.high, self.count, shape, none)


@dataclass(frozen=True)
class Voronoi:
    """Cells around the centres of a CVT (Vassiliades et al. 2018, arXiv:1610.05729)."""

    space: Space
    count: int
    samples: int  # random points per cell
    keys: Keys
    founds = False

    @cached_property
    def centres(self) -> Float64:
        """The centres in unit ranges, float64[count, measures]: means of the clusters of uniformly
        distributed points.
        """
        rng = self.keys.generator(Purpose.GENETICS, 0, 0, 1)
        points = rng.random((self.count * max(self.samples, 1), len(self.space.low)))
        centres: Float64 = points[: self.count].copy()
        for _ in range(LLOYD_STEPS):
            nearest, _ = nearest_of(points, centres)
            sizes = np.bincount(nearest, minlength=self.count)
            sums = [np.bincount(nearest, axis, self.count) for axis in points.T]
            means = np.stack(sums, axis=1) / np.maximum(sizes, 1)[:, np.newaxis]
            means = np.where(sizes[:, np.newaxis] > 0, means, centres)
            moved = float(np.abs(means - centres).max())
            centres = means
            if moved < STILL:
                break
        return centres

    def locate(self, measures: Float64, centres: Float64) -> Located:
        """Return the cells of the nearest centres; of equally near ones, the first."""
        nearest, _ = nearest_of(self.space.unit(measures), self.centres)
        return Located(nearest, self.space.outside(measures), NO_CENTRES, NO_NUMBERS)

    def coordinates(self, cells: Int64) -> Int64:
        """Return the number of the centre."""
        return cells[:, np.newaxis]

    def middles(self, cells: Int64) -> Float64:
        """Return the centres of cells."""
        return self.space.low + self.centres[cells] * (self.space.high - self.space.low)

    def division(self, centres: Float64) -> Division:
        """Return the centres."""
        middles = self.middles(np.arange(self.count))
        return Division(self.space.low, self.space.high, self.count, NO_NUMBERS, middles)


@dataclass(frozen=True)
class Founded:
    """Cells around solutions that were at least a distance away from all others when they came.

    The number of cells is limited; after that, every solution belongs to the nearest one.
    """

    space: Space
    count: int
    distance: float
    founds = True

    def locate(self, measures: Float64, centres: Float64) -> Located:
        """Return the cells; far solutions found cells in their order."""
        solutions = self.space.unit(measures)
        used = int((~np.isnan(centres[:, 0])).sum())
        cells = np.full(len(solutions), -1, np.int64)
        near = np.full(len(solutions), np.inf)
        if used and len(solutions):
            cells, near = nearest_of(solutions, self.space.unit(centres[:used]))
        founders: list[int] = []
        # Few solutions are far from all cells, except in the first generations.
        for row in np.flatnonzero(near >= self.distance).tolist():
            if near[row] < self.distance or used + len(founders) >= self.count:
                continue
            cells[row], near[row] = used + len(founders), 0.0
            founders.append(row)
            away = np.sqrt(np.square(solutions - solutions[row]).sum(axis=1))
            closer = away < near
            closer[: row + 1] = False
            cells[closer], near[closer] = cells[row], away[closer]
        numbers = np.arange(used, used + len(founders), dtype=np.int64)
        return Located(cells, self.space.outside(measures), measures[founders], numbers)

    def coordinates(self, cells: Int64) -> Int64:
        """Return the number of the cell."""
        return cells[:, np.newaxis]

    def middles(self, cells: Int64) -> Float64:
        """Return no middle: the cells are where solutions were found."""
        return np.full((len(cells), len(self.space.low)), np.nan)

    def division(self, centres: Float64) -> Division:
        """Return the solutions that founded cells."""
        return Division(self.space.low, self.space.high, self.count, NO_NUMBERS, centres)


def cells_in(division: Division, measures: Float64) -> Int64:
    """Return the cells of measures, float64[points, measures], in an archive whose cells are
    known.
    """
    space = Space(division.low, division.high)
    if len(division.shape):
        grid = Grid(space, tuple(division.shape.tolist()))
        return grid.locate(measures, NO_CENTRES).cells
    known = division.centres[~np.isnan(division.centres[:, 0])]
    return nearest_of(space.unit(measures), space.unit(known))[0]


def cells_of(options: CellOptions, quantities: Quantities, keys: Keys) -> Cells:
    """Return the cells that the options describe for these measures."""
    space = Space(*quantities.ranges)
    match options.kind:
        case "grid":
            return Grid(space, options.axes)
        case "cvt":
            return Voronoi(space, options.count, options.samples, keys)
        case _:
            return Founded(space, options.count, options.distance)


def cell_mistakes(options: CellOptions, quantities: Quantities) -> Iterator[tuple[str, str]]:
    """Yield why measures do not fit the cells: (key, text)."""
    axes = len(options.axes)
    names, count = ", ".join(quantities.measures), len(quantities.measures)
    if options.kind == "grid" and axes != count:
        yield (
            "algorithm.archive.cells",
            f"has {axes} number{'s' * (axes != 1)}, but the task has {count} "
            f"measure{'s' * (count != 1)} ({names}): expected a number of cells for each, such "
            f"as {[10] * count}, or archive.kind: cvt",
        )
