"""Quality-diversity algorithms without a run, on functions whose measures are coordinates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpc_es.config import registry
from hpc_es.config.loading import validate
from hpc_es.core.data import Array, Outcome, ProblemState, Rows, row_dtype
from hpc_es.core.keys import Keys
from hpc_es.core.quantities import Quantities
from hpc_es.noise.counter import CounterNoise
from tests.helpers.stepping import Cost


class Measured(Cost):
    """A function to be minimised, whose first coordinates are the measures, with a range of
    -1 to 1; the last ones are constraints.
    """

    def __init__(
        self, cost: Callable[[Array], float], theta: Array, measures: int = 2, constraints: int = 0
    ) -> None:
        super().__init__(cost, theta)
        names = tuple(f"c{number}" for number in range(constraints))
        self.quantities = Quantities(
            constraints=names, measures={f"m{number}": (-1.0, 1.0) for number in range(measures)}
        )
        self.columns = self.quantities.columns

    def evaluate(self, candidates: Any, jobs: Any, carried: ProblemState, poll: Any) -> Outcome:
        outcome, stack = super().evaluate(candidates, jobs, carried, poll), candidates.stacked()
        outcome.rows["measures"] = stack[:, : len(self.quantities.measures)]
        if self.quantities.constraints:
            outcome.rows["constraints"] = stack[:, -len(self.quantities.constraints) :]
        return outcome


def rows_of(problem: Measured, objectives: Sequence[float], measures: Any, **columns: Any) -> Rows:
    """Rows of jobs with these returns and measures."""
    rows = np.zeros(len(objectives), row_dtype(problem.columns))
    rows["return_"], rows["measures"] = objectives, measures
    for name, values in columns.items():
        rows[name] = values
    return rows


def algorithm(kind: str, problem: Measured, seed: int = 1, **options: Any) -> Any:
    """An algorithm of this kind for a problem."""
    task = {"kind": "function", "function": "tests.helpers.toys:valley", "dimension": problem.size}
    task["measures"] = {name: [-1, 1] for name in problem.quantities.measures}
    config = validate({"task": task, "policy": None, "algorithm": {"kind": kind, **options}})
    noise = CounterNoise(Keys(seed), problem.size)
    return registry.module("algorithms", kind).build(
        config.algorithm, problem, noise, Keys(seed), 4
    )
