"""What an environment observes, rewards and draws at its reset: the part in which the environments differ.

Formulas are of all rows at once. They must give the bits that Gymnasium's give, which are of one environment:

- sums, differences, products and squares of arrays are the same in any company; a sum along a contiguous axis is too;
- `np.vecdot` calls the same dot product per row as `np.linalg.norm` of a vector; a sum of squares does not;
- `np.sin`, `np.cos`, `np.einsum` may depend on the place in the array and `scalar ** 2` is not `array ** 2`:
  these are `derived`, per MjData, in the very form and size that Gymnasium has;
- actions are float32, and so are their squares, sums and costs.


Poles on a cart: InvertedPendulum and InvertedDoublePendulum.

Runners and a swimmer in a plane: HalfCheetah, Swimmer, Hopper and Walker2d.

Ant: four legs, which observe and pay for contact forces.

Humanoid and HumanoidStandup, which observe and pay for contact forces.

Arms that reach for something: Reacher and Pusher."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hpc_es.core.data import Array, Float64

if TYPE_CHECKING:
    pass


State: TypeAlias = Any  # a namespace of the description's views, stacked: float64[rows, numbers]
Views: TypeAlias = dict[str, Float64]  # numbers of one MjData by name, each of one dimension, in its memory


@dataclass(frozen=True)
class Setup:
    """A model and the keywords of its environment."""

    options: Mapping[str, Any]  # all of them, with their defaults
    model: Any  # mujoco.MjModel
    qpos: Float64  # of a new MjData, as is qvel
    qvel: Float64
    step_seconds: float


class Description(ABC):
    """One environment. What a method below returns is the default; `step` and `reset` have none."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.options: Any = SimpleNamespace(**setup.options)

    @property
    def needs_contact_forces(self) -> bool:
        """Whether mj_rnePostConstraint is called after a step, for cfrc_ext."""
        return False

    def views(self, data: Any) -> Views:
        """Return the numbers of an MjData that the formulas use."""
        return {"qpos": data.qpos, "qvel": data.qvel}

    def derived(self, data: Any, views: Views) -> Callable[[], None] | None:
        """Return what computes views that are not MuJoCo's own, after each step and reset."""
        return None

    @abstractmethod
    def reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Return the first qpos and qvel of an episode."""

    def position(self, s: State) -> Array | None:
        """Return what the velocity in `step` is of, [rows]; None where there is no velocity."""
        return None

    def observations(self, s: State) -> tuple[Array, ...]:
        """Return the parts of the observations, each [rows, numbers]."""
        return s.qpos, s.qvel

    @abstractmethod
    def step(self, s: State, velocity: Any, actions: Array) -> tuple[Array, Array | None]:
        """Return the rewards and which episodes terminated (None: none), each [rows]. `actions` are contiguous."""

    # Parts that several environments have.

    def uniform(self, rng: np.random.Generator, size: int) -> Float64:
        """Return uniform reset noise."""
        scale = self.options.reset_noise_scale
        return rng.uniform(low=-scale, high=scale, size=size)

    def uniform_reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Return positions and velocities with uniform noise."""
        qpos = self.setup.qpos + self.uniform(rng, self.setup.model.nq)
        return qpos, self.setup.qvel + self.uniform(rng, self.setup.model.nv)

    def uniform_normal_reset(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Return positions with uniform and velocities with normal noise."""
        qpos = self.setup.qpos + self.uniform(rng, self.setup.model.nq)
        return qpos, self.setup.qvel + self.options.reset_noise_scale * rng.standard_normal(self.setup.model.nv)

    def positions(self, s: State, skipped: int) -> Array:
        """Return the positions; the first ones, which say where it is, are left out unless they are asked for."""
        excluded = self.options.exclude_current_positions_from_observation
        positions: Array = s.qpos[:, skipped if excluded else 0 :]
        return positions

    def control_cost(self, actions: Array) -> Array:
        """Return the cost of large actions, float32[rows]."""
        cost: Array = self.options.ctrl_cost_weight * sums_of_squares(actions)
        return cost

    def ends(self, healthy: Array) -> Array | None:
        """Return which episodes terminate because they are not healthy."""
        return ~healthy if self.options.terminate_when_unhealthy else None


def sums_of_squares(rows: Array) -> Array:
    """Return a sum for each row."""
    total: Array = np.sum(np.square(rows), axis=1)
    return total


def within(limits: Any, values: Array) -> Array:
    """Return which values are inside of (low, high), which NaN is not."""
    low, high = limits
    inside: Array = (low < values) & (values < high)
    return inside


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
