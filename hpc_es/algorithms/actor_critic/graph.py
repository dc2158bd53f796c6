"""What an actor-critic learns from: discounted returns and advantages (GAE, Schulman et al. 2016, arXiv:1506.02438).

    R_t = sum_{k >= t} g^(k-t) r_k
    d_t = r_t + g v_{t+1} - v_t                    with v = 0 after the last step
    A_t = sum_{k >= t} (g l)^(k-t) d_k             = R_t - v_t where l is 1

The value b of a state that an episode was cut off in is a reward of g b that comes with its last step: R and A are then
those of an episode that goes on and gets b in all. Arrays are [steps, ...]; `xp` is NumPy or TensorFlow.


What a rank keeps between updates in the middle of an episode (A3C): its environments and its policy's memory.

The compiled parts of the actor-critic: its loss with the gradient, and whole episodes of bandits.

    L = sum_t [ -log pi(a_t) A_t  +  value_weight (V_t - R_t)^2  -  beta H(pi_t) ]

over the steps of all episodes; R and A are constants. The caller divides by the number of steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_es.algorithms.actor_critic.episodes import ArrayMemory, EpisodeRecorder, Sampled
from hpc_es.bandits.setting import SLOTS, Inputs
from hpc_es.core.data import EPISODE_LENGTH, Outcome, Poll
from hpc_es.core.errors import RunError
from hpc_es.core.policy import Batch, Segments
from hpc_es.policies.networks.differentiable import DifferentiableNetwork
from hpc_es.policies.networks.layers import Memory
from hpc_es.policies.networks.tensorflow_actors import tensorflow


def later(x: Any, steps: int = 1, xp: Any = np) -> Any:
    """x_{t + steps}, 0 after the last."""
    steps = min(steps, x.shape[0])
    return xp.pad(x[steps:], [[0, steps]] + [[0, 0]] * (len(x.shape) - 1))


def discounted(x: Any, decay: float, xp: Any = np) -> Any:
    """y_t = sum_{k >= t} decay^(k-t) x_k, of the shape of `x`, which is static; log2(steps) sums of shifted arrays."""
    reach = 1  # y_t has the terms k < t + reach
    while reach < x.shape[0]:
        x = x + decay**reach * later(x, reach, xp)
        reach *= 2
    return x


def targets(rewards: Any, values: Any, discount: float, gae_lambda: float, xp: Any = np) -> tuple[Any, Any]:
    """R and A; where episodes end early both arguments are 0 after the end, and so are R and A."""
    residuals = rewards + discount * later(values, 1, xp) - values
    return discounted(rewards, discount, xp), discounted(residuals, discount * gae_lambda, xp)


FAILURES_IN_A_ROW = 20  # updates in which every environment of the rank failed: this is no accident


class Worker:
    """One rank's environments, whose episodes go on from update to update, and what the policy remembers of them."""

    def __init__(self, segments: Segments, memory_shapes: Sequence[tuple[int, int, int]]) -> None:
        self._segments = segments
        self._failures = 0  # updates in a row
        self.memory: ArrayMemory = [np.zeros(shape, np.float32) for shape in memory_shapes]

    def play(self, actor: Sampled, recorder: EpisodeRecorder, batch: Batch, steps: int, poll: Poll) -> Outcome:
        """Run the environments on for so many steps, each with what it remembers; RunError where they always fail."""
        if self.memory:
            actor.remember(self.memory)
        outcome = self._segments.play(recorder, batch, steps, poll)
        failed = np.isnan(outcome.rows["return_"])
        self._failures = self._failures + 1 if failed.all() else 0
        if self._failures == FAILURES_IN_A_ROW:
            text = f"every environment of a rank has failed in {self._failures} updates in a row, the last time by"
            raise RunError(f"{text} {outcome.failures[-1].text}")
        if self.memory:
            goes_on = ~failed & (outcome.rows[EPISODE_LENGTH.name] == 0)
            self.memory = [np.where(goes_on[:, None, None], held, np.float32(0)) for held in actor.memory()]
        return outcome


@dataclass(frozen=True)
class Loss:
    """What the loss is made of, but for beta, which moves."""

    discount: float
    gae_lambda: float
    value_weight: float
    reward_clip: float | None
    unroll: int | None


@functools.cache
def episodes_graph(network: DifferentiableNetwork, loss: Loss) -> Callable[..., tuple[Any, Any]]:
    """Return the compiled (theta, value, beta, inputs, actions, rewards, lives, cuts) -> (gradient, sums).

    inputs [steps, rows, inputs], actions int [steps, rows], rewards [steps, rows], all 0 after an episode's end;
    lives [steps, rows], 1 where a step was taken; cuts [steps, rows], 1 where the inputs are those of the state that an
    episode was cut off in, a step after its last. gradient [params + features + 1] of theta and value; sums [3] of
    policy loss, value loss and entropy.
    """
    tf = tensorflow()

    def graph(*arguments: Any) -> Any:
        return learned(tf, network, loss, *arguments)

    compiled: Callable[..., tuple[Any, Any]] = tf.function(graph, jit_compile=True)
    return compiled


@functools.cache
def segments_graph(network: DifferentiableNetwork, loss: Loss) -> Callable[..., tuple[Any, Any]]:
    """The same of segments of episodes: the compiled (theta, value, beta, memory, inputs, ...) -> (gradient, sums).

    memory has h and c of each layer, [rows, 2, units], before the first step; no gradient passes to it. cuts are 1 a
    step after the last of a segment whose episode goes on, too.
    """
    tf = tensorflow()

    def graph(theta: Any, value: Any, beta: Any, memory: Any, *episodes: Any) -> Any:
        pairs = tuple((held[:, 0], held[:, 1]) for held in memory)
        return learned(tf, network, loss, theta, value, beta, *episodes, memory=pairs)

    compiled: Callable[..., tuple[Any, Any]] = tf.function(graph, jit_compile=True)
    return compiled


@functools.cache
def bandits_graph(
    network: DifferentiableNetwork, loss: Loss, inputs: Inputs
) -> Callable[..., tuple[Any, Any, Any, Any]]:
    """Return the compiled graph of whole episodes: (theta, value, beta, payouts, uniforms) -> (gradient, sums, actions,
    rewards).

    payouts [trials, rows, arms] are what each arm would pay; uniforms [trials, rows], U[0, 1), choose the arms.
    actions int32[trials, rows], rewards [trials, rows].
    """
    tf = tensorflow()

    def graph(theta: Any, value: Any, beta: Any, payouts: Any, uniforms: Any) -> tuple[Any, Any, Any, Any]:
        actions, rewards = played(tf, network, inputs, theta, payouts, uniforms)
        seen = seen_by(tf, inputs, actions, rewards)
        lives = tf.ones_like(rewards)
        given = (theta, value, beta, seen, actions, rewards, lives, tf.zeros_like(lives))
        return *learned(tf, network, loss, *given), actions, rewards

    compiled: Callable[..., tuple[Any, Any, Any, Any]] = tf.function(graph, jit_compile=True)
    return compiled


def learned(
    tf: Any,
    network: DifferentiableNetwork,
    loss: Loss,
    theta: Any,
    value: Any,
    beta: Any,
    *episodes: Any,
    memory: Memory = (),
) -> Any:
    """Return the gradient of theta and value, and the sums of the parts of the loss."""
    with tf.GradientTape() as tape:
        tape.watch((theta, value))
        parts = terms(tf, network, loss, theta, value, *episodes, memory=memory)
        total = parts[0] + loss.value_weight * parts[1] - beta * parts[2]
    return tf.concat(tape.gradient(total, (theta, value)), 0), tf.stack(parts)


def terms(
    tf: Any,
    network: DifferentiableNetwork,
    loss: Loss,
    theta: Any,
    value: Any,
    inputs: Any,
    actions: Any,
    rewards: Any,
    lives: Any,
    cuts: Any,
    *,
    memory: Memory = (),
) -> tuple[Any, Any, Any]:
    """Return the sums of -log pi A, of (V - R)^2 and of H."""
    logits, features = network(tf, theta, inputs, loss.unroll, memory)
    values = tf.linalg.matvec(features, value[:-1]) + value[-1]
    if loss.reward_clip is not None:
        rewards = tf.clip_by_value(rewards, -loss.reward_clip, loss.reward_clip)
    known = tf.stop_gradient(values)
    counted = rewards + loss.discount * later(known * cuts, 1, tf)
    returns, advantages = targets(counted, known * lives, loss.discount, loss.gae_lambda, tf)
    return losses(tf, logits, values, actions, returns, advantages, lives)


def losses(
    tf: Any, logits: Any, values: Any, actions: Any, returns: Any, advantages: Any, lives: Any
) -> tuple[Any, Any, Any]:
    """Return the same from what the network gives; returns and advantages are constants, 0 where `lives` is."""
    logs = tf.nn.log_softmax(logits)
    chosen = tf.reduce_sum(logs * tf.one_hot(actions, logits.shape[-1], dtype=logits.dtype), -1)
    policy = -tf.reduce_sum(chosen * advantages)
    squares = tf.reduce_sum(tf.square(values - returns) * lives)
    entropy = -tf.reduce_sum(tf.reduce_sum(tf.exp(logs) * logs, -1) * lives)
    return policy, squares, entropy


def played(
    tf: Any, network: DifferentiableNetwork, inputs: Inputs, theta: Any, payouts: Any, uniforms: Any
) -> tuple[Any, Any]:
    """Actions and rewards of whole episodes of bandits."""
    trials, rows, arms = payouts.shape
    memory = network.memory(tf, rows, theta.dtype)

    def body(t: Any, memory: Any, seen: Any, actions: Any, rewards: Any) -> tuple[Any, ...]:
        logits, memory = network.step(tf, theta, seen, memory)
        chances = tf.cumsum(tf.nn.softmax(logits), axis=1)[:, :-1]
        action = tf.reduce_sum(tf.cast(chances <= uniforms[t][:, tf.newaxis], tf.int32), 1)
        reward = tf.reduce_sum(tf.one_hot(action, arms, dtype=payouts.dtype) * payouts[t], 1)
        seen = after(tf, inputs, tf.cast(t + 1, theta.dtype), action, reward)
        return t + 1, memory, seen, actions.write(t, action), rewards.write(t, reward)

    first = tf.convert_to_tensor(inputs.first(rows), theta.dtype)
    kept = [tf.TensorArray(dtype, trials, element_shape=(rows,)) for dtype in (tf.int32, payouts.dtype)]
    done = tf.while_loop(lambda t, *_: t < trials, body, (0, memory, first, *kept), maximum_iterations=trials)
    return done[-2].stack(), done[-1].stack()


def seen_by(tf: Any, inputs: Inputs, actions: Any, rewards: Any) -> Any:
    """What the policy saw in each trial, [trials, rows, width], from int32 actions and rewards [trials, rows]."""
    trials, rows = actions.shape
    times = tf.range(1, trials + 1, dtype=rewards.dtype)[:, tf.newaxis] * tf.ones((1, rows), rewards.dtype)
    first = tf.convert_to_tensor(inputs.first(rows)[None], rewards.dtype)
    return tf.concat([first, after(tf, inputs, times, actions, rewards)[:-1]], 0)


def after(tf: Any, inputs: Inputs, trial: Any, actions: Any, rewards: Any) -> Any:
    """`bandit_setting.Inputs.after` of tensors [...]: [..., width]; `trial` is the number of trials so far."""
    dtype, parts = rewards.dtype, []
    if inputs.reward_clip is not None:
        rewards = tf.clip_by_value(rewards, -inputs.reward_clip, inputs.reward_clip)
    if inputs.reward == "value":
        parts.append(rewards[..., tf.newaxis])
    elif inputs.reward == "one_hot":
        slots = tf.cast(tf.clip_by_value(tf.round(10 * rewards), 0, SLOTS - 1), tf.int32)
        parts.append(tf.one_hot(slots, SLOTS, dtype=dtype))
    if inputs.action:
        parts.append(tf.one_hot(actions, inputs.arms, dtype=dtype))
    if inputs.time != "none":
        scale = inputs.num_trials if inputs.time == "fraction" else 1
        parts.append((trial / scale * tf.ones_like(rewards))[..., tf.newaxis])
    return tf.concat(parts, -1)
