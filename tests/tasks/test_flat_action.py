"""FlatAction: actions of other shapes and kinds from vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from hpc_es.tasks.flat_action import FlatAction
from tests.helpers.odd_values import Spacious


@pytest.mark.parametrize(
    ("space", "flat", "action", "expected"),
    [
        (
            spaces.Box(-1, 1, (2, 2)),
            "Box(-1.0, 1.0, (4,), float32)",
            [1, 0, -1, 0.5],
            [[1, 0], [-1, 0.5]],
        ),
        (spaces.Box(-1, 1, ()), "Box(-1.0, 1.0, (1,), float32)", [0.5], 0.5),
        (spaces.Box(-2, 5, (2,), np.int64), "MultiDiscrete([8 8])", [0, 7], [-2, 5]),
        (spaces.MultiBinary((2, 2)), "MultiDiscrete([2 2 2 2])", [1, 0, 0, 1], [[1, 0], [0, 1]]),
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), "MultiDiscrete([2 3])", [1, 0], [2, -1]),
        (spaces.MultiDiscrete([[2], [4]]), "MultiDiscrete([2 4])", [1, 3], [[1], [3]]),
    ],
    ids=str,
)
def test_action_has_the_shape_and_dtype_of_the_environment(
    space: Any, flat: str, action: Any, expected: Any
) -> None:
    wrapper = FlatAction(Spacious(actions=space))
    assert str(wrapper.action_space) == flat
    converted = wrapper.action(np.array(action))
    assert (
        converted.tolist() == expected
        and converted.dtype == space.dtype
        and space.contains(converted)
    )


@pytest.mark.parametrize(
    "space", [spaces.Text(3), spaces.Box(0, 20_000, (1,), np.int64), spaces.Discrete(2)], ids=str
)
def test_other_spaces_are_refused(space: Any) -> None:
    with pytest.raises(
        ValueError, match="expected a Box, MultiBinary or MultiDiscrete action space"
    ):
        FlatAction(Spacious(actions=space))
