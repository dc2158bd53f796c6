"""A custom network in plain JAX: `policy: {kind: network, network: "my_net:build"}`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hpc_es.extend import ObservationSpec


def build(observations: ObservationSpec, outputs: int, width: int = 16) -> Any:
    """Return `init` and `apply` of a hidden layer and an output layer."""

    def init(key: Any) -> Any:
        hidden = jax.random.normal(key, (observations.size, width)) / observations.size**0.5
        return {"hidden": hidden, "bias": jnp.zeros(width), "output": jnp.zeros((width, outputs))}

    def apply(parameters: Any, x: Any) -> Any:
        return jnp.tanh(x @ parameters["hidden"] + parameters["bias"]) @ parameters["output"]

    return init, apply
