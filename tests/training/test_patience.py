"""`stop.patience` ends a run on a plateau; expected counts are computed by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hpc_es.config.loading import validate
from hpc_es.core.data import Float64, ProblemState, Rows, State
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.problems import ProblemDefaults
from hpc_es.training.build import build_task
from hpc_es.training.compatibility import fitness_mismatches
from hpc_es.training.standing import Standing

POLICY: dict[str, Any] = {"task": {"env_id": "CartPole-v1"}}
OBJECTIVE: dict[str, Any] = {
    "task": {"kind": "function", "function": "tests.helpers.toys:ellipsoid", "dimension": 3},
    "algorithm": {"kind": "cma_es"},
}


def stopped_after(
    config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], **stop: Any
) -> int | None:
    """The number of generations after which the run ends, None if it does not;
    it restarts after each one.
    """
    problem: Any = None
    counters: dict[str, float | int] = {}
    for number, row in enumerate(rows, 1):
        standing = Standing(validate({**config, "stop": stop}), problem, State(number, {}, {}))
        standing.counters |= counters  # as from a checkpoint
        standing.count(dict(row), {})
        counters = standing.counters
        if (reason := standing.stop_reason()) is not None:
            assert reason == f"stop.patience: {stop['patience']}"
            return number
    return None


def evaluations(*returns: float | None) -> list[dict[str, Any]]:
    return [{"evaluation_episodes": 4, "evaluation_return_mean": value} for value in returns]


NOTHING = {"evaluation_episodes": 0, "evaluation_return_mean": None}


@pytest.mark.parametrize(
    ("returns", "tolerance", "expected"),
    [
        ((1.0, 2.0, 2.0, 1.5, 1.9), 0.0, 5),  # three evaluations that are not better than 2
        ((1.0, 2.0, 2.0, 1.5, 2.1, 2.0, 2.0), 0.0, None),
        ((5.0, 4.0, 3.0, 2.0), 0.0, 4),  # the first evaluation is the best
        ((1.0, 1.1, 1.2, 1.3), 0.5, 4),  # better, but not by more than 0.5
        # slow progress adds up: 1.6 and 2.2 are improvements
        ((1.0, 1.3, 1.6, 1.9, 2.2), 0.5, None),
        ((1.0, 1.5, 1.5, 1.5), 0.5, 4),  # by 0.5, not by more
        ((None, None, None), 0.0, 3),  # all episodes failed
        ((None, None, -7.0, None, None), 0.0, None),
        ((1.0, float("nan"), None, 1.0), 0.0, 4),
    ],
)
def test_evaluations_of_a_policy_are_counted(
    returns: tuple[float | None, ...], tolerance: float, expected: int | None
) -> None:
    assert (
        stopped_after(POLICY, evaluations(*returns), patience=3, min_improvement=tolerance)
        == expected
    )


def test_generations_without_an_evaluation_do_not_count() -> None:
    rows = [
        row for evaluation in evaluations(1.0, 1.0, 1.0) for row in (evaluation, NOTHING, NOTHING)
    ]
    assert stopped_after(POLICY, rows, patience=2) == 7


def values(*best: float, **more: float) -> list[dict[str, Any]]:
    """Generations of 7 evaluations of an objective."""
    return [{"best_value": value, "episodes_this_generation": 7, **more} for value in best]


@pytest.mark.parametrize(
    ("goal", "best", "tolerance", "expected"),
    [
        ("minimise", (3.0, 2.0, 2.0, 2.0), 0.0, 4),  # 14 evaluations without improvement
        ("minimise", (3.0, 2.0, 2.0, 1.0, 1.0), 0.0, None),
        ("maximise", (2.0, 3.0, 3.0, 3.0), 0.0, 4),
        ("minimise", (3.0, 2.9, 2.8, 2.4, 2.4), 0.5, 3),
        ("minimise", (3.0, 2.6, 2.4, 2.0), 0.5, None),
        ("minimise", (float("nan"), float("nan"), 9.0, 9.0), 0.0, 2),
    ],
)
def test_evaluations_of_an_objective_are_counted(
    goal: str, best: tuple[float, ...], tolerance: float, expected: int | None
) -> None:
    config = {**OBJECTIVE, "task": {**OBJECTIVE["task"], "goal": goal}}
    assert stopped_after(config, values(*best), patience=14, min_improvement=tolerance) == expected


def test_smaller_violation_and_first_feasible_vector_are_improvements() -> None:
    """The value gets worse on the way to the feasible region;
    only the last two generations make no progress.
    """
    rows = [
        *(
            values(1.0, best_violation=4.0)
            + values(2.0, best_violation=3.0)
            + values(5.0, best_violation=0.01)
        ),
        *(values(6.0, best_violation=0.0) + values(6.0, 6.0, best_violation=0.0)),
    ]
    assert stopped_after(OBJECTIVE, rows, patience=14, min_improvement=0.5) == 6
    assert stopped_after(OBJECTIVE, rows[:5], patience=14, min_improvement=0.5) is None


def test_counters_exist_only_with_a_patience() -> None:
    problem: Any = None
    standing = Standing(validate(POLICY), problem, State(0, {}, {}))
    before = dict(standing.counters)
    standing.counters |= {
        "evaluations_without_improvement": 5,
        "improved_value": 1.0,
        "improved_violation": 0.0,
    }
    standing.count(evaluations(2.0)[0], {})
    assert standing.counters == before


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            {**POLICY, "evaluation": {"interval": 0}},
            "needs evaluations, but evaluation.interval is 0",
        ),
        pytest.param(
            {"task": {"kind": "programs", "name": "reverse"}, "algorithm": {"kind": "ga"}},
            "the task 'programs' has neither evaluations nor an objective value",
            marks=pytest.mark.satellite("programs"),
        ),
    ],
)
def test_runs_without_comparable_evaluations_are_refused(data: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=rf"stop\.patience: {text}"):
        build_task(validate({**data, "stop": {"patience": 3, "generations": 5}}))


def test_task_that_derives_its_fitness_is_refused() -> None:
    class Penalised(ProblemDefaults):
        def fitness(self, rows: Rows, carried: ProblemState) -> Float64:
            return rows["return_"] - rows["length"]

    problem: Any = Penalised()
    config = validate({**POLICY, "stop": {"patience": 3}})
    ((key, text),) = fitness_mismatches(config, problem)
    assert key == "stop.patience" and "derives its own fitness: expected null" in text
    problem.evaluation_episodes = 0
    ((_, text),) = fitness_mismatches(config, problem)
    assert "has no evaluations" in text


def test_objective_needs_no_evaluations_of_the_centre() -> None:
    build_task(
        validate({**OBJECTIVE, "evaluation": {"interval": 0}, "stop": {"patience": 3}})
    ).task.close()
