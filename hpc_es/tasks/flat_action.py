"""A wrapper for environments whose actions are an array that policies do not make.

    task: {env_id: 'robot:Arms-v0', wrappers: ['hpc_es.tasks.flat_action:FlatAction']}

Such are a matrix or MultiBinary.
"""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

from hpc_es.core.data import Array

MOST_CHOICES = 10_000  # of an integer: the policy has an output for each


class FlatAction(gymnasium.ActionWrapper):  # type: ignore[misc]
    """The actions of the policy are a vector: floats for a Box of floats, otherwise choices from 0.

    A MultiBinary space has two choices per element, a MultiDiscrete space those of the environment,
    and a Box of integers those between its bounds. Raises ValueError for other spaces, and for
    integers without close bounds.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        inner, flat = env.action_space, flat_space(env.action_space)
        if flat is None:
            raise ValueError(
                f"expected a Box, MultiBinary or MultiDiscrete action space with bounds, found {inner}"
            )
        self.action_space = flat
        self._shape, self._dtype = inner.shape, inner.dtype
        self._first = _first(inner)

    def action(self, action: Array) -> Array:
        """Return the action of the environment, in the shape and dtype of its space."""
        shaped: Array = (np.asarray(action).reshape(self._shape) + self._first).astype(self._dtype)
        return shaped


def flat_space(space: gymnasium.Space) -> gymnasium.Space | None:
    """Return the action space of `FlatAction` around a space, None if it does not support that."""
    match space:
        case spaces.Box() if space.low.size == 0:
            return None
        case spaces.Box() if space.dtype.kind == "f":
            return spaces.Box(space.low.ravel(), space.high.ravel(), dtype=space.dtype.type)
        case spaces.Box() if (
            space.high.astype(np.float64).max() - space.low.astype(np.float64).min() < MOST_CHOICES
        ):
            return spaces.MultiDiscrete(space.high.ravel().astype(np.int64) - space.low.ravel() + 1)
        case spaces.MultiBinary():
            return spaces.MultiDiscrete(np.full(int(np.prod(space.shape)), 2))
        case spaces.MultiDiscrete():
            return spaces.MultiDiscrete(space.nvec.ravel())
    return None


def _first(space: gymnasium.Space) -> Array | int:
    """Return the action of the environment for the choices 0."""
    if isinstance(space, spaces.MultiDiscrete):
        start: Array = space.start
        return start
    if isinstance(space, spaces.Box) and space.dtype.kind != "f":
        lowest: Array = space.low.astype(np.int64)
        return lowest
    return 0
