"""Ant: four legs, which observe and pay for contact forces."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_es.core.data import Array, Float64
from hpc_es.tasks.episodes.mujoco.description import Description, State, Views, sums_of_squares


class Ant(Description):
    """Speed of the main body and health, less the costs of control and contact."""

    @property
    def needs_contact_forces(self) -> bool:
        """They are paid for, unless they cost nothing, and observed."""
        o = self.options
        return bool(o.include_cfrc_ext_in_observation or o.contact_cost_weight != 0)

    def views(self, data: Any) -> Views:
        """Add the contact forces and the place of the main body."""
        place = data.body(self.options.main_body).xpos[:2]
        return {**super().views(data), "cfrc_ext": data.cfrc_ext.reshape(-1), "place": place}

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Draw positions and velocities."""
        return self.uniform_normal_reset(rng)

    def position(self, s: State) -> Array:
        """Return x of the main body."""
        x: Array = s.place[:, 0]
        return x

    def contact_forces(self, s: State) -> Array:
        """Return them clipped, [rows, bodies * 6]."""
        forces: Array = np.clip(s.cfrc_ext, *self.options.contact_force_range)
        return forces

    def observations(self, s: State) -> tuple[Array, ...]:
        """Return positions, velocities and the contact forces of all bodies but the world."""
        o = self.options
        seen = self.positions(s, 2), s.qvel
        return (*seen, self.contact_forces(s)[:, 6:]) if o.include_cfrc_ext_in_observation else seen

    def step(self, s: State, velocity: Any, actions: Array) -> tuple[Array, Array | None]:
        """Pay for speed and health."""
        o, z = self.options, s.qpos[:, 2]
        low, high = o.healthy_z_range
        finite = np.isfinite(s.qpos).all(axis=1) & np.isfinite(s.qvel).all(axis=1)
        healthy = finite & (low <= z) & (z <= high)
        rewards = velocity * o.forward_reward_weight + healthy * o.healthy_reward
        contact_cost = o.contact_cost_weight * sums_of_squares(self.contact_forces(s))
        return rewards - (self.control_cost(actions) + contact_cost), self.ends(healthy)
