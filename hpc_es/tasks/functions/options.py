"""Options shared by `function` and `command`: dimension, bounds, parameters, failures.

`Coordinates` maps search vectors to vectors of the objective. Without named parameters both are
equal, except that vectors outside of the bounds are moved inside. Named parameters have scales: see
`parameters.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np

from hpc_es.config.options import (
    Count,
    Limits,
    Natural,
    NonNegative,
    PathText,
    Positive,
    option,
    options,
)
from hpc_es.core.data import Float64
from hpc_es.core.declarations import Metric, Offers, Requirement, Setting
from hpc_es.core.interfaces import MixedCoordinates
from hpc_es.core.quantities import Goal, Quantities
from hpc_es.tasks.functions import repeats
from hpc_es.tasks.functions.journal import Mode
from hpc_es.tasks.functions.parameters import (
    Choices,
    Discrete,
    Parameter,
    Scale,
    Value,
    decoded,
    scale_of,
)
from hpc_es.tasks.functions.repeats import RepeatOptions
from hpc_es.tasks.quantities import QuantityOptions, name_problems, quantities_of

Keep = Literal["clip", "reflect", "penalty", "transform"]
Handling = Literal["feasible_first", "augmented_lagrangian"]


@dataclass(frozen=True)
class Bounds:
    """The limits of each coordinate, minus or plus infinity for none.

    `clipped` and `reflected` do not change vectors inside by a bit.
    """

    low: Float64  # float64[size]
    high: Float64  # float64[size]

    def clipped(self, vectors: Float64) -> Float64:
        """Return the nearest vectors within the bounds, float64[..., size]."""
        nearest: Float64 = np.clip(vectors, self.low, self.high)
        return nearest

    def reflected(self, vectors: Float64) -> Float64:
        """Return the vectors reflected at the bounds, float64[..., size].

        They may be reflected repeatedly.
        """
        closed = np.isfinite(self.low) & np.isfinite(self.high)
        width = np.where(closed, self.high - self.low, 1.0)
        distance = np.mod(vectors - np.where(closed, self.low, 0.0), 2 * width)
        folded = np.where(closed, self.low, 0.0) + np.minimum(distance, 2 * width - distance)
        open_side = np.where(vectors < self.low, 2 * self.low - vectors, 2 * self.high - vectors)
        inside = (vectors >= self.low) & (vectors <= self.high)
        return self.clipped(np.where(inside, vectors, np.where(closed, folded, open_side)))

    @cached_property
    def _turn(self) -> Float64:
        """Distance from a bound where `transformed` turns, float64[size].

        Within it, it is quadratic.
        """
        closed = np.isfinite(self.low) & np.isfinite(self.high)
        with np.errstate(invalid="ignore"):
            bound = np.where(
                np.isfinite(self.low), self.low, np.where(np.isfinite(self.high), self.high, 0.0)
            )
            return np.where(closed, (self.high - self.low) / 20, (1 + np.abs(bound)) / 20)

    def transformed(self, vectors: Float64) -> Float64:
        """Return vectors within the bounds by a smooth map, float64[..., size].

        The map is the identity in the middle and quadratic near the bounds. It reaches a bound with
        slope 0 at some distance beyond it, and turns back there. A linear function then has a
        smooth minimum at its bound, where `reflected` would give a kink, which slows strategies
        that adapt a covariance. pycma uses such a map too.
        """
        turn = self._turn
        folded = Bounds(self.low - turn, self.high + turn).reflected(vectors)
        with np.errstate(invalid="ignore"):
            lower = self.low + (folded - (self.low - turn)) ** 2 / (4 * turn)
            upper = self.high - (folded - (self.high + turn)) ** 2 / (4 * turn)
            inside = np.where(
                folded < self.low + turn, lower, np.where(folded > self.high - turn, upper, folded)
            )
        return self.clipped(inside)

    def inverse(self, vectors: Float64) -> Float64:
        """Return vectors that `transformed` maps to these ones, float64[..., size].

        These are within the bounds.
        """
        turn = self._turn
        with np.errstate(invalid="ignore"):
            lower = self.low - turn + 2 * np.sqrt(np.maximum(turn * (vectors - self.low), 0.0))
            upper = self.high + turn - 2 * np.sqrt(np.maximum(turn * (self.high - vectors), 0.0))
            return np.where(
                vectors < self.low + turn,
                lower,
                np.where(vectors > self.high - turn, upper, vectors),
            )

    def excess(self, vectors: Float64) -> Float64:
        """Return the squared distance to the nearest vector within the bounds, float64[...]."""
        beyond: Float64 = vectors - self.clipped(vectors)
        return np.asarray((beyond * beyond).sum(axis=-1))

    def middle(self) -> Float64:
        """Return the middle of coordinates with two limits, float64[size].

        Of the others it is the number nearest to 0.
        """
        closed = np.isfinite(self.low) & np.isfinite(self.high)
        with np.errstate(invalid="ignore"):
            return np.where(
                closed, self.low + (self.high - self.low) / 2, self.clipped(np.zeros(len(self.low)))
            )


def apply_bounds(
    bounds: Bounds | None, keep: Keep, vectors: Float64, weight: float = 1.0
) -> tuple[Float64, Float64]:
    """Return the vectors to evaluate, and the penalties added to their costs.

    They are float64[vectors, size] and float64[vectors]. `penalty` evaluates the nearest vector
    within the bounds and adds `weight` times the squared distance to it. This is the form of
    pycma's BoundPenalty, but with a constant weight: pycma adapts it to the spread of the costs so
    far, whereas here the value of a job must not depend on other jobs.
    """
    no_penalties = np.zeros(len(vectors))
    if bounds is None:
        return vectors, no_penalties
    if keep == "reflect":
        return bounds.reflected(vectors), no_penalties
    if keep == "transform":
        return bounds.transformed(vectors), no_penalties
    return bounds.clipped(vectors), weight * bounds.excess(
        vectors
    ) if keep == "penalty" else no_penalties


@dataclass(frozen=True)
class Coordinates:
    """Maps search vectors to vectors of the objective, of the same size."""

    size: int
    bounds: Bounds | None = None  # of the search vector
    keep: Keep = "reflect"
    penalty_weight: float = 1.0
    # of named parameters, in the vector's order
    scales: Mapping[str, Scale] = field(default_factory=dict)

    @cached_property
    def mixed(self) -> MixedCoordinates | None:
        """The coordinates of named parameters that are not continuous; None if there are none."""
        scales = list(self.scales.values())
        levels = {index: scale for index, scale in enumerate(scales) if isinstance(scale, Discrete)}
        choices = {
            index: len(scale.categories)
            for index, scale in enumerate(scales)
            if isinstance(scale, Choices)
        }
        if not levels and not choices:
            return None
        return MixedCoordinates(
            tuple(levels), lambda index, unit: levels[index].thresholds(unit), choices
        )

    @cached_property
    def _kept(self) -> Bounds | None:
        """The bounds within which search vectors are kept: discrete coordinates have none."""
        if self.bounds is None or self.mixed is None:
            return self.bounds
        discrete = np.isin(np.arange(self.size), [*self.mixed.ordered, *self.mixed.choices])
        return Bounds(
            np.where(discrete, -np.inf, self.bounds.low),
            np.where(discrete, np.inf, self.bounds.high),
        )

    @cached_property
    def ends(self) -> tuple[Float64, Float64]:
        """The lowest and the highest search vectors, float64[size] each; infinite where there are
        no bounds, and for choices.
        """
        infinite = np.full(self.size, np.inf)
        if self.bounds is None:
            return -infinite, infinite
        low, high = self.before_transform(self.bounds.low), self.before_transform(self.bounds.high)
        is_choice = np.isin(np.arange(self.size), [*self.mixed.choices] if self.mixed else [])
        return np.where(is_choice, -np.inf, low), np.where(is_choice, np.inf, high)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters, or x0, x1, ... if they have none."""
        return tuple(self.scales) or tuple(f"x{index}" for index in range(self.size))

    def to_objective(self, vectors: Float64) -> tuple[Float64, Float64]:
        """Return the vectors for the objective, and the penalties of their costs.

        They are float64[k, size] and float64[k].
        """
        inside, penalties = apply_bounds(self._kept, self.keep, vectors, self.penalty_weight)
        if not self.scales:
            return inside, penalties
        scales = list(self.scales.values())
        values = [
            [scale.value(unit) for scale, unit in zip(scales, row, strict=True)]
            for row in inside.tolist()
        ]
        return np.array(values, np.float64).reshape(inside.shape), penalties

    def to_search(self, values: Float64) -> Float64:
        """Return the search vector of one vector of the objective, float64[size] both."""
        if not self.scales:
            return self.before_transform(values)
        pairs = zip(self.scales.values(), values.tolist(), strict=True)
        return self.before_transform(
            np.array([scale.unit(value) for scale, value in pairs], np.float64)
        )

    def before_transform(self, inside: Float64) -> Float64:
        """Return a search vector that is kept within the bounds as this one, float64[size] both."""
        if self._kept is None or self.keep != "transform":
            return inside
        return self._kept.inverse(inside)

    def require(self, values: Float64) -> None:
        """Raise ValueError unless a vector is within the bounds and on the scales.

        It is one of the objective, float64[size].
        """
        for index, (name, number) in enumerate(zip(self.names, values.tolist(), strict=True)):
            if self.scales:
                scale = self.scales[name]
                try:
                    is_valid = scale.number(scale.decoded(number)) == number
                except (ValueError, IndexError, OverflowError):
                    is_valid = False
            else:
                low, high = (
                    (-np.inf, np.inf)
                    if self.bounds is None
                    else (self.bounds.low[index], self.bounds.high[index])
                )
                is_valid = bool(np.isfinite(number)) and low <= number <= high
            if not is_valid:
                raise ValueError(f"{name} is {number:g}: expected a number within its range")

    def decoded(self, values: Float64) -> list[Value]:
        """Return the values of one vector of the objective, float64[size]."""
        numbers: list[float] = values.tolist()
        return list(decoded(self.scales, numbers).values()) if self.scales else [*numbers]


def named_coordinates(
    scales: Mapping[str, Scale], keep: Keep, penalty_weight: float
) -> Coordinates:
    """Return the coordinates of named parameters, which are searched from 0 to 1.

    Choices start at the first one.
    """
    high = np.array([0.0 if isinstance(scale, Choices) else 1.0 for scale in scales.values()])
    return Coordinates(
        len(scales), Bounds(np.zeros(len(scales)), high), keep, penalty_weight, dict(scales)
    )


def limits(value: float | Sequence[float | None] | None, size: int, default: float) -> Float64:
    """Return a limit per coordinate, float64[size], `default` for null.

    Raises:
        ValueError: a list has another length.
    """
    values: list[float | str | None] = (
        list(value) if isinstance(value, Sequence) else [value] * size
    )
    if len(values) != size:
        raise ValueError(f"expected {size} numbers, one for each coordinate, found {len(values)}")
    return np.array([default if item is None else item for item in values], np.float64)


ConfigProblem = tuple[str, str]
Side = float | tuple[float | None, ...] | None
OF_CONSTRAINTS: Mapping[str, Metric] = {
    "best_violation": Metric("violation of the best vector", is_log=True),
    "feasible_share": Metric("share of feasible vectors", is_log=True),
}
LONGEST = 1_000_000  # numbers in a vector
# Of the distance between two bounds: with others the step size is 0, or reflected vectors are NaN.
NARROWEST, WIDEST = 1e-300, 1e307
PARAMETER = "parameter."  # begins the source of a measure that is a coordinate
# of evaluations.csv, before the parameters and constraints
RESULT_COLUMNS = ("generation", "job", "value")


@options
class BoundsOptions:
    """`task.bounds:`, within which vectors are evaluated."""

    low: Side = option(
        "lower bound of each coordinate: one number for all, or a list; null: none", None
    )
    high: Side = option(
        "upper bound of each coordinate: one number for all, or a list; null: none", None
    )
    keep: Keep = option(
        "treatment of vectors outside of the bounds: reflect, clip, penalty (clip and add a penalty to the value), or "
        "transform (a smooth map, for optima at the bounds)",
        "reflect",
    )
    penalty_weight: NonNegative = option(
        "factor of the penalty, which is the squared distance to the nearest point within the bounds",
        1.0,
    )


@options
class RegionOptions:
    """`task.initial_region:`, in the coordinates of the objective."""

    low: Side = option(
        "smallest initial value of each coordinate: one number for all, or a list; null: that of the bounds",
        None,
    )
    high: Side = option(
        "largest initial value of each coordinate: one number for all, or a list; null: that of the bounds",
        None,
    )


@options
class SearchOptions(QuantityOptions):
    """Options of objectives; a task adds those of its evaluator."""

    dimension: Count | None = option("number of coordinates; null: see parameters", None)
    parameters: Mapping[str, Parameter] | None = option(
        "named parameters instead of dimension, each with low, high, scale (linear, log), integer and initial, or with "
        "values (ordered), choices or boolean; null: none",
        None,
    )
    constraints: Count | tuple[str, ...] | None = option(
        "number or names of the constraints, whose values are at most 0 where a vector is feasible; the function "
        "returns {value: ..., constraints: [...]}; null: none",
        None,
    )
    metrics: tuple[str, ...] | None = option(
        "names of further numbers that the function returns, {value: ..., metrics: [...]}, to be reported; null: none",
        None,
    )
    constraint_handling: Handling = option(
        "fitness with constraints: feasible_first (feasible vectors by value, then the others by violation), or "
        "augmented_lagrangian, for smooth problems of continuous parameters",
        "feasible_first",
    )
    goal: Goal = option(
        "direction of the optimisation; objectives have directions of their own", "minimise"
    )
    bounds: BoundsOptions = option("bounds of the coordinates", default_factory=BoundsOptions)
    initial: float | tuple[float, ...] | PathText | None = option(
        "initial vector: a number for all coordinates, a list, a file (.npy, .json, .txt) relative to the config, or "
        "random (uniform in initial_region); null: the middle of the bounds, or 0",
        None,
    )
    initial_region: RegionOptions = option(
        "region of the initial vector with initial: random, and of restarts",
        default_factory=RegionOptions,
    )
    initial_points: PathText | None = option(
        "file of vectors that are evaluated first, relative to the config: CSV, JSON, or the evaluations.csv of an "
        "earlier run, whose values are taken over; null: none",
        None,
    )
    timeout_seconds: Positive | None = option(
        "time limit of an evaluation in seconds, after which it fails; null: no limit", None
    )
    close_at: Annotated[float, Limits(gt=0, lt=1)] | None = option(
        "share of a generation's evaluations after which the others are given up and count as failed, such as 0.9; "
        "results then depend on timing; null: wait for all",
        None,
    )
    retries: Natural = option("number of retries of a failed evaluation", 0, may_change=True)
    on_failed_evaluation: Literal["drop", "abort"] = option(
        "action after a failed evaluation: leave it out of the update, or end the run",
        "drop",
        may_change=True,
    )
    vector_behaviour: bool = option(
        "whether the vector is the behaviour of a candidate, for novelty search; measures {from: parameter.NAME} are "
        "the same for some coordinates",
        False,
    )
    record_evaluations: bool = option(
        "whether all vectors and their values are written to evaluations.csv", True, may_change=True
    )
    deterministic: bool = option(
        "whether equal vectors always have equal values, so that no strategy looks for noise", False
    )
    repeats: RepeatOptions = option(
        "evaluations of each candidate of a generation, which are averaged",
        default_factory=RepeatOptions,
    )
    common_seeds: bool = option(
        "whether all candidates of a generation get the same seed (common random numbers), instead of each its own",
        False,
    )
    uses_gpu: bool = option(
        "whether evaluations use a GPU with a library of their own, such as PyTorch: each rank then sees one GPU only, "
        "or none with device: cpu",
        False,
    )
    journal: Mode = option(
        "whether evaluations of an interrupted generation are kept for restarts; auto: if one takes more than 0.01 s",
        "auto",
        may_change=True,
    )

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return len(self.parameters) if self.parameters else self.dimension or 0

    @property
    def constraint_names(self) -> tuple[str, ...]:
        """The names of the constraints, c0, c1, ... for a mere number; () if there are none."""
        if isinstance(self.constraints, int):
            return tuple(f"c{index}" for index in range(self.constraints))
        return tuple(self.constraints or ())

    @property
    def quantities(self) -> Quantities:
        """What an evaluation yields besides its value."""
        return quantities_of(self, self.constraint_names, self.metrics or ())

    @property
    def ranked_goal(self) -> Goal:
        """The direction of the value: that of the first objective if there are several."""
        return next(iter(self.quantities.objectives.values()), self.goal)

    @property
    def sign(self) -> float:
        """Factor of a value in the return, which is maximised: -1 or 1."""
        return -1.0 if self.ranked_goal == "minimise" else 1.0

    def problems(self) -> Iterator[ConfigProblem]:
        """Yield (key, text) for each mistake that involves several options."""
        if (self.dimension is None) == (not self.parameters):
            count_text = "neither" if self.dimension is None else "both"
            yield "dimension", f"expected dimension, or parameters with names, found {count_text}"
        elif self.size > LONGEST:
            yield "dimension", f"is {self.size:,}: expected at most {LONGEST:,}"
        elif self.parameters:
            yield from _parameter_problems(self)
        else:
            yield from _bounds_problems(self)
        yield from _quantity_problems(self)
        yield from _constraint_problems(self)
        if self.close_at is not None:
            if self.journal is False:
                yield (
                    "journal",
                    "is false, but close_at needs it to give up the same jobs after a restart: expected auto",
                )
            if self.on_failed_evaluation == "abort":
                yield (
                    "on_failed_evaluation",
                    "is abort, but jobs that close_at gives up count as failed: expected drop",
                )
            if self.repeats.are_used:
                yield (
                    "repeats.at_most",
                    f"is {self.repeats.at_most}, but close_at gives up evaluations, "
                    "whose repeats would be unequal: expected 1",
                )
        if self.repeats.are_used and self.deterministic:
            yield (
                "repeats.at_most",
                f"is {self.repeats.at_most}, but deterministic is true: equal evaluations say nothing more, expected 1",
            )
        region = self.initial_region
        if self.initial != "random" and (region.low, region.high) != (None, None):
            yield "initial_region", "is set, but initial is not random: expected initial: random"

    def coordinates(self) -> Coordinates:
        """Return the mapping from search vectors to vectors of the objective."""
        bounds, size = self.bounds, self.size
        if self.parameters:
            scales = {name: scale_of(parameter) for name, parameter in self.parameters.items()}
            return named_coordinates(scales, bounds.keep, bounds.penalty_weight)
        return bounded_coordinates(
            size, bounds.low, bounds.high, bounds.keep, bounds.penalty_weight
        )


def bounded_coordinates(
    size: int, low: Side, high: Side, keep: Keep, penalty_weight: float
) -> Coordinates:
    """Return the coordinates of a vector without named parameters.

    Raises:
        ValueError: a list has another length.
    """
    if low is None and high is None:
        return Coordinates(size)
    bounds = Bounds(limits(low, size, -float("inf")), limits(high, size, float("inf")))
    return Coordinates(size, bounds, keep, penalty_weight)


def _parameter_problems(search: SearchOptions) -> Iterator[ConfigProblem]:
    for section, region in (("bounds", search.bounds), ("initial_region", search.initial_region)):
        for side in ("low", "high"):
            if getattr(region, side) is not None:
                yield (
                    f"{section}.{side}",
                    "is set, but named parameters have their own bounds: remove it",
                )
    further = repeats.recorded_names(search.quantities) if search.repeats.are_used else ()
    for name in (search.parameters or {}) if search.record_evaluations else ():
        if name in (*RESULT_COLUMNS, *further):
            yield (
                f"parameters.{name}",
                "is also a column of evaluations.csv: choose another name, or set "
                "record_evaluations: false",
            )
    if search.initial not in (None, "random"):
        yield (
            "initial",
            "is set, but there are named parameters: remove it, or write parameters.NAME.initial",
        )


def _quantity_problems(search: SearchOptions) -> Iterator[ConfigProblem]:
    quantities = search.quantities
    if not quantities.names:
        if search.objectives == {} or search.measures == {}:
            yield from name_problems(search, quantities, {})
        return
    parameters = list(search.parameters or [f"x{index}" for index in range(search.size)])
    taken = dict.fromkeys(parameters, "another constraint or a parameter")
    further = repeats.recorded_names(quantities) if search.repeats.are_used else ()
    of_file = (*RESULT_COLUMNS, *further)
    yield from name_problems(
        search, quantities, taken | dict.fromkeys(of_file, "a column of evaluations.csv")
    )
    if len(search.objectives or ()) > 1 and search.bounds.keep == "penalty":
        yield (
            "bounds.keep",
            "is penalty, but there are several objectives, to which a penalty cannot be added: "
            "expected reflect, clip or transform",
        )
    if len(search.objectives or ()) > 1 and search.constraint_handling != "feasible_first":
        yield (
            "constraint_handling",
            f"is {search.constraint_handling}, but there are several objectives: "
            "expected feasible_first",
        )
    if search.objectives and search.goal != "minimise":
        yield "goal", f"is {search.goal}, but objectives have directions of their own: remove it"
    for group, named in (("objectives", search.objectives), ("measures", search.measures)):
        for name, item in (named or {}).items():
            if item.source is None or (
                group == "measures" and parameter_of(item.source) in parameters
            ):
                continue
            text = f"is {item.source!r}: expected nothing, since the function returns it"
            more = (
                f", or parameter.NAME with one of {', '.join(parameters[:5])}"
                if group == "measures"
                else ""
            )
            yield f"{group}.{name}.from", text + more


def returned_quantities(search: SearchOptions) -> Quantities:
    """Return the quantities that the function or program returns:
    those without a source of their own.
    """
    quantities, measures = search.quantities, search.measures or {}
    returned = {
        name: ends for name, ends in quantities.measures.items() if measures[name].source is None
    }
    return replace(quantities, measures=returned)


def parameter_of(source: str | None) -> str | None:
    """Return the name of the parameter that is the source of a measure, None for other sources."""
    return (
        source.removeprefix(PARAMETER)
        if source is not None and source.startswith(PARAMETER)
        else None
    )


def _constraint_problems(search: SearchOptions) -> Iterator[ConfigProblem]:
    names = search.constraint_names
    if search.constraints == ():
        yield "constraints", "expected at least one constraint, or null, found none"
    if search.constraint_handling == "feasible_first":
        return
    if not names:
        yield (
            "constraint_handling",
            f"is {search.constraint_handling}, but there are no constraints: remove it",
        )
    parameters = (search.parameters or {}).values()
    if any(
        item.integer or item.boolean or item.values is not None or item.choices is not None
        for item in parameters
    ):
        yield (
            "constraint_handling",
            f"is {search.constraint_handling}, but there are discrete parameters: "
            "expected feasible_first",
        )


def _bounds_problems(search: SearchOptions) -> Iterator[ConfigProblem]:
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
        yield (
            "bounds.high",
            f"is {high:g} in coordinate {index}: expected more than low, which is {low:g}",
        )
    elif bounds is not None and (text := _width_problem(bounds)):
        yield "bounds.high", text
    elif isinstance(search.initial, tuple) and len(search.initial) != search.size:
        yield (
            "initial",
            f"expected {search.size} numbers, one for each coordinate, found {len(search.initial)}",
        )


def _width_problem(bounds: Bounds) -> str | None:
    """Return what is wrong with the distance between two bounds.

    A step size is a fraction of it.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        width = bounds.high - bounds.low
    closed = np.isfinite(bounds.low) & np.isfinite(bounds.high)
    wrong = closed & ~((width >= NARROWEST) & (width <= WIDEST))
    if not wrong.any():
        return None
    index = int(wrong.argmax())
    high, low = float(bounds.high[index]), float(bounds.low[index])
    return (
        f"is {high:g} in coordinate {index}: expected {NARROWEST:g} to {WIDEST:g} more than "
        f"low, which is {low:g}; null is no bound"
    )


def offers_of_search(offers: Offers, options: SearchOptions) -> Offers:
    """Return the capabilities of a task with these options."""
    closes: Setting | None = None
    requires: tuple[Requirement, ...] = ()
    if options.close_at is not None:
        closes = because = Setting("task.close_at", f"{options.close_at:g}")
        requires = (
            Requirement("mpi.schedule", ("on_demand",), because),
            Requirement("mpi.chunk_size", ("auto", 1), because),
            Requirement("mpi.fault_tolerance", (False,), because),
        )
    return replace(
        offers,
        device=options.uses_gpu,
        quantities=options.quantities,
        metrics={**offers.metrics, **(repeats.METRICS if options.repeats.are_used else {})},
        noise_report=repeats.report(options.repeats) if options.repeats.are_used else None,
        goal=options.ranked_goal,
        close_at=options.close_at,
        closes=closes,
        requires=requires,
        unset_limits=("timeout_seconds",) if options.timeout_seconds is None else (),
    )
