"""Fronts, crowding distances and knees by hand, and by the definition."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_es.core.domination import (
    constrained_ranks,
    crowding_by_front,
    crowding_distances,
    knee,
    nondominated,
    pareto_ranks,
)

inf = np.inf


def test_fronts_by_hand() -> None:
    costs = np.array([[1, 4], [2, 2], [4, 1], [2, 3], [3, 3], [5, 5], [2, 2], [1, 5]], np.float64)
    # (2, 2) is there twice; (1, 5) has the first cost of (1, 4)
    assert pareto_ranks(costs).tolist() == [0, 0, 0, 1, 2, 3, 0, 1]
    assert nondominated(costs).tolist() == [True, True, True, False, False, False, True, False]
    three = np.column_stack([costs, np.zeros(len(costs))])
    assert pareto_ranks(three).tolist() == [0, 0, 0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("objectives", [2, 3, 5])
def test_fronts_by_definition(objectives: int) -> None:
    costs = np.random.default_rng(1).integers(6, size=(80, objectives)).astype(np.float64)
    ranks = pareto_ranks(costs)
    for row, own in zip(costs, ranks.tolist(), strict=True):
        beating = (costs <= row).all(axis=1) & (costs < row).any(axis=1)
        assert own == (ranks[beating].max() + 1 if beating.any() else 0)


def test_nondominated_of_many_rows_by_definition() -> None:
    costs = np.random.default_rng(2).integers(60, size=(700, 3)).astype(np.float64)
    worse = [(other <= row).all() and (other < row).any() for row in costs for other in costs]
    expected = ~np.array(worse).reshape(700, 700).any(axis=1)
    assert np.array_equal(nondominated(costs), expected) and 10 < expected.sum() < 300


def test_infeasible_members_follow_by_violation() -> None:
    costs = np.array([[1, 1], [2, 2], [0, 0], [0, 0], [9, 9]], np.float64)
    violation = np.array([0, 0, 0.5, 0.1, 0.5])
    assert constrained_ranks(costs, violation).tolist() == [0, 1, 3, 2, 3]
    assert constrained_ranks(costs[2:], violation[2:]).tolist() == [1, 0, 1]


def test_crowding_by_hand() -> None:
    costs = np.array([[0, 10], [1, 6], [4, 4], [10, 0]], np.float64)
    # (1, 6): (4 - 0) / 10 + (10 - 4) / 10; (4, 4): (10 - 1) / 10 + (6 - 0) / 10
    assert crowding_distances(costs).tolist() == pytest.approx([inf, 1.0, 1.5, inf])
    assert crowding_distances(costs[::-1]).tolist() == pytest.approx([inf, 1.5, 1.0, inf])
    assert crowding_distances(costs[:1]).tolist() == [inf]
    flat = np.array([[1, 1], [1, 1], [1, 1]], np.float64)  # 0 / 0 is 0
    assert crowding_distances(flat).tolist() == [inf, 0, inf]
    both = np.concatenate([costs, costs + 20])
    ranks = pareto_ranks(both)
    assert crowding_by_front(both, ranks).tolist() == pytest.approx([inf, 1.0, 1.5, inf] * 2)


def test_knee_has_the_best_worst_objective() -> None:
    costs = np.array([[0, 1000], [1, 300], [2, 250], [10, 0]], np.float64)
    # the worse of both, normalised: 1, 0.3, 0.25, 1
    assert knee(costs) == 2
    circle = np.array([[0.0, 1.0], [0.6, 0.8], [0.8, 0.6], [0.7, 0.714], [1.0, 0.0]])
    assert knee(circle) == 3
    assert knee(costs[:1]) == 0
