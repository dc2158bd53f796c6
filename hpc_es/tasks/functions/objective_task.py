"""The task that `function` and `command` build: an objective with its evaluator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpc_es.core.data import Float64
from hpc_es.core.declarations import Searched
from hpc_es.core.errors import visible
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Policy
from hpc_es.core.quantities import Goal, Quantities
from hpc_es.core.text_table import aligned
from hpc_es.tasks.functions.constraints import ConstrainedProblem
from hpc_es.tasks.functions.initial_points import InitialPoints
from hpc_es.tasks.functions.options import (
    Bounds,
    SearchOptions,
)
from hpc_es.tasks.functions.parameters import range_text
from hpc_es.tasks.functions.problem import ObjectiveProblem
from hpc_es.tasks.functions.python_evaluator import Evaluator

MOST_LISTED = 20  # parameters that --check lists


def bounds_text(search: SearchOptions) -> str:
    """Return the bounds of coordinates without names as a line of --check."""
    bounds = search.coordinates().bounds
    if bounds is None:
        return "numbers without bounds"
    ends = [np.unique(end) for end in (bounds.low, bounds.high)]
    if any(len(end) > 1 for end in ends):
        return "numbers with bounds of their own"
    return f"numbers from {ends[0][0]:.6g} to {ends[1][0]:.6g}"


def returned_text(quantities: Quantities, goal: Goal) -> str:
    """Return what an evaluation yields as a line of --check."""
    goals = quantities.objectives or {"value": goal}
    parts = [", ".join(f"{name} ({direction})" for name, direction in goals.items())]
    if quantities.constraints:
        parts.append(f"constraints {', '.join(quantities.constraints)} (feasible: at most 0)")
    if quantities.measures:
        ranges = [f"{name} ({range_text(*ends)})" for name, ends in quantities.measures.items()]
        parts.append(f"measures {', '.join(ranges)}")
    if quantities.metrics:
        parts.append(f"metrics {', '.join(quantities.metrics)}")
    return visible(f"an evaluation returns {'; '.join(parts)}")


class ObjectiveTask:
    """A task whose problem is an objective."""

    spaces = None

    def __init__(
        self,
        name: str,
        search: SearchOptions,
        initial: Float64 | Bounds,
        *,
        evaluator: Evaluator,
        batch: int = 0,
        points: InitialPoints | None = None,
    ) -> None:
        self.name, self._search, self._initial = name, search, initial
        self._evaluator, self._batch, self._points = evaluator, batch, points

    def problem(
        self, searched: Searched, policy: Policy | None, keys: Keys, unit: int
    ) -> ObjectiveProblem:
        """Return the problem of maximising this objective."""
        # With several objectives, constraints are columns that algorithms read.
        is_single = len(self._search.quantities.objectives) < 2
        is_constrained = bool(self._search.constraint_names) and is_single
        kind = ConstrainedProblem if is_constrained else ObjectiveProblem
        coordinates, points = self._search.coordinates(), self._points
        return kind(
            self._search,
            coordinates,
            self._initial,
            evaluator=self._evaluator,
            keys=keys,
            batch=self._batch,
            points=points,
        )

    @property
    def check_lines(self) -> Sequence[str]:
        """Lines of --check about the parameters, and what an evaluation returns."""
        search, scales = self._search, self._search.coordinates().scales
        rows = [(name, *scale.text) for name, scale in scales.items()]
        lines = [f"  {visible(line)}" for line in aligned(rows[:MOST_LISTED])]
        if len(rows) > MOST_LISTED:
            lines.append(f"  and {len(rows) - MOST_LISTED:,} more parameters")
        return [*(lines or [bounds_text(search)]), returned_text(search.quantities, search.goal)]

    def close(self) -> None:
        """Close the evaluator."""
        self._evaluator.close()
