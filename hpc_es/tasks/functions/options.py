"""The options that the tasks `function` and `command` have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from hpc_es.config.options import Count, Natural, NonNegative, Positive, option, options
from hpc_es.tasks.functions.bounds import Bounds, Keep
from hpc_es.tasks.functions.coordinates import Coordinates, Range, limits, named_coordinates
from hpc_es.tasks.functions.journal import Mode

Problem = tuple[str, str]
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

    def problems(self) -> Iterator[Problem]:
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

    def problems(self) -> Iterator[Problem]:
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


def _named_problems(search: Search) -> Iterator[Problem]:
    for section, given in (("bounds", search.bounds), ("initial_region", search.initial_region)):
        for side in ("low", "high"):
            if getattr(given, side) is not None:
                yield f"{section}.{side}", "is set, but named parameters have bounds of their own: remove it"
    if search.initial not in (None, "random"):
        yield "initial", "is set, but named parameters have one each: remove it, or write parameters.NAME.initial"


def _side_problems(search: Search) -> Iterator[Problem]:
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
