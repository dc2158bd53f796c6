"""The MuJoCo environments, as in Gymnasium's -v5.

They have observations, rewards, terminations and random initial states. The formulas are computed
for all rows at once and must be bit-identical to Gymnasium's, which are computed for one
environment:

- elementwise sums, differences, products and squares do not depend on the number of rows, nor do
  sums along a contiguous axis;
- `np.vecdot` calls the same dot product per row as `np.linalg.norm` of a vector; a sum of squares
  does not;
- `np.sin`, `np.cos` and `np.einsum` may depend on the position in the array, and `scalar ** 2` is
  not `array ** 2`: such numbers are computed per MjData (`derived`), with the operations and array
  sizes of Gymnasium;
- actions are float32, and so are their squares, sums and costs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hpc_es.core.data import Array, Float64, Keywords

if TYPE_CHECKING:
    import mujoco

# a namespace of the description's views with a row per job: float64[rows, numbers]
State: TypeAlias = Any
Velocity: TypeAlias = Any  # float64[rows] if `position` returns an array, else None
Views: TypeAlias = dict[str, Float64]  # one-dimensional views of an MjData's memory by name


@dataclass(frozen=True)
class Setup:
    """A MuJoCo model and the keywords of its environment."""

    options: Keywords  # all keywords, with defaults
    model: mujoco.MjModel
    qpos: Float64  # of a new MjData, like qvel
    qvel: Float64
    step_seconds: float


class Description(ABC):
    """Base class of the environments: defaults for all methods except `step` and `reset`."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.options = SimpleNamespace(**setup.options)

    @property
    def needs_contact_forces(self) -> bool:
        """Whether mj_rnePostConstraint is called after a step, for cfrc_ext."""
        return False

    def views(self, data: mujoco.MjData) -> Views:
        """Return the arrays of an MjData that the formulas use."""
        return {"qpos": data.qpos, "qvel": data.qvel}

    def derived(self, data: mujoco.MjData, views: Views) -> Callable[[], None] | None:
        """Return a function that computes the views that MuJoCo does not have.

        It is called after each step and reset.
        """
        return None

    @abstractmethod
    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Return qpos [nq] and qvel [nv] at the start of an episode."""

    def position(self, s: State) -> Array | None:
        """Return the position whose velocity `step` gets, float64[rows]; None:
        it gets no velocity.
        """
        return None

    def observations(self, s: State) -> tuple[Array, ...]:
        """Return the parts of the observations, each [rows, numbers]."""
        return s.qpos, s.qvel

    @abstractmethod
    def step(self, s: State, velocity: Velocity, actions: Array) -> tuple[Array, Array | None]:
        """Return the rewards and which episodes terminated (None: none), each [rows].

        `actions` are contiguous.
        """

    # Parts that several environments share.

    def uniform(self, rng: np.random.Generator, size: int) -> Float64:
        """Return uniform reset noise, float64[size]."""
        scale = self.options.reset_noise_scale
        return rng.uniform(low=-scale, high=scale, size=size)

    def uniform_reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Return qpos, float64[nq], and qvel, float64[nv], with uniform noise."""
        qpos = self.setup.qpos + self.uniform(rng, self.setup.model.nq)
        return qpos, self.setup.qvel + self.uniform(rng, self.setup.model.nv)

    def uniform_normal_reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Return qpos, float64[nq], with uniform noise and qvel, float64[nv], with normal noise."""
        qpos = self.setup.qpos + self.uniform(rng, self.setup.model.nq)
        return qpos, self.setup.qvel + self.options.reset_noise_scale * rng.standard_normal(
            self.setup.model.nv
        )

    def positions(self, s: State, skipped: int) -> Array:
        """Return qpos, float64[rows, nq], without the first `skipped` elements.

        They are part of it if the environment includes them.
        """
        excluded = self.options.exclude_current_positions_from_observation
        positions: Array = s.qpos[:, skipped if excluded else 0 :]
        return positions

    def control_cost(self, actions: Array) -> Array:
        """Return the control cost, float32[rows]."""
        cost: Array = self.options.ctrl_cost_weight * sums_of_squares(actions)
        return cost

    def ends(self, healthy: Array) -> Array | None:
        """Return which episodes terminate because they are not healthy, bool[rows]; None:
        none can.
        """
        return ~healthy if self.options.terminate_when_unhealthy else None


def sums_of_squares(rows: Array) -> Array:
    """Return the sum of squares of each row, [rows]."""
    total: Array = np.sum(np.square(rows), axis=1)
    return total


def within(limits: Sequence[float], values: Array) -> Array:
    """Return which values are between low and high, excluding both and NaN.

    The shape is that of `values`.
    """
    low, high = limits
    inside: Array = (low < values) & (values < high)
    return inside


class InvertedPendulum(Description):
    """InvertedPendulum-v5: a reward of 1 per step until the pole leans too far."""

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        return self.uniform_reset(rng)

    def step(self, s: State, velocity: Velocity, actions: Array) -> tuple[Array, Array | None]:
        finite = np.isfinite(s.qpos).all(axis=1) & np.isfinite(s.qvel).all(axis=1)
        upright = finite & ~(np.abs(s.qpos[:, 1]) > 0.2)
        return upright.astype(np.float64), ~upright


class InvertedDoublePendulum(Description):
    """InvertedDoublePendulum-v5: a reward for standing, minus two penalties.

    They are for the tip's distance and the velocities.
    """

    def views(self, data: mujoco.MjData) -> Views:
        numbers = self.setup.model.nq - 1
        own = {"sin": np.zeros(numbers), "cos": np.zeros(numbers), "penalties": np.zeros(2)}
        return {
            **super().views(data),
            "tip": data.site_xpos[0],
            "force": data.qfrc_constraint[:1],
            **own,
        }

    def derived(self, data: mujoco.MjData, views: Views) -> Callable[[], None]:
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
        return self.uniform_normal_reset(rng)

    def observations(self, s: State) -> tuple[Array, ...]:
        return s.qpos[:, :1], s.sin, s.cos, np.clip(s.qvel, -10, 10), np.clip(s.force, -10, 10)

    def step(self, s: State, velocity: Velocity, actions: Array) -> tuple[Array, Array | None]:
        fallen = s.tip[:, 2] <= 1
        alive = self.options.healthy_reward * (~fallen).astype(np.int64)
        return alive - s.penalties[:, 0] - s.penalties[:, 1], fallen


class HalfCheetah(Description):
    """HalfCheetah-v5: forward velocity minus the control cost; it never terminates."""

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        return self.uniform_normal_reset(rng)

    def position(self, s: State) -> Array:
        return x_position(s)

    def observations(self, s: State) -> tuple[Array, ...]:
        return self.positions(s, 1), s.qvel

    def step(self, s: State, velocity: Velocity, actions: Array) -> tuple[Array, Array | None]:
        return self.options.forward_reward_weight * velocity - self.control_cost(actions), None


class Swimmer(HalfCheetah):
    """Swimmer-v5: velocity along x minus the control cost; it never terminates."""

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        return self.uniform_reset(rng)

    def observations(self, s: State) -> tuple[Array, ...]:
        return self.positions(s, 2), s.qvel


class Walker2d(Description):
    """Walker2d-v5: forward velocity, plus a reward while height and angle are in their ranges."""

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        return self.uniform_reset(rng)

    def position(self, s: State) -> Array:
        return x_position(s)

    def observations(self, s: State) -> tuple[Array, ...]:
        return self.positions(s, 1), np.clip(s.qvel, -10, 10)

    def step(self, s: State, velocity: Velocity, actions: Array) -> tuple[Array, Array | None]:
        return locomotion_step(self, s, velocity, actions, is_upright(self, s))


class Hopper(Walker2d):
    """Hopper-v5: forward velocity, plus a reward while the state is in its ranges.

    These are ranges of height, angle and all state but x.
    """

    def step(self, s: State, velocity: Velocity, actions: Array) -> tuple[Array, Array | None]:
        limits = self.options.healthy_state_range
        within_limits = within(limits, s.qpos[:, 2:]).all(axis=1) & within(limits, s.qvel).all(
            axis=1
        )
        return locomotion_step(self, s, velocity, actions, within_limits & is_upright(self, s))


def x_position(s: State) -> Array:
    """Return the first position of each row, float64[rows]."""
    x: Array = s.qpos[:, 0]
    return x


def is_upright(environment: Description, s: State) -> Array:
    """Return which rows have height and angle in their ranges, bool[rows]."""
    o = environment.options
    return within(o.healthy_z_range, s.qpos[:, 1]) & within(o.healthy_angle_range, s.qpos[:, 2])


def locomotion_step(
    environment: Description, s: State, velocity: Velocity, actions: Array, healthy: Array
) -> tuple[Array, Array | None]:
    """Return the rewards for velocity and health, and which episodes terminated, each [rows]."""
    o = environment.options
    rewards = o.forward_reward_weight * velocity + healthy * o.healthy_reward
    return rewards - environment.control_cost(actions), environment.ends(healthy)


class Ant(Description):
    """Ant-v5: velocity of the main body and health, minus the costs of control and contact."""

    @property
    def needs_contact_forces(self) -> bool:
        o = self.options
        return bool(o.include_cfrc_ext_in_observation or o.contact_cost_weight != 0)

    def views(self, data: mujoco.MjData) -> Views:
        main_body = data.body(self.options.main_body).xpos[:2]
        return {
            **super().views(data),
            "cfrc_ext": data.cfrc_ext.reshape(-1),
            "main_body": main_body,
        }

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        return self.uniform_normal_reset(rng)

    def position(self, s: State) -> Array:
        x: Array = s.main_body[:, 0]
        return x

    def contact_forces(self, s: State) -> Array:
        """Return the clipped contact forces, float64[rows, bodies * 6]."""
        forces: Array = np.clip(s.cfrc_ext, *self.options.contact_force_range)
        return forces

    def observations(self, s: State) -> tuple[Array, ...]:
        parts = self.positions(s, 2), s.qvel
        if not self.options.include_cfrc_ext_in_observation:
            return parts
        return *parts, self.contact_forces(s)[:, 6:]  # without those of the world body

    def step(self, s: State, velocity: Velocity, actions: Array) -> tuple[Array, Array | None]:
        o, z = self.options, s.qpos[:, 2]
        low, high = o.healthy_z_range
        finite = np.isfinite(s.qpos).all(axis=1) & np.isfinite(s.qvel).all(axis=1)
        healthy = finite & (low <= z) & (z <= high)
        rewards = velocity * o.forward_reward_weight + healthy * o.healthy_reward
        contact_cost = o.contact_cost_weight * sums_of_squares(self.contact_forces(s))
        return rewards - (self.control_cost(actions) + contact_cost), self.ends(healthy)


class Humanoid(Description):
    """Humanoid-v5: velocity of the centre of mass and health, minus costs.

    These are the costs of control and contact.
    """

    @property
    def needs_contact_forces(self) -> bool:
        return bool(
            self.options.include_cfrc_ext_in_observation or self.options.contact_cost_weight != 0
        )

    def views(self, data: mujoco.MjData) -> Views:
        return {**_humanoid_views(data), "centre": np.zeros(1)}

    def derived(self, data: mujoco.MjData, views: Views) -> Callable[[], None]:
        mass, positions, centre = self.setup.model.body_mass, data.xipos, views["centre"]
        total = mass.sum()

        def compute() -> None:
            centre[0] = np.einsum("b,bj->j", mass, positions)[0] / total

        return compute

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        return self.uniform_reset(rng)

    def position(self, s: State) -> Array:
        x: Array = s.centre[:, 0]
        return x

    def observations(self, s: State) -> tuple[Array, ...]:
        return self.positions(s, 2), s.qvel, *_included_parts(self.options, s)

    def step(self, s: State, velocity: Velocity, actions: Array) -> tuple[Array, Array | None]:
        o, healthy = self.options, within(self.options.healthy_z_range, s.qpos[:, 2])
        rewards = o.forward_reward_weight * velocity + healthy * o.healthy_reward
        contact_cost = np.clip(
            o.contact_cost_weight * sums_of_squares(s.cfrc_ext), *o.contact_cost_range
        )
        return rewards - (self.control_cost(s.ctrl) + contact_cost), self.ends(healthy)


class HumanoidStandup(Description):
    """HumanoidStandup-v5: height over timestep, minus the costs of control and impact.

    It never terminates.
    """

    @property
    def needs_contact_forces(self) -> bool:
        return bool(
            self.options.include_cfrc_ext_in_observation or self.options.impact_cost_weight != 0
        )

    def views(self, data: mujoco.MjData) -> Views:
        return _humanoid_views(data)

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        return self.uniform_reset(rng)

    def observations(self, s: State) -> tuple[Array, ...]:
        return self.positions(s, 2), s.qvel, *_included_parts(self.options, s)

    def step(self, s: State, velocity: Velocity, actions: Array) -> tuple[Array, Array | None]:
        o = self.options
        height = (s.qpos[:, 2] - 0) / self.setup.model.opt.timestep
        impact_cost = np.clip(
            o.impact_cost_weight * sums_of_squares(s.cfrc_ext), *o.impact_cost_range
        )
        return height - self.control_cost(s.ctrl) - impact_cost + 1, None


def _humanoid_views(data: mujoco.MjData) -> Views:
    return {
        "qpos": data.qpos,
        "qvel": data.qvel,
        "ctrl": data.ctrl,  # 0 after MuJoCo has reset an unstable state
        "cinert": data.cinert.reshape(-1),
        "cvel": data.cvel.reshape(-1),
        "qfrc_actuator": data.qfrc_actuator,
        "cfrc_ext": data.cfrc_ext.reshape(-1),
    }


def _included_parts(options: SimpleNamespace, s: State) -> list[Array]:
    """Return the optional observations, without the world body and the root joint."""
    parts = {
        "cinert": s.cinert[:, 10:],
        "cvel": s.cvel[:, 6:],
        "qfrc_actuator": s.qfrc_actuator[:, 6:],
        "cfrc_ext": s.cfrc_ext[:, 6:],
    }
    return [
        part for name, part in parts.items() if getattr(options, f"include_{name}_in_observation")
    ]


class Reacher(Description):
    """Reacher-v5: negative distance of the fingertip from the target, minus the control cost."""

    def views(self, data: mujoco.MjData) -> Views:
        positions = {"fingertip": data.body("fingertip").xpos, "target": data.body("target").xpos}
        return {**super().views(data), **positions, "cos": np.zeros(2), "sin": np.zeros(2)}

    def derived(self, data: mujoco.MjData, views: Views) -> Callable[[], None]:
        angles, cos, sin = data.qpos[:2], views["cos"], views["sin"]

        def compute() -> None:
            np.cos(angles, out=cos)
            np.sin(angles, out=sin)

        return compute

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
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
        return s.cos, s.sin, s.qpos[:, 2:], s.qvel[:, :2], (s.fingertip - s.target)[:, :2]

    def step(self, s: State, velocity: Velocity, actions: Array) -> tuple[Array, Array | None]:
        o = self.options
        distance = -norms(s.fingertip - s.target) * o.reward_dist_weight
        return distance + -sums_of_squares(actions) * o.reward_control_weight, None


class Pusher(Description):
    """Pusher-v5: negative distances, from arm to object to goal, minus the control cost."""

    bodies = ("tips_arm", "object", "goal")

    def views(self, data: mujoco.MjData) -> Views:
        return {**super().views(data), **{name: data.body(name).xpos for name in self.bodies}}

    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        qpos = self.setup.qpos.copy()
        while True:
            cylinder = np.concatenate(
                [rng.uniform(low=-0.3, high=0, size=1), rng.uniform(low=-0.2, high=0.2, size=1)]
            )
            if np.linalg.norm(cylinder) > 0.17:  # from the goal
                break
        qpos[-4:-2], qpos[-2:] = cylinder, 0
        qvel = self.setup.qvel + rng.uniform(low=-0.005, high=0.005, size=self.setup.model.nv)
        qvel[-4:] = 0
        return qpos, qvel

    def observations(self, s: State) -> tuple[Array, ...]:
        return s.qpos[:, :7], s.qvel[:, :7], s.tips_arm, s.object, s.goal

    def step(self, s: State, velocity: Velocity, actions: Array) -> tuple[Array, Array | None]:
        o = self.options
        near = -norms(s.object - s.tips_arm) * o.reward_near_weight
        distance = -norms(s.object - s.goal) * o.reward_dist_weight
        return distance + -sums_of_squares(actions) * o.reward_control_weight + near, None


def norms(rows: Array) -> Array:
    """Return the Euclidean norm of each row, [rows].

    It has the bits of np.linalg.norm of a vector.
    """
    lengths: Array = np.sqrt(np.vecdot(rows, rows))
    return lengths


MODELS = {
    model.__name__: model
    for model in (
        HalfCheetah,
        Swimmer,
        Hopper,
        Walker2d,
        Ant,
        Humanoid,
        HumanoidStandup,
        Reacher,
        Pusher,
        InvertedPendulum,
        InvertedDoublePendulum,
    )
}
