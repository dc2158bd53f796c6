"""How wide the first samples spread."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_es.algorithms.common.strategy import first_deviations
from tests.helpers.stepping import Cost, sphere


def spread(*values: float) -> Cost:
    made = Cost(sphere, np.ones(len(values)))
    made.spread = np.array(values)
    return made


def test_a_sigma_of_the_config_is_that_of_all_coordinates() -> None:
    step, ratios = first_deviations(0.7, spread(1, 4))
    assert (step, ratios.tolist()) == (0.7, [1, 1])


def test_the_problem_says_how_wide_each_coordinate_is_where_the_config_does_not() -> None:
    """The step is the geometric mean: sqrt(1 * 4) = 2."""
    step, ratios = first_deviations(None, spread(1, 4))
    assert step == pytest.approx(2) and ratios == pytest.approx([0.5, 2])
    step, ratios = first_deviations(None, spread(0.3, 0.3, 0.3))
    assert (step, ratios.tolist()) == (0.3, [1, 1, 1])
