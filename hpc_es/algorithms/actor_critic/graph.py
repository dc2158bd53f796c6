"""The compiled parts of the actor-critic: its loss with the gradient, and whole episodes of bandits.

    L = sum_t [ -log pi(a_t) A_t + value_weight (V_t - R_t)^2 - beta H(pi_t) ]

over the steps of all episodes, with discounted returns R and advantages A as constants. The caller divides by the
number of steps. With the discount g and the lambda l of generalised advantage estimation (Schulman et al. 2016,
arXiv:1506.02438),

    R_t = sum_{k >= t} g^(k-t) r_k
    d_t = r_t + g v_{t+1} - v_t                    with v = 0 after the last step
    A_t = sum_{k >= t} (g l)^(k-t) d_k             = R_t - v_t if l is 1

If a time limit ends an episode in a state with the value b, g b is added to the reward of its last step. R and A are
then those of an episode that continues with the return b.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from hpc_es.bandits.setting import REWARD_SLOTS, BanditInputs
from hpc_es.core.policy import Tensor
from hpc_es.policies.networks.differentiable import DifferentiableNetwork
from hpc_es.policies.networks.layers import Memory
from hpc_es.policies.networks.tensorflow_actors import tensorflow

# Returns and advantages; arrays are [steps, ...], `xp` is NumPy or TensorFlow.


def later(x: Tensor, steps: int = 1, xp: ModuleType = np) -> Tensor:
    """Return x_{t + steps}, 0 after the last step, in the shape of x, [steps, ...]."""
    steps = min(steps, x.shape[0])
    return xp.pad(x[steps:], [[0, steps]] + [[0, 0]] * (len(x.shape) - 1))


def discounted(x: Tensor, decay: float, xp: ModuleType = np) -> Tensor:
    """Return y_t = sum_{k >= t} decay^(k-t) x_k, [steps, ...] like x, by log2(steps) sums of shifted arrays.

    The shape of x must be static.
    """
    reach = 1  # y_t is the sum over k < t + reach so far
    while reach < x.shape[0]:
        x = x + decay**reach * later(x, reach, xp)
        reach *= 2
    return x


def targets(
    rewards: Tensor, values: Tensor, discount: float, gae_lambda: float, xp: ModuleType = np
) -> tuple[Tensor, Tensor]:
    """Return R and A, each [steps, ...]; after the end of an episode both arguments are 0, and so are R and A."""
    residuals = rewards + discount * later(values, 1, xp) - values
    return discounted(rewards, discount, xp), discounted(residuals, discount * gae_lambda, xp)


# The loss.


@dataclass(frozen=True)
class Loss:
    """Constants of the loss; beta is an argument, since it is annealed."""

    discount: float
    gae_lambda: float
    value_weight: float
    reward_clip: float | None
    unroll: int | None


@functools.cache
def episodes_graph(network: DifferentiableNetwork, loss: Loss) -> Callable[..., tuple[Tensor, Tensor]]:
    """Compile (theta, value, beta, inputs, actions, rewards, lives, cuts) -> (gradient, sums) for whole episodes.

    inputs are [steps, rows, inputs], all others [steps, rows], 0 after the end of an episode: int actions, rewards,
    lives, 1 for steps that were taken, and cuts, 1 in the step after the last one if the time limit ended the episode;
    its inputs are the state after the last step. gradient is [params + features + 1], of theta and value; sums are [3]:
    policy loss, value loss and entropy.
    """
    tf = tensorflow()

    def graph(*arguments: Tensor) -> Tensor:
        return loss_gradient(tf, network, loss, *arguments)

    compiled: Callable[..., tuple[Tensor, Tensor]] = tf.function(graph, jit_compile=True)
    return compiled


@functools.cache
def segments_graph(network: DifferentiableNetwork, loss: Loss) -> Callable[..., tuple[Tensor, Tensor]]:
    """Compile (theta, value, beta, memory, inputs, ...) -> (gradient, sums) for segments of episodes.

    memory is h and c of each layer before the first step, [rows, 2, units]; no gradient passes to it. The other arrays
    are those of `episodes_graph`; cuts are also 1 after a segment whose episode continues.
    """
    tf = tensorflow()

    def graph(theta: Tensor, value: Tensor, beta: Tensor, memory: Tensor, *episodes: Tensor) -> Tensor:
        pairs = tuple((layer[:, 0], layer[:, 1]) for layer in memory)
        return loss_gradient(tf, network, loss, theta, value, beta, *episodes, memory=pairs)

    compiled: Callable[..., tuple[Tensor, Tensor]] = tf.function(graph, jit_compile=True)
    return compiled


@functools.cache
def bandits_graph(
    network: DifferentiableNetwork, loss: Loss, inputs: BanditInputs
) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Compile (theta, value, beta, potential_rewards, uniforms) -> (gradient, sums, actions, rewards).

    It plays whole episodes. potential_rewards are [trials, rows, arms], the reward that each arm would give; uniforms
    are [trials, rows], from U[0, 1), and select the arms. actions are int32[trials, rows], rewards [trials, rows].
    """
    tf = tensorflow()

    def graph(
        theta: Tensor, value: Tensor, beta: Tensor, potential_rewards: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        actions, rewards = bandit_episodes(tf, network, inputs, theta, potential_rewards, uniforms)
        observations = bandit_observations(tf, inputs, actions, rewards)
        lives = tf.ones_like(rewards)
        episodes = (observations, actions, rewards, lives, tf.zeros_like(lives))
        return *loss_gradient(tf, network, loss, theta, value, beta, *episodes), actions, rewards

    compiled: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = tf.function(graph, jit_compile=True)
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
    """Return the sums of -log pi A, (V - R)^2 and H over all steps; arrays as in `episodes_graph`."""
    logits, features = network(tf, theta, inputs, loss.unroll, memory)
    values = tf.linalg.matvec(features, value[:-1]) + value[-1]
    if loss.reward_clip is not None:
        rewards = tf.clip_by_value(rewards, -loss.reward_clip, loss.reward_clip)
    constants = tf.stop_gradient(values)
    bootstrapped = rewards + loss.discount * later(constants * cuts, 1, tf)
    returns, advantages = targets(bootstrapped, constants * lives, loss.discount, loss.gae_lambda, tf)
    return losses(tf, logits, values, actions, returns, advantages, lives)


def losses(
    tf: ModuleType, logits: Tensor, values: Tensor, actions: Tensor, returns: Tensor, advantages: Tensor, lives: Tensor
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


# Episodes of bandits.


def bandit_episodes(
    tf: ModuleType,
    network: DifferentiableNetwork,
    inputs: BanditInputs,
    theta: Tensor,
    potential_rewards: Tensor,
    uniforms: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return int32 actions and rewards of whole episodes, each [trials, rows]; arguments as in `bandits_graph`."""
    trials, rows, arms = potential_rewards.shape
    dtype = potential_rewards.dtype
    memory = network.memory(tf, rows, theta.dtype)

    def trial(t: Tensor, memory: Tensor, observations: Tensor, actions: Tensor, rewards: Tensor) -> tuple[Tensor, ...]:
        logits, memory = network.step(tf, theta, observations, memory)
        cumulative = tf.cumsum(tf.nn.softmax(logits), axis=1)[:, :-1]
        action = tf.reduce_sum(tf.cast(cumulative <= uniforms[t][:, tf.newaxis], tf.int32), 1)
        reward = tf.reduce_sum(tf.one_hot(action, arms, dtype=dtype) * potential_rewards[t], 1)
        observations = inputs_after(tf, inputs, tf.cast(t + 1, theta.dtype), action, reward)
        return t + 1, memory, observations, actions.write(t, action), rewards.write(t, reward)

    first = tf.convert_to_tensor(inputs.first(rows), theta.dtype)
    outputs = [tf.TensorArray(element, trials, element_shape=(rows,)) for element in (tf.int32, dtype)]
    state = (0, memory, first, *outputs)
    result = tf.while_loop(lambda t, *_: t < trials, trial, state, maximum_iterations=trials)
    return result[-2].stack(), result[-1].stack()


def bandit_observations(tf: ModuleType, inputs: BanditInputs, actions: Tensor, rewards: Tensor) -> Tensor:
    """Return the observation before each trial, [trials, rows, width], of int32 actions and rewards, [trials, rows]."""
    trials, rows = actions.shape
    times = tf.range(1, trials + 1, dtype=rewards.dtype)[:, tf.newaxis] * tf.ones((1, rows), rewards.dtype)
    first = tf.convert_to_tensor(inputs.first(rows)[None], rewards.dtype)
    return tf.concat([first, inputs_after(tf, inputs, times, actions, rewards)[:-1]], 0)


def inputs_after(tf: ModuleType, inputs: BanditInputs, trials: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
    """Return `BanditInputs.after` for tensors [...], [..., width]; `trials` is the number of trials so far."""
    dtype, parts = rewards.dtype, []
    if inputs.reward_clip is not None:
        rewards = tf.clip_by_value(rewards, -inputs.reward_clip, inputs.reward_clip)
    if inputs.reward == "value":
        parts.append(rewards[..., tf.newaxis])
    elif inputs.reward == "one_hot":
        slots = tf.cast(tf.clip_by_value(tf.round(10 * rewards), 0, REWARD_SLOTS - 1), tf.int32)
        parts.append(tf.one_hot(slots, REWARD_SLOTS, dtype=dtype))
    if inputs.action:
        parts.append(tf.one_hot(actions, inputs.arms, dtype=dtype))
    if inputs.time != "none":
        scale = inputs.num_trials if inputs.time == "fraction" else 1
        parts.append((trials / scale * tf.ones_like(rewards))[..., tf.newaxis])
    return tf.concat(parts, -1)
