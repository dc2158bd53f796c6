"""The last line of a run states whether the last theta is better than `best`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.core.data import State
from hpc_es.storage.checkpoint import BestCentre
from hpc_es.tasks.functions.best import BestVector
from hpc_es.training.standing import Standing


@pytest.mark.parametrize(
    ("best", "final", "end"),
    [
        (9.55, 376.1, "final evaluation 376.1  best evaluation 9.55 (the last theta did better)"),
        (500.0, 376.1, "final evaluation 376.1  best evaluation 500"),
        (None, 376.1, "final evaluation 376.1"),
        (9.55, None, "best evaluation 9.55"),
    ],
)
def test_end_message_reports_a_better_last_theta(
    best: float | None, final: float | None, end: str
) -> None:
    """Evaluations were so rare that the first theta was the best of them."""
    problem: Any = None
    standing = Standing(validate({"task": {"env_id": "CartPole-v1"}}), problem, State(3, {}, {}))
    standing.counters |= {"episodes": 640, "timesteps": 220_242, "failed_episodes": 7}
    standing.best = None if best is None else BestCentre(best, 0, {})
    results = {} if final is None else {"final_return_mean": final}
    line = standing.end_message("finished", "stop.timesteps: 200000", 3, results)
    work = "3 generations, 220,242 timesteps, 7 failed episodes"
    assert line == f"finished by stop.timesteps: 200000 after {work}  {end}"


def test_value_of_a_minimum_at_zero_has_no_sign() -> None:
    """The return is -value, so a best return of 0 is the value 0 and not -0."""
    problem: Any = None
    task = {"kind": "function", "function": "tests.helpers.toys:ellipsoid", "dimension": 3}
    standing = Standing(
        validate({"task": task, "algorithm": {"kind": "cma_es"}}), problem, State(3, {}, {})
    )
    standing.best = BestCentre(0.0, 0, {})
    line = standing.end_message("finished", "stop.generations: 3", 3, {"final_return_mean": 0.0})
    assert line.endswith("  final evaluation 0  best evaluation 0")


def test_objective_shows_its_best_value_and_not_that_of_a_centre() -> None:
    problem: Any = None
    task = {"kind": "function", "function": "tests.helpers.toys:ellipsoid", "dimension": 2}
    best = BestVector(np.ones(2), 0.5, 3, 4, 0.25)
    state = State(5, {"theta": np.zeros(2)}, best.arrays())
    standing = Standing(validate({"task": task, "algorithm": {"kind": "cma_es"}}), problem, state)
    standing.best = BestCentre(-22.0, 0, {})
    line = standing.end_message("finished", "stop.generations: 3", 3, {"final_return_mean": -4.5})
    assert line.endswith("  final evaluation 4.5  best value 0.5 (violation 0.25)")


def test_jobs_of_models_are_evaluations() -> None:
    problem: Any = None
    task = {"kind": "model", "model": "tests.helpers.own_models:line"}
    standing = Standing(
        validate({"task": task, "algorithm": {"kind": "es"}}), problem, State(3, {}, {})
    )
    standing.counters |= {"episodes": 64, "timesteps": 64, "failed_episodes": 1}
    line = standing.end_message("finished", "stop.generations: 1", 1, {})
    assert line.endswith("after 1 generations, 64 evaluations, 1 failed evaluations")
