"""The actor-critic of networks in JAX: the loss of `loss.py` with its gradient.

Set up JAX before importing this.

`loss_gradient` is a pure function, which compiled code can call; outside of it its parts are
compiled. `CompiledUpdates` computes updates on compiled environments: a segment of each episode and
the gradient in one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.actor_critic.episodes import Trajectories
from hpc_es.actor_critic.loss import Loss, LossWeights, later, targets
from hpc_es.core.data import EPISODE_LENGTH, Array, Column, Float32, Float64, Poll, Rows, row_dtype
from hpc_es.core.errors import Failure, failure_from_text
from hpc_es.core.policy import Tree
from hpc_es.core.population import Layout
from hpc_es.extend.compiled import (
    CompiledSegments,
    Lanes,
    Recorded,
    SegmentRows,
    compiling,
    in_thread,
    packed,
    reason,
    unpacked,
)
from hpc_es.policies.networks.jax_convolutional import ConvolutionalNetwork
from hpc_es.policies.networks.layers import normalised_columns
from hpc_es.policies.networks.network import Network

BLOCK = 32  # steps of images that are computed, and computed again for the gradient, together


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
    """Return the loss and its terms, [3]."""
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
    """Replace the inputs after the end of an episode, bool[steps, rows], by `first`.

    They do not change the loss, but a custom network may return NaN for zeros, and 0 * NaN is NaN.
    """
    observed: Array = jnp.where(
        is_real.reshape(*is_real.shape, *[1] * (inputs.ndim - 2)), inputs, first
    )
    return observed


def _encoded(network: ValueNetwork, theta: Array, value: Array, inputs: Array) -> Any:
    """Return the part of a network that does not depend on earlier steps.

    It is computed from inputs [steps, rows, *shape]. These are the inputs of `step`, [steps, rows,
    ...]; for a network without memory logits and values.
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
    """Return the gradient without what passes through `encoded`, its slopes, and the terms.

    They are [params + value_size], the slopes of `encoded`, and [3].
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
    """Return the gradient, [params + value_size], through an encoded block with these slopes."""
    observed = _observed(inputs, is_real, first)
    _, transposed = jax.vjp(
        lambda theta, value: _encoded(network, theta, value, observed), theta, value
    )
    gradient: Array = jnp.concatenate(transposed(slopes))
    return gradient


# Updates on compiled environments.


class SegmentUpdate(NamedTuple):
    """The result of a call, as NumPy arrays."""

    gradient: Float32  # float32[params + value_size], of the sum over steps
    sums: Float64  # float64[3]: policy loss, value loss and entropy
    lanes: Array  # uint8[jobs, bytes], the episodes after the segment
    rows: SegmentRows
    recorded: Trajectories | None
    memory: list[Array]  # leaves of the memory before the first step, [jobs, *shape]

    def rows_of(self, columns: Sequence[Column]) -> tuple[Rows, list[Failure]]:
        """Return the rows of the jobs, with EPISODE_LENGTH, and the failures.

        They have the columns of the problem.
        """
        results = self.rows
        rows = np.zeros(len(results.length), row_dtype((*columns, EPISODE_LENGTH)))
        rows["return_"] = np.where(results.failed > 0, np.nan, results.return_.exactly())
        rows["sign_return"], rows["length"] = results.signs, results.length
        rows[EPISODE_LENGTH.name] = results.episode_length
        failures = [
            failure_from_text(
                reason(int(results.failed[job]), float(results.return_.value[job])), position=job
            )
            for job in np.flatnonzero(results.failed).tolist()
        ]
        return rows, failures


class CompiledUpdates:
    """The call for segments of `steps` steps; each number of jobs is compiled on its first use."""

    def __init__(
        self,
        segments: CompiledSegments,
        network: ValueNetwork,
        loss: Loss,
        steps: int,
        records: bool = False,
    ) -> None:
        """`records`: whether the trajectories are part of the results."""
        self._segments, self._network, self._loss, self._steps, self._records = (
            segments,
            network,
            loss,
            steps,
            records,
        )
        self._memory = jax.tree.map(np.asarray, network.memory())
        self._call = jax.jit(self._update)
        self._compiled = set[int]()  # numbers of jobs

    def no_lanes(self, jobs: int) -> Array:
        """Return lanes without episodes, uint8[jobs, bytes]."""
        return packed(self._segments.no_lanes(self._memory, jobs))

    def run(
        self, weights: LossWeights, lanes: Array, seeds: Array, action_keys: Array, poll: Poll
    ) -> SegmentUpdate:
        """Continue the episodes of `lanes`, uint8[jobs, bytes], and differentiate the steps.

        Args:
            seeds: int64[jobs], of the episodes that start.
            action_keys: uint32[jobs, 2], keys of the random numbers of the actions.
        """
        template = self._segments.no_lanes(self._memory, len(lanes))
        keys = np.stack([seeds >> 32, seeds & (2**32 - 1)], axis=1).astype(np.uint32)
        return in_thread(
            partial(self._run, weights, unpacked(template, lanes), keys, action_keys), poll
        )

    def _run(
        self, weights: LossWeights, lanes: Lanes, keys: Array, action_keys: Array
    ) -> SegmentUpdate:
        with nullcontext() if len(keys) in self._compiled else compiling():
            gradient, sums, after, rows, recorded, memory = self._call(
                *weights, lanes, keys, action_keys
            )
        self._compiled.add(len(keys))
        return SegmentUpdate(
            np.asarray(gradient),
            np.asarray(sums).astype(np.float64),
            packed(after),
            jax.tree.map(np.asarray, rows),
            Trajectories(*map(np.asarray, recorded)) if recorded else None,
            [np.asarray(leaf) for leaf in jax.tree.leaves(memory)],
        )

    def _update(
        self, theta: Array, value: Array, beta: Array, lanes: Lanes, keys: Array, action_keys: Array
    ) -> tuple[Array, Array, Lanes, SegmentRows, Recorded | tuple[()], Tree]:
        parameters = self._network.layout.split(theta, jnp.reshape)

        def step(memory: Tree, observation: Array) -> tuple[Array, Tree]:
            x = self._network.encode(parameters, observation)
            logits, _, memory = self._network.step(parameters, value, memory, x)
            return logits, memory

        start = self._segments.begin(self._memory, lanes, keys)
        after, recorded, rows = self._segments.play(step, start, action_keys, self._steps)
        gradient, sums = loss_gradient(
            self._network, self._loss, theta, value, beta, start.memory, *recorded
        )
        kept = (recorded, start.memory) if self._records else ((), ())
        return gradient, sums, after, rows, *kept
