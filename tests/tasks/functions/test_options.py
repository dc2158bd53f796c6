"""Options of functions: bounds, named parameters and their scales."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_es.tasks.functions.options import (
    Bounds,
    Coordinates,
    apply_bounds,
    limits,
    named_coordinates,
)
from hpc_es.tasks.functions.parameters import ParameterScale

INF = np.inf
BOX = Bounds(np.array([0.0, -1.0, -INF, -INF]), np.array([1.0, INF, 2.0, INF]))


@pytest.mark.parametrize(
    ("how", "expected", "penalty"),
    [
        ("clip", [1.0, -1.0, 2.0, 9.0], 0.0),
        # 1.25 -> 0.75, -3 -> 1 at the bound -1, 3 -> 1 at the bound 2
        ("reflect", [0.75, 1.0, 1.0, 9.0], 0.0),
        ("penalty", [1.0, -1.0, 2.0, 9.0], 0.5 * (0.25**2 + 2**2 + 1)),
    ],
)
def test_vectors_outside_the_bounds_are_moved_inside(
    how: str, expected: list[float], penalty: float
) -> None:
    observed, added = apply_bounds(BOX, how, np.array([[1.25, -3.0, 3.0, 9.0]]), weight=0.5)  # type: ignore[arg-type]
    assert observed.tolist() == [expected]
    assert added.tolist() == [penalty]


@pytest.mark.parametrize("how", ["clip", "reflect", "penalty"])
def test_vectors_inside_the_bounds_are_unchanged(how: str) -> None:
    inside = np.array([[0.1, 0.3, 0.7, -1e300], [1.0, -1.0, 2.0, 1e-300]])
    observed, added = apply_bounds(BOX, how, inside)  # type: ignore[arg-type]
    assert observed.tobytes() == inside.tobytes() and not added.any()


def test_reflection_of_vectors_far_outside_the_bounds() -> None:
    far = np.array([-0.25, 1.25, 2.5, 3.25, -7.5, 1e9 + 0.5])
    box = Bounds(np.zeros(6), np.ones(6))
    assert box.reflected(far).tolist() == [0.25, 0.75, 0.5, 0.75, 0.5, 0.5]


def test_reflected_vectors_are_within_the_bounds() -> None:
    box = Bounds(np.full(1000, 0.1), np.full(1000, 0.3))
    many = box.reflected(np.linspace(-50, 50, 1000))
    assert many.min() >= 0.1 and many.max() <= 0.3


def test_transform_is_quadratic_at_the_bounds_and_turns_beyond_them() -> None:
    """Quadratic within 1/20 of the range, or (1 + |bound|)/20 at a single bound: 0.05,
    0.1 and 0.15.
    """
    far, _ = apply_bounds(BOX, "transform", np.array([[1.25, -3.0, 3.0, 9.0]]))
    # turned at 1.05, -1.1 and 2.15
    assert far[0] == pytest.approx([2.1 - 1.25, -2.2 + 3, 4.3 - 3, 9])
    near, _ = apply_bounds(
        BOX, "transform", np.array([[0.0, -1.1, 1.85, 0.0], [1.05, -1.0, 2.0, 0.0]])
    )
    assert near == pytest.approx(
        np.array([[0.05**2 / 0.2, -1, 1.85, 0], [1, -1 + 0.1**2 / 0.4, 2 - 0.15**2 / 0.6, 0]])
    )
    steps, _ = apply_bounds(BOX, "transform", np.array([[0.06, 0.0, 0.0, 0.0]]) + np.zeros((3, 4)))
    assert (steps[:, 0] == 0.06).all()


def test_transform_is_continuous_stays_inside_and_has_an_inverse() -> None:
    box = Bounds(np.full(4001, 0.1), np.full(4001, 0.3))
    many = np.linspace(-1, 1, 4001)
    values = box.transformed(many)
    assert values.min() >= 0.1 and values.max() <= 0.3
    assert np.abs(np.diff(values)).max() <= 1.001 * (many[1] - many[0])  # the slope is at most 1
    inside = np.linspace(0.1, 0.3, 4001)
    assert box.transformed(box.inverse(inside)) == pytest.approx(inside, abs=1e-15)


def test_initial_vector_is_evaluated_where_the_user_wants_it_with_a_transform() -> None:
    coordinates = Coordinates(4, BOX, "transform")
    first = np.array([0.01, -0.95, 2.0, 3.0])
    observed, _ = coordinates.to_objective(coordinates.to_search(first)[np.newaxis])
    assert observed[0] == pytest.approx(first, abs=1e-15)


def test_middle_of_the_bounds_is_finite() -> None:
    assert BOX.middle().tolist() == [0.5, 0.0, 0.0, 0.0]
    assert Bounds(np.array([3.0]), np.array([INF])).middle().tolist() == [3.0]


RANGES = {
    "learning_rate": ParameterScale(1e-5, 1e-1, is_log=True),
    "momentum": ParameterScale(-1.0, 3.0),
}


def test_parameters_are_scaled_linearly_and_logarithmically() -> None:
    observed, _ = named_coordinates(RANGES, "clip", 1.0).to_objective(
        np.array([[0.5, 0.25], [0.0, 1.0], [-1.0, 2.0]])
    )
    assert observed == pytest.approx(np.array([[1e-3, 0.0], [1e-5, 3.0], [1e-5, 3.0]]))
    assert observed[1:].tolist() == [[1e-5, 3.0], [1e-5, 3.0]]  # exactly the bounds


def test_scaled_parameters_map_back_to_the_vector() -> None:
    coordinates = named_coordinates(RANGES, "reflect", 1.0)
    assert coordinates.to_search(np.array([1e-2, 2.0])) == pytest.approx([0.75, 0.75])
    assert coordinates.names == ("learning_rate", "momentum")
    assert coordinates.decoded(np.array([0.1, 2.0])) == [0.1, 2.0]


def test_scaled_values_are_within_their_range() -> None:
    one = ParameterScale(0.1, 0.3, is_log=True)
    values = [one.value(unit) for unit in np.linspace(0, 1, 1001)]
    assert min(values) == 0.1 and max(values) == 0.3
    # exp(log(0.026)) is less
    assert ParameterScale(0.026, 2.74, is_log=True).value(5e-324) == 0.026


def test_coordinates_without_names_pass_the_vector_through() -> None:
    vectors = np.array([[1e300, -0.1]])
    observed, penalties = Coordinates(2).to_objective(vectors)
    assert observed is vectors and penalties.tolist() == [0.0]
    assert Coordinates(2).names == ("x0", "x1")


def test_limits_are_per_coordinate_or_for_all() -> None:
    assert limits(None, 2, -np.inf).tolist() == [-np.inf, -np.inf]
    assert limits(3, 2, np.inf).tolist() == [3.0, 3.0]
    assert limits((1.0, None), 2, np.inf).tolist() == [1.0, np.inf]
    with pytest.raises(ValueError, match="expected 2 numbers, one for each coordinate, found 3"):
        limits((1.0, 2.0, 3.0), 2, np.inf)
