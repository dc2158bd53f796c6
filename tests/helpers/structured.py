"""Environments whose observations are a dict or a tuple of arrays."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 6  # steps of an episode


def sense_space(image: bool = False, kind: str = "dict") -> Any:
    """The space of the observations of `Senses`."""
    parts: dict[str, Any] = {
        "vector": spaces.Box(-10, 10, (3,), np.float64),
        "mode": spaces.Discrete(3, start=1),
        "hand": spaces.Tuple([spaces.MultiBinary(2), spaces.Box(-500, 500, (), np.int16)]),
    }
    if image:
        parts["image"] = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    space = spaces.Dict(parts)
    return space if kind == "dict" else spaces.Tuple([*space.spaces.values()])


class Senses(gymnasium.Env[Any, Any]):
    """Observes random senses; the reward of 1 is for the action mode % 2, or its sign in a Box."""

    metadata: Any = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        image: bool = False,
        kind: str = "dict",
        box: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.action_space = spaces.Box(-1, 1, (1,)) if box else spaces.Discrete(2)
        self.image, self.kind, self.render_mode = image, kind, render_mode
        self.observation_space = sense_space(image, kind)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observed(), {}

    def observed(self) -> Any:
        rng = self.np_random
        self.mode = int(rng.integers(1, 4))
        # not in the order of the space, which sorts its keys
        parts = {
            "vector": rng.normal(0, 3, 3),
            "mode": np.int64(self.mode),
            "hand": (rng.integers(0, 2, 2).astype(np.int8), np.array(300 - self.t, np.int16)),
        }
        if self.image:
            parts["image"] = rng.integers(0, 256, (4, 4, 3)).astype(np.uint8)
        if self.kind == "dict":
            return parts
        return tuple(parts[key] for key in sorted(parts))

    def step(self, action: Any) -> Any:
        chosen = int(np.ravel(action)[0] > 0)
        reward = float(chosen == self.mode % 2)
        self.t += 1
        return self.observed(), reward, self.t == LENGTH, False, {}

    def render(self) -> Any:
        return np.full((8, 8, 3), 40 * self.t, np.uint8)


def senses(num_envs: int, **keywords: Any) -> Any:
    """A vector of such environments."""
    return gymnasium.vector.SyncVectorEnv([lambda: Senses(**keywords)] * num_envs)


gymnasium.register("Senses-v0", Senses, vector_entry_point=senses)
