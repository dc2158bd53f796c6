"""Weights by rank and distance, by hand; the factor h against numbers of the package crfmnes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpc_es.algorithms.cr_fm_nes import SampleWeights, by_distance, by_rank, far_factor, standing

UTILITIES = [0.4804227103, 0.01957728969, -0.25, -0.25]  # of four samples


def test_the_factor_of_far_samples() -> None:
    found = [far_factor(size) for size in (6, 40, 1000)]
    assert found == pytest.approx([1.074796922, 1.5739443, 2.618795732], rel=1e-8)


@pytest.mark.parametrize("size", [1, 10**6, 10**9])
def test_the_factor_solves_its_equation_for_any_size(size: int) -> None:
    h = far_factor(size)
    assert (1 + h * h) * math.exp(h * h / 2) / 0.24 == pytest.approx(10 + size, rel=1e-12)


def test_failed_samples_are_last_and_the_longest_of_them_at_the_end() -> None:
    returns = np.array([np.nan, -5.0, np.nan, 1.0, -5.0, np.nan])
    lengths = np.array([2.0, 9.0, 1.0, 8.0, 7.0, 2.0])
    assert standing(returns, lengths).tolist() == [-2, 0, -1, 1, 0, -2]


def test_equal_samples_have_equal_weights() -> None:
    lengths = np.array([1.0, 2.0, 3.0, 3.0])
    assert by_rank(np.array([3.0, 1.0, 4.0, 2.0]), lengths)[[2, 0, 3, 1]] == pytest.approx(UTILITIES, rel=1e-8)
    assert by_rank(np.array([1.0, 1.0, 0.0, 0.5]), lengths) == pytest.approx([0.25, 0.25, -0.25, -0.25])


def test_a_far_sample_weighs_more_but_a_bad_one_nothing() -> None:
    """Before 1/4 is taken away: .7304 and .2696 of the two good ones; the second is ln 2 / alpha farther."""
    lengths = np.array([1.0, 1 + math.log(2) / 3, 50.0, 1.0])
    found = by_distance(np.array(UTILITIES), lengths, 3.0)
    total = 0.7304227103 + 2 * 0.26957728969
    assert found == pytest.approx([0.7304227103 / total - 0.25, 0.5391545794 / total - 0.25, -0.25, -0.25], rel=1e-8)
    assert np.isfinite(by_distance(np.array(UTILITIES), np.array([990.0, 1000, 1010, 1000]), 5.0)).all()


def test_sums_over_pairs_are_sums_over_samples() -> None:
    """z of (+, -) is 2 and -2, then 5 and -5; u . z is half of it."""
    z, each = np.array([2.0, -2, 5, -5]), np.array([UTILITIES, UTILITIES[::-1]])
    weights = SampleWeights(each, z / 2, z**2, 4)
    sums = weights.of_pairs @ np.array([2.0, 5.0])
    squares = weights.of_pairs @ np.array([4.0, 25.0])
    for which, travels in enumerate([False, True]):
        expected = [each[which] @ z, each[which] @ (z * z / 2), each[which] @ z**2]
        _, (first, along, _) = weights.chosen(travels, sums)
        _, (_, _, second) = weights.chosen(travels, squares)
        assert [first, along, second] == pytest.approx(expected)
    assert weights.powers == (1, 1, 2, 1, 1, 2)
