"""Evaluation of Python functions: arguments, seeds and failures."""

from __future__ import annotations

import math
import random
import re
import sys
import time
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from hpc_es.core.quantities import Quantities
from hpc_es.tasks.functions.parameters import ParameterScale
from hpc_es.tasks.functions.python_evaluator import PythonEvaluator, objective

VECTORS = np.array([[1.0, 2.0], [3.0, 4.0], [0.0, 0.5]])
SEEDS = (11, 12, 13)


def values(function: Any, batch: bool = False, **more: Any) -> list[float]:
    arguments, scales = (
        more.pop("arguments", {}),
        dict.fromkeys(more.pop("names", ()), ParameterScale(0, 9)),
    )
    calls = PythonEvaluator(objective(function, arguments, scales), batch, **more)
    actual = calls.evaluate(VECTORS, SEEDS, lambda: None)
    assert all((item.failure is None) == math.isfinite(item.value) for item in actual)
    return [item.value for item in actual]


def test_function_is_called_with_one_vector_at_a_time() -> None:
    assert values(lambda x, a: a * x.sum(), arguments={"a": 2.0}) == [6.0, 14.0, 1.0]


def test_named_parameters_and_seeds_are_keywords() -> None:
    assert values(
        lambda *, seed, first, second: seed + first * second, names=("first", "second")
    ) == [13, 24, 13]


def test_batch_function_is_called_with_all_vectors() -> None:
    assert values(lambda x: x[:, 0] - x[:, 1], batch=True) == [-1.0, -1.0, -0.5]
    assert values(lambda x, seed: seed, batch=True) == [11.0, 12.0, 13.0]


def test_numbers_of_every_real_type_are_values() -> None:
    numbers = iter([Fraction(1, 4), Decimal("0.5"), 10**25])
    assert values(lambda x: next(numbers)) == [0.25, 0.5, 1e25]
    assert values(lambda x: [10**25, Fraction(1, 4), 2], batch=True) == [1e25, 0.25, 2.0]


def test_masked_and_too_large_numbers_are_failures() -> None:
    numbers = iter([np.ma.masked, 10**400, np.ma.array(3.0)])
    actual = values(lambda x: next(numbers))
    assert math.isnan(actual[0]) and math.isnan(actual[1]) and actual[2] == 3.0
    masked = values(lambda x: np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0]), batch=True)
    assert masked[0] == 1.0 and math.isnan(masked[1]) and masked[2] == 3.0


def test_function_gets_a_copy_of_the_vector() -> None:
    before = VECTORS.copy()
    values(lambda x: float(np.multiply(x, 0, out=x).sum()))
    assert (before == VECTORS).all()


def test_function_gets_copies_of_its_arguments() -> None:
    def drains(x: Any, data: list[float], more: dict[str, list[float]]) -> float:
        return data.pop() + more["numbers"].pop()

    arguments: dict[str, Any] = {"data": [1.0, 2.0], "more": {"numbers": [10.0, 20.0]}}
    assert values(drains, arguments=arguments) == [22.0, 22.0, 22.0]


def test_global_generators_are_seeded_by_job() -> None:
    drawn = values(lambda x: np.random.random() + random.random())
    assert drawn == values(lambda x: np.random.random() + random.random()) and len(set(drawn)) == 3


def ends(kind: type[BaseException]) -> Any:
    def function(x: Any) -> float:
        raise kind

    return function


def fails(result: Any, batch: bool = False) -> str:
    actual = PythonEvaluator(objective(result, {}), batch, timeout_seconds=0.2).evaluate(
        VECTORS[:2], SEEDS[:2], lambda: None
    )
    assert all(math.isnan(item.value) for item in actual)
    assert actual[0].failure is not None
    return actual[0].failure.text


@pytest.mark.parametrize(
    ("function", "batch", "failure"),
    [
        (
            lambda x: 1 / 0,
            False,
            r"ZeroDivisionError: division by zero \(test_python_evaluator.py:\d+ in <lambda>\)",
        ),
        (lambda x: sys.exit("no"), False, "SystemExit: no"),
        (lambda x: next(iter(())), False, "StopIteration"),
        (ends(GeneratorExit), False, r"GeneratorExit \(test_python_evaluator.py:\d+ in function\)"),
        (ends(BaseException), True, r"BaseException \(test_python_evaluator.py:\d+ in function\)"),
        (lambda x: math.nan, False, "the value is nan"),
        (lambda x: -math.inf, False, "the value is -inf"),
        (lambda x: None, False, "expected a number, got None: does it return its value"),
        (lambda x: "3", False, "expected a number, got str '3'"),
        (lambda x: 1j, False, "expected a number, got complex"),
        (lambda x: 10**400, False, "the value is inf"),
        (lambda x: np.ma.masked, False, "the value is nan"),
        (lambda x: np.ma.masked_array(x[:, 0], mask=True), True, "the value is nan"),
        (lambda x: x, False, r"expected a number, got an array of the shape \[2\]"),
        (lambda x: 3.0, True, r"expected an array of the shape \[2\], got one of the shape \[\]"),
        (lambda x: time.sleep(9), False, r"took longer than task.timeout_seconds: 0\.2"),
    ],
)
def test_failed_calls_are_reported_with_their_reason(
    function: Any, batch: bool, failure: str
) -> None:
    assert re.search(failure, fails(function, batch))


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (True, 1.0),
        (np.int8(-3), -3.0),
        (2**64, 18446744073709551616.0),
        (-(10**30), -1e30),
        (Fraction(3, 4), 0.75),
        (Decimal("-0.25"), -0.25),
        (np.array(2.5), 2.5),
        (np.ma.masked_array(2.5), 2.5),
    ],
)
def test_every_real_number_is_a_value(result: Any, expected: float) -> None:
    single = PythonEvaluator(objective(lambda x: result, {})).evaluate(
        VECTORS[:1], SEEDS[:1], lambda: None
    )
    batch = PythonEvaluator(objective(lambda x: [result], {}), True).evaluate(
        VECTORS[:1], SEEDS[:1], lambda: None
    )
    limited = objective(lambda x: {"value": 0, "constraints": [result]}, {})
    evaluator = PythonEvaluator(limited, quantities=Quantities(constraints=("c",)))
    bound = evaluator.evaluate(VECTORS[:1], SEEDS[:1], lambda: None)
    assert [single[0].value, batch[0].value, *bound[0].numbers] == [expected] * 3


def test_failed_call_does_not_affect_the_others() -> None:
    actual = PythonEvaluator(objective(lambda x: 1 / float(x[0] - 3), {})).evaluate(
        VECTORS, SEEDS, lambda: None
    )
    assert [item.value for item in actual] == pytest.approx([-0.5, math.nan, -1 / 3], nan_ok=True)
    assert [item.failure is None for item in actual] == [True, False, True]


def test_messages_are_answered_while_a_call_runs() -> None:
    looks: list[float] = []

    def spin(x: Any) -> float:
        limit = time.perf_counter() + 0.2
        while time.perf_counter() < limit:
            pass
        return 0.0

    PythonEvaluator(objective(spin, {})).evaluate(
        VECTORS[:1], SEEDS[:1], lambda: looks.append(time.perf_counter())
    )
    assert len(looks) >= 4


def test_exceptions_of_polls_are_raised() -> None:
    class GiveUp(BaseException):
        pass

    def give_up() -> None:
        raise GiveUp

    def patient(x: Any) -> float:
        try:
            time.sleep(5)
        except Exception:
            return 0.0
        return 1.0

    with pytest.raises(GiveUp):
        PythonEvaluator(objective(patient, {})).evaluate(VECTORS[:1], SEEDS[:1], give_up)
