"""Networks in JAX with a value, for one observation.

Set up JAX before importing this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import jax.numpy as jnp
import numpy as np

from hpc_es.core.data import Array, Float32
from hpc_es.core.policy import Tree
from hpc_es.core.population import Layout
from hpc_es.policies.networks.jax_convolutional import ConvolutionalNetwork
from hpc_es.policies.networks.layers import normalised_columns
from hpc_es.policies.networks.network import Network


class ValueNetwork(Protocol):
    """A network for one observation, with the logits of actions and a value."""

    layout: Layout  # of theta
    value_size: int  # number of parameters of the value function in addition to theta

    def initial_value(self, rng: np.random.Generator) -> Float32:
        """Return the initial parameters of the value function, float32[value_size]."""
        ...

    def memory(self) -> Tree:
        """Return the memory at the start of an episode, a tree of arrays; () without memory."""
        ...

    def encode(self, parameters: Mapping[str, Array], observation: Array) -> Array:
        """Return the input of `step` that does not depend on the memory, from [*shape]."""
        ...

    def step(
        self, parameters: Mapping[str, Array], value: Array, memory: Tree, x: Array
    ) -> tuple[Array, Array, Tree]:
        """Return logits [actions], the value [] and the next memory.

        `parameters` are the parts of theta.
        """
        ...


class LinearValue:
    """A convolutional network with a value: a linear function of its output layer's inputs."""

    def __init__(self, network: ConvolutionalNetwork) -> None:
        self._network, self.layout = network, network.layout
        self.features = network.layout.shapes["output_kernel"][0]
        self.value_size = self.features + 1
        self.memory, self.encode = network.memory, network.encode

    def initial_value(self, rng: np.random.Generator) -> Float32:
        """Return weights of norm 1 and the bias 0, float32[features + 1]."""
        return np.append(normalised_columns(rng, (self.features, 1), 1.0)[:, 0], np.float32(0))

    def step(
        self, parameters: Mapping[str, Array], value: Array, memory: Tree, x: Array
    ) -> tuple[Array, Array, Tree]:
        features, memory = self._network.features(parameters, memory, x)
        return (
            self._network.outputs_of(parameters, features),
            features @ value[:-1] + value[-1],
            memory,
        )


class LastOutput:
    """A custom network, whose last output is the value."""

    value_size = 0

    def __init__(self, network: Network) -> None:
        self._network, self.layout = network, network.layout
        self.memory = network.memory

    def initial_value(self, rng: np.random.Generator) -> Float32:
        """Return no parameters."""
        return np.zeros(0, np.float32)

    def encode(self, parameters: Mapping[str, Array], observation: Array) -> Array:
        """Return the observation as it is: the whole network may depend on the memory."""
        return observation

    def step(
        self, parameters: Mapping[str, Array], value: Array, memory: Tree, x: Array
    ) -> tuple[Array, Array, Tree]:
        outputs, memory = self._network.apply(parameters, memory, x)
        outputs = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
        return outputs[:-1], outputs[-1], memory


def value_network(network: Network) -> ValueNetwork:
    """Return a network with its value function."""
    return (
        LinearValue(network) if isinstance(network, ConvolutionalNetwork) else LastOutput(network)
    )
