"""The actor-critic of networks in JAX: the loss of `loss.py` with its gradient.

Set up JAX before importing this. `loss_gradient` is a pure function, which compiled code can call;
outside of it its parts are compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.actor_critic.episodes import Trajectories
from hpc_es.actor_critic.jax_networks import LinearValue, ValueNetwork
from hpc_es.actor_critic.loss import Loss, LossWeights, later, targets
from hpc_es.core.data import Array, Float32, Float64
from hpc_es.core.policy import Tree
from hpc_es.extend.compiled import compiling

# A long sequence of images is computed in blocks of so many steps, and again for the gradient.
BLOCK = 32


class JaxPolicy:
    """A policy whose network JAX differentiates.

    Each shape of trajectories is compiled on its first use.
    """

    def __init__(self, network: ValueNetwork) -> None:
        self.value_network = network
        self.value_size = network.value_size
        self._leaves, self._tree = jax.tree.flatten(network.memory())
        self.is_recurrent = bool(self._leaves)
        self._compiled = set[tuple[Loss, tuple[int, ...]]]()  # with the shapes of inputs

    def initial_value(self, rng: np.random.Generator) -> Float32:
        """Return the initial parameters of the value function, float32[value_size]."""
        return self.value_network.initial_value(rng)

    def memory(self, rows: int) -> list[Array]:
        """Return the leaves of the memory at the start of an episode, [rows, *shape]."""
        return [np.repeat(np.asarray(leaf)[np.newaxis], rows, axis=0) for leaf in self._leaves]

    def gradient(
        self,
        loss: Loss,
        weights: LossWeights,
        recorded: Trajectories,
        memory: Sequence[Array] | None = None,
    ) -> tuple[Float32, Float64]:
        leaves = self.memory(recorded.actions.shape[1]) if memory is None else memory
        tree = jax.tree.unflatten(self._tree, list(leaves))
        shape = loss, recorded.inputs.shape
        with nullcontext() if shape in self._compiled else compiling():
            arrays = (
                weights.theta,
                weights.value,
                np.asarray(weights.beta),
                tree,
                *recorded.arrays(),
            )
            gradient, sums = loss_gradient(self.value_network, loss, *arrays)
        self._compiled.add(shape)
        return np.asarray(gradient), np.asarray(sums).astype(np.float64)


def loss_gradient(
    network: ValueNetwork,
    loss: Loss,
    theta: Array,
    value: Array,
    beta: Array,
    memory: Tree,
    *episodes: Array,
) -> tuple[Array, Array]:
    """Return the gradient of the loss, [params + value_size], and the sums of its terms, [3].

    Args:
        memory: that before the first step, with leaves [rows, *shape].
        episodes: inputs, actions, rewards, lives and cuts, with the shapes of `Trajectories`.
    """
    is_long = len(episodes[0]) > BLOCK and episodes[0].ndim > 3
    encodes = isinstance(network, LinearValue) or not jax.tree.leaves(memory)
    compute = _gradient_in_blocks if is_long and encodes else _gradient
    return compute(network, loss, theta, value, beta, memory, *episodes)


@partial(jax.jit, static_argnums=(0, 1))
def _gradient(
    network: ValueNetwork,
    loss: Loss,
    theta: Array,
    value: Array,
    beta: Array,
    memory: Tree,
    *episodes: Array,
) -> tuple[Array, Array]:
    def total(theta: Array, value: Array) -> tuple[Array, Array]:
        return _weighted(loss, beta, loss_terms(network, loss, theta, value, memory, *episodes))

    slopes, sums = jax.grad(total, argnums=(0, 1), has_aux=True)(theta, value)
    return jnp.concatenate(slopes), sums


def _weighted(loss: Loss, beta: Array, terms: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    """Return the loss, which is differentiated, and its terms, [3]."""
    policy, squares, entropy = terms
    return policy + loss.value_weight * squares - beta * entropy, jnp.stack(terms)


def loss_terms(
    network: ValueNetwork,
    loss: Loss,
    theta: Array,
    value: Array,
    memory: Tree,
    inputs: Array,
    *steps: Array,
) -> tuple[Array, Array, Array]:
    """Return the sums of -log pi A, (V - R)^2 and H over all steps, like `loss_gradient`."""
    _, _, lives, cuts = steps
    inputs = _observed(inputs, lives + cuts > 0, _first_real(inputs, lives + cuts > 0))
    encoded = _encoded(network, theta, value, inputs)
    return _terms(loss, *_outputs(network, loss.unroll, theta, value, memory, encoded), *steps)


def _terms(
    loss: Loss,
    logits: Array,
    values: Array,
    actions: Array,
    rewards: Array,
    lives: Array,
    cuts: Array,
) -> tuple[Array, Array, Array]:
    if loss.reward_clip is not None:
        rewards = jnp.clip(rewards, -loss.reward_clip, loss.reward_clip)
    constants = jax.lax.stop_gradient(values)
    bootstrapped = rewards + loss.discount * later(constants * cuts, 1, jnp)
    returns, advantages = targets(
        bootstrapped, constants * lives, loss.discount, loss.gae_lambda, jnp
    )
    logs = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(logs, actions[..., jnp.newaxis], axis=-1)[..., 0]
    policy = -jnp.sum(chosen * advantages)
    squares = jnp.sum(jnp.square(values - returns) * lives)
    entropy = -jnp.sum(jnp.sum(jnp.exp(logs) * logs, -1) * lives)
    return policy, squares, entropy


def _first_real(inputs: Array, is_real: Array) -> Array:
    """Return the first input of the chunk, [*shape], that is not after the end of an episode."""
    inputs = jnp.asarray(inputs)
    first: Array = inputs.reshape(-1, *inputs.shape[2:])[jnp.argmax(is_real)]
    return first


def _observed(inputs: Array, is_real: Array, first: Array) -> Array:
    """Replace the inputs that are not `is_real`, bool[steps, rows], by `first`.

    These come after the end of an episode. They do not change the loss, but a custom network may
    return NaN for zeros, and 0 * NaN is NaN.
    """
    observed: Array = jnp.where(
        is_real.reshape(*is_real.shape, *[1] * (inputs.ndim - 2)), inputs, first
    )
    return observed


def _encoded(network: ValueNetwork, theta: Array, value: Array, inputs: Array) -> Any:
    """Return what a network computes from its inputs, [steps, rows, *shape], without its memory.

    With a memory it is the input of `step`, [steps, rows, ...]. Without one it is the logits and
    values of all steps.
    """
    parameters = network.layout.split(theta, jnp.reshape)
    memory = network.memory()

    def one(observation: Array) -> Any:
        x = network.encode(parameters, observation)
        return x if jax.tree.leaves(memory) else network.step(parameters, value, memory, x)[:2]

    return jax.vmap(jax.vmap(one))(inputs)


def _outputs(
    network: ValueNetwork,
    unroll: int | None,
    theta: Array,
    value: Array,
    memory: Tree,
    encoded: Any,
) -> tuple[Array, Array]:
    """Return logits [steps, rows, actions] and values [steps, rows].

    With `unroll` the gradient is truncated before the steps unroll, 2 * unroll, ..., counted from
    0.
    """
    if not jax.tree.leaves(memory):
        outputs: tuple[Array, Array] = encoded
        return outputs
    step = jax.vmap(partial(network.step, network.layout.split(theta, jnp.reshape), value))

    def following(memory: Tree, item: tuple[Array, Array]) -> tuple[Tree, tuple[Array, Array]]:
        is_cut, x = item
        memory = jax.tree.map(lambda m: jnp.where(is_cut, jax.lax.stop_gradient(m), m), memory)
        logits, values, after = step(memory, x)
        return after, (logits, values)

    steps = jnp.arange(len(encoded))
    is_cut = jnp.zeros(len(encoded), bool) if unroll is None else steps % unroll == 0
    if encoded.ndim > 3 and len(encoded) > BLOCK:  # images, whose activations are not kept
        following = jax.checkpoint(following)
    _, outputs = jax.lax.scan(following, memory, (is_cut, encoded))
    return outputs


# Long sequences of images. Blocks of steps are encoded, and encoded again for the gradient, which
# saves memory. They are separate calls instead of a loop in one, in which XLA's gradient of
# convolutions takes ten times as long on a CPU.


def _gradient_in_blocks(
    network: ValueNetwork,
    loss: Loss,
    theta: Array,
    value: Array,
    beta: Array,
    memory: Tree,
    *episodes: Array,
) -> tuple[Array, Array]:
    inputs, *steps = episodes
    is_real = steps[-2] + steps[-1] > 0
    first = _first_real(inputs, is_real)
    spans = [slice(start, start + BLOCK) for start in range(0, len(inputs), BLOCK)]
    blocks = [(_whole_block(inputs[span]), _whole_block(is_real[span]), first) for span in spans]
    parts = [_encoded_block(network, theta, value, *block) for block in blocks]
    encoded = jax.tree.map(lambda *arrays: jnp.concatenate(arrays)[: len(inputs)], *parts)
    total, slopes, sums = _gradient_of_encoded(
        network, loss, theta, value, beta, memory, encoded, *steps
    )
    for span, block in zip(spans, blocks, strict=True):
        slope = jax.tree.map(lambda array, span=span: _whole_block(array[span]), slopes)
        total = total + _gradient_of_block(network, theta, value, *block, slope)
    return total, sums


def _whole_block(array: Array) -> Array:
    """Return the array [steps, ...] with zeros up to BLOCK steps."""
    padded: Array = jnp.pad(array, [(0, BLOCK - len(array)), *[(0, 0)] * (array.ndim - 1)])
    return padded


@partial(jax.jit, static_argnums=0)
def _encoded_block(
    network: ValueNetwork, theta: Array, value: Array, inputs: Array, is_real: Array, first: Array
) -> Any:
    return _encoded(network, theta, value, _observed(inputs, is_real, first))


@partial(jax.jit, static_argnums=(0, 1))
def _gradient_of_encoded(
    network: ValueNetwork,
    loss: Loss,
    theta: Array,
    value: Array,
    beta: Array,
    memory: Tree,
    encoded: Any,
    *steps: Array,
) -> tuple[Array, Any, Array]:
    """Differentiate the loss, with `encoded` as an input.

    Returns:
        The gradient without what passes through `encoded`, [params + value_size]; the gradient with
        respect to `encoded`; and the sums of the terms, [3].
    """

    def total(theta: Array, value: Array, encoded: Any) -> tuple[Array, Array]:
        outputs = _outputs(network, loss.unroll, theta, value, memory, encoded)
        return _weighted(loss, beta, _terms(loss, *outputs, *steps))

    (*slopes, slopes_of_encoded), sums = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(
        theta, value, encoded
    )
    return jnp.concatenate(slopes), slopes_of_encoded, sums


@partial(jax.jit, static_argnums=0)
def _gradient_of_block(
    network: ValueNetwork,
    theta: Array,
    value: Array,
    inputs: Array,
    is_real: Array,
    first: Array,
    slopes: Any,
) -> Array:
    """Return the part of the gradient, [params + value_size], that passes through one block.

    `slopes` is the gradient with respect to the encoded block.
    """
    observed = _observed(inputs, is_real, first)
    _, transposed = jax.vjp(
        lambda theta, value: _encoded(network, theta, value, observed), theta, value
    )
    gradient: Array = jnp.concatenate(transposed(slopes))
    return gradient
