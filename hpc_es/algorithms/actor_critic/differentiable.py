"""Policies that the actor-critic can differentiate: the choice by kind, and those in TensorFlow.

TensorFlow computes `mlp` and `lstm` (`graph.py`) and custom networks; JAX computes the others (`jax_gradient.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpc_es.algorithms.actor_critic.episodes import Trajectories
from hpc_es.algorithms.actor_critic.graph import bandits_graph, episodes_graph, segments_graph, terms_of
from hpc_es.algorithms.actor_critic.loss import DifferentiablePolicy, Loss, Weights
from hpc_es.bandits.setting import BanditInputs
from hpc_es.core.data import Array, Float32, Float64
from hpc_es.core.policy import Policy, Tensor
from hpc_es.policies.network import NetworkPolicy
from hpc_es.policies.networks.differentiable import DifferentiableNetwork
from hpc_es.policies.networks.layers import normalised_columns
from hpc_es.policies.networks.network import Network
from hpc_es.policies.networks.tensorflow_actors import compiled_for, tensorflow


def differentiable(policy: Policy) -> DifferentiablePolicy | None:
    """Return a policy with its value function; None if the actor-critic cannot differentiate it."""
    if isinstance(policy, NetworkPolicy):
        if policy.network.backend == "tensorflow":
            return TensorFlowPolicy(policy.network)
        from hpc_es.algorithms.actor_critic.jax_gradient import JaxPolicy, value_network

        return JaxPolicy(value_network(policy.network))
    network: DifferentiableNetwork | None = DifferentiableNetwork.of(policy)
    return None if network is None else GraphPolicy(network)


class GraphPolicy:
    """A policy `mlp` or `lstm`, whose value is a linear function of the inputs of the output layer."""

    def __init__(self, network: DifferentiableNetwork) -> None:
        self._network = network
        self.value_size = network.features + 1
        self.is_recurrent = network.is_recurrent

    def initial_value(self, rng: np.random.Generator) -> Float32:
        """Return weights of norm 1 and the bias 0, float32[features + 1]."""
        return np.append(normalised_columns(rng, (self._network.features, 1), 1.0)[:, 0], np.float32(0))

    def memory(self, rows: int) -> list[Array]:
        """Return zeros for h and c of each LSTM layer, float32[rows, 2, units]."""
        units = self._network.widths[1:-1] if self.is_recurrent else ()
        return [np.zeros((rows, 2, n), np.float32) for n in units]

    def gradient(
        self, loss: Loss, weights: Weights, recorded: Trajectories, memory: Sequence[Array] | None = None
    ) -> tuple[Float32, Float64]:
        if memory is None:
            gradient, sums = episodes_graph(self._network, loss)(*weights, *recorded.arrays())
        else:
            gradient, sums = segments_graph(self._network, loss)(*weights, memory, *recorded.arrays())
        return gradient.numpy(), sums.numpy().astype(np.float64)

    def bandits(
        self, loss: Loss, weights: Weights, inputs: BanditInputs, potential_rewards: Float32, uniforms: Float32
    ) -> tuple[Float32, Float64, Array, Float32]:
        """Play whole episodes of bandits; return gradient and sums as `gradient` does, actions and rewards.

        See `graph.bandits_graph` for the arguments; actions are int32[trials, rows], rewards float32[trials, rows].
        """
        graph = bandits_graph(self._network, loss, inputs)
        gradient, sums, actions, rewards = graph(*weights, potential_rewards, uniforms)
        return gradient.numpy(), sums.numpy().astype(np.float64), actions.numpy(), rewards.numpy()


class TensorFlowPolicy:
    """A custom network in TensorFlow, whose last output is the value.

    Each shape of trajectories is compiled on its first use.
    """

    value_size = 0

    def __init__(self, network: Network) -> None:
        self._network, self._tf = network, tensorflow()
        self._tree = network.memory()
        self._leaves = [np.asarray(leaf) for leaf in self._tf.nest.flatten(self._tree)]
        self.is_recurrent = bool(self._leaves)
        self._compiled: dict[Loss, Callable[..., tuple[Tensor, Tensor]]] = {}

    def initial_value(self, rng: np.random.Generator) -> Float32:
        """Return no parameters."""
        return np.zeros(0, np.float32)

    def memory(self, rows: int) -> list[Array]:
        """Return the leaves of the memory at the start of an episode, [rows, *shape]."""
        return [np.repeat(leaf[np.newaxis], rows, axis=0) for leaf in self._leaves]

    def gradient(
        self, loss: Loss, weights: Weights, recorded: Trajectories, memory: Sequence[Array] | None = None
    ) -> tuple[Float32, Float64]:
        leaves = self.memory(recorded.actions.shape[1]) if memory is None else list(memory)
        arguments = (weights.theta, weights.beta, leaves, *recorded.arrays())
        if loss not in self._compiled:

            def graph(*arguments: Tensor) -> tuple[Tensor, Tensor]:
                return self._loss_gradient(loss, *arguments)

            self._compiled[loss] = compiled_for(self._tf, graph, *arguments)
        gradient, sums = self._compiled[loss](*arguments)
        return gradient.numpy(), sums.numpy().astype(np.float64)

    def _loss_gradient(
        self, loss: Loss, theta: Tensor, beta: Tensor, leaves: Sequence[Tensor], inputs: Tensor, *episodes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient of the loss, [params], and the sums of its terms, [3].

        `leaves` are those of the memory before the first step, [rows, *shape]; `episodes` are actions, rewards, lives
        and cuts, with the shapes of `Trajectories`.
        """
        tf = self._tf
        inputs = self._observed(inputs, episodes[-2] + episodes[-1])
        with tf.GradientTape() as tape:
            tape.watch(theta)
            logits, values = self._sequence(theta, leaves, inputs, loss.unroll)
            terms = terms_of(tf, loss, logits, values, *episodes)
            total = terms[0] + loss.value_weight * terms[1] - beta * terms[2]
        return tape.gradient(total, theta), tf.stack(terms)

    def _observed(self, inputs: Tensor, counts: Tensor) -> Tensor:
        """Replace the inputs after the end of an episode, as `jax_gradient` does, since 0 * NaN is NaN."""
        tf = self._tf
        is_real = counts > 0
        first = tf.reshape(inputs, (-1, *inputs.shape[2:]))[tf.argmax(tf.cast(tf.reshape(is_real, [-1]), tf.int32))]
        return tf.where(tf.reshape(is_real, (*is_real.shape, *[1] * (len(inputs.shape) - 2))), inputs, first)

    def _sequence(
        self, theta: Tensor, leaves: Sequence[Tensor], inputs: Tensor, unroll: int | None
    ) -> tuple[Tensor, Tensor]:
        """Return logits [steps, rows, actions] and values [steps, rows] of inputs [steps, rows, *shape]."""
        tf, (steps, rows) = self._tf, inputs.shape[:2]
        parameters = self._network.layout.split(theta, tf.reshape)

        def one(row: tuple[Sequence[Tensor], Tensor]) -> tuple[Tensor, list[Tensor]]:
            memory = tf.nest.pack_sequence_as(self._tree, row[0])
            outputs, after = self._network.apply(parameters, memory, row[1])
            return tf.cast(outputs, tf.float32), tf.nest.flatten(after)

        if not self._leaves:
            flat = tf.reshape(inputs, (steps * rows, *inputs.shape[2:]))
            outputs, _ = tf.vectorized_map(one, ([], flat))
            outputs = tf.reshape(outputs, (steps, rows, outputs.shape[-1]))
            return outputs[..., :-1], outputs[..., -1]

        def following(t: Tensor, leaves: Sequence[Tensor], kept: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
            if unroll is not None:
                is_cut = t % unroll == 0
                leaves = [tf.where(is_cut, tf.stop_gradient(leaf), leaf) for leaf in leaves]
            outputs, after = tf.vectorized_map(one, (leaves, inputs[t]))
            after = [
                tf.ensure_shape(leaf, (rows, *first.shape)) for leaf, first in zip(after, self._leaves, strict=True)
            ]
            return t + 1, after, kept.write(t, outputs)

        empty = tf.TensorArray(tf.float32, steps)
        state = (0, list(leaves), empty)
        _, _, kept = tf.while_loop(lambda t, *_: t < steps, following, state, maximum_iterations=steps)
        outputs = kept.stack()
        return outputs[..., :-1], outputs[..., -1]
