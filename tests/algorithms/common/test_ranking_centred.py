"""Fitness shaping by centred ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_es.algorithms.common.ranking import centered_ranks


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
def test_ranks_by_hand(values: list[float], ranks: list[float]) -> None:
    found = centered_ranks(values)
    assert found.shape == np.shape(values)
    np.testing.assert_allclose(found, ranks, atol=1e-15)


def test_nan_ranks_last() -> None:
    """NaN, 1, NaN, 5: the two NaN share the ranks 0 and 1 of 0 .. 3."""
    np.testing.assert_allclose(centered_ranks([np.nan, 1, np.nan, 5]), [-1 / 3, 1 / 6, -1 / 3, 0.5])


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=30))
def test_ranks_are_the_share_of_values_below_and_tied(values: list[int]) -> None:
    """The definition: how many are less, and half of the others that are equal, over n - 1."""
    n = len(values)
    expected = [sum(b < a for b in values) + (values.count(a) - 1) / 2 for a in values]
    np.testing.assert_allclose(centered_ranks(values), np.array(expected) / (n - 1) - 0.5, atol=1e-12)


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=30, unique=True))
def test_only_the_order_counts(values: list[int]) -> None:
    assert np.array_equal(centered_ranks(values), centered_ranks(np.exp(np.array(values) / 100)))
