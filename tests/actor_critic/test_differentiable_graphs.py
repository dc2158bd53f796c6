"""The loss and its gradient by hand, against differences and TensorFlow; bandits against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_es.actor_critic.differentiable import (
    Loss,
    episodes_graph,
    loss_gradient,
    loss_terms,
    losses,
    tabulated_episodes,
    tabulated_graph,
    tabulated_observations,
)
from hpc_es.bandits.setting import Lockstep, setting
from hpc_es.core.data import Box, Discrete, Spaces, flat_observations
from hpc_es.core.tabulated import LastStepInputs
from hpc_es.policies.lstm import LSTM
from hpc_es.policies.lstm import Options as LSTMOptions
from hpc_es.policies.mlp import MLP
from hpc_es.policies.mlp import Options as MLPOptions
from hpc_es.policies.networks import layers
from hpc_es.policies.networks.tensorflow_actors import tensorflow
from hpc_es.policies.networks.tensorflow_sequences import DifferentiableNetwork, lstm_sequence
from tests.helpers.populations import centre

pytestmark = [pytest.mark.tensorflow, pytest.mark.long]
RNG = np.random.default_rng(0)
RECURRENT = DifferentiableNetwork((3, 4, 2), None)
DEEP = DifferentiableNetwork((3, 4, 5, 2), None)
FORWARD = DifferentiableNetwork((3, 4, 2), "tanh")
PLAIN = Loss(discount=0.9, gae_lambda=0.7, value_weight=0.3, reward_clip=None, unroll=None)

tf: Any = None


@pytest.fixture(autouse=True)
def _imported_late() -> None:
    global tf  # noqa: PLW0603  (collecting the tests imports no TensorFlow)
    tf = tensorflow()


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape)


def gradient(
    network: DifferentiableNetwork, loss: Loss, theta: Any, value: Any, *episodes: Any
) -> Any:
    """The arrays of `loss_gradient`, with beta 0.1."""
    result = loss_gradient(
        tf, network, loss, tf.constant(theta), tf.constant(value), 0.1, *episodes
    )
    return [part.numpy() for part in result]


def size(network: DifferentiableNetwork) -> int:
    policies: Any = {None: LSTM, "tanh": MLP}[network.activation]
    options: Any = {None: LSTMOptions, "tanh": MLPOptions}[network.activation]
    created = policies(
        options(hidden_dims=network.widths[1:-1]),
        Spaces(flat_observations(network.inputs), Discrete(network.outputs)),
    )
    assert DifferentiableNetwork.of(created) == network
    return int(created.layout.size)


def episodes(steps: int = 7, rows: int = 3) -> list[Any]:
    """Arrays of episodes of 6, 4 and 2 steps, that of 4 truncated; float64."""
    lengths = np.array([steps - 1, 4, 2])[:rows]
    t = np.arange(steps)[:, np.newaxis]
    lives, cuts = (t < lengths).astype(float), ((t == 4) & (lengths == 4)).astype(float)
    inputs = normal(steps, rows, 3) * (lives + cuts)[..., np.newaxis]
    return [
        inputs,
        RNG.integers(2, size=(steps, rows)) * (lives > 0),
        normal(steps, rows) * lives,
        lives,
        cuts,
    ]


# The loss.


def test_loss_of_two_steps_by_hand() -> None:
    """-log pi A = 1.0605, squares 2.32, entropy 1.3449."""
    logits = np.array([[0.2, -0.1], [0.0, 0.5]])[:, np.newaxis]
    actions, returns, values = (
        np.array([[0], [1]]),
        np.array([[1.9], [1.0]]),
        np.array([[0.5], [0.4]]),
    )
    parts = losses(tf, logits, values, actions, returns, returns - values, np.ones((2, 1)))
    expected = (1.060543532764, 2.32, 1.344869808004)
    np.testing.assert_allclose([float(part) for part in parts], expected, atol=1e-12)
    policy, squares, entropy = expected
    assert policy + 0.05 * squares - 0.75 * entropy == pytest.approx(0.167891176761, abs=1e-11)


def test_initial_policy_is_nearly_uniform() -> None:
    """The entropy of a step is ln 2 for two arms, ln 11 for eleven."""
    for arms, expected in ((2, 0.693147), (11, 2.397895)):
        network = DifferentiableNetwork((4, 48, arms), None)
        theta = (
            LSTM(LSTMOptions(), Spaces(flat_observations(4), Discrete(arms)))
            .initial(np.random.default_rng(1))
            .astype(np.float64)
        )
        steps = np.ones((5, 1))
        arguments = (normal(5, 1, 4), np.zeros((5, 1), np.int64), steps, steps, 0 * steps)
        entropy = loss_terms(tf, network, PLAIN, theta, np.zeros(49), *arguments)[2]
        assert float(entropy) / 5 == pytest.approx(expected, abs=1e-3)


def test_targets_have_no_gradient_and_bootstrap_when_truncated() -> None:
    inputs, actions, rewards, lives, cuts = episodes()
    theta, value = normal(size(FORWARD)), normal(5)
    _, features = FORWARD(tf, theta, inputs)
    v = features.numpy() @ value[:-1] + value[-1]
    squares = errors = 0.0
    for row, length in enumerate((6, 4, 2)):
        worth = v[4, row] if row == 1 else 0.0
        for t in reversed(range(length)):
            worth = rewards[t, row] + PLAIN.discount * worth
            squares += (v[t, row] - worth) ** 2
            errors += v[t, row] - worth
    result = loss_terms(tf, FORWARD, PLAIN, theta, value, inputs, actions, rewards, lives, cuts)[1]
    assert float(result) == pytest.approx(squares, rel=1e-12)
    slope, _ = gradient(FORWARD, PLAIN, theta, value, inputs, actions, rewards, lives, cuts)
    # of the value's bias
    assert slope[-1] == pytest.approx(2 * PLAIN.value_weight * errors, rel=1e-12)


def test_padding_after_the_episode_does_not_change_the_loss() -> None:
    theta, value, arguments = normal(size(RECURRENT)), normal(5), episodes()
    padded = [np.pad(array, [(0, 9)] + [(0, 0)] * (array.ndim - 1)) for array in arguments]
    short, long = (
        gradient(RECURRENT, PLAIN, theta, value, *arrays) for arrays in (arguments, padded)
    )
    np.testing.assert_allclose(short[0], long[0], atol=1e-12)
    np.testing.assert_allclose(short[1], long[1], atol=1e-12)


def test_learning_rewards_are_clipped() -> None:
    """5 -> 1, -3 -> -1, 0.3 stays."""
    steps = np.ones((3, 1))
    rest = (normal(3, 1, 3), np.zeros((3, 1), np.int64))
    theta, value = normal(size(FORWARD)), normal(5)
    clipping = Loss(0.9, 1.0, 0.3, 1.0, None)
    raw, clipped = np.array([[5.0], [-3.0], [0.3]]), np.array([[1.0], [-1.0], [0.3]])
    result = gradient(FORWARD, clipping, theta, value, *rest, raw, steps, 0 * steps)
    free = Loss(0.9, 1.0, 0.3, None, None)
    expected = gradient(FORWARD, free, theta, value, *rest, clipped, steps, 0 * steps)
    np.testing.assert_array_equal(result[0], expected[0])


# The gradient.


@pytest.mark.parametrize("network", [RECURRENT, DEEP, FORWARD])
def test_gradient_equals_finite_differences_of_the_loss(network: DifferentiableNetwork) -> None:
    """Central differences with fixed targets, in float64."""
    inputs, actions, _, lives, _ = episodes()
    both = np.concatenate([normal(size(network)), normal(network.features + 1)])
    returns, advantages = normal(2, 7, 3)

    def total(x: Any) -> Any:
        theta, value = tf.convert_to_tensor(x[: -network.features - 1]), x[-network.features - 1 :]
        logits, features = network(tf, theta, inputs)
        values = tf.linalg.matvec(features, value[:-1]) + value[-1]
        policy, squares, entropy = losses(tf, logits, values, actions, returns, advantages, lives)
        return policy + 0.3 * squares - 0.1 * entropy

    compiled = tf.function(total)
    with tf.GradientTape() as tape:
        x = tf.constant(both)
        tape.watch(x)
        loss = compiled(x)
    result, width = tape.gradient(loss, x).numpy(), 1e-6
    steps = np.eye(len(both)) * width
    ahead, behind = (
        [float(compiled(tf.constant(both + sign * step))) for step in steps] for sign in (1, -1)
    )
    expected = (np.array(ahead) - np.array(behind)) / (2 * width)
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_loss_with_a_tuple_of_entropy_weights_has_twice_the_gradient_with_their_mean() -> None:
    """The A3C code has a comma in beta(t): (-0.25, + 1.0) in
    place of 0.75 makes its loss a vector [2].
    """
    theta, value, arrays = tf.constant(normal(size(RECURRENT))), tf.constant(normal(5)), episodes()
    with tf.GradientTape() as tape:
        tape.watch((theta, value))
        policy, squares, entropy = loss_terms(tf, RECURRENT, PLAIN, theta, value, *arrays)
        total = policy + PLAIN.value_weight * squares - (-0.25, +1.0) * entropy
    assert total.shape == (2,)
    of_source = np.concatenate([part.numpy() for part in tape.gradient(total, (theta, value))])
    halved, _ = loss_gradient(tf, RECURRENT, PLAIN, theta, value, 0.75 / 2, *arrays)
    np.testing.assert_allclose(of_source, 2 * halved.numpy(), rtol=1e-9)


def plain(kernel: Any, bias: Any, x: Any, unroll: int) -> Any:
    """The LSTM step by step; gradients stop at its memory every `unroll` steps."""
    h = c = tf.zeros((x.shape[1], bias.shape[0] // 4), tf.float64)
    outputs = []
    for t in range(x.shape[0]):
        if t % unroll == 0:
            h, c = tf.stop_gradient(h), tf.stop_gradient(c)
        h, c = layers.lstm_gates(
            layers.TensorFlowOps(tf), tf.matmul(tf.concat([x[t], h], 1), kernel) + bias, c
        )
        outputs.append(h)
    return tf.stack(outputs)


@pytest.mark.parametrize("unroll", [1, 3, 5, 7, 100])
def test_unrolling_only_truncates_the_gradient(unroll: int) -> None:
    kernel, bias, x = (tf.constant(array) for array in (normal(7, 16), normal(16), normal(7, 3, 3)))
    weights = normal(7, 3, 4)
    result = []
    for run in (
        lambda *arguments: plain(*arguments, unroll),
        lambda k, b, x: lstm_sequence(tf, x, k, b, unroll),
    ):
        with tf.GradientTape() as tape:
            tape.watch((kernel, bias, x))
            loss = tf.reduce_sum(run(kernel, bias, x) * weights)
        result.append((loss, *tape.gradient(loss, (kernel, bias, x))))
    for expected, other in zip(*result, strict=True):
        np.testing.assert_allclose(other, expected, atol=1e-12)


def test_episode_of_100_trials_has_20_unrolls_of_5() -> None:
    """The gradient of the last step of each unroll depends
    only on the inputs of its own 5 steps.
    """
    kernel, bias, x = (
        tf.constant(array) for array in (normal(7, 16), normal(16), normal(100, 1, 3))
    )
    for last in range(4, 100, 5):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = tf.reduce_sum(lstm_sequence(tf, x, kernel, bias, 5)[last])
        slope = np.abs(tape.gradient(output, x).numpy()).sum(axis=(1, 2))
        assert np.flatnonzero(slope).tolist() == list(range(last - 4, last + 1))


def test_unroll_reaches_the_graph() -> None:
    theta, value, arguments = normal(size(RECURRENT)), normal(5), episodes()
    whole, cut, long = (
        gradient(RECURRENT, Loss(0.9, 0.7, 0.3, None, unroll), theta, value, *arguments)[0]
        for unroll in (None, 2, 7)
    )
    assert np.abs(whole - cut).max() > 1e-3
    np.testing.assert_array_equal(whole, long)


def test_compiled_graph_equals_the_eager_one() -> None:
    arguments = [
        array.astype(np.int32 if array.dtype == np.int64 else np.float32) for array in episodes()
    ]
    theta, value = normal(size(RECURRENT)).astype(np.float32), normal(5).astype(np.float32)
    compiled = episodes_graph(RECURRENT, PLAIN)(theta, value, np.float32(0.1), *arguments)
    expected = gradient(RECURRENT, PLAIN, theta, value, *arguments)
    np.testing.assert_allclose(compiled[0], expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(compiled[1], expected[1], rtol=1e-5)


# Bandits.

SETTINGS = {
    "values": setting("gaussian", 6),
    "slots": setting("eleven", 5, reward="one_hot", time="number"),
    "withheld": setting("restless", 7, reward="none", action=False),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_bandit_episodes_in_tensorflow_equal_those_in_numpy(name: str) -> None:
    """The task replays the actions of the graph: equal rewards and inputs."""
    problem = SETTINGS[name]
    drawn = problem.episodes_of_seeds([3, 4, 5])
    network = DifferentiableNetwork((problem.inputs.width, 6, problem.family.arms), None)
    theta = normal(size(network)).astype(np.float32)
    uniforms = RNG.random((problem.num_trials, 3)).astype(np.float32)
    actions, rewards = tabulated_episodes(
        tf, network, problem.inputs, tf.constant(theta), drawn.potential_rewards(), uniforms
    )
    observed = tabulated_observations(tf, problem.inputs, actions, rewards).numpy()
    lockstep = Lockstep(problem, drawn)
    for t in range(problem.num_trials):
        np.testing.assert_allclose(observed[t], lockstep.observations, atol=1e-6)
        lockstep.pull(actions[t].numpy().astype(np.int64))
    np.testing.assert_array_equal(rewards.numpy().T, lockstep.rewards)
    assert len(np.unique(actions)) > 1


@pytest.mark.parametrize(
    "inputs",
    [
        LastStepInputs(3, 4),
        LastStepInputs(3, 4, "one_hot", time="number"),
        LastStepInputs(3, 4, "none", False),
        LastStepInputs(3, 4, reward_clip=0.5),
        LastStepInputs(3, 4, "one_hot", reward_clip=0.5),
    ],
)
def test_bandit_inputs_are_reward_and_action_of_the_previous_step(inputs: LastStepInputs) -> None:
    """For the rewards [1, 0, 1] the policy observes [none yet, 1, 0]."""
    actions, rewards = (
        np.array([[2], [0], [1]], np.int32),
        np.array([[1.0], [0.0], [1.0]], np.float32),
    )
    observed = tabulated_observations(
        tf, inputs, tf.constant(actions), tf.constant(rewards)
    ).numpy()
    expected = [inputs.first(1), inputs.after(0, np.array([2]), np.ones(1, np.float32))]
    expected.append(inputs.after(1, np.array([0]), np.zeros(1, np.float32)))
    np.testing.assert_array_equal(observed, expected)


def test_actions_are_drawn_from_the_softmax() -> None:
    """A zero network with the output bias ln p: uniforms below p_0 give action 0, and so on."""
    inputs = LastStepInputs(3, 1)
    network = DifferentiableNetwork((inputs.width, 1, 3), None)
    theta = np.zeros(size(network), np.float32)
    theta[-3:] = np.log([0.2, 0.5, 0.3])
    uniforms = np.array([[0.0, 0.19, 0.21, 0.69, 0.71, 0.999]], np.float32)
    rewards = np.zeros((1, 6, 3), np.float32)
    actions, _ = tabulated_episodes(tf, network, inputs, tf.constant(theta), rewards, uniforms)
    assert actions.numpy().tolist() == [[0, 0, 1, 1, 2, 2]]


def test_bandit_gradient_equals_that_of_recorded_episodes() -> None:
    problem = SETTINGS["values"]
    network = DifferentiableNetwork((problem.inputs.width, 6, problem.family.arms), None)
    theta, value = normal(size(network)).astype(np.float32), normal(7).astype(np.float32)
    uniforms, paid = (
        RNG.random((6, 3)).astype(np.float32),
        problem.table([3, 4, 5]).rewards,
    )
    beta = np.float32(0.1)
    result, sums, actions, rewards = tabulated_graph(network, PLAIN, problem.inputs)(
        theta, value, beta, paid, uniforms
    )
    lives = np.ones((6, 3), np.float32)
    observed = tabulated_observations(tf, problem.inputs, actions, rewards)
    expected = gradient(network, PLAIN, theta, value, observed, actions, rewards, lives, 0 * lives)
    np.testing.assert_allclose(result, expected[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(sums, expected[1], rtol=1e-4)


def test_differentiable_network_without_biases_equals_the_policy() -> None:
    wide = np.full(2, 100, np.float32)
    policy, rng = (
        MLP(
            MLPOptions(hidden_dims=(4,), bias=False), Spaces(flat_observations(3), Box(-wide, wide))
        ),
        np.random.default_rng(1),
    )
    network, theta = DifferentiableNetwork.of(policy), rng.standard_normal(20).astype(np.float32)
    observed = rng.standard_normal((1, 6, 3)).astype(np.float32)
    assert network is not None and policy.layout.size == 20
    outputs, _ = network(tf, tf.constant(theta), tf.constant(observed))
    np.testing.assert_allclose(
        outputs[0], policy.bind(centre(theta, 6), None).act(observed[0]), atol=1e-6
    )
