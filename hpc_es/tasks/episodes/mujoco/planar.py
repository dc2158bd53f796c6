"""Runners and a swimmer in a plane: HalfCheetah, Swimmer, Hopper and Walker2d."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_es.core.data import Array, Float64
from hpc_es.tasks.episodes.mujoco.description import Description, State, within


class HalfCheetah(Description):
    """Speed less the control cost; it never terminates."""

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Draw positions and velocities."""
        return self.uniform_normal_reset(rng)

    def position(self, s: State) -> Array:
        """Return x."""
        return first(s)

    def observations(self, s: State) -> tuple[Array, ...]:
        """Return positions and velocities."""
        return self.positions(s, 1), s.qvel

    def step(self, s: State, velocity: Any, actions: Array) -> tuple[Array, Array | None]:
        """Pay for speed."""
        return self.options.forward_reward_weight * velocity - self.control_cost(actions), None


class Swimmer(HalfCheetah):
    """Speed along x less the control cost, as HalfCheetah's; it never terminates."""

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Draw positions and velocities."""
        return self.uniform_reset(rng)

    def observations(self, s: State) -> tuple[Array, ...]:
        """Return positions and velocities."""
        return self.positions(s, 2), s.qvel


class Walker2d(Description):
    """Speed, and a reward for being healthy: height and angle in their ranges."""

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Draw positions and velocities."""
        return self.uniform_reset(rng)

    def position(self, s: State) -> Array:
        """Return x."""
        return first(s)

    def observations(self, s: State) -> tuple[Array, ...]:
        """Return positions and clipped velocities."""
        return self.positions(s, 1), np.clip(s.qvel, -10, 10)

    def step(self, s: State, velocity: Any, actions: Array) -> tuple[Array, Array | None]:
        """Pay for speed and health."""
        return run(self, s, velocity, actions, stands(self, s))


class Hopper(Walker2d):
    """Speed, and a reward for being healthy: height, angle and all numbers but x in their ranges."""

    def step(self, s: State, velocity: Any, actions: Array) -> tuple[Array, Array | None]:
        """Pay for speed and health."""
        limits = self.options.healthy_state_range
        within_limits = within(limits, s.qpos[:, 2:]).all(axis=1) & within(limits, s.qvel).all(axis=1)
        return run(self, s, velocity, actions, within_limits & stands(self, s))


def first(s: State) -> Array:
    """Return the first position of each row."""
    x: Array = s.qpos[:, 0]
    return x


def stands(its: Description, s: State) -> Array:
    """Return which rows have height and angle in their ranges."""
    o = its.options
    return within(o.healthy_z_range, s.qpos[:, 1]) & within(o.healthy_angle_range, s.qpos[:, 2])


def run(its: Description, s: State, velocity: Any, actions: Array, healthy: Array) -> tuple[Array, Array | None]:
    """Pay for speed and health."""
    rewards = its.options.forward_reward_weight * velocity + healthy * its.options.healthy_reward
    return rewards - its.control_cost(actions), its.ends(healthy)
