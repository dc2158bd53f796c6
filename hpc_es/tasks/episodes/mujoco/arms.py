"""Arms that reach for something: Reacher and Pusher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Float64
from hpc_es.tasks.episodes.mujoco.description import Description, State, Views, sums_of_squares


class Reacher(Description):
    """Distance of the fingertip from the target, and the control cost."""

    def views(self, data: Any) -> Views:
        """Add both places, and cosines and sines of the joints."""
        places = {"fingertip": data.body("fingertip").xpos, "target": data.body("target").xpos}
        return {**super().views(data), **places, "cos": np.zeros(2), "sin": np.zeros(2)}

    def derived(self, data: Any, views: Views) -> Callable[[], None]:
        """Compute cosines and sines."""
        angles, cos, sin = data.qpos[:2], views["cos"], views["sin"]

        def compute() -> None:
            np.cos(angles, out=cos)
            np.sin(angles, out=sin)

        return compute

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Draw joints, and a target in a circle."""
        qpos = rng.uniform(low=-0.1, high=0.1, size=self.setup.model.nq) + self.setup.qpos
        while True:
            goal = rng.uniform(low=-0.2, high=0.2, size=2)
            if np.linalg.norm(goal) < 0.2:
                break
        qpos[-2:] = goal
        qvel = self.setup.qvel + rng.uniform(low=-0.005, high=0.005, size=self.setup.model.nv)
        qvel[-2:] = 0
        return qpos, qvel

    def observations(self, s: State) -> tuple[Array, ...]:
        """Return the joints, the target, and the way to it."""
        return s.cos, s.sin, s.qpos[:, 2:], s.qvel[:, :2], (s.fingertip - s.target)[:, :2]

    def step(self, s: State, velocity: Any, actions: Array) -> tuple[Array, Array | None]:
        """Pay for being near."""
        o = self.options
        distance = -norms(s.fingertip - s.target) * o.reward_dist_weight
        return distance + -sums_of_squares(actions) * o.reward_control_weight, None


class Pusher(Description):
    """Distances of the arm from the object and of the object from its goal, and the control cost."""

    bodies = ("tips_arm", "object", "goal")

    def views(self, data: Any) -> Views:
        """Add the places of arm, object and goal."""
        return {**super().views(data), **{name: data.body(name).xpos for name in self.bodies}}

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Draw the object's place, not too near to the goal."""
        qpos = self.setup.qpos.copy()
        while True:
            place = np.concatenate([rng.uniform(low=-0.3, high=0, size=1), rng.uniform(low=-0.2, high=0.2, size=1)])
            if np.linalg.norm(place) > 0.17:
                break
        qpos[-4:-2], qpos[-2:] = place, 0
        qvel = self.setup.qvel + rng.uniform(low=-0.005, high=0.005, size=self.setup.model.nv)
        qvel[-4:] = 0
        return qpos, qvel

    def observations(self, s: State) -> tuple[Array, ...]:
        """Return the joints and the three places."""
        return s.qpos[:, :7], s.qvel[:, :7], s.tips_arm, s.object, s.goal

    def step(self, s: State, velocity: Any, actions: Array) -> tuple[Array, Array | None]:
        """Pay for being near."""
        o = self.options
        near = -norms(s.object - s.tips_arm) * o.reward_near_weight
        distance = -norms(s.object - s.goal) * o.reward_dist_weight
        return distance + -sums_of_squares(actions) * o.reward_control_weight + near, None


def norms(rows: Array) -> Array:
    """Return the length of each row as np.linalg.norm finds it."""
    lengths: Array = np.sqrt(np.vecdot(rows, rows))
    return lengths
