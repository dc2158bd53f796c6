"""Policies that the actor-critic can differentiate: the choice by kind, and those in TensorFlow.

TensorFlow computes `mlp`, `lstm` and custom networks in TensorFlow; JAX computes the others
(`jax_gradient.py`). The loss is defined in `loss.py`. Graphs are compiled once for each
architecture.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

import numpy as np

from hpc_es.actor_critic.episodes import Trajectories
from hpc_es.actor_critic.loss import DifferentiablePolicy, Loss, LossWeights, later, targets
from hpc_es.core.data import Array, Float32, Float64
from hpc_es.core.policy import Policy, Tensor
from hpc_es.core.tabulated import REWARD_SLOTS, LastStepInputs
from hpc_es.policies.network import NetworkPolicy
from hpc_es.policies.networks.layers import Memory, normalised_columns
from hpc_es.policies.networks.network import Network
from hpc_es.policies.networks.tensorflow_actors import compiled_for, tensorflow
from hpc_es.policies.networks.tensorflow_sequences import DifferentiableNetwork


def differentiable(policy: Policy) -> DifferentiablePolicy | None:
    """Return a policy with its value function; None if the actor-critic cannot differentiate it."""
    if isinstance(policy, NetworkPolicy):
        by_backend = DIFFERENTIATED.get(policy.network.backend)
        return None if by_backend is None else by_backend(policy.network)
    network: DifferentiableNetwork | None = DifferentiableNetwork.of(policy)
    return None if network is None else GraphPolicy(network)


class GraphPolicy:
    """A policy `mlp` or `lstm` with a value: a linear function of the output layer's inputs."""

    def __init__(self, network: DifferentiableNetwork) -> None:
        self._network = network
        self.value_size = network.features + 1
        self.is_recurrent = network.is_recurrent

    def initial_value(self, rng: np.random.Generator) -> Float32:
        """Return weights of norm 1 and the bias 0, float32[features + 1]."""
        return np.append(
            normalised_columns(rng, (self._network.features, 1), 1.0)[:, 0], np.float32(0)
        )

    def memory(self, rows: int) -> list[Array]:
        """Return zeros for h and c of each LSTM layer, float32[rows, 2, units]."""
        units = self._network.widths[1:-1] if self.is_recurrent else ()
        return [np.zeros((rows, 2, n), np.float32) for n in units]

    def gradient(
        self,
        loss: Loss,
        weights: LossWeights,
        recorded: Trajectories,
        memory: Sequence[Array] | None = None,
    ) -> tuple[Float32, Float64]:
        if memory is None:
            gradient, sums = episodes_graph(self._network, loss)(*weights, *recorded.arrays())
        else:
            gradient, sums = segments_graph(self._network, loss)(
                *weights, memory, *recorded.arrays()
            )
        return gradient.numpy(), sums.numpy().astype(np.float64)

    def tabulated(
        self,
        loss: Loss,
        weights: LossWeights,
        inputs: LastStepInputs,
        potential_rewards: Float32,
        uniforms: Float32,
    ) -> tuple[Float32, Float64, Array, Float32]:
        """Play whole tabulated episodes; return gradient and sums as `gradient` does, actions and
        rewards.

        See `tabulated_graph` for the arguments; actions are int32[steps, rows], rewards
        float32[steps, rows].
        """
        graph = tabulated_graph(self._network, loss, inputs)
        gradient, sums, actions, rewards = graph(*weights, potential_rewards, uniforms)
        return gradient.numpy(), sums.numpy().astype(np.float64), actions.numpy(), rewards.numpy()


def of_tensors(tf: ModuleType, graph: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function with arguments converted to tensors.

    A compiled graph gets tensors anyway. After `tf.config.run_functions_eagerly(True)` of the user
    it is called with NumPy arrays, which a GradientTape refuses.
    """

    def converting(*arguments: Tensor) -> Tensor:
        return graph(*tf.nest.map_structure(tf.convert_to_tensor, arguments))

    return converting


# Graphs of `mlp` and `lstm`


@functools.cache
def episodes_graph(
    network: DifferentiableNetwork, loss: Loss
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Compile the gradient of whole episodes.

    It is (theta, value, beta, inputs, actions, rewards, lives, cuts) -> (gradient, sums). inputs
    are [steps, rows, inputs], all others [steps, rows], 0 after the end of an episode: int actions,
    rewards, lives, 1 for steps that were taken, and cuts, 1 in the step after the last one if the
    time limit ended the episode; its inputs are the state after the last step. gradient is [params
    + features + 1], of theta and value; sums are [3]: policy loss, value loss and entropy.
    """
    tf = tensorflow()

    def graph(*arguments: Tensor) -> Tensor:
        return loss_gradient(tf, network, loss, *arguments)

    compiled: Callable[..., tuple[Tensor, Tensor]] = tf.function(
        of_tensors(tf, graph), jit_compile=True
    )
    return compiled


@functools.cache
def segments_graph(
    network: DifferentiableNetwork, loss: Loss
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Compile (theta, value, beta, memory, inputs, ...) -> (gradient, sums) for segments.

    A segment is a part of an episode. memory is h and c of each layer before the first step, [rows,
    2, units]; no gradient passes to it. The other arrays are those of `episodes_graph`; cuts are
    also 1 after a segment whose episode continues.
    """
    tf = tensorflow()

    def graph(
        theta: Tensor, value: Tensor, beta: Tensor, memory: Tensor, *episodes: Tensor
    ) -> Tensor:
        pairs = tuple((layer[:, 0], layer[:, 1]) for layer in memory)
        return loss_gradient(tf, network, loss, theta, value, beta, *episodes, memory=pairs)

    compiled: Callable[..., tuple[Tensor, Tensor]] = tf.function(
        of_tensors(tf, graph), jit_compile=True
    )
    return compiled


@functools.cache
def tabulated_graph(
    network: DifferentiableNetwork, loss: Loss, inputs: LastStepInputs
) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Compile the play of whole episodes of bandits, and its gradient.

    It plays whole episodes. potential_rewards are [steps, rows, actions], the reward that each
    action would give; uniforms are [steps, rows], from U[0, 1), and select the actions. actions
    are int32[steps, rows], rewards [steps, rows].
    """
    tf = tensorflow()

    def graph(
        theta: Tensor, value: Tensor, beta: Tensor, potential_rewards: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        actions, rewards = tabulated_episodes(
            tf, network, inputs, theta, potential_rewards, uniforms
        )
        observations = tabulated_observations(tf, inputs, actions, rewards)
        lives = tf.ones_like(rewards)
        episodes = (observations, actions, rewards, lives, tf.zeros_like(lives))
        return *loss_gradient(tf, network, loss, theta, value, beta, *episodes), actions, rewards

    compiled: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = tf.function(
        of_tensors(tf, graph), jit_compile=True
    )
    return compiled


def loss_gradient(
    tf: ModuleType,
    network: DifferentiableNetwork,
    loss: Loss,
    theta: Tensor,
    value: Tensor,
    beta: Tensor,
    *episodes: Tensor,
    memory: Memory = (),
) -> Tensor:
    """Return the gradient of the loss, [params + features + 1], and the sums of its terms, [3]."""
    with tf.GradientTape() as tape:
        tape.watch((theta, value))
        parts = loss_terms(tf, network, loss, theta, value, *episodes, memory=memory)
        total = parts[0] + loss.value_weight * parts[1] - beta * parts[2]
    return tf.concat(tape.gradient(total, (theta, value)), 0), tf.stack(parts)


def loss_terms(
    tf: ModuleType,
    network: DifferentiableNetwork,
    loss: Loss,
    theta: Tensor,
    value: Tensor,
    inputs: Tensor,
    actions: Tensor,
    rewards: Tensor,
    lives: Tensor,
    cuts: Tensor,
    *,
    memory: Memory = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sums of -log pi A, (V - R)^2 and H over all steps, like `episodes_graph`."""
    logits, features = network(tf, theta, inputs, loss.unroll, memory)
    values = tf.linalg.matvec(features, value[:-1]) + value[-1]
    return terms_of(tf, loss, logits, values, actions, rewards, lives, cuts)


def terms_of(
    tf: ModuleType,
    loss: Loss,
    logits: Tensor,
    values: Tensor,
    actions: Tensor,
    rewards: Tensor,
    lives: Tensor,
    cuts: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same from logits, [steps, rows, actions], and values, [steps, rows]."""
    if loss.reward_clip is not None:
        rewards = tf.clip_by_value(rewards, -loss.reward_clip, loss.reward_clip)
    constants = tf.stop_gradient(values)
    bootstrapped = rewards + loss.discount * later(constants * cuts, 1, tf)
    returns, advantages = targets(
        bootstrapped, constants * lives, loss.discount, loss.gae_lambda, tf
    )
    return losses(tf, logits, values, actions, returns, advantages, lives)


def losses(
    tf: ModuleType,
    logits: Tensor,
    values: Tensor,
    actions: Tensor,
    returns: Tensor,
    advantages: Tensor,
    lives: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return these sums from logits, [steps, rows, actions], and [steps, rows] of all others.

    Returns and advantages are constants, 0 where `lives` is 0.
    """
    logs = tf.nn.log_softmax(logits)
    chosen = tf.reduce_sum(logs * tf.one_hot(actions, logits.shape[-1], dtype=logits.dtype), -1)
    policy = -tf.reduce_sum(chosen * advantages)
    squares = tf.reduce_sum(tf.square(values - returns) * lives)
    entropy = -tf.reduce_sum(tf.reduce_sum(tf.exp(logs) * logs, -1) * lives)
    return policy, squares, entropy


# Tabulated episodes, such as those of bandits.


def tabulated_episodes(
    tf: ModuleType,
    network: DifferentiableNetwork,
    inputs: LastStepInputs,
    theta: Tensor,
    potential_rewards: Tensor,
    uniforms: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return int32 actions and rewards of whole episodes, each [steps, rows];
    arguments as in `tabulated_graph`.
    """
    steps, rows, choices = potential_rewards.shape
    dtype = potential_rewards.dtype
    memory = network.memory(tf, rows, theta.dtype)

    def step(
        t: Tensor, memory: Tensor, observations: Tensor, actions: Tensor, rewards: Tensor
    ) -> tuple[Tensor, ...]:
        logits, memory = network.step(tf, theta, observations, memory)
        cumulative = tf.cumsum(tf.nn.softmax(logits), axis=1)[:, :-1]
        action = tf.reduce_sum(tf.cast(cumulative <= uniforms[t][:, tf.newaxis], tf.int32), 1)
        reward = tf.reduce_sum(tf.one_hot(action, choices, dtype=dtype) * potential_rewards[t], 1)
        observations = inputs_after(tf, inputs, tf.cast(t + 1, theta.dtype), action, reward)
        return t + 1, memory, observations, actions.write(t, action), rewards.write(t, reward)

    first = tf.convert_to_tensor(inputs.first(rows), theta.dtype)
    outputs = [
        tf.TensorArray(element, steps, element_shape=(rows,)) for element in (tf.int32, dtype)
    ]
    state = (0, memory, first, *outputs)
    result = tf.while_loop(lambda t, *_: t < steps, step, state, maximum_iterations=steps)
    return result[-2].stack(), result[-1].stack()


def tabulated_observations(
    tf: ModuleType, inputs: LastStepInputs, actions: Tensor, rewards: Tensor
) -> Tensor:
    """Return the observation before each step, [steps, rows, width],
    of int32 actions and rewards, [steps, rows].
    """
    steps, rows = actions.shape
    times = tf.range(1, steps + 1, dtype=rewards.dtype)[:, tf.newaxis] * tf.ones(
        (1, rows), rewards.dtype
    )
    first = tf.convert_to_tensor(inputs.first(rows)[None], rewards.dtype)
    return tf.concat([first, inputs_after(tf, inputs, times, actions, rewards)[:-1]], 0)


def inputs_after(
    tf: ModuleType, inputs: LastStepInputs, steps: Tensor, actions: Tensor, rewards: Tensor
) -> Tensor:
    """Return `LastStepInputs.after` for tensors [...], [..., width];
    `steps` is the number of steps so far.
    """
    dtype, parts = rewards.dtype, []
    if inputs.reward_clip is not None:
        rewards = tf.clip_by_value(rewards, -inputs.reward_clip, inputs.reward_clip)
    if inputs.reward == "value":
        parts.append(rewards[..., tf.newaxis])
    elif inputs.reward == "one_hot":
        slots = tf.cast(tf.clip_by_value(tf.round(10 * rewards), 0, REWARD_SLOTS - 1), tf.int32)
        parts.append(tf.one_hot(slots, REWARD_SLOTS, dtype=dtype))
    if inputs.action:
        parts.append(tf.one_hot(actions, inputs.choices, dtype=dtype))
    if inputs.time != "none":
        scale = inputs.steps if inputs.time == "fraction" else 1
        parts.append((steps / scale * tf.ones_like(rewards))[..., tf.newaxis])
    return tf.concat(parts, -1)


# Custom networks


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
        self,
        loss: Loss,
        weights: LossWeights,
        recorded: Trajectories,
        memory: Sequence[Array] | None = None,
    ) -> tuple[Float32, Float64]:
        leaves = self.memory(recorded.actions.shape[1]) if memory is None else list(memory)
        arguments = (weights.theta, weights.beta, leaves, *recorded.arrays())
        if loss not in self._compiled:

            def graph(*arguments: Tensor) -> tuple[Tensor, Tensor]:
                return self._loss_gradient(loss, *arguments)

            self._compiled[loss] = compiled_for(self._tf, of_tensors(self._tf, graph), *arguments)
        gradient, sums = self._compiled[loss](*arguments)
        return gradient.numpy(), sums.numpy().astype(np.float64)

    def _loss_gradient(
        self,
        loss: Loss,
        theta: Tensor,
        beta: Tensor,
        leaves: Sequence[Tensor],
        inputs: Tensor,
        *episodes: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient of the loss, [params], and the sums of its terms, [3].

        `leaves` are those of the memory before the first step, [rows, *shape]; `episodes` are
        actions, rewards, lives and cuts, with the shapes of `Trajectories`.
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
        """Replace the inputs after the end of an episode, since 0 * NaN is NaN.

        `jax_gradient` does so, too.
        """
        tf = self._tf
        is_real = counts > 0
        first = tf.reshape(inputs, (-1, *inputs.shape[2:]))[
            tf.argmax(tf.cast(tf.reshape(is_real, [-1]), tf.int32))
        ]
        return tf.where(
            tf.reshape(is_real, (*is_real.shape, *[1] * (len(inputs.shape) - 2))), inputs, first
        )

    def _sequence(
        self, theta: Tensor, leaves: Sequence[Tensor], inputs: Tensor, unroll: int | None
    ) -> tuple[Tensor, Tensor]:
        """Return logits [steps, rows, actions] and values [steps, rows] from inputs.

        Inputs are [steps, rows, *shape].
        """
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

        def following(
            t: Tensor, leaves: Sequence[Tensor], kept: Tensor
        ) -> tuple[Tensor, list[Tensor], Tensor]:
            if unroll is not None:
                is_cut = t % unroll == 0
                leaves = [tf.where(is_cut, tf.stop_gradient(leaf), leaf) for leaf in leaves]
            outputs, after = tf.vectorized_map(one, (leaves, inputs[t]))
            after = [
                tf.ensure_shape(leaf, (rows, *first.shape))
                for leaf, first in zip(after, self._leaves, strict=True)
            ]
            return t + 1, after, kept.write(t, outputs)

        empty = tf.TensorArray(tf.float32, steps)
        state = (0, list(leaves), empty)
        _, _, kept = tf.while_loop(
            lambda t, *_: t < steps, following, state, maximum_iterations=steps
        )
        outputs = kept.stack()
        return outputs[..., :-1], outputs[..., -1]


def _in_jax(network: Network) -> DifferentiablePolicy:
    from hpc_es.actor_critic.jax_gradient import JaxPolicy
    from hpc_es.actor_critic.jax_networks import value_network

    return JaxPolicy(value_network(network))


# The backends whose networks have a gradient; the first one also computes that of `mlp` and `lstm`.
DIFFERENTIATED: Mapping[str, Callable[[Network], DifferentiablePolicy]] = {
    "tensorflow": TensorFlowPolicy,
    "jax": _in_jax,
}
