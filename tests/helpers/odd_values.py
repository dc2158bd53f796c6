"""Environments that return other values than their spaces and Gymnasium's contract say,
in a place of choice.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

BAD = 3  # the seed of the episodes that are odd
LENGTH = 5  # steps of an episode
ODD_STEP = 2


def with_value(result: dict[str, Any], what: str, value: Any) -> Any:
    """Return the values of a step, by name, with another one in the place `what`,
    which may be all of them.
    """
    if what == "step":
        return value
    return tuple(value if name == what else usual for name, usual in result.items())


class Odd(gymnasium.Env[Any, Any]):
    """Observes [t, 2t, 1]; the reward of each step is 1. Episodes of the seed BAD, or all, are odd.

    `what` is the name of a value: the result of `reset`, or the value of the step ODD_STEP; `value`
    replaces it.
    """

    action_space: Any = spaces.Discrete(2)

    def __init__(
        self, what: str = "", value: Any = None, always: bool = False, width: int = 3
    ) -> None:
        self.what, self.value, self.always = what, value, always
        self.observation_space = spaces.Box(-np.inf, np.inf, (width,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t, self.is_odd = 0, self.always or seed == BAD
        if self.is_odd and self.what == "reset":
            return self.value
        if self.is_odd and self.what == "first observation":
            return self.value, {}
        return self.observed(), {}

    def observed(self) -> Any:
        return np.arange(1, self.observation_space.shape[0] + 1, dtype=np.float32) * self.t

    def step(self, action: Any) -> Any:
        self.t += 1
        result = {
            "observation": self.observed(),
            "reward": 1.0,
            "terminated": self.t == LENGTH,
            "truncated": False,
            "info": {},
        }
        is_odd = self.is_odd and self.t == ODD_STEP
        return with_value(result, self.what, self.value) if is_odd else tuple(result.values())


class OddVector(VectorEnv[Any, Any, Any]):
    """Several such environments, each with the observations of a seed;
    `value` replaces the value of all.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
    single_observation_space: Any = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    single_action_space: Any = spaces.Discrete(2)

    def __init__(self, num_envs: int, what: str = "", value: Any = None) -> None:
        self.num_envs, self.what, self.value = num_envs, what, value

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        self.t, self.is_odd = 0, BAD in list(seed)
        if self.is_odd and self.what == "reset":
            return self.value
        return np.zeros((self.num_envs, 3), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        over = np.full(self.num_envs, self.t == LENGTH)
        result = {
            "observation": np.full((self.num_envs, 3), self.t, np.float32),
            "reward": np.ones(self.num_envs),
            "terminated": over,
            "truncated": np.zeros(self.num_envs, bool),
            "info": {},
        }
        is_odd = self.is_odd and self.t == ODD_STEP
        return with_value(result, self.what, self.value) if is_odd else tuple(result.values())


gymnasium.register("Odd-v0", Odd, vector_entry_point=OddVector, order_enforce=False)
gymnasium.register("LimitedOdd-v0", Odd, max_episode_steps=50)


class Spacious(gymnasium.Env[Any, Any]):
    """Observations are samples of a space; actions must be in theirs.

    Episodes have LENGTH steps.
    """

    def __init__(self, observations: Any = None, actions: Any = None) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,)) if observations is None else observations
        self.action_space = spaces.Discrete(2) if actions is None else actions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == LENGTH, False, {}


gymnasium.register("Spacious-v0", Spacious, order_enforce=False)


class Running(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Subtracts the mean of all observations that it has seen."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.total, self.count = np.zeros(env.observation_space.shape or ()), 0

    def observation(self, observation: Any) -> Any:
        self.total, self.count = self.total + observation, self.count + 1
        return np.asarray(observation - self.total / self.count, np.float32)
