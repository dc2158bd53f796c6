"""A deceptive maze: every path to the goal first leads away from it.

    task: {env_id: "hpc_es.tasks.deceptive_maze:DeceptiveMaze-v0", behaviour: {info: [x, y]}}

      +-----------------+
      |        G        |     a point robot starts at S; its reward is the decrease
      |  +-----------+  |     of its distance to the goal G; the direct path ends at
      |  |           |  |     the roof of the trap, and the way out leads away from G
      |  |           |  |
      |        S        |
      +-----------------+

After Lehman and Stanley 2011. It observes its position, x and y, and chooses its velocity. Nothing
is random. The return is the initial distance to G minus the final one: 1.3 to 1.4 at the goal,
which ends the episode, and 1.1 below the roof.
"""

from __future__ import annotations

import math

import gymnasium
import numpy as np

from hpc_es.core.data import Array, Float32

NAME = "DeceptiveMaze-v0"
STEPS = 30
STEP_LENGTH = 0.15  # of a step at full speed, along each axis
START, GOAL, GOAL_RADIUS = (0.0, -0.7), (0.0, 0.7), 0.1
# the trap: a roof at y = 0.4 from x = -0.6 to 0.6, walls down to y = -0.2
ROOF, SIDE, BOTTOM = 0.4, 0.6, -0.2
SIDES, ROOFS = (-SIDE, SIDE), (ROOF,)
GAP = 1e-6  # between the robot and a wall that it touches


class DeceptiveMaze(gymnasium.Env):  # type: ignore[misc]
    """The maze in the square -1 .. 1.

    Observations are float32[2], actions float32[2] in -1 .. 1.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Float32, dict[str, object]]:
        """Move the robot to the start; return its position, float32[2]."""
        self._x, self._y = START
        return self._observation(), self._info()

    def step(self, action: Array) -> tuple[Float32, float, bool, bool, dict[str, object]]:
        """Move by `action`, float32[2], along x, then along y, up to a wall.

        The observation is the position, float32[2]; the reward is the decrease of the distance to
        the goal.
        """
        before = self._distance()
        dx, dy = (min(max(speed, -1.0), 1.0) * STEP_LENGTH for speed in np.asarray(action).tolist())
        self._x = _move(self._x, dx, SIDES if BOTTOM <= self._y <= ROOF else ())
        self._y = _move(self._y, dy, ROOFS if -SIDE <= self._x <= SIDE else ())
        after = self._distance()
        return self._observation(), before - after, after < GOAL_RADIUS, False, self._info()

    def _distance(self) -> float:
        return math.hypot(self._x - GOAL[0], self._y - GOAL[1])

    def _observation(self) -> Float32:
        return np.array((self._x, self._y), np.float32)

    def _info(self) -> dict[str, object]:
        return {"x": self._x, "y": self._y}


def _move(start: float, distance: float, walls: tuple[float, ...]) -> float:
    """Return a coordinate after a step, which ends at the border or before the first wall."""
    target = min(max(start + distance, -1.0), 1.0)
    for wall in walls:
        if start < wall <= target:
            target = wall - GAP
        elif target <= wall < start:
            target = wall + GAP
    return target


if NAME not in gymnasium.registry:
    gymnasium.register(
        NAME,
        "hpc_es.tasks.deceptive_maze:DeceptiveMaze",
        max_episode_steps=STEPS,
        order_enforce=False,
    )
