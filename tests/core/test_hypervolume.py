"""Hypervolumes by hand, exact values of whole fronts, and those of moocore."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from hpc_es.core.data import Float64
from hpc_es.core.hypervolume import (
    _least_of_many,
    _least_of_two,
    contributions,
    hypervolume,
    uncrowded_improvements,
    upper_bounds,
    without_least,
)


def cloud(objectives: int, members: int, seed: int = 1) -> Float64:
    """Random points on the positive part of a sphere, a quarter of them behind it."""
    rng = np.random.default_rng(seed)
    points = np.abs(rng.standard_normal((members, objectives)))
    points /= np.sqrt(np.square(points).sum(axis=1, keepdims=True))
    points[::4] *= 1.2
    return points


def test_by_hand() -> None:
    stairs = np.array([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0], [2.5, 2.5], [5.0, 0.0]])
    assert hypervolume(stairs, np.array([4.0, 4.0])) == 3 + 2 + 1
    assert hypervolume(stairs[:0], np.array([4.0, 4.0])) == 0
    assert contributions(stairs, np.array([4.0, 4.0])).tolist() == [1, 1, 1, 0, 0]
    cubes = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    # each has 2 of the 8 unit cubes, and all share one
    assert hypervolume(cubes, np.full(3, 2.0)) == 4
    assert contributions(cubes, np.full(3, 2.0)).tolist() == [1, 1, 1]
    assert contributions(cubes[[0, 0, 1]], np.full(3, 2.0)).tolist() == [0, 0, 1]
    corner = np.zeros((1, 5))
    assert hypervolume(corner, np.full(5, 2.0)) == 32


def zdt1(x: Float64) -> Float64:
    return 1 - np.sqrt(x)


# The best 100 points of f2 = 1 - sqrt(f1) by the recursion of neighbours (see `best_points`), and
# the volumes of whole fronts.
@pytest.mark.parametrize(
    ("reference", "best"),
    [
        (1.1, (0.8274459, 0.8529033, 0.8674876, 0.8721432)),
        (11.0, (120.6137609, 120.6423963, 120.6574465, 120.6621372)),
    ],
)
def test_best_points_of_zdt1(reference: float, best: tuple[float, ...]) -> None:
    for count, expected in zip((10, 20, 50, 100), best, strict=True):
        points = best_points(count, reference)
        assert hypervolume(points, np.full(2, reference)) == pytest.approx(expected, abs=1e-7)


def best_points(count: int, reference: float) -> Float64:
    """The points on f2 = 1 - sqrt(f1) with the largest hypervolume: each maximises its own
    rectangle between its neighbours, (x[i+1] - x[i]) = (g(x[i]) - g(x[i-1])) / g'(x[i]).
    """

    def following(first: float) -> list[float]:
        x = [first]
        before = reference
        for _ in range(count):
            x.append(x[-1] + (1 - math.sqrt(x[-1]) - before) * -2 * math.sqrt(x[-1]))
            before = 1 - math.sqrt(x[-2])
            if x[-1] > 10 * reference:
                break
        return x

    low, high = 1e-12, 0.5
    for _ in range(200):
        middle = (low + high) / 2
        x = following(middle)
        # the point after the last one is the reference
        beyond = len(x) <= count or x[count - 1] > 1 or x[count] > reference
        low, high = (low, middle) if beyond else (middle, high)
    x = np.array(following(low)[:count])
    return np.stack([x, 1 - np.sqrt(x)], axis=1)


@pytest.mark.parametrize(
    ("front", "low", "one", "eleven"),
    [
        (zdt1, 0.0, 0.876667, 120.666667),
        (lambda x: 1 - x**2, 0.0, 0.543333, 120.333333),
        (lambda x: 1 - np.sqrt(x) - x * np.sin(10 * np.pi * x), 0.0, 1.331763, 128.778116),
        (lambda x: 1 - x**2, 0.2807753188, 0.507878, 117.518202),
    ],
    ids=["zdt1", "zdt2", "zdt3", "zdt6"],
)
def test_volumes_of_whole_fronts(
    front: Callable[[Float64], Float64], low: float, one: float, eleven: float
) -> None:
    x = np.linspace(low, 1, 200_001)
    points = np.stack([x, front(x)], axis=1)
    for reference, expected in ((1.1, one), (11.0, eleven)):
        assert hypervolume(points, np.full(2, reference)) == pytest.approx(expected, abs=2e-5)


def test_three_objectives_approach_the_sphere() -> None:
    """A grid of the front of DTLZ2 has less than 1.331 - pi / 6, and ever less is missing."""
    missing = []
    for steps in (20, 40):
        angles = np.linspace(0, np.pi / 2, steps + 1)
        a, b = (part.reshape(-1) for part in np.meshgrid(angles, angles))
        points = np.stack([np.cos(a) * np.cos(b), np.cos(a) * np.sin(b), np.sin(a)], axis=1)
        missing.append(1.331 - np.pi / 6 - hypervolume(points, np.full(3, 1.1)))
    assert 0 < missing[1] < 0.6 * missing[0] < 0.06


@pytest.mark.parametrize(("objectives", "members"), [(2, 60), (3, 60), (4, 40), (5, 25), (6, 12)])
def test_equals_moocore(objectives: int, members: int) -> None:
    moocore = pytest.importorskip("moocore")
    for seed in range(3):
        points, reference = cloud(objectives, members, seed), np.full(objectives, 1.1)
        expected = moocore.hypervolume(points, ref=reference)
        assert hypervolume(points, reference) == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert contributions(points, reference) == pytest.approx(
            moocore.hv_contributions(points, ref=reference), abs=1e-12
        )


@pytest.mark.parametrize("objectives", range(2, 9))
def test_inclusion_and_exclusion_of_three_members(objectives: int) -> None:
    points, reference = cloud(objectives, 4, 7)[1:], np.full(objectives, 1.3)

    def box(*rows: int) -> float:
        return float(np.prod(reference - points[list(rows)].max(axis=0)))

    expected = box(0) + box(1) + box(2) - box(0, 1) - box(0, 2) - box(1, 2) + box(0, 1, 2)
    assert hypervolume(points, reference) == pytest.approx(expected, rel=1e-13)


def test_members_with_the_least_contributions_go_one_at_a_time() -> None:
    for objectives in (2, 3):
        points, reference = cloud(objectives, 24, 3), np.full(objectives, 1.1)
        rows = list(range(len(points)))
        while len(rows) > 9:
            volumes = contributions(points[rows], reference)
            # the best of each objective stay
            volumes[[row in points.argmin(axis=0) for row in rows]] = np.inf
            least = np.flatnonzero(volumes == volumes.min())[-1]
            del rows[least]
        assert without_least(points, reference, 9).tolist() == rows


def test_of_two_objectives_the_same_members_stay_by_neighbours_and_by_volumes() -> None:
    """Points of a grid have equal and dominated members, ties and members beyond the reference."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        points, reference = rng.integers(0, 6, (rng.integers(1, 30), 2)) / 4, np.full(2, 1.1)
        bounds = contributions(points, reference)
        for kept in range(len(points)):
            of_two = _least_of_two(points, reference, bounds.copy(), kept)
            assert of_two.tolist() == _least_of_many(points, reference, bounds, kept).tolist()


def test_a_large_front_is_reduced_in_a_moment() -> None:
    points = cloud(2, 20_000)
    begin = time.process_time()
    assert len(without_least(points, np.full(2, 1.1), 1000)) == 1000
    assert time.process_time() - begin < 5  # 0.3 s; by volumes of all, an hour


def test_uncrowded_improvement_by_hand() -> None:
    front, reference = np.array([[1.0, 3.0], [3.0, 1.0]]), np.array([5.0, 5.0])
    candidates = np.array([[2.0, 2.0], [0.0, 0.0], [4.0, 4.0], [3.5, 3.2], [6.0, 0.0], [1.0, 3.0]])
    # corners are (1, 5), (3, 3) and (5, 1); the members have 8 + 8 - 4 of the area
    expected = [1.0, 13.0, -math.sqrt(2), -math.sqrt(0.29), -1.0, 0.0]
    assert uncrowded_improvements(candidates, front, reference) == pytest.approx(expected)
    assert uncrowded_improvements(candidates[:1], front[:0], reference) == pytest.approx([9.0])


def test_uncrowded_improvement_where_no_member_is_within_the_reference_point() -> None:
    candidates = np.array([[0.0, 0.0, 0.0], [4.0, 3.0, 2.0], [4.0, 5.0, 5.0]])
    for front in (np.zeros((0, 3)), np.array([[5.0, 1.0, 1.0]])):
        improvements = uncrowded_improvements(candidates, front, np.full(3, 3.0))
        assert improvements == pytest.approx([27.0, -1.0, -3.0])


def test_uncrowded_improvement_of_three_objectives_equals_that_of_two() -> None:
    """With candidates at 0 and the reference at 1 of a third objective all volumes are areas; the
    front is far below them.
    """
    front, candidates = cloud(2, 12, 5), 0.95 * cloud(2, 30, 6)
    flat = uncrowded_improvements(candidates, front, np.full(2, 1.2))
    deep = uncrowded_improvements(
        np.pad(candidates, ((0, 0), (0, 1))),
        np.pad(front, ((0, 0), (0, 1)), constant_values=-9.0),
        np.array([1.2, 1.2, 1]),
    )
    assert (flat < 0).any() and (flat > 0).any()
    assert deep == pytest.approx(flat, abs=1e-13)


@pytest.mark.parametrize("objectives", [2, 3, 4])
def test_upper_bounds_divide_what_is_not_dominated(objectives: int) -> None:
    front, reference = cloud(objectives, 15, 2), np.full(objectives, 1.1)
    bounds = upper_bounds(front, reference)
    points = np.random.default_rng(3).random((500, objectives)) * 1.1
    is_dominated = (front[:, np.newaxis] <= points).all(axis=2).any(axis=0)
    is_below = (points[:, np.newaxis] < bounds).all(axis=2).any(axis=1)
    assert (is_dominated == ~is_below).all() and is_dominated.any()
