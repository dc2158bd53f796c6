"""Pure functions of policies, in NumPy and JAX, agree with the actors row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_es.core.data import Box, Discrete, Spaces, flat_observations
from hpc_es.core.policy import PurePolicy
from hpc_es.policies import lstm, mlp
from hpc_es.policies.networks.heads import normalise, normalised
from tests.helpers.populations import explicit

BOX = Box(np.array([-1, -0.5], np.float32), np.array([1, 0.25], np.float32))
POLICIES: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "tanh": (mlp, {"hidden_dims": (6, 5)}, BOX),
    "elu without bias": (mlp, {"hidden_dims": (6,), "activation": "elu", "bias": False}, BOX),
    "relu": (mlp, {"hidden_dims": (6,), "activation": "relu"}, Discrete(4)),
    "leaky_relu": (mlp, {"hidden_dims": (6,), "activation": "leaky_relu"}, Discrete(4, 2)),
    "linear": (mlp, {"hidden_dims": ()}, BOX),
    "bins": (mlp, {"hidden_dims": (6,), "action_bins": 5}, BOX),
    "squashed": (mlp, {"hidden_dims": (6,), "action_bounds": "squash"}, BOX),
    "wide": (mlp, {"hidden_dims": (80, 80)}, BOX),
    "lstm": (lstm, {"hidden_dims": (7,)}, BOX),
    "two lstm layers": (lstm, {"hidden_dims": (7, 4)}, Discrete(3)),
    "lstm bins": (lstm, {"hidden_dims": (7,), "action_bins": 3}, BOX),
}
ROWS, STEPS, WIDTH = 5, 4, 3


def numpy_namespace() -> Any:
    return np


def jax_namespace() -> Any:
    return pytest.importorskip("jax.numpy", reason="JAX is not installed here: make test-jax")


@pytest.mark.parametrize("namespace", [numpy_namespace, jax_namespace])
@pytest.mark.parametrize("name", POLICIES)
def test_pure_function_equals_the_actor(name: str, namespace: Any) -> None:
    module, options, actions = POLICIES[name]
    policy = module.build(module.Options(**options), Spaces(flat_observations(WIDTH), actions))
    assert isinstance(policy, PurePolicy)
    rng = np.random.default_rng(2)
    theta = rng.standard_normal((ROWS, policy.layout.size)).astype(np.float32)
    observed = rng.standard_normal((STEPS, ROWS, WIDTH)).astype(np.float32)
    actor = policy.bind(explicit(theta), None)
    pure = policy.pure(namespace())
    memories, parameters = [pure.memory] * ROWS, [pure.parameters(row) for row in theta]
    for observations in observed:
        expected = actor.act(observations)
        for row in range(ROWS):
            memories[row], action = pure.apply(parameters[row], memories[row], observations[row])
            np.testing.assert_allclose(np.asarray(action), expected[row], atol=2e-6)


def test_pure_lstm_keeps_its_memory() -> None:
    policy = lstm.build(lstm.Options(hidden_dims=(4,)), Spaces(flat_observations(WIDTH), BOX))
    theta = 0.1 * np.random.default_rng(0).standard_normal(policy.layout.size).astype(np.float32)
    pure = policy.pure(np)
    parameters = pure.parameters(theta)
    memory, one = pure.apply(parameters, pure.memory, np.ones(WIDTH, np.float32))
    _, two = pure.apply(parameters, memory, np.ones(WIDTH, np.float32))
    assert not np.array_equal(one, two)


def test_pure_normalisation_equals_normalisation_in_place() -> None:
    """(2 - 1) / 2 = 0.5; (9 - 1) / 0.5 = 16, clipped to 5; an infinite deviation gives 0."""
    mean, deviation = np.array([1, 1, 3], np.float32), np.array([2, 0.5, np.inf], np.float32)
    observed = np.array([2, 9, 7], np.float32)
    result = normalised(np, observed, (mean, deviation, 5.0))
    assert result.tolist() == [0.5, 5.0, 0.0]
    assert normalise(observed[np.newaxis].copy(), (mean, deviation, 5.0)).tolist() == [
        result.tolist()
    ]
