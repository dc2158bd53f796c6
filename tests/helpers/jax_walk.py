"""An environment whose episodes can be worked out by hand; 'tests.helpers.jax_walk:walk'.

A walker at x with n steps to go sees [offset + x, n] and moves by its action, in [-1, 1]; the
reward is the new x, or a constant. n is drawn from the key of the reset, 1 .. longest. After the
end everything is NaN, as may be in a simulator that runs on. With the constant action b an episode
returns b n (n + 1) / 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.core.data import Box, Discrete

SIDEWAYS = Box(-np.ones(1, np.float32), np.ones(1, np.float32))


@dataclass(frozen=True)
class Walk:
    longest: int = 20
    offset: float = 0.0
    reward: float | None = None  # of every step; None: x
    nan_observation_at: int = -1  # step, of walkers to the right
    infinite_observation_at: int = -1  # the same
    nan_reward_at: int = -1
    nan_at_reset: bool = False  # where n is odd
    endless: bool = False
    jitter: float = 0.0  # of the steps: normal, from the key of each
    limit: int | None = 100
    observations: int = 2
    actions: Box | Discrete = SIDEWAYS

    def reset(self, key: Any) -> tuple[Any, Any]:
        n = jax.random.randint(key, (), 1, self.longest + 1)
        state = {"x": 0.0, "n": n, "t": 0}  # weakly typed, as some are
        observation = self.observed(state)
        return state, jnp.where(self.nan_at_reset & (n % 2 == 1), jnp.nan, observation)

    def observed(self, state: Any) -> Any:
        return jnp.array([state["x"] + self.offset, state["n"]], jnp.float32)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        over = (state["n"] <= 0) & (not self.endless)
        x, t = state["x"] + action[0] + self.jitter * jax.random.normal(key), state["t"]
        after = {"x": x, "n": state["n"] - 1, "t": t + 1}
        reward = x if self.reward is None else jnp.float32(self.reward)
        reward = jnp.where(over | ((t == self.nan_reward_at) & (x > 0)), jnp.nan, reward)
        observation = jnp.where(
            over | ((t == self.nan_observation_at) & (x > 0)), jnp.nan, self.observed(after)
        )
        is_infinite = (t == self.infinite_observation_at) & (x > 0)
        observation = jnp.where(is_infinite, jnp.array([jnp.inf, 1.0]), observation)
        return after, observation, reward, (after["n"] <= 0) & (not self.endless)


def walk(**keywords: Any) -> Walk:
    return Walk(**keywords)


class Called(Walk):
    """A walk whose position Python code computes, which raises for walkers far to the right."""

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        after, observation, reward, terminated = super().step(key, state, action)
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        x = jax.pure_callback(simulated, shape, after["x"], after["n"], vmap_method="expand_dims")
        return {**after, "x": x + 0.0}, observation, reward, terminated


def simulated(x: Any, n: Any) -> Any:
    if np.any((x > 3) & (n >= 0)):  # not after the end of the episode, in a lane that waits
        raise ValueError("it diverged")
    return np.float32(x)


def called(**keywords: Any) -> Walk:
    return Called(**keywords)


class Keyed(Walk):
    """A walk whose jitter uses a key in the state, as in Jumanji and Craftax."""

    def reset(self, key: Any) -> tuple[Any, Any]:
        state, observation = super().reset(key)
        return {**state, "key": jax.random.split(key, 2)[1]}, observation

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        mine, kept = jax.random.split(state["key"])
        after, observation, reward, terminated = super().step(mine, state, action)
        return {**after, "key": kept}, observation, reward, terminated


def keyed(**keywords: Any) -> Walk:
    return Keyed(**keywords)


class Pair(Walk):
    """Two walkers, each with a reward."""

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        after, observation, reward, terminated = super().step(key, state, action)
        return after, observation, jnp.stack([reward, reward]), terminated


def pair() -> Walk:
    return Pair()


class Dict(Walk):
    def observed(self, state: Any) -> Any:
        return {"state": jnp.zeros(2), "picture": jnp.zeros(3)}

    def reset(self, key: Any) -> tuple[Any, Any]:
        return {"x": 0.0}, self.observed({})


def dictionary() -> Walk:
    return Dict()


def lengths(seeds: Any, longest: int = 20) -> Any:
    """n of the episodes of these seeds, drawn one by one."""
    flat = [
        jax.random.split(jax.random.key(int(seed), impl="threefry2x32"))[0]
        for seed in np.ravel(seeds)
    ]
    drawn = [int(jax.random.randint(key, (), 1, longest + 1)) for key in flat]
    return np.array(drawn).reshape(np.shape(seeds))
