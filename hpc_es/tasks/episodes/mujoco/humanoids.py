"""Humanoid and HumanoidStandup, which observe and pay for contact forces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Float64
from hpc_es.tasks.episodes.mujoco.description import Description, State, Views, sums_of_squares, within


class Humanoid(Description):
    """Speed of the centre of mass and health, less the costs of control and contact."""

    @property
    def needs_contact_forces(self) -> bool:
        """They are observed or paid for."""
        return bool(self.options.include_cfrc_ext_in_observation or self.options.contact_cost_weight != 0)

    def views(self, data: Any) -> Views:
        """Add x of the centre of mass."""
        return {**_views(data), "centre": np.zeros(1)}

    def derived(self, data: Any, views: Views) -> Callable[[], None]:
        """Compute the centre of mass."""
        mass, places, centre = self.setup.model.body_mass, data.xipos, views["centre"]
        total = mass.sum()

        def compute() -> None:
            centre[0] = np.einsum("b,bj->j", mass, places)[0] / total

        return compute

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Draw positions and velocities."""
        return self.uniform_reset(rng)

    def position(self, s: State) -> Array:
        """Return x of the centre of mass."""
        x: Array = s.centre[:, 0]
        return x

    def observations(self, s: State) -> tuple[Array, ...]:
        """Return positions, velocities and what is included."""
        return self.positions(s, 2), s.qvel, *_included(self.options, s)

    def step(self, s: State, velocity: Any, actions: Array) -> tuple[Array, Array | None]:
        """Pay for speed and health."""
        o, healthy = self.options, within(self.options.healthy_z_range, s.qpos[:, 2])
        rewards = o.forward_reward_weight * velocity + healthy * o.healthy_reward
        contact_cost = np.clip(o.contact_cost_weight * sums_of_squares(s.cfrc_ext), *o.contact_cost_range)
        return rewards - (self.control_cost(s.ctrl) + contact_cost), self.ends(healthy)


class HumanoidStandup(Description):
    """Height over the time step, less the costs of control and impact; it never terminates."""

    @property
    def needs_contact_forces(self) -> bool:
        """They are observed or paid for."""
        return bool(self.options.include_cfrc_ext_in_observation or self.options.impact_cost_weight != 0)

    def views(self, data: Any) -> Views:
        """Add what is paid for and what is observed."""
        return _views(data)

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Draw positions and velocities."""
        return self.uniform_reset(rng)

    def observations(self, s: State) -> tuple[Array, ...]:
        """Return positions, velocities and what is included."""
        return self.positions(s, 2), s.qvel, *_included(self.options, s)

    def step(self, s: State, velocity: Any, actions: Array) -> tuple[Array, Array | None]:
        """Pay for height."""
        o = self.options
        height = (s.qpos[:, 2] - 0) / self.setup.model.opt.timestep
        impact_cost = np.clip(o.impact_cost_weight * sums_of_squares(s.cfrc_ext), *o.impact_cost_range)
        return height - self.control_cost(s.ctrl) - impact_cost + 1, None


def _views(data: Any) -> Views:
    return {
        "qpos": data.qpos,
        "qvel": data.qvel,
        "ctrl": data.ctrl,  # MuJoCo's own, which are 0 after it has reset a bad state
        "cinert": data.cinert.reshape(-1),
        "cvel": data.cvel.reshape(-1),
        "qfrc_actuator": data.qfrc_actuator,
        "cfrc_ext": data.cfrc_ext.reshape(-1),
    }


def _included(options: Any, s: State) -> list[Array]:
    """Return what is observed of all bodies but the world, and of all joints but the root."""
    parts = {
        "cinert": s.cinert[:, 10:],
        "cvel": s.cvel[:, 6:],
        "qfrc_actuator": s.qfrc_actuator[:, 6:],
        "cfrc_ext": s.cfrc_ext[:, 6:],
    }
    return [part for name, part in parts.items() if getattr(options, f"include_{name}_in_observation")]
