"""What an environment observes, rewards and draws at its reset: the part in which the environments differ.

Formulas are of all rows at once. They must give the bits that Gymnasium's give, which are of one environment:

- sums, differences, products and squares of arrays are the same in any company; a sum along a contiguous axis is too;
- `np.vecdot` calls the same dot product per row as `np.linalg.norm` of a vector; a sum of squares does not;
- `np.sin`, `np.cos`, `np.einsum` may depend on the place in the array and `scalar ** 2` is not `array ** 2`:
  these are `derived`, per MjData, in the very form and size that Gymnasium has;
- actions are float32, and so are their squares, sums and costs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from hpc_es.core.data import Array, Float64

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
