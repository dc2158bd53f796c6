"""Scales of typed parameters: levels, thresholds, shares, decoded values."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hpc_es.tasks.functions.options import named_coordinates
from hpc_es.tasks.functions.parameters import (
    Choices,
    OrderedValues,
    ParameterScale,
    WholeNumbers,
    scales_of,
)
from hpc_es.tasks.functions.subprocess_evaluator import Command
from tests.helpers import toys

DISCRETE = [
    WholeNumbers(1, 8),
    WholeNumbers(-3, 3),
    WholeNumbers(1, 1000, is_log=True),
    OrderedValues((16, 32, 64, 100)),
]


@pytest.mark.parametrize("scale", DISCRETE, ids=str)
def test_levels_are_those_between_their_thresholds(scale: WholeNumbers | OrderedValues) -> None:
    for unit in np.linspace(-0.5, 1.5, 1001).tolist():
        low, high = scale.thresholds(unit)
        assert low < unit <= high or math.isclose(unit, low) or math.isclose(unit, high)
        assert scale.value(scale.unit(scale.value(unit))) == scale.value(unit)
    assert math.isinf(scale.thresholds(-9.0)[0]) and math.isinf(scale.thresholds(9.0)[1])


def test_whole_numbers_have_equal_shares_and_end_levels_beyond_the_ends() -> None:
    scale = WholeNumbers(1, 4)
    assert [scale.value(unit) for unit in (-7.0, 0.0, 0.25, 0.26, 0.5, 0.51, 0.75, 0.76, 9.0)] == [
        1,
        1,
        1,
        2,
        2,
        3,
        3,
        4,
        4,
    ]
    assert scale.thresholds(0.3) == (0.25, 0.5)
    assert scale.unit(2) == 0.375 and scale.unit(math.nan) == 0.5


def test_logarithmic_whole_numbers_have_shares_of_the_logarithm() -> None:
    scale = WholeNumbers(1, 1000, is_log=True)
    # 1.5 / 0.5, 1000.5 / 0.5
    assert scale.thresholds(scale.unit(1))[1] == pytest.approx(math.log(3) / math.log(2001))


def test_decoded_values_have_their_types() -> None:
    assert [type(scale.decoded(scale.value(0.4))) for scale in DISCRETE] == [int] * 4
    assert OrderedValues((1, 2.5)).decoded(2.5) == 2.5
    choices = Choices(("cg", 1, True, 0.5))
    assert [choices.decoded(choices.value(unit)) for unit in (-3.0, 1.0, 2.0, 7.0)] == [
        "cg",
        1,
        True,
        0.5,
    ]
    assert type(choices.decoded(2.0)) is bool


def test_discrete_coordinates_are_not_reflected() -> None:
    scales = {"n": WholeNumbers(1, 4), "x": ParameterScale(0, 1), "c": Choices(("a", "b"))}
    observed, penalties = named_coordinates(scales, "penalty", 1.0).to_objective(
        np.array([[1.2, 0.5, 1.0]])
    )
    assert observed.tolist() == [[4.0, 0.5, 1.0]] and penalties.tolist() == [0.0]
    reflected, _ = named_coordinates(scales, "reflect", 1.0).to_objective(
        np.array([[1.6, 1.25, 0.0]])
    )
    assert reflected.tolist() == [[4.0, 0.75, 0.0]]


VECTOR = [3.0, 40.0, 64.0, 1.0, 1.0, 1e-5, 0.25]


def test_program_gets_values_of_their_types() -> None:
    scales = scales_of(toys.MIXED)
    expected = {"layers": 3, "nodes": 40, "grid": 64, "solver": "gm, res", "preconditioned": True}
    expected |= {"tolerance": 1e-5, "damping": 0.25}
    text = Command(("x",), Path(), scales).format_parameters(VECTOR)
    assert json.loads(text) == expected and '"layers": 3,' in text
    lines = Command(("x",), Path(), scales, "text").format_parameters(VECTOR)
    assert lines.splitlines() == ["3", "40", "64", "gm, res", "true", "1e-05", "0.25"]
