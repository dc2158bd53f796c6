"""Compiled calls in JAX: `jax.vmap` of a network over its candidates. Set up JAX before importing this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.core.data import Array, Float32
from hpc_es.policies.networks.jax_convolutions import convolving_in_turn
from hpc_es.policies.networks.network import Network


class JaxCall:
    """A network that JAX compiles for `size` candidates on its first use."""

    def __init__(self, network: Network, size: int) -> None:
        self.size, self.layout = size, network.layout
        leaves, tree = jax.tree.flatten(network.memory())
        self.memory: Sequence[Array] = [np.asarray(leaf) for leaf in leaves]

        apply = convolving_in_turn(network.apply)

        def step(parameters: Any, memory: Any, observation: Any) -> tuple[Any, Any]:
            outputs, after = apply(parameters, jax.tree.unflatten(tree, memory), observation)
            return outputs.astype(jnp.float32), jax.tree.leaves(after)

        self._step = jax.jit(jax.vmap(step))

    def load(self, parts: Mapping[str, Float32]) -> Any:
        return {name: jnp.asarray(part) for name, part in parts.items()}

    def step(self, parameters: Any, memory: Sequence[Any], observations: Array) -> tuple[Any, Sequence[Any]]:
        result: tuple[Any, Sequence[Any]] = self._step(parameters, list(memory), observations)
        return result
