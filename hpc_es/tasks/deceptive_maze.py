"""A maze that deceives: the way to the goal leads away from it (after the experiments of Lehman & Stanley 2011).

    task: {env_id: "hpc_es.tasks.deceptive_maze:DeceptiveMaze-v0", behaviour: {info: [x, y]}}

      +-----------------+
      |        G        |     a point robot starts at S and is paid for what it comes nearer to the goal G;
      |  +-----------+  |     the straight way ends at the roof of the trap, from where each way on leads away from G
      |  |           |  |
      |  |           |  |
      |        S        |
      +-----------------+

It observes its place, x and y, and chooses its velocity. Nothing is random. The return is the distance of S and G less
the distance of the end and G: 1.3 to 1.4 at the goal, which ends the episode, and 1.1 below the roof.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np

from hpc_es.core.data import Array, Float32

NAME = "DeceptiveMaze-v0"
STEPS = 30
REACH = 0.15  # of a step at full speed, along each axis
START, GOAL, GOAL_RADIUS = (0.0, -0.7), (0.0, 0.7), 0.1
ROOF, SIDE, BOTTOM = 0.4, 0.6, -0.2  # the trap: a roof at y = 0.4 from x = -0.6 to 0.6, walls down to y = -0.2
GAP = 1e-6  # between the robot and a wall that it touches


class DeceptiveMaze(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """The square -1 .. 1 with the trap; observations are float32[2], actions float32[2] in -1 .. 1."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float32, dict[str, Any]]:
        """Go to the start."""
        self._x, self._y = START
        return self._observed(), self._info()

    def step(self, action: Array) -> tuple[Float32, float, bool, bool, dict[str, Any]]:
        """Move along x, then along y, each as far as a wall allows; the reward is by how much the goal is nearer."""
        before = self._distance()
        dx, dy = (min(max(each, -1.0), 1.0) * REACH for each in np.asarray(action).tolist())
        self._x = _moved(self._x, dx, SIDES, BOTTOM <= self._y <= ROOF)
        self._y = _moved(self._y, dy, ROOFS, -SIDE <= self._x <= SIDE)
        after = self._distance()
        return self._observed(), before - after, after < GOAL_RADIUS, False, self._info()

    def _distance(self) -> float:
        return math.hypot(self._x - GOAL[0], self._y - GOAL[1])

    def _observed(self) -> Float32:
        return np.array((self._x, self._y), np.float32)

    def _info(self) -> dict[str, Any]:
        return {"x": self._x, "y": self._y}


SIDES, ROOFS = (-SIDE, SIDE), (ROOF,)


def _moved(place: float, by: float, walls: tuple[float, ...], is_between: bool) -> float:
    """Return a coordinate after a step, which ends at the border or, where there are walls, before the first one."""
    target = min(max(place + by, -1.0), 1.0)
    for wall in walls if is_between else ():
        if place < wall <= target:
            target = wall - GAP
        elif target <= wall < place:
            target = wall + GAP
    return target


if NAME not in gymnasium.registry:
    gymnasium.register(NAME, "hpc_es.tasks.deceptive_maze:DeceptiveMaze", max_episode_steps=STEPS, order_enforce=False)
