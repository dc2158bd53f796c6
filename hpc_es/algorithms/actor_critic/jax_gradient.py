"""The actor-critic of networks in JAX: the loss of `loss.py` with its gradient. Set up JAX before importing this.

`loss_gradient` is a pure function, which compiled code can call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.algorithms.actor_critic.episodes import Trajectories
from hpc_es.algorithms.actor_critic.loss import Loss, Weights, later, targets
from hpc_es.core.data import Array, Float32, Float64
from hpc_es.core.policy import Tree
from hpc_es.core.population import Layout
from hpc_es.policies.networks.jax_convolutional import ConvolutionalNetwork
from hpc_es.policies.networks.layers import normalised_columns
from hpc_es.policies.networks.network import Network

BLOCK = 32  # steps whose convolutions are computed, and computed again for the gradient, together


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
        """Return the input of `step`, which does not depend on the memory, from an observation [*shape]."""
        ...

    def step(self, parameters: Mapping[str, Array], value: Array, memory: Tree, x: Array) -> tuple[Array, Array, Tree]:
        """Return logits [actions], the value [] and the next memory; `parameters` are the parts of theta."""
        ...


class LinearValue:
    """A convolutional network, whose value is a linear function of the inputs of its output layer."""

    def __init__(self, network: ConvolutionalNetwork) -> None:
        self._network, self.layout = network, network.layout
        self.features = network.layout.shapes["output_kernel"][0]
        self.value_size = self.features + 1
        self.memory, self.encode = network.memory, network.encode

    def initial_value(self, rng: np.random.Generator) -> Float32:
        """Return weights of norm 1 and the bias 0, float32[features + 1]."""
        return np.append(normalised_columns(rng, (self.features, 1), 1.0)[:, 0], np.float32(0))

    def step(self, parameters: Mapping[str, Array], value: Array, memory: Tree, x: Array) -> tuple[Array, Array, Tree]:
        features, memory = self._network.features(parameters, memory, x)
        return self._network.outputs_of(parameters, features), features @ value[:-1] + value[-1], memory


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

    def step(self, parameters: Mapping[str, Array], value: Array, memory: Tree, x: Array) -> tuple[Array, Array, Tree]:
        outputs, memory = self._network.apply(parameters, memory, x)
        outputs = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
        return outputs[:-1], outputs[-1], memory


def value_network(network: Network) -> ValueNetwork:
    """Return a network with its value function."""
    return LinearValue(network) if isinstance(network, ConvolutionalNetwork) else LastOutput(network)


class JaxPolicy:
    """A policy whose network JAX differentiates; each shape of trajectories is compiled on its first use."""

    def __init__(self, network: ValueNetwork) -> None:
        self.value_network = network
        self.value_size = network.value_size
        self._leaves, self._tree = jax.tree.flatten(network.memory())
        self.is_recurrent = bool(self._leaves)
        self._compiled: dict[Loss, Callable[..., tuple[Any, Any]]] = {}

    def initial_value(self, rng: np.random.Generator) -> Float32:
        """Return the initial parameters of the value function, float32[value_size]."""
        return self.value_network.initial_value(rng)

    def memory(self, rows: int) -> list[Array]:
        """Return the leaves of the memory at the start of an episode, [rows, *shape]."""
        return [np.repeat(np.asarray(leaf)[np.newaxis], rows, axis=0) for leaf in self._leaves]

    def gradient(
        self, loss: Loss, weights: Weights, recorded: Trajectories, memory: Sequence[Array] | None = None
    ) -> tuple[Float32, Float64]:
        if loss not in self._compiled:
            self._compiled[loss] = jax.jit(partial(loss_gradient, self.value_network, loss))
        leaves = self.memory(recorded.actions.shape[1]) if memory is None else memory
        tree = jax.tree.unflatten(self._tree, list(leaves))
        gradient, sums = self._compiled[loss](*weights, tree, *recorded.arrays())
        return np.asarray(gradient), np.asarray(sums).astype(np.float64)


def loss_gradient(
    network: ValueNetwork, loss: Loss, theta: Array, value: Array, beta: Array, memory: Tree, *episodes: Array
) -> tuple[Array, Array]:
    """Return the gradient of the loss, [params + value_size], and the sums of its terms, [3].

    `memory` is that before the first step, with leaves [rows, *shape]; `episodes` are inputs, actions, rewards, lives
    and cuts, with the shapes of `Trajectories`.
    """

    def total(theta: Array, value: Array) -> tuple[Array, Array]:
        policy, squares, entropy = loss_terms(network, loss, theta, value, memory, *episodes)
        return policy + loss.value_weight * squares - beta * entropy, jnp.stack([policy, squares, entropy])

    slopes, sums = jax.grad(total, argnums=(0, 1), has_aux=True)(theta, value)
    return jnp.concatenate(slopes), sums


def loss_terms(
    network: ValueNetwork,
    loss: Loss,
    theta: Array,
    value: Array,
    memory: Tree,
    inputs: Array,
    actions: Array,
    rewards: Array,
    lives: Array,
    cuts: Array,
) -> tuple[Array, Array, Array]:
    """Return the sums of -log pi A, (V - R)^2 and H over all steps; arguments as in `loss_gradient`."""
    logits, values = sequence(network, theta, value, memory, _observed(inputs, lives + cuts), loss.unroll)
    if loss.reward_clip is not None:
        rewards = jnp.clip(rewards, -loss.reward_clip, loss.reward_clip)
    constants = jax.lax.stop_gradient(values)
    bootstrapped = rewards + loss.discount * later(constants * cuts, 1, jnp)
    returns, advantages = targets(bootstrapped, constants * lives, loss.discount, loss.gae_lambda, jnp)
    logs = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(logs, actions[..., jnp.newaxis], axis=-1)[..., 0]
    policy = -jnp.sum(chosen * advantages)
    squares = jnp.sum(jnp.square(values - returns) * lives)
    entropy = -jnp.sum(jnp.sum(jnp.exp(logs) * logs, -1) * lives)
    return policy, squares, entropy


def _observed(inputs: Array, counts: Array) -> Array:
    """Replace the inputs after the end of an episode, where `counts` are 0, by the first input of the chunk.

    They do not change the loss, but a custom network may return NaN for zeros, and 0 * NaN is NaN.
    """
    inputs, is_real = jnp.asarray(inputs), counts > 0
    first = inputs.reshape(-1, *inputs.shape[2:])[jnp.argmax(is_real)]
    observed: Array = jnp.where(is_real.reshape(*is_real.shape, *[1] * (inputs.ndim - 2)), inputs, first)
    return observed


def sequence(
    network: ValueNetwork, theta: Array, value: Array, memory: Tree, inputs: Array, unroll: int | None = None
) -> tuple[Array, Array]:
    """Return logits [steps, rows, actions] and values [steps, rows] of inputs [steps, rows, *shape].

    With `unroll` the gradient is truncated before the steps unroll, 2 * unroll, ..., counted from 0.
    """
    parameters = network.layout.split(theta, jnp.reshape)
    encode = jax.vmap(partial(network.encode, parameters))
    step = jax.vmap(partial(network.step, parameters, value))
    if not jax.tree.leaves(memory):
        outputs: tuple[Array, Array] = _over_time(lambda x: step(memory, encode(x))[:2], inputs)
        return outputs

    def following(memory: Tree, item: tuple[Array, Array]) -> tuple[Tree, tuple[Array, Array]]:
        is_cut, x = item
        memory = jax.tree.map(lambda m: jnp.where(is_cut, jax.lax.stop_gradient(m), m), memory)
        logits, values, after = step(memory, x)
        return after, (logits, values)

    steps = jnp.arange(len(inputs))
    is_cut = jnp.zeros(len(inputs), bool) if unroll is None else steps % unroll == 0
    x = _over_time(encode, inputs)
    if x.ndim > 3 and len(inputs) > BLOCK:  # images, whose activations are not kept
        following = jax.checkpoint(following)
    _, outputs = jax.lax.scan(following, memory, (is_cut, x))
    return outputs


def _over_time(function: Callable[[Array], Any], inputs: Array) -> Any:
    """Return the results of a function of one step, [rows, ...] -> [rows, ...], for all steps.

    More than BLOCK steps of images are computed in blocks, and again in the backward pass, which saves memory.
    """
    if len(inputs) <= BLOCK or inputs.ndim < 4:
        return jax.vmap(function)(inputs)
    return jax.lax.map(jax.checkpoint(function), inputs, batch_size=BLOCK)
