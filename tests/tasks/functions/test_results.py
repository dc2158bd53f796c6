"""Results of evaluations that are more than one number, read by hand."""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from hpc_es.core.quantities import Quantities
from hpc_es.tasks.functions.results import EvaluationResult, read_batch, read_result

BEAM = Quantities(
    objectives={"mass": "minimise", "range": "maximise"},
    constraints=("stress",),
    measures={"x": (0.0, 1.0), "y": (-1.0, 1.0)},
    metrics=("calls",),
)
VALUE = Quantities(measures={"x": (0.0, 1.0)})
WHOLE = {
    "objectives": [3, 4],
    "constraints": {"stress": -1},
    "measures": {"y": 0.5, "x": 2},
    "metrics": [math.nan],
}


def test_groups_are_lists_in_the_declared_order_or_mappings_by_name() -> None:
    result = read_result(WHOLE, BEAM, 0.5)
    assert result.failure is None and (result.value, result.seconds) == (3.0, 0.5)
    assert result.numbers[:5] == (3.0, 4.0, -1.0, 2.0, 0.5) and math.isnan(result.numbers[5])
    assert read_result({"value": 7, "measures": 0.25}, VALUE, 0.0).numbers == (0.25,)
    assert (
        read_result({"value": 7, "ignored": "text", "metrics": [1]}, Quantities(), 0.0).value == 7.0
    )


PLANE = Quantities(constraints=("c",), measures={"x": (0.0, 1.0), "y": (0.0, 1.0)})
PLAIN: dict[str, Any] = {"value": 1.5, "constraints": [-1.0], "measures": [0.25, 0.75]}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"value": np.float64(1.5), "measures": np.array([0.25, 0.75])},
        {"measures": np.array([0.25, 0.75], np.float32)},
        {"constraints": -1},
        {"measures": (np.float64(0.25), 0.75)},
        {"measures": {"y": 0.75, "x": 0.25}},
        {"value": np.array(1.5), "constraints": {"c": Fraction(-1)}},
        {"ignored": "text", "metrics": [1.0]},
    ],
)
def test_usual_and_unusual_forms_are_read_alike(change: dict[str, Any]) -> None:
    result = read_result({**PLAIN, **change}, PLANE, 0.5)
    assert result == EvaluationResult(1.5, None, 0.5, (-1.0, 0.25, 0.75))
    assert {type(number) for number in (result.value, *result.numbers)} == {float}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"value": math.nan}, "the value is nan"),
        ({"value": -math.inf}, "the value is -inf"),
        ({"measures": np.array([0.25, math.inf])}, "the measure y is inf"),
        ({"constraints": [math.nan]}, "the constraint c is not finite"),
    ],
)
def test_usual_forms_with_numbers_that_are_not_finite_fail(
    change: dict[str, Any], text: str
) -> None:
    result = read_result({**PLAIN, **change}, PLANE, 0.0)
    assert result.failure is not None and result.failure.text == text and math.isnan(result.value)


@pytest.mark.parametrize(
    "change",
    [
        {"measures": [0.25]},
        {"measures": [[0.25, 0.75]]},
        {"measures": np.ma.masked_array([0.25, 0.75], [False, True])},
        {"objectives": [1.0]},
        {"value": "1.5"},
        {"measures": [0.25, "0.75"]},
    ],
)
def test_forms_that_are_none_of_a_result(change: dict[str, Any]) -> None:
    with contextlib.suppress(ValueError):
        assert read_result({**PLAIN, **change}, PLANE, 0.0).failure is not None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"objectives": [3, math.inf]}, "the objective range is inf"),
        ({"constraints": [math.nan]}, "the constraint stress is not finite"),
        ({"measures": [0, math.nan]}, "the measure y is nan"),
    ],
)
def test_numbers_that_are_not_finite_fail_except_for_metrics(
    change: dict[str, Any], text: str
) -> None:
    result = read_result({**WHOLE, **change}, BEAM, 0.0)
    assert result.failure is not None and result.failure.text == text and math.isnan(result.value)


@pytest.mark.parametrize(
    ("result", "quantities", "text"),
    [
        (1.0, BEAM, "objectives: 2 numbers (mass, range), constraints: 1 numbers (stress)"),
        ({**WHOLE, "objectives": [1, 2, 3]}, BEAM, "got 3 objectives"),
        ({**WHOLE, "measures": {"x": 1, "z": 2}}, BEAM, "got the names x, z"),
        (
            {"value": 1.0, **WHOLE, "objectives": [[1, 2]]},
            BEAM,
            "got objectives of the shape [1, 2]",
        ),
        ({"value": 1.0}, VALUE, "expected {value: number, measures: 1 numbers (x)}, got dict"),
        ({"measures": [1.0]}, VALUE, "got dict"),
        (
            {"value": 1.0, "objectives": [1.0]},
            Quantities(),
            "task.objectives is null: expected their names",
        ),
        (
            {"value": 1.0, "measures": np.ones(2)},
            Quantities(),
            "task.measures is null: expected their names and ranges",
        ),
        (
            {"value": 1.0, "measures": [1.0]},
            Quantities(),
            "task.measures is null: expected their names and ranges",
        ),
    ],
)
def test_other_results_than_declared_are_refused(
    result: Any, quantities: Quantities, text: str
) -> None:
    with pytest.raises(ValueError) as error:
        read_result(result, quantities, 0.0)
    assert text in str(error.value)


def test_batches_have_arrays_in_place_of_numbers() -> None:
    batch = {
        "objectives": np.array([[3.0, 4.0], [5.0, math.nan]]),
        "constraints": {"stress": [-1, 1]},
        "measures": [[1, 2], [3, 4]],
        "metrics": [[7], [8]],
    }
    first, second = read_batch(batch, BEAM, 2, 1.0)
    assert (first.value, first.numbers, first.seconds) == (
        3.0,
        (3.0, 4.0, -1.0, 1.0, 2.0, 7.0),
        0.5,
    )
    assert second.failure is not None and second.failure.text == "the objective range is nan"
    values = read_batch({"value": [1.0, math.nan], "measures": [[1], [2]]}, VALUE, 2, 0.0)
    assert values[0].numbers == (1.0,) and values[1].failure is not None
    for wrong, text in (
        ([1.0, 2.0], "expected {value: float64[2], measures: float64[2, 1] (x)}, got list"),
        ({"value": [1.0, 2.0], "measures": [1, 2]}, "got measures of the shape [2]"),
        ({"value": [1.0, 2.0], "measures": {"x": [1, 2, 3]}}, "got measures of the shapes [3]"),
    ):
        with pytest.raises(ValueError) as error:
            read_batch(wrong, VALUE, 2, 0.0)
        assert text in str(error.value)
