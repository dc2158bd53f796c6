"""Poles on a cart: InvertedPendulum and InvertedDoublePendulum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Float64
from hpc_es.tasks.episodes.mujoco.description import Description, State, Views


class InvertedPendulum(Description):
    """A reward of 1 until the pole leans too far."""

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Draw positions and velocities."""
        return self.uniform_reset(rng)

    def step(self, s: State, velocity: Any, actions: Array) -> tuple[Array, Array | None]:
        """Pay for standing."""
        finite = np.isfinite(s.qpos).all(axis=1) & np.isfinite(s.qvel).all(axis=1)
        stands = finite & ~(np.abs(s.qpos[:, 1]) > 0.2)
        return stands.astype(np.float64), ~stands


class InvertedDoublePendulum(Description):
    """A reward for standing, less what the tip is off its place and the poles' velocities."""

    def views(self, data: Any) -> Views:
        """Add the tip, the first constraint force, sines and cosines of the angles, and the penalties."""
        numbers = self.setup.model.nq - 1
        own = {"sin": np.zeros(numbers), "cos": np.zeros(numbers), "penalties": np.zeros(2)}
        return {**super().views(data), "tip": data.site_xpos[0], "force": data.qfrc_constraint[:1], **own}

    def derived(self, data: Any, views: Views) -> Callable[[], None]:
        """Compute sines, cosines and penalties."""
        angles, tip, velocities = data.qpos[1:], views["tip"], data.qvel[1:3]
        sin, cos, penalties = views["sin"], views["cos"], views["penalties"]

        def compute() -> None:
            np.sin(angles, out=sin)
            np.cos(angles, out=cos)
            (x, _, y), (v1, v2) = tip, velocities
            penalties[0] = 0.01 * x**2 + (y - 2) ** 2
            penalties[1] = 1e-3 * v1**2 + 5e-3 * v2**2

        return compute

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Draw positions and velocities."""
        return self.uniform_normal_reset(rng)

    def observations(self, s: State) -> tuple[Array, ...]:
        """Return the cart, the angles, clipped velocities and the clipped force."""
        return s.qpos[:, :1], s.sin, s.cos, np.clip(s.qvel, -10, 10), np.clip(s.force, -10, 10)

    def step(self, s: State, velocity: Any, actions: Array) -> tuple[Array, Array | None]:
        """Pay for standing upright and still."""
        fallen = s.tip[:, 2] <= 1
        alive = self.options.healthy_reward * (~fallen).astype(np.int64)
        return alive - s.penalties[:, 0] - s.penalties[:, 1], fallen
