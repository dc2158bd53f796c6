"""A generator of the gest-api standard, for libEnsemble, Xopt and Optimas (extra `gest`)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from gest_api.generator import Generator as StandardGenerator
from gest_api.vocs import (
    VOCS,
    BoundsConstraint,
    ContextualVariable,
    ContinuousVariable,
    DiscreteVariable,
    GreaterThanConstraint,
    LessThanConstraint,
    MaximizeObjective,
    MinimizeObjective,
)

from hpc_es.api.strategy import ALGORITHM, Strategy
from hpc_es.core.errors import ConfigError

# variables and constants by name, and `_id`; results also have the outputs
Point: TypeAlias = dict[str, Any]
SMALLEST = math.ulp(0.0)  # violation of a strict limit that is met exactly


class Generator(StandardGenerator):  # type: ignore[misc]
    """A search by a strategy for vectors, by default CMA-ES, as a gest-api generator.

    Variables with a domain are numbers. Discrete variables are ordered values if they are numbers,
    otherwise choices, in the order of their JSON texts. `default_value` is the initial value of a
    number. Constants are added to each point. A search has one objective, which is minimised or
    maximised.

    Results may be ingested in any order and in several parts; the search is updated when all
    results of a generation are known. NaN as objective is a failed evaluation. Points without `_id`
    are only compared with the best one.

    Args:
        vocs: variables, constants, objective and constraints.
        algorithm: as in `hpc_es.Strategy`.
        seed: equal seeds give equal points.
        sigma0: the initial step size.
        constraint_handling: "feasible_first" or "augmented_lagrangian".
        **options: those of the algorithm.

    Raises:
        ValueError: variables, objectives, constraints or options that are not supported.

    Examples:
        >>> from gest_api.vocs import VOCS
        >>> from hpc_es.api.gest import Generator
        >>> vocs = VOCS(variables={"x": [0, 1], "n": {16, 32, 64}}, objectives={"f": "MINIMIZE"})
        >>> generator = Generator(vocs)
        >>> points = generator.suggest()
        >>> generator.ingest([{**point, "f": point["x"] * point["n"]} for point in points])
    """

    returns_id = True

    def __init__(
        self,
        vocs: VOCS,
        algorithm: str = ALGORITHM,
        *,
        seed: int = 0,
        sigma0: float | None = None,
        constraint_handling: str = "feasible_first",
        **options: object,
    ) -> None:
        super().__init__(vocs)
        self._vocs = vocs
        self._fixed = {name: constant.value for name, constant in vocs.constants.items()}
        parameters: dict[str, dict[str, Any]] = {}
        for name, variable in vocs.variables.items():
            parameter = _parameter(variable)
            if parameter is None:  # a discrete variable with one value
                self._fixed[name] = next(iter(variable.values))
            else:
                parameters[name] = parameter
        count = sum(
            2 if isinstance(item, BoundsConstraint) else 1 for item in vocs.constraints.values()
        )
        limits = {"constraints": count, "constraint_handling": constraint_handling} if count else {}
        try:
            self._search = Strategy(
                algorithm,
                parameters=parameters,
                seed=seed,
                sigma0=sigma0,
                **limits,  # type: ignore[arg-type]
                **options,  # type: ignore[arg-type]
            )
        except ConfigError as error:
            raise ValueError(str(error)) from error
        self._first_id = 0  # of the vectors that are evaluated now
        self._best: tuple[float, float, Point] | None = None  # violation, cost, result
        self._begin()

    def _validate_vocs(self, vocs: VOCS) -> None:
        """Raise ValueError unless a search supports these variables, objectives and constraints."""
        if not vocs.variables:
            raise ValueError("expected at least one variable, found none")
        for name, variable in vocs.variables.items():
            is_contextual = isinstance(variable, ContextualVariable)  # set by the environment
            if is_contextual or not isinstance(variable, ContinuousVariable | DiscreteVariable):
                raise ValueError(
                    f"variable {name}: expected a domain or discrete values, found {variable!r}"
                )
            if isinstance(variable, DiscreteVariable):
                _sorted_values(name, variable)
        objectives = list(vocs.objectives.values())
        if len(objectives) != 1 or not isinstance(
            objectives[0], MinimizeObjective | MaximizeObjective
        ):
            kinds = (
                ", ".join(
                    f"{name}: {type(item).__name__}" for name, item in vocs.objectives.items()
                )
                or "none"
            )
            raise ValueError(f"expected one objective, MINIMIZE or MAXIMIZE, found {kinds}")
        for name, limit in vocs.constraints.items():
            if not isinstance(limit, LessThanConstraint | GreaterThanConstraint | BoundsConstraint):
                raise ValueError(
                    f"constraint {name}: expected LESS_THAN, GREATER_THAN or BOUNDS, found {limit!r}"
                )

    def _begin(self) -> None:
        """Prepare the points of the next generation."""
        named = self._search.named(self._search.ask())
        self._points: list[Point] = [
            {**point, **self._fixed, "_id": self._first_id + index}
            for index, point in enumerate(named)
        ]
        self._suggested = 0  # number of points that were suggested
        # cost and constraint values by index
        self._results: dict[int, tuple[float, list[float]]] = {}

    @property
    def best(self) -> Point | None:
        """The best result so far; a feasible one is better than an infeasible one."""
        return None if self._best is None else dict(self._best[2])

    def suggest(self, num_points: int | None = None) -> list[Point]:
        """Return the next points of this generation.

        Args:
            num_points: how many; None: all that are left.

        Raises:
            ValueError: fewer are left, because the next generation depends on their results.
        """
        left = len(self._points) - self._suggested
        count = left if num_points is None else num_points
        if not 0 <= count <= left:
            raise ValueError(
                f"expected 0 to {left} points, those left of a generation of "
                f"{len(self._points)}, found {count}: ask for fewer, or ingest the results of "
                "the others first"
            )
        self._suggested += count
        return [dict(point) for point in self._points[self._suggested - count : self._suggested]]

    def ingest(self, results: list[Point]) -> None:
        """Take results, and update the search when those of a generation are complete.

        Args:
            results: each has all names of the VOCS, and the `_id` of its point.

        Raises:
            ValueError: one of them is not valid; then none is taken.
        """
        new: dict[int, tuple[float, list[float]]] = {}
        bests = [] if self._best is None else [self._best]
        for result in results:
            cost, limits = self._outputs(result)
            if "_id" in result:
                index = int(result["_id"]) - self._first_id
                self._require_open(index, result["_id"], new)
                new[index] = cost, limits
            violation = sum(max(0.0, limit) for limit in limits)
            if not math.isnan(cost) and not math.isnan(violation):
                bests.append((violation, cost, dict(result)))
        self._best = min(bests, key=lambda item: item[:2], default=None)
        self._results |= new
        if len(self._results) == len(self._points):
            ordered = [self._results[index] for index in range(len(self._points))]
            constraints = [limits for _, limits in ordered] if self._vocs.constraints else None
            self._search.tell([cost for cost, _ in ordered], constraints)
            self._first_id += len(self._points)
            self._begin()

    def finalize(self) -> None:
        """Do nothing: there is nothing to close."""

    def _require_open(self, index: int, name: object, new: Mapping[int, object]) -> None:
        if not -self._first_id <= index < self._suggested:
            raise ValueError(f"_id {name}: expected the _id of a point that was suggested, or none")
        if index < 0 or index in self._results or index in new:
            raise ValueError(f"_id {name}: its result was ingested before")

    def _outputs(self, result: Point) -> tuple[float, list[float]]:
        """Return the cost of a result, and its constraint values, at most 0 if it is feasible."""
        missing = [name for name in self._vocs.all_names if name not in result]
        if missing:
            raise ValueError(
                f"expected all names of the VOCS, found no {', '.join(missing)} in {result}"
            )
        ((objective, kind),) = self._vocs.objectives.items()
        value = _number(objective, result)
        values = [
            limit
            for name, constraint in self._vocs.constraints.items()
            for limit in _limits(constraint, _number(name, result))
        ]
        return -value if isinstance(kind, MaximizeObjective) else value, values


def _parameter(variable: ContinuousVariable | DiscreteVariable) -> dict[str, Any] | None:
    """Return the options of a parameter; None for a discrete variable with one value."""
    initial = {"initial": getattr(variable, "default_value", None)}
    if isinstance(variable, ContinuousVariable):
        low, high = variable.domain
        return {"low": low, "high": high, **initial}
    values = _sorted_values("", variable)
    if len(values) == 1:
        return None
    return {"values": values, **initial} if _are_numbers(values) else {"choices": values}


def _sorted_values(name: str, variable: DiscreteVariable) -> list[bool | int | float | str]:
    """Return the values of a discrete variable in an order that does not depend on the process."""
    values = list(variable.values)
    if wrong := [value for value in values if not isinstance(value, bool | int | float | str)]:
        raise ValueError(
            f"variable {name}: expected numbers, text, true or false, found {wrong[0]!r}"
        )
    return sorted(values) if _are_numbers(values) else sorted(values, key=json.dumps)


def _are_numbers(values: Sequence[object]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _limits(
    constraint: LessThanConstraint | GreaterThanConstraint | BoundsConstraint, value: float
) -> Iterator[float]:
    """Yield the constraint values of one constraint.

    LESS_THAN and GREATER_THAN are strict, BOUNDS is not.
    """
    if isinstance(constraint, BoundsConstraint):
        low, high = constraint.range
        yield from (low - value, value - high)
    else:
        excess = value - constraint.value
        yield (excess if isinstance(constraint, LessThanConstraint) else -excess) or SMALLEST


def _number(name: str, result: Point) -> float:
    try:
        return float(result[name])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected a number, found {result[name]!r}") from error
