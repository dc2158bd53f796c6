"""An environment with Discrete actions whose episodes can be worked out by hand;
'tests.helpers.jax_steps:steps'.

It observes (t, 1). Step t, from 0, with action a gives the reward 10 a + t; an episode ends after
`longest` steps. With `nan_at` the observation after this step is NaN. With `random` the reward has
a uniform number of the key added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from hpc_es.core.data import Discrete

ACTIONS = Discrete(2)


@dataclass(frozen=True)
class Steps:
    longest: int = 5
    nan_at: int = -1
    random: bool = False
    limit: int | None = 100
    observations: int = 2
    actions: Discrete = ACTIONS

    def reset(self, key: Any) -> tuple[Any, Any]:
        return {"t": jnp.int32(0), "is_odd": jax.random.bernoulli(key)}, jnp.array(
            [0, 1], jnp.float32
        )

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        t = state["t"]
        reward = 10.0 * action + t + (jax.random.uniform(key) if self.random else 0.0)
        observation = jnp.where(t == self.nan_at, jnp.nan, jnp.array([t + 1, 1], jnp.float32))
        return {**state, "t": t + 1}, observation, reward, t + 1 >= self.longest


def steps(**keywords: Any) -> Steps:
    return Steps(**keywords)
