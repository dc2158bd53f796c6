"""The largest share of an update that can be noise, on functions with known noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpc_es.algorithms.common.noise_bound import advice, noise_bound
from hpc_es.algorithms.common.ranking import shaped


def pairs(slope: float, noise: float, count: int = 20_000) -> np.ndarray:
    """The fitness of pairs of a linear function, float64[pairs, 2]: 7 +- slope z + noise e."""
    rng = np.random.default_rng(5)
    g = slope * rng.normal(size=count)
    return 7 + np.stack([g, -g], axis=1) + noise * rng.normal(size=(count, 2))


@pytest.mark.parametrize(("slope", "noise"), [(1.0, 0.5), (1.0, 2.0), (0.0, 1.0)])
def test_bound_is_the_share_of_the_noise_on_a_linear_function(slope: float, noise: float) -> None:
    expected = 2 * noise**2 / (4 * slope**2 + 2 * noise**2)
    assert noise_bound(pairs(slope, noise)) == pytest.approx(expected, abs=0.03)


def test_bound_by_hand() -> None:
    # sums 4 and 0, of the variance 8; differences 2 and 4, of the mean square 10
    assert noise_bound(np.array([[3.0, 1.0], [2.0, -2.0]])) == pytest.approx(0.8)


def test_ranks_of_a_function_without_noise_have_none_and_those_of_noise_are_all_noise() -> None:
    exact, blind = pairs(1.0, 0.0, 2000), pairs(0.0, 1.0, 2000)
    assert noise_bound(shaped("centered_rank", exact, exact)) < 1e-6
    assert noise_bound(shaped("centered_rank", blind, blind)) > 0.9


def test_bound_is_unknown_without_pairs_or_differences() -> None:
    assert math.isnan(noise_bound(np.ones((5, 1))))
    assert math.isnan(noise_bound(np.ones((5, 2))))
    assert math.isnan(noise_bound(np.array([[1.0, 2.0]])))


def test_advice_is_the_same_for_all_high_bounds_and_names_what_helps() -> None:
    """A line that recurs is logged once."""
    more = "more task.episodes_per_job"
    assert advice(1.0, 32, more) == advice(0.91, 32, more)
    assert "90% or more of the update" in advice(0.97, 32, "")[0]
    assert f"a larger algorithm.population_size or {more} would help" in advice(0.97, 32, more)[0]
    assert "a larger algorithm.population_size would help" in advice(0.97, 32, "")[0]
    for bound, count in ((0.8, 32), (0.97, 8), (math.nan, 32)):
        assert advice(bound, count, more) == []
