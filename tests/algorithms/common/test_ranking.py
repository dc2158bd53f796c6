"""Fitness shaping: centred ranks, published utilities, ties, failures,
and generations without information.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_es.algorithms.common.ranking import (
    centered_ranks,
    default_population,
    nothing_to_learn,
    ranking,
    sample_weights,
    utilities,
)

NAN = np.nan
UTILITIES = {  # Wierstra et al. 2014, computed apart from this program
    2: [0.5, -0.5],
    3: [0.4708295266, -0.1374961933, -0.3333333333],
    4: [0.4804227103, 0.01957728969, -0.25, -0.25],
    5: [0.4370425712, 0.08457025744, -0.1216128287, -0.2, -0.2],
    8: [0.3687383775, 0.1560968325, 0.03170950256, -0.05654471252, -0.125, -0.125, -0.125, -0.125],
}


@pytest.mark.parametrize("population", UTILITIES)
def test_utilities_equal_the_published_ones_and_sum_to_0(population: int) -> None:
    result = utilities(population)
    assert result == pytest.approx(UTILITIES[population], rel=1e-8)
    assert result.sum() == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize(
    ("size", "population"), [(1, 4), (2, 6), (3, 7), (10, 10), (40, 15), (1000, 24)]
)
def test_default_population_by_hand(size: int, population: int) -> None:
    assert default_population(size) == population


def test_ranking_puts_the_best_first_failures_last_and_ties_in_job_order() -> None:
    assert ranking(np.array([3, NAN, 7, 7, -1, NAN])).tolist() == [2, 3, 0, 4, 1, 5]


def test_samples_get_the_weights_of_their_ranks() -> None:
    returns, weights = np.array([3, NAN, 7, 7, -1]), np.array([4.0, 3, 2, 1, 0])
    assert sample_weights(weights, returns, share_ties=False).tolist() == [2, 0, 4, 3, 1]
    assert sample_weights(weights, returns).tolist() == [2, 0, 3.5, 3.5, 1]


def test_failures_and_ties_share_weights() -> None:
    weights = np.array([4.0, 3, 2, 1])
    assert sample_weights(weights, np.array([NAN, 5, NAN, 1])).tolist() == [1.5, 4, 1.5, 3]
    assert sample_weights(weights, np.full(4, -7.0)).tolist() == [2.5] * 4
    assert sample_weights(utilities(8), np.ones(8)) == pytest.approx(0, abs=1e-16)


@pytest.mark.parametrize(
    ("returns", "said"),
    [
        ([1, 2, 3, 4], None),
        ([1, NAN, 2, NAN], None),
        ([1, NAN, NAN, NAN], "1 of 4 evaluations did not fail, 2 are needed: no update"),
        ([NAN] * 4, "0 of 4 evaluations did not fail, 2 are needed: no update"),
        ([5, 5, 5, 5], "all evaluations are equal: no update"),
        ([5, 5, 5, NAN], None),  # what has not failed is better
    ],
)
def test_generation_without_information_has_a_reason(
    returns: list[float], said: str | None
) -> None:
    assert nothing_to_learn(np.array(returns, np.float64), 2) == said


@pytest.mark.parametrize(
    ("values", "ranks"),
    [
        ([10, 30, 20, 40, 0], [-0.25, 0.25, 0, 0.5, -0.5]),  # T35
        ([[3, 1], [2, 9]], [[1 / 6, -0.5], [-1 / 6, 0.5]]),  # T36
        ([5, 5, 5, 5], [0, 0, 0, 0]),  # T37
        ([1, 2, 2, 3], [-0.5, 0, 0, 0.5]),  # T37
        ([2, 2, 1], [0.25, 0.25, -0.5]),  # ranks 1.5, 1.5, 0 of 0 .. 2
        ([-np.inf, 0, np.inf], [-0.5, 0, 0.5]),
        ([7], [0]),
        ([np.nan], [0]),
        ([], []),
    ],
)
def test_centred_ranks_by_hand(values: list[float], ranks: list[float]) -> None:
    result = centered_ranks(values)
    assert result.shape == np.shape(values)
    np.testing.assert_allclose(result, ranks, atol=1e-15)


def test_centred_ranks_put_nan_last() -> None:
    """NaN, 1, NaN, 5: both NaN share the ranks 0 and 1 of 0 .. 3."""
    np.testing.assert_allclose(centered_ranks([np.nan, 1, np.nan, 5]), [-1 / 3, 1 / 6, -1 / 3, 0.5])


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=30))
def test_centred_ranks_average_over_ties(values: list[int]) -> None:
    """The definition: the number of smaller ones plus half of the other equal ones, over n - 1."""
    n = len(values)
    expected = [sum(b < a for b in values) + (values.count(a) - 1) / 2 for a in values]
    np.testing.assert_allclose(
        centered_ranks(values), np.array(expected) / (n - 1) - 0.5, atol=1e-12
    )


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=30, unique=True))
def test_centred_ranks_depend_on_the_order_only(values: list[int]) -> None:
    assert np.array_equal(centered_ranks(values), centered_ranks(np.exp(np.array(values) / 100)))
