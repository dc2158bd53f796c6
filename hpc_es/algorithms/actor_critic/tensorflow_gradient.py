"""The actor-critic of custom networks in TensorFlow: the loss of `loss.py` with its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpc_es.algorithms.actor_critic.episodes import Trajectories
from hpc_es.algorithms.actor_critic.graph import terms_of
from hpc_es.algorithms.actor_critic.loss import Loss, Weights
from hpc_es.core.data import Array, Float32, Float64
from hpc_es.core.policy import Tensor
from hpc_es.policies.networks.network import Network
from hpc_es.policies.networks.tensorflow_actors import compiled_for, tensorflow


class TensorFlowPolicy:
    """A policy whose network TensorFlow differentiates; its last output is the value.

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
