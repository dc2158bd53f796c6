"""Constraints: fitness of both kinds, coefficients of the augmented Lagrangian, results and
failures.

The vectors of the coefficients were computed with pycma 4.5.0 (ConstrainedFitnessAL).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.config.loading import validate
from hpc_es.core.data import Float64
from hpc_es.core.errors import ConfigError
from hpc_es.core.quantities import Quantities
from hpc_es.tasks.functions.best import BestVector
from hpc_es.tasks.functions.constraints import Lagrangian, feasible_first, lagrangian_terms
from hpc_es.tasks.functions.python_evaluator import PythonEvaluator, objective
from hpc_es.tasks.functions.results import EvaluationResult, read_result
from hpc_es.tasks.functions.subprocess_evaluator import Command, SubprocessEvaluator
from hpc_es.training.build import build_task

LIMITS = Quantities(constraints=("mass", "stress"))
COSTS = np.array([3, 2.5, 4, 1.5, 5, 2])
VALUES = np.array([(0.5, -1), (-0.25, -2), (1, -0.5), (-0.5, 0.25), (0.75, -1.5), (-1, -3)])
UPDATES = [  # constraint values of the only sample; multipliers and penalties after the update
    ((-0.5, 0.25), (0.4333333333, 0.4419999783), (0.4870760268, 0.1753469313)),
    ((0.2, -0.1), (0.4528163744, 0.4384930397), (0.4927355776, 0.1733329000)),
    ((0.1, -0.05), (0.4626710860, 0.4367597107), (0.4984608893, 0.1713420018)),
    ((-0.02, 0.03), (0.4606772424, 0.4377877627), (0.4927355776, 0.1733329000)),
    ((-0.01, -4), (0.4596917712, 0.2991214427), (0.4870760268, 0.1733329000)),
    ((-0.01, -0.01), (0.4587176192, 0.2987747769), (0.4814814815, 0.1713420018)),
]


def start(constraints: Float64, costs: Float64, size: int) -> Lagrangian:
    return Lagrangian.initial(constraints.shape[1], size)._with_start_values(
        costs, constraints, size
    )


def test_coefficients_are_those_of_pycma() -> None:
    lagrangian = start(VALUES, COSTS, 3)
    assert lagrangian.multipliers.tolist() == pytest.approx([0.481481481478, 0.43333333333])
    assert lagrangian.penalties.tolist() == pytest.approx([0.481481481478, 0.173332899997])
    terms = lagrangian_terms(lagrangian.multipliers, lagrangian.penalties, VALUES[[0, -1]])
    assert terms.tolist() == pytest.approx(
        [0.300925925924 - 0.346666883332, -0.240740740739 - 0.541668020837]
    )
    for g, multipliers, penalties in UPDATES:
        lagrangian = lagrangian.updated(np.array([1.0]), np.array([g]), 3)
        assert lagrangian.multipliers.tolist() == pytest.approx(multipliers, abs=1e-10)
        assert lagrangian.penalties.tolist() == pytest.approx(penalties, abs=1e-10)


def test_coefficients_of_infeasible_generations_are_set_again() -> None:
    costs = np.array([4.0, 3, 2, 1, 5])
    lagrangian = start(np.array([[2.0], [1], [3], [4], [0.5]]), costs, 2)
    assert (*lagrangian.multipliers, *lagrangian.penalties) == pytest.approx((0.5, 0.1999992))
    assert not lagrangian.is_set.any()
    again = lagrangian._with_start_values(costs, np.array([[-1.0], [1], [-0.5], [0.25], [0.5]]), 2)
    assert (*again.multipliers, *again.penalties) == pytest.approx((1, 1)) and again.is_set.all()


def test_feasible_generations_have_no_penalty() -> None:
    lagrangian = start(-np.ones((5, 1)), np.arange(5.0), 2)
    assert lagrangian.multipliers.tolist() == lagrangian.penalties.tolist() == [0]
    assert lagrangian_terms(
        lagrangian.multipliers, lagrangian.penalties, np.ones((2, 1))
    ).tolist() == [0, 0]


def test_constraint_that_is_violated_late_gets_coefficients() -> None:
    lagrangian = Lagrangian.initial(1, 2)
    for _ in range(20):
        lagrangian = lagrangian.updated(np.arange(5.0), -np.ones((5, 1)), 2)
    assert lagrangian.count == 20 and not lagrangian.is_set.any()
    late = lagrangian.updated(np.arange(5.0), np.array([[-1.0], [-1], [0.5], [1], [2]]), 2)
    assert late.is_set.all() and late.multipliers[0] > 0 and late.penalties[0] > 0


def test_terms_of_feasible_constraints_are_bounded() -> None:
    terms = lagrangian_terms(
        np.array([1.0, 2]), np.array([4.0, 1]), np.array([[0.5, -3], [-0.1, -1], [-0.25, 0]])
    )
    assert terms.tolist() == pytest.approx([1 - 2, -0.08 - 1.5, -0.125])


def test_feasible_vectors_come_first_and_others_by_violation() -> None:
    g = np.array([[-1.0, 0], [0, -2], [0.2, -1], [1, 2]])
    assert feasible_first(np.array([1.0, 5, -9, -9]), g).tolist() == pytest.approx([1, 5, 5.2, 8])
    assert feasible_first(np.array([1.0, 2]), np.array([[1.0], [3.0]])).tolist() == [1, 3]


def test_best_vector_is_the_best_feasible_one_or_the_least_violating() -> None:
    none = BestVector(np.zeros(1), violation=math.nan)
    one, two, three = (
        BestVector(np.zeros(1), value, violation=v)
        for value, v in ((1.0, 2.0), (9.0, 1.0), (5.0, 0.0))
    )
    assert none.better([one], -1) is one and none.better([one, two, one], -1) is two
    assert none.better([three, one, two], -1) is three
    better = BestVector(np.zeros(1), 4.0, violation=0.0)
    assert three.better([better], -1) is better and better.better([three], -1) is better


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (1.0, "expected {value: number, constraints: 2 numbers (mass, stress)}, got float '1.0'"),
        ({"value": 1.0}, "got dict"),
        ({"value": 1.0, "constraints": [1]}, "got 1 constraint values"),
        ({"value": 1.0, "constraints": {"mass": 1, "stres": 2}}, "got the names mass, stres"),
        ({"value": 1.0, "constraints": ["a", "b"]}, "expected numbers as constraints"),
        ({"value": "a", "constraints": [1, 2]}, "expected a number"),
        ({"value": 1.0, "constraints": [[1, 2]]}, "got constraints of the shape [1, 2]"),
    ],
)
def test_results_of_another_form_are_refused(result: Any, text: str) -> None:
    with pytest.raises(ValueError) as error:
        read_result(result, LIMITS, 0.0)
    assert text in str(error.value)


def test_constraint_values_may_have_names_and_must_be_finite() -> None:
    result = {"value": 1, "constraints": {"stress": 3, "mass": 2}}
    assert read_result(result, LIMITS, 0.0).numbers == (2.0, 3.0)
    failed = read_result({"value": 1, "constraints": [1, math.inf]}, LIMITS, 0.0)
    assert (
        failed.failure is not None and failed.failure.text == "the constraint stress is not finite"
    )
    masked = {"value": 1, "constraints": np.ma.array([9.0, 3.0], mask=[1, 0])}
    failed = read_result(masked, LIMITS, 0.0)
    assert failed.failure is not None and failed.failure.text == "the constraint mass is not finite"
    large = {"value": 10**25, "constraints": [-(10**25), 1]}
    assert read_result(large, LIMITS, 0.0).numbers == (-1e25, 1.0)


def from_program(output: str, constraints: tuple[str, ...], directory: Path) -> EvaluationResult:
    program = f"printf '{output}' > \"$2\""
    command = Command(
        ("/bin/sh", "-c", program, "sh", "{parameters}", "{result}"),
        directory,
        quantities=Quantities(constraints=constraints),
    )
    external = SubprocessEvaluator(command)
    (result,) = external.evaluate(np.zeros((1, 1)), (0,), lambda: None)
    external.close()
    return result


def test_program_returns_constraints_as_json(tmp_path: Path) -> None:
    result = from_program('{"value": 2, "constraints": {"mass": -1}}', ("mass",), tmp_path)
    assert (result.value, result.numbers) == (2.0, (-1.0,))


@pytest.mark.parametrize(
    ("output", "constraints", "text"),
    [
        (
            '{"value": 2, "constraints": [1, 2]}',
            ("mass",),
            "1 numbers (mass)}, got 2 constraint values",
        ),
        ('{"value": 2}', ("mass",), "1 numbers (mass)}, got dict"),
        ("2", ("mass",), "1 numbers (mass)}, got float"),
        ("", ("mass",), "expected a number, or JSON"),
        (
            '{"value": 2, "constraints": [1]}',
            (),
            "the result has constraints, but task.constraints is null",
        ),
    ],
)
def test_program_with_other_constraints_than_declared_fails(
    output: str, constraints: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    failure = from_program(output, constraints, tmp_path).failure
    assert failure is not None and text in failure.text


def test_function_with_undeclared_constraints_fails() -> None:
    evaluator = PythonEvaluator(objective(tangent, {}))
    (result,) = evaluator.evaluate(np.zeros((1, 2)), (0,), lambda: None)
    assert result.failure is not None and "task.constraints is null" in result.failure.text


def tangent(x: Float64) -> dict[str, Any]:
    """The least sum of squares where x0 + x1 >= 2: 2 at (1, 1)."""
    return {"value": float(x @ x), "constraints": [2 - x[0] - x[1]]}


def half_sphere(x: Float64) -> dict[str, Any]:
    """The least sum of squares where x0 <= -1: 1."""
    return {"value": float(x @ x), "constraints": {"wall": x[0] + 1}}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("handling", ["feasible_first", "augmented_lagrangian"])
@pytest.mark.parametrize("kind", ["cma_es", "sep_cma_es"])
@pytest.mark.parametrize(
    ("function", "x0", "optimum"), [(tangent, [3.0, 0.0], 2.0), (half_sphere, [1.0] * 5, 1.0)]
)
def test_known_optima_are_found(
    handling: str, kind: str, function: Any, x0: list[float], optimum: float
) -> None:
    names = ["wall"] if function is half_sphere else 1
    options: dict[str, Any] = {
        "constraints": names,
        "constraint_handling": handling,
        "algorithm": kind,
    }
    best = hpc_es.minimize(function, x0, 1.0, seed=1, max_evaluations=3000, **options)
    assert best.violation == 0 and best.f == pytest.approx(optimum, rel=1e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["ars", "cr_fm_nes", "deep_ga", "pgpe", "snes", "xnes"])
def test_augmented_lagrangian_suits_strategies_that_compare_one_generation(kind: str) -> None:
    """`deep_ga` evaluates its elite again in each generation."""
    options: dict[str, Any] = {
        "constraints": 1,
        "constraint_handling": "augmented_lagrangian",
        "algorithm": kind,
    }
    best = hpc_es.minimize(tangent, [3.0, 0.0], seed=1, max_evaluations=4000, **options)
    assert best.violation == 0 and best.f == pytest.approx(2, rel=1e-2)


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        (
            {"kind": "deep_ga", "validation_episodes": 0},
            "algorithm.validation_episodes: is 0, so the elite keeps",
        ),
        (
            {"kind": "novelty"},
            "algorithm.kind: is 'novelty', which compares returns of different generations",
        ),
    ],
)
def test_constraints_are_refused_where_generations_are_compared(algorithm: Any, text: str) -> None:
    """Both ways to derive the fitness rank the jobs of one generation only."""
    for handling in ("feasible_first", "augmented_lagrangian"):
        task = {
            "kind": "function",
            "function": "tests.helpers.toys:disc",
            "dimension": 4,
            "constraints": 2,
        }
        task["constraint_handling"] = handling
        with pytest.raises(ConfigError) as caught:
            build_task(validate({"task": task, "algorithm": algorithm, "stop": {"generations": 1}}))
        assert text in str(caught.value)


def test_ask_and_tell_with_constraints_continues_after_a_load(tmp_path: Path) -> None:
    es = hpc_es.Strategy(
        x0=[3.0, 0.0], sigma0=1.0, constraints=1, constraint_handling="augmented_lagrangian"
    )
    with pytest.raises(ValueError, match="expected the constraints"):
        es.tell([1.0] * len(es.ask()))
    for generation in range(60):
        if generation == 30:
            es.save(tmp_path / "search.h5")
            other = hpc_es.Strategy.load(tmp_path / "search.h5")
        for search in (es, other) if generation >= 30 else (es,):
            results = [tangent(x) for x in search.ask()]
            search.tell(
                [item["value"] for item in results], [item["constraints"] for item in results]
            )
    assert np.array_equal(es.theta, other.theta)
    assert (
        es.best is not None and es.best.violation == 0 and es.best.f == pytest.approx(2, rel=1e-3)
    )


def test_target_counts_feasible_vectors_only() -> None:
    es = hpc_es.Strategy(x0=[0.0, 0.0], sigma0=0.1, constraints=1, target=10.0)
    results = [tangent(x) for x in es.ask()]
    es.tell([item["value"] for item in results], [item["constraints"] for item in results])
    assert es.best is not None and es.best.f < 10 and es.best.violation > 0 and es.stop() is None


def test_report_has_the_violation() -> None:
    arrays = BestVector(np.zeros(1), 2.0, 3, 4, 0.5).arrays()
    from hpc_es.tasks.functions.best import best_report

    assert json.loads(json.dumps(best_report(arrays, {})))["violation"] == 0.5
