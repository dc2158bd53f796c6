"""From the vector that is searched to what the objective sees.

Without named parameters both are the same, kept inside the bounds. Named parameters are searched from 0 to 1, each on a
linear or a logarithmic scale between its `low` and `high`, so that one sigma fits them all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpc_es.core.data import Float64
from hpc_es.tasks.functions.bounds import Bounds, Keep, kept


@dataclass(frozen=True)
class Range:
    """The scale of one named parameter."""

    low: float
    high: float
    is_log: bool = False

    def value(self, unit: float) -> float:
        """Return the parameter at 0 .. 1; the ends are met exactly."""
        if unit <= 0.0 or unit >= 1.0:
            return self.low if unit <= 0.0 else self.high
        if not self.is_log:
            inner = self.low + unit * (self.high - self.low)
        else:  # math, not NumPy: one number at a time, so that the bits do not depend on the length of an array
            inner = math.exp(math.log(self.low) + unit * (math.log(self.high) - math.log(self.low)))
        return min(max(inner, self.low), self.high)

    def unit(self, value: float) -> float:
        """Return the place of a value in 0 .. 1."""
        if not self.is_log:
            return (value - self.low) / (self.high - self.low)
        return math.log(value / self.low) / math.log(self.high / self.low)


@dataclass(frozen=True)
class Coordinates:
    """How search vectors of `size` numbers become vectors that are evaluated, of the same size."""

    size: int
    bounds: Bounds | None = None  # of the search vector
    keep: Keep = "reflect"
    penalty_weight: float = 1.0
    ranges: Mapping[str, Range] = field(default_factory=dict)  # of named parameters, in the order of the vector

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coordinates: those of the parameters, or x0, x1, ..."""
        return tuple(self.ranges) or tuple(f"x{index}" for index in range(self.size))

    def seen(self, vectors: Float64) -> tuple[Float64, Float64]:
        """Return what the objective sees, float64[k, size], and what is added to each cost, float64[k]."""
        inside, penalties = kept(self.bounds, self.keep, vectors, self.penalty_weight)
        if not self.ranges:
            return inside, penalties
        ranges = list(self.ranges.values())
        values = [[each.value(unit) for each, unit in zip(ranges, row, strict=True)] for row in inside.tolist()]
        return np.array(values, np.float64).reshape(inside.shape), penalties

    def searched(self, values: Float64) -> Float64:
        """Return the search vector of what the objective is to see, float64[size]."""
        if not self.ranges:
            return values
        pairs = zip(self.ranges.values(), values.tolist(), strict=True)
        return np.array([each.unit(value) for each, value in pairs], np.float64)

    def named(self, values: Float64) -> dict[str, float]:
        """Return the parameters of one vector as the objective sees it, by name."""
        return dict(zip(self.names, values.tolist(), strict=True))


def named_coordinates(ranges: Mapping[str, Range], keep: Keep, penalty_weight: float) -> Coordinates:
    """Return the coordinates of named parameters: searched from 0 to 1."""
    size = len(ranges)
    return Coordinates(size, Bounds(np.zeros(size), np.ones(size)), keep, penalty_weight, dict(ranges))


def limits(value: float | Sequence[float | None] | None, size: int, open_end: float) -> Float64:
    """Return a bound of each coordinate, `open_end` where it is null; ValueError where a list has another length."""
    values: list[Any] = list(value) if isinstance(value, Sequence) else [value] * size
    if len(values) != size:
        raise ValueError(f"expected {size} numbers, one for each coordinate, found {len(values)}")
    return np.array([open_end if each is None else each for each in values], np.float64)
