"""The feed-forward policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.config.options import warnings_of
from hpc_es.core.data import Box, Discrete, Float32, Spaces, flat_observations
from hpc_es.core.population import Perturbed
from hpc_es.policies.mlp import MLP, Options
from hpc_es.policies.networks.heads import normalise
from hpc_es.policies.networks.layers import (
    ACTIVATIONS,
    Layers,
    array_activation,
    dense,
    in_place_activation,
)
from tests.helpers.populations import population


def policy(observations: int, actions: int, hidden: tuple[int, ...] = (), **options: Any) -> MLP:
    box = Box(np.full(actions, -1, np.float32), np.full(actions, 1, np.float32))
    return MLP(Options(hidden_dims=hidden, **options), Spaces(flat_observations(observations), box))


def perturbed(theta: Float32, jobs: int, seed: int = 0) -> Perturbed:
    """Mirrored pairs around theta."""
    directions = (
        np.random.default_rng(seed).standard_normal((-(-jobs // 2), len(theta))).astype(np.float32)
    )
    scales = np.where(np.arange(jobs) % 2 == 0, 0.3, -0.3).astype(np.float32)
    return population(theta, directions, np.arange(jobs) // 2, scales)


def alone(theta: Float32) -> Perturbed:
    none = np.zeros((0, len(theta)), np.float32)
    return population(theta, none, np.zeros(1, np.intp), np.zeros(1, np.float32))


@pytest.mark.parametrize(
    ("widths", "bins", "size"),
    [
        ((28, 256, 256, 8), None, 75_272),
        ((28, 256, 256, 8), 5, 83_496),
        ((8, 32, 32, 2), None, 1_410),
        ((24, 64, 64, 4), None, 6_020),
    ],
)
def test_parameter_counts(widths: tuple[int, ...], bins: int | None, size: int) -> None:  # T47
    assert policy(widths[0], widths[-1], widths[1:-1], action_bins=bins).layout.size == size


@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        ("elu", -1, -0.632121),  # T50: exp(-1) - 1
        ("elu", 2, 2),
        ("elu", -100, -1),
        ("elu", 100, 100),
        ("leaky_relu", -1, -0.2),
        ("leaky_relu", 3, 3),
        ("relu", -1, 0),
        ("relu", 2, 2),
        ("tanh", 1, 0.761594),  # (e - 1/e) / (e + 1/e)
        ("tanh", -50, -1),
    ],
)
def test_activations(name: str, x: float, y: float) -> None:
    result = ACTIVATIONS[name](np.full((2, 1, 3), x, np.float32))
    np.testing.assert_allclose(result, np.full((2, 1, 3), y), rtol=1e-6)
    assert result.dtype == np.float32


def test_parameters_are_ordered_by_layer() -> None:
    (w1, b1), (w2, b2) = Layers((2, 3, 1)).layers(np.arange(13, dtype=np.float32))
    assert w1.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert b1.tolist() == [[6, 7, 8]]
    assert w2.tolist() == [[9], [10], [11]]
    assert b2.tolist() == [[12]]


def test_mlp_actions_by_hand() -> None:
    """relu(x W1 + b1) W2 + b2 with x = [1, 2]:
    hidden [1*1 + 2*.5 - 1, 1*-1 + 2*0 + 0] = [1, -1] -> [1, 0].
    """
    theta = np.array([1, -1, 0.5, 0, -1, 0, 0.25, 7, 0.5], np.float32)
    actor = policy(2, 1, (2,), activation="relu").bind(alone(theta), None)
    assert actor.act(np.array([[1, 2]], np.float32)).tolist() == [[0.75]]


def test_without_hidden_layers_the_policy_is_linear() -> None:
    actor = policy(2, 1).bind(alone(np.array([0.5, -0.25, 0.125], np.float32)), None)
    assert actor.act(np.array([[1, 2]], np.float32)).tolist() == [[0.125]]


def test_without_hidden_layers_and_bias_the_policy_is_a_matrix() -> None:
    """.5 * 1 - .25 * 2 + 0 and .125 * 1 + .25 * 2; dropping a row keeps the others."""
    network = policy(2, 2, bias=False)
    theta = np.array([0.5, 0.125, -0.25, 0.25], np.float32)
    assert (network.layout.size, network.initial(np.random.default_rng(0)).shape) == (4, (4,))
    jobs = population(
        theta, np.ones((1, 4), np.float32), np.zeros(2, np.intp), np.array([0, 0.25], np.float32)
    )
    actor, observed = network.bind(jobs, None), np.array([[1, 2], [1, 2]], np.float32)
    assert actor.act(observed).tolist() == [[0, 0.625], [0.75, 1]]
    actor.keep(np.array([1]))
    assert actor.act(observed[:1]).tolist() == [[0.75, 1]]


def test_hidden_layer_without_bias_by_hand() -> None:
    """relu([1, 2] W1) W2: hidden [1 + 1, -1 + 0] -> [2, 0] -> .5."""
    actor = policy(2, 1, (2,), activation="relu", bias=False).bind(
        alone(np.array([1, -1, 0.5, 0, 0.25, 7], np.float32)), None
    )
    assert actor.act(np.array([[1, 2]], np.float32)).tolist() == [[0.5]]


def test_initial_zeros_gives_a_zero_policy() -> None:
    linear = policy(3, 2, (), initial="zeros").initial(np.random.default_rng(0))
    assert (linear.dtype, linear.tolist()) == (np.float32, [0] * (3 * 2 + 2))


def test_initial_zeros_applies_to_the_last_layer() -> None:
    """If all were zeros, theta + noise and theta - noise would act alike, because tanh is odd."""
    started = policy(3, 2, (4,), initial="zeros", bias=False)
    theta = started.initial(np.random.default_rng(0))
    weights, rest = theta[: 3 * 4].reshape(3, 4), theta[3 * 4 :]
    np.testing.assert_allclose(np.linalg.norm(weights, axis=0), 1, rtol=1e-6)
    assert rest.tolist() == [0] * (4 * 2)
    noise, observed = np.full(theta.size, 0.1, np.float32), np.array([[1, 2, 3]], np.float32)
    up, down = (started.bind(alone(theta + sign * noise), None).act(observed) for sign in (1, -1))
    assert not np.allclose(up, down)
    up, down = (started.bind(alone(sign * noise), None).act(observed) for sign in (1, -1))
    assert np.array_equal(up, down)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_each_job_acts_with_its_own_parameters(activation: Any) -> None:
    """Against a plain forward pass in float64, job by job; in pair 2,
    candidates are theta -+ scale * direction.
    """
    mlp = policy(3, 2, (5, 4), activation=activation)
    theta = mlp.initial(np.random.default_rng(1)) * 3
    jobs, observations = (
        perturbed(theta, 7),
        np.random.default_rng(2).standard_normal((7, 3)).astype(np.float32),
    )
    actions = mlp.bind(jobs, None).act(observations)
    plain = {
        "tanh": np.tanh,
        "relu": lambda x: np.maximum(x, 0),
        "leaky_relu": lambda x: np.where(x > 0, x, 0.2 * x),
        "elu": lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1),
    }[activation]
    for job in range(7):
        flat = theta + jobs.scales[job].astype(np.float64) * jobs.directions[job // 2]
        w1, b1, w2, b2, w3, b3 = np.split(flat, np.cumsum([15, 5, 20, 4, 8]))
        hidden = plain(plain(observations[job] @ w1.reshape(3, 5) + b1) @ w2.reshape(5, 4) + b2)
        np.testing.assert_allclose(
            actions[job], np.clip(hidden @ w3.reshape(4, 2) + b3, -1, 1), atol=1e-5
        )


def test_observations_are_normalised_and_clipped() -> None:  # T46
    mean, deviation = np.array([1, 0, -1], np.float32), np.array([2, 0.1, 1], np.float32)
    observations = np.array([[2, 3, -9]], np.float32)
    assert normalise(observations.copy(), (mean, deviation, 5.0)).tolist() == [[0.5, 5, -5]]
    theta = np.array([0.5, 0.125, 0.125, 0], np.float32)  # linear: .25 + .625 - .625
    actor = policy(3, 1).bind(alone(theta), (mean, deviation, 5.0))
    assert actor.act(observations).tolist() == [[0.25]]
    assert observations.tolist() == [[2, 3, -9]]


def test_initial_columns_are_normalised() -> None:
    """Length 1 in hidden layers, 0.01 in the output layer; biases 0; directions are isotropic."""
    mlp = policy(28, 8, (256, 256))
    theta = mlp.initial(np.random.default_rng(0))
    assert theta.dtype == np.float32
    layers = list(mlp.layers.layers(theta))
    for (weights, biases), length in zip(layers, (1, 1, 0.01), strict=True):
        np.testing.assert_allclose(np.linalg.norm(weights, axis=0), length, rtol=1e-5)
        assert not biases.any()
    assert np.linalg.matrix_rank(layers[2][0]) == 8
    assert abs(layers[1][0].mean()) < 5 / 16 / 256  # entries have a deviation of 1 / sqrt(256)


def test_random_normal_weights_have_their_deviation_in_every_layer() -> None:
    """n numbers have the deviation 0.3 with a standard error of 0.3 / sqrt(2 n):
    within 4 of these.
    """
    network = policy(40, 50, (60,), initial="random_normal", initial_std=0.3)
    for weights, biases in network.layers.layers(network.initial(np.random.default_rng(0))):
        assert abs(weights.std() - 0.3) < 4 * 0.3 / np.sqrt(2 * weights.size)
        assert abs(weights.mean()) < 4 * 0.3 / np.sqrt(weights.size)
        assert not biases.any()


def test_unused_initial_deviation_is_warned_about() -> None:
    config = validate({"task": {"env_id": "CartPole-v1"}, "policy": {"initial_std": 0.1}})
    assert any(
        "policy.initial_std: is 0.1, but does nothing" in warning for warning in warnings_of(config)
    )


def test_initial_parameters_are_those_of_the_generator() -> None:
    mlp = policy(3, 2, (4,))
    first, same, other = (mlp.initial(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_layer_normalisation_by_hand() -> None:
    """z = (3, 1, -4) has mean 0 and variance 26 / 3; (1, 3, 2): mean 2, variance 2 / 3;
    relu drops negative numbers.
    """
    z = np.array([[[3, 1, -4]], [[1, 3, 2]]], np.float32)
    expected = [[3 / np.sqrt(26 / 3), 1 / np.sqrt(26 / 3), 0], [0, 1 / np.sqrt(2 / 3), 0]]
    activate = in_place_activation("relu", "layer")
    np.testing.assert_allclose(activate(z.copy())[:, 0], expected, atol=1e-4)
    np.testing.assert_allclose(array_activation(np, "relu", "layer")(z)[:, 0], expected, atol=1e-4)


def test_layer_normalisation_precedes_the_activation_of_hidden_layers() -> None:
    mlp = policy(5, 3, (8, 6), activation="relu", normalisation="layer")
    theta = mlp.initial(np.random.default_rng(1)) * 3
    x = np.random.default_rng(2).standard_normal(5).astype(np.float32)
    outputs = x
    for number, (weights, biases) in enumerate(mlp.layers.layers(theta)):
        outputs = outputs @ weights + biases[0]
        if number < 2:
            outputs = np.maximum((outputs - outputs.mean()) / np.sqrt(outputs.var() + 1e-5), 0)
    expected = np.clip(outputs, -1, 1)
    np.testing.assert_allclose(mlp.bind(alone(theta), None).act(x[None])[0], expected, atol=1e-5)
    pure: Any = mlp.pure(np)
    np.testing.assert_allclose(pure.apply(pure.parameters(theta), (), x)[1], expected, atol=1e-5)
    config = validate(
        {"task": {"env_id": "CartPole-v1"}, "policy": {"hidden_dims": [], "normalisation": "layer"}}
    )
    assert any(
        "policy.normalisation: is 'layer', but does nothing" in warning
        for warning in warnings_of(config)
    )


@pytest.mark.parametrize(
    ("activation", "normalisation"),
    [*((a, "none") for a in sorted(ACTIVATIONS)), ("relu", "layer")],
)
@pytest.mark.parametrize("jobs", [1, 2, 5, 15])
def test_actions_of_a_job_do_not_depend_on_the_batch(
    activation: Any, normalisation: Any, jobs: int
) -> None:
    """Bit for bit: in a stack of 16, alone, and after others were dropped;
    widths do not fill a SIMD register.
    """
    mlp = policy(11, 3, (64, 17), activation=activation, normalisation=normalisation)
    theta, rng = mlp.initial(np.random.default_rng(1)) * 2, np.random.default_rng(3)
    whole = perturbed(theta, 16)
    observations = rng.standard_normal((16, 11)).astype(np.float32)
    expected = mlp.bind(whole, None).act(observations)
    part = population(theta, whole.directions, whole.rows[:jobs], whole.scales[:jobs])
    assert np.array_equal(mlp.bind(part, None).act(observations[:jobs]), expected[:jobs])
    kept = np.sort(rng.permutation(16)[:jobs])
    actor = mlp.bind(whole, None)
    actor.keep(kept)
    assert np.array_equal(actor.act(observations[kept]), expected[kept])


def test_acting_changes_neither_observations_nor_parameters() -> None:
    mlp = policy(3, 2, (4,), activation="elu")
    jobs = perturbed(mlp.initial(np.random.default_rng(1)), 4)
    copies = jobs.centres.copy(), jobs.directions.copy(), jobs.scales.copy()
    observations = np.ones((4, 3), np.float32)
    actor = mlp.bind(jobs, (np.ones(3, np.float32), np.ones(3, np.float32), 5.0))
    first, second = actor.act(observations).copy(), actor.act(observations)
    assert np.array_equal(first, second)
    assert (observations == 1).all()
    assert all(
        np.array_equal(a, b)
        for a, b in zip((jobs.centres, jobs.directions, jobs.scales), copies, strict=True)
    )


def test_mirrored_jobs_are_symmetric_about_theta() -> None:
    jobs = population(
        np.array([1, 2], np.float32),
        np.array([[10, 20], [1, 0]], np.float32),
        np.array([0, 0, 1]),
        np.array([0.5, -0.5, 2], np.float32),
    )
    assert jobs.stacked().tolist() == [[6, 12], [-4, -8], [3, 2]]


def test_discrete_policy_selects_the_largest_output() -> None:
    spaces = Spaces(flat_observations(2), Discrete(2, start=3))
    actor = MLP(Options(hidden_dims=()), spaces).bind(
        alone(np.array([1, 0, 0, 1, 0, 0], np.float32)), None
    )
    assert [actor.act(np.array([o], np.float32))[0] for o in ([2, 1], [1, 2])] == [3, 4]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_actor_equals_the_formula_of_the_layers(activation: str, bias: bool) -> None:
    """Up to one float32 rounding, since biases are added within the product."""
    network = policy(7, 3, (16, 16), activation=activation, bias=bias)
    parameters = perturbed(network.initial(np.random.default_rng(0)) * 3, 6)
    observed = np.random.default_rng(1).standard_normal((6, 7)).astype(np.float32)
    layers = list(network.layers.layers(parameters.stacked()))
    outputs, features = dense(np.matmul, ACTIVATIONS[activation], layers, observed[:, np.newaxis])
    assert (outputs.shape, features.shape) == ((6, 1, 3), (6, 1, 16))
    np.testing.assert_allclose(
        network.bind(parameters, None).act(observed), np.clip(outputs[:, 0], -1, 1), atol=1e-6
    )
    assert np.abs(outputs).min() < 1
