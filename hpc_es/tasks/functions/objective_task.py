"""The task that `function` and `command` build: an objective with its evaluator."""

from __future__ import annotations

from hpc_es.core.data import Float64
from hpc_es.core.declarations import Searched
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Policy
from hpc_es.tasks.functions.constraints import ConstrainedProblem
from hpc_es.tasks.functions.initial_points import InitialPoints
from hpc_es.tasks.functions.options import (
    Bounds,
    SearchOptions,
)
from hpc_es.tasks.functions.problem import ObjectiveProblem
from hpc_es.tasks.functions.python_evaluator import Evaluator


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

    def close(self) -> None:
        """Close the evaluator."""
        self._evaluator.close()
