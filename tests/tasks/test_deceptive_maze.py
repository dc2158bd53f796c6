"""The deceptive maze: walls, rewards, and paths into and around the trap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest

from hpc_es.tasks.deceptive_maze import GAP, ROOF, SIDE

UP, DOWN, LEFT, RIGHT = (0, 1), (0, -1), (-1, 0), (1, 0)


def walk(*legs: tuple[Sequence[float], int]) -> tuple[float, float, float, bool, bool]:
    """The result of a number of steps in each direction: x, y, return,
    whether the episode is over.
    """
    environment: Any = gymnasium.make("hpc_es.tasks.deceptive_maze:DeceptiveMaze-v0")
    observed, info = environment.reset(seed=1)
    total, terminated, truncated = 0.0, False, False
    for direction, steps in legs:
        for _ in range(steps):
            observed, reward, terminated, truncated, info = environment.step(
                np.array(direction, np.float32)
            )
            total += float(reward)
            if terminated or truncated:
                break
    assert observed.tolist() == pytest.approx([info["x"], info["y"]], rel=1e-6)
    return info["x"], info["y"], total, terminated, truncated


def test_moving_straight_to_the_goal_ends_in_the_trap() -> None:
    """0.3 from the goal, which is 1.4 from the start."""
    x, y, total, terminated, truncated = walk((UP, 40))
    assert (x, y) == (0.0, ROOF - GAP)
    assert total == pytest.approx(1.1, abs=1e-5)
    assert truncated and not terminated


def test_walls_of_the_trap_stop_both_directions() -> None:
    assert walk((UP, 6), (LEFT, 10))[:2] == pytest.approx((-SIDE, 0.2), abs=1e-5)
    assert walk((RIGHT, 7), (UP, 6), (LEFT, 9))[:2] == pytest.approx((SIDE, 0.2), abs=1e-5)
    assert walk((RIGHT, 7), (UP, 8), (LEFT, 4), (DOWN, 9))[:2] == pytest.approx(
        (0.4, ROOF), abs=1e-5
    )


def test_path_around_the_trap_reaches_the_goal() -> None:
    """Right past the wall, up past the roof, back:
    the return is 1.4 minus the remaining distance.
    """
    x, y, total, terminated, truncated = walk((RIGHT, 6), (UP, 9), (LEFT, 15))
    assert (x, y) == pytest.approx((0.0, 0.65), abs=0.1)
    assert terminated and not truncated
    assert 1.3 < total <= 1.4


def test_border_of_the_maze_stops_the_agent() -> None:
    assert walk((LEFT, 15), (DOWN, 5))[:2] == (-1.0, -1.0)


def test_speed_of_the_agent_is_limited() -> None:
    assert walk(((9.0, 0.5), 1))[:2] == pytest.approx((0.15, -0.625))
