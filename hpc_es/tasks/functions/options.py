"""Bounds of a search vector, and three ways to keep to them.

What is evaluated is always inside the bounds. A vector that is inside already is kept to the last bit.


From the vector that is searched to what the objective sees.

Without named parameters both are the same, kept inside the bounds. Named parameters are searched from 0 to 1, each on a
linear or a logarithmic scale between its `low` and `high`, so that one sigma fits them all.


The options that the tasks `function` and `command` have in common."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hpc_es.config.options import Count, Natural, NonNegative, Positive, option, options
from hpc_es.core.data import Float64
from hpc_es.tasks.functions.journal import Mode

Keep = Literal["clip", "reflect", "penalty"]


@dataclass(frozen=True)
class Bounds:
    """Each coordinate's limits, minus and plus infinity where there is none."""

    low: Float64  # float64[size]
    high: Float64  # float64[size]

    def clipped(self, vectors: Float64) -> Float64:
        """Return the nearest vectors inside, float64[..., size]."""
        nearest: Float64 = np.clip(vectors, self.low, self.high)
        return nearest

    def reflected(self, vectors: Float64) -> Float64:
        """Return the vectors folded at the bounds, as a ray between two mirrors, float64[..., size]."""
        closed = np.isfinite(self.low) & np.isfinite(self.high)
        width = np.where(closed, self.high - self.low, 1.0)
        way = np.mod(vectors - np.where(closed, self.low, 0.0), 2 * width)
        folded = np.where(closed, self.low, 0.0) + np.minimum(way, 2 * width - way)
        open_side = np.where(vectors < self.low, 2 * self.low - vectors, 2 * self.high - vectors)
        inside = (vectors >= self.low) & (vectors <= self.high)
        return self.clipped(np.where(inside, vectors, np.where(closed, folded, open_side)))

    def excess(self, vectors: Float64) -> Float64:
        """Return the squared distance to the nearest vector inside, float64[...]; 0 inside."""
        beyond: Float64 = vectors - self.clipped(vectors)
        return np.asarray((beyond * beyond).sum(axis=-1))

    def middle(self) -> Float64:
        """Return the middle where both limits are there, else the number nearest to 0 that is inside."""
        closed = np.isfinite(self.low) & np.isfinite(self.high)
        with np.errstate(invalid="ignore"):
            return np.where(closed, self.low + (self.high - self.low) / 2, self.clipped(np.zeros(len(self.low))))


def kept(bounds: Bounds | None, how: Keep, vectors: Float64, weight: float = 1.0) -> tuple[Float64, Float64]:
    """Return the vectors as they are evaluated, and what is added to the cost of each, float64[vectors].

    `penalty` evaluates the nearest vector inside and adds `weight` times the squared distance to it. That is the form
    of pycma's BoundPenalty; its weights follow the spread of the costs so far, here the weight is a constant, so that a
    job's value depends on nothing but the job.
    """
    nothing = np.zeros(len(vectors))
    if bounds is None:
        return vectors, nothing
    if how == "reflect":
        return bounds.reflected(vectors), nothing
    return bounds.clipped(vectors), weight * bounds.excess(vectors) if how == "penalty" else nothing


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


ConfigProblem = tuple[str, str]
Side = float | tuple[float | None, ...] | None
LONGEST = 1_000_000  # numbers in a vector


@options
class Parameter:
    """`task.parameters.NAME:`, one named parameter."""

    low: float = option("the smallest value")
    high: float = option("the largest value")
    scale: Literal["linear", "log"] = option("how it is searched between them", "linear")
    initial: float | None = option("where the search begins; null: the middle of the scale", None)
    integer: bool = option("not supported yet", False)

    def problems(self) -> Iterator[ConfigProblem]:
        """Mistakes that no single field shows: (key, text)."""
        if self.integer:
            text = "is true, but whole numbers are not supported yet: expected false, and round in the function"
            yield "integer", text
        if self.low >= self.high:
            yield "high", f"is {self.high:g}: expected more than low, which is {self.low:g}"
        elif self.scale == "log" and self.low <= 0:
            yield "low", f"is {self.low:g}, but a logarithmic scale has no such number: expected more than 0"
        elif self.initial is not None and not self.low <= self.initial <= self.high:
            yield "initial", f"is {self.initial:g}: expected a number from {self.low:g} to {self.high:g}"

    def range(self) -> Range:
        """Return its scale."""
        return Range(self.low, self.high, self.scale == "log")


@options
class BoundsOptions:
    """`task.bounds:`, what is evaluated is always inside."""

    low: Side = option("smallest value of each coordinate: one number for all, or a list; null: none", None)
    high: Side = option("largest value of each coordinate", None)
    keep: Keep = option(
        "how a vector outside is kept: reflect at the bound, clip to it, or clip and add a penalty to its value",
        "reflect",
    )
    penalty_weight: NonNegative = option("penalty: this times the squared distance to the nearest point inside", 1.0)


@options
class RegionOptions:
    """`task.initial_region:`, in coordinates of the objective."""

    low: Side = option(
        "smallest value of each coordinate to begin with: one number for all, or a list; null: that of the bounds", None
    )
    high: Side = option("largest value of each coordinate to begin with", None)


@options
class Search:
    """What is searched and how evaluations are treated; a task adds what it evaluates with."""

    dimension: Count | None = option("numbers in the vector", None)
    parameters: Mapping[str, Parameter] | None = option(
        "instead of dimension: named parameters, each with low, high, scale: linear or log, initial", None
    )
    goal: Literal["minimise", "maximise"] = option("whether small or large values are wanted", "minimise")
    bounds: BoundsOptions = option("limits of the coordinates", default_factory=BoundsOptions)
    initial: float | tuple[float, ...] | str | None = option(
        "the vector to begin with: a number for all, a list, a file (.npy, .json, .txt) relative to the config, or "
        "random: anywhere in initial_region; null: the middle of the bounds, or 0",
        None,
    )
    initial_region: RegionOptions = option(
        "where initial: random begins, and each restart of a strategy that has restarts", default_factory=RegionOptions
    )
    timeout_seconds: Positive | None = option("of an evaluation, which then counts as failed; null: none", None)
    retries: Natural = option("how often a failed evaluation is tried again", 0, may_change=True)
    on_failed_evaluation: Literal["drop", "abort"] = option(
        "drop: the update goes on without it; abort: the run ends", "drop", may_change=True
    )
    vector_behaviour: bool = option("give each row its vector as its behaviour, for novelty search", False)
    record_evaluations: bool = option("write every vector with its value into evaluations.csv", True, may_change=True)
    journal: Mode = option(
        "keep finished evaluations of a killed generation; auto: where one takes more than 0.01 s",
        "auto",
        may_change=True,
    )

    @property
    def size(self) -> int:
        """The numbers in the vector."""
        return len(self.parameters) if self.parameters else self.dimension or 0

    @property
    def sign(self) -> float:
        """What a value is multiplied with to be a return, which is maximised."""
        return -1.0 if self.goal == "minimise" else 1.0

    def problems(self) -> Iterator[ConfigProblem]:
        """Mistakes that no single field shows: (key, text)."""
        if (self.dimension is None) == (not self.parameters):
            found = "neither" if self.dimension is None else "both"
            yield "dimension", f"expected dimension, or parameters with names, found {found}"
        elif self.size > LONGEST:
            yield "dimension", f"is {self.size:,}: expected at most {LONGEST:,}"
        elif self.parameters:
            yield from _named_problems(self)
        else:
            yield from _side_problems(self)
        region = self.initial_region
        if self.initial != "random" and (region.low, region.high) != (None, None):
            yield "initial_region", "is set, but initial is not random: expected initial: random"

    def coordinates(self) -> Coordinates:
        """Return how search vectors become what is evaluated."""
        bounds, size = self.bounds, self.size
        if self.parameters:
            ranges = {name: each.range() for name, each in self.parameters.items()}
            return named_coordinates(ranges, bounds.keep, bounds.penalty_weight)
        return bounded_coordinates(size, bounds.low, bounds.high, bounds.keep, bounds.penalty_weight)


def bounded_coordinates(size: int, low: Side, high: Side, keep: Keep, penalty_weight: float) -> Coordinates:
    """Return the coordinates of a vector without names."""
    if low is None and high is None:
        return Coordinates(size)
    bounds = Bounds(limits(low, size, -float("inf")), limits(high, size, float("inf")))
    return Coordinates(size, bounds, keep, penalty_weight)


def _named_problems(search: Search) -> Iterator[ConfigProblem]:
    for section, given in (("bounds", search.bounds), ("initial_region", search.initial_region)):
        for side in ("low", "high"):
            if getattr(given, side) is not None:
                yield f"{section}.{side}", "is set, but named parameters have bounds of their own: remove it"
    if search.initial not in (None, "random"):
        yield "initial", "is set, but named parameters have one each: remove it, or write parameters.NAME.initial"


def _side_problems(search: Search) -> Iterator[ConfigProblem]:
    wrong = False
    for side in ("low", "high"):
        try:
            limits(getattr(search.bounds, side), search.size, 0.0)
        except ValueError as error:
            wrong = True
            yield f"bounds.{side}", str(error)
    if wrong:
        return
    bounds = search.coordinates().bounds
    if bounds is not None and (bounds.low >= bounds.high).any():
        index = int((bounds.low >= bounds.high).argmax())
        low, high = float(bounds.low[index]), float(bounds.high[index])
        yield "bounds.high", f"is {high:g} in coordinate {index}: expected more than low, which is {low:g}"
    elif isinstance(search.initial, tuple) and len(search.initial) != search.size:
        yield "initial", f"expected {search.size} numbers, one for each coordinate, found {len(search.initial)}"
