"""Keeping to bounds."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_es.tasks.functions.options import Bounds, kept

INF = np.inf
BOX = Bounds(np.array([0.0, -1.0, -INF, -INF]), np.array([1.0, INF, 2.0, INF]))


@pytest.mark.parametrize(
    ("how", "expected", "penalty"),
    [
        ("clip", [1.0, -1.0, 2.0, 9.0], 0.0),
        ("reflect", [0.75, 1.0, 1.0, 9.0], 0.0),  # 1.25 -> 0.75, -3 -> 1 at the bound -1, 3 -> 1 at the bound 2
        ("penalty", [1.0, -1.0, 2.0, 9.0], 0.5 * (0.25**2 + 2**2 + 1)),
    ],
)
def test_what_is_outside_is_kept(how: str, expected: list[float], penalty: float) -> None:
    seen, added = kept(BOX, how, np.array([[1.25, -3.0, 3.0, 9.0]]), weight=0.5)  # type: ignore[arg-type]
    assert seen.tolist() == [expected]
    assert added.tolist() == [penalty]


@pytest.mark.parametrize("how", ["clip", "reflect", "penalty"])
def test_what_is_inside_keeps_its_bits(how: str) -> None:
    inside = np.array([[0.1, 0.3, 0.7, -1e300], [1.0, -1.0, 2.0, 1e-300]])
    seen, added = kept(BOX, how, inside)  # type: ignore[arg-type]
    assert seen.tobytes() == inside.tobytes() and not added.any()


def test_a_ray_far_outside_is_folded_many_times() -> None:
    far = np.array([-0.25, 1.25, 2.5, 3.25, -7.5, 1e9 + 0.5])
    box = Bounds(np.zeros(6), np.ones(6))
    assert box.reflected(far).tolist() == [0.25, 0.75, 0.5, 0.75, 0.5, 0.5]


def test_one_that_is_reflected_never_leaves_the_box() -> None:
    box = Bounds(np.full(1000, 0.1), np.full(1000, 0.3))
    many = box.reflected(np.linspace(-50, 50, 1000))
    assert many.min() >= 0.1 and many.max() <= 0.3


def test_the_middle() -> None:
    assert BOX.middle().tolist() == [0.5, 0.0, 0.0, 0.0]
    assert Bounds(np.array([3.0]), np.array([INF])).middle().tolist() == [3.0]
