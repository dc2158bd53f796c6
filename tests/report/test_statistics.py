"""Centres and intervals over runs; expected numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_es.report import statistics
from hpc_es.report.statistics import (
    Summary,
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
)
from tests.helpers.time_limit import time_limit

VALUES = np.array([[1.0, 2.0, 3.0, 10.0], [5.0, 5.0, 5.0, 5.0]])  # two points, four runs


@pytest.mark.parametrize(("centre", "expected"), [("mean", 4), ("median", 2.5), ("iqm", 2.5)])
def test_centres(centre: statistics.CentreName, expected: float) -> None:
    middle, _, _ = Summary(centre).of(VALUES)
    assert middle.tolist() == [expected, 5]


def test_ends_of_intervals() -> None:
    _, low, high = Summary("mean", "range").of(VALUES)
    assert (low.tolist(), high.tolist()) == ([1, 5], [10, 5])
    _, low, high = Summary("mean", "iqr").of(VALUES)  # at 0.75 and 2.25 of the sorted indices
    assert (low.tolist(), high.tolist()) == ([1.75, 5], [4.75, 5])
    _, low, high = Summary("mean", "std").of(VALUES)  # squares of -3, -2, -1, 6 are 50; n - 1 is 3
    np.testing.assert_allclose([low[0], high[0]], [4 - (50 / 3) ** 0.5, 4 + (50 / 3) ** 0.5])


def test_bootstrap_of_curves_is_that_of_scores_at_each_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "MOST_AT_ONCE", 1)  # a part of the points at a time
    _, low, high = Summary("iqm").of(VALUES)
    assert (low[0], high[0]) == bootstrap_interval(interquartile_mean, VALUES[0].tolist())
    assert (low[1], high[1]) == (5, 5)


def test_bootstrap_of_the_mean_has_the_quantiles_of_all_samples() -> None:
    """The mean of three zeros and ones, from 0, 0, 1: 0, 1/3, 2/3 or 1 with 8, 12, 6, 1 of 27.

    2.5 % is in the zeros (29.6 %), 97.5 % in the two thirds (up to 96.3 %) or the one above.
    """
    _, low, high = Summary().of(np.array([[0.0, 0.0, 1.0]]))
    assert (low[0], high[0]) == (0, 1)


@pytest.mark.parametrize("interval", ["bootstrap", "std", "iqr", "range"])
def test_one_run_has_no_interval(interval: statistics.IntervalName) -> None:
    _, low, high = Summary("mean", interval).of(np.array([[3.0]]))
    assert np.isnan([low, high]).all()


def test_two_runs_have_no_bootstrap() -> None:
    _, low, _ = Summary().of(np.array([[3.0, 4.0]]))
    assert np.isnan(low).all()


def test_probability_of_improvement_is_that_of_all_pairs() -> None:
    first, second = np.array([[1.0, 2.0], [5.0, 5.0]]), np.array([[2.0, 3.0, 0.0], [5.0, 6.0, 1.0]])
    # 2 > 1, 2 = 2, 3 > 1, 3 > 2; and 5 = 5 twice, 6 > 5 twice
    np.testing.assert_array_equal(probability_of_improvement(first, second), [3.5 / 6, 3 / 6])
    assert probability_of_improvement(first[0], second[0]) == 3.5 / 6
    many = np.arange(3_000.0)
    with time_limit(20):  # all pairs of 2,000 samples would take 100 GB
        assert bootstrap_interval(probability_of_improvement, many, many + 10_000) == (1.0, 1.0)
