"""The gradient of custom networks in TensorFlow equals that of mlp and lstm, whose graph is tested by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms.actor_critic.differentiable import GraphPolicy
from hpc_es.algorithms.actor_critic.episodes import Trajectories
from hpc_es.algorithms.actor_critic.loss import Loss, Weights
from hpc_es.core.population import Layout
from hpc_es.policies.networks.differentiable import DifferentiableNetwork

pytestmark = pytest.mark.tensorflow

INPUTS, UNITS, ACTIONS = 3, 4, 2
WIDTHS = (INPUTS, UNITS, ACTIONS)
HIDDEN = {True: (INPUTS + UNITS + 1) * 4 * UNITS, False: (INPUTS + 1) * UNITS}  # parameters before the output layer


class OneLayer:
    """An LSTM layer, or a dense layer of tanh, as a user writes it; the last column of the output is the value."""

    backend = "tensorflow"

    def __init__(self, is_recurrent: bool) -> None:
        self.is_recurrent = is_recurrent
        kernel = (INPUTS + UNITS, 4 * UNITS) if is_recurrent else (INPUTS, UNITS)
        self.layout = Layout({"k": kernel, "b": kernel[1:], "output": (UNITS, ACTIONS + 1), "last": (ACTIONS + 1,)})

    def initial(self, rng: np.random.Generator) -> Any:
        return rng.standard_normal(self.layout.size).astype(np.float32)

    def memory(self) -> Any:
        return {"h": np.zeros(UNITS, np.float32), "c": np.zeros(UNITS, np.float32)} if self.is_recurrent else ()

    def apply(self, p: Any, memory: Any, x: Any) -> Any:
        import tensorflow as tf

        def affine(x: Any, kernel: Any, bias: Any) -> Any:
            return tf.linalg.matvec(p[kernel], x, transpose_a=True) + p[bias]

        if self.is_recurrent:
            i, j, f, o = tf.split(affine(tf.concat([x, memory["h"]], 0), "k", "b"), 4)
            c = memory["c"] * tf.sigmoid(f + 1) + tf.sigmoid(i) * tf.tanh(j)
            x = tf.tanh(c) * tf.sigmoid(o)
            memory = {"h": x, "c": c}
        else:
            x = tf.tanh(affine(x, "k", "b"))
        return affine(x, "output", "last"), memory


class Normalised(OneLayer):
    """Its gradient is NaN where the observation is 0."""

    def apply(self, p: Any, memory: Any, x: Any) -> Any:
        import tensorflow as tf

        return super().apply(p, memory, x / tf.norm(x))


def episodes(steps: int = 8) -> Trajectories:
    """Episodes of 7, 4 and 2 steps, that of 4 truncated."""
    rng, lengths, t = np.random.default_rng(1), np.array([steps - 1, 4, 2]), np.arange(steps)[:, np.newaxis]
    lives = (t < lengths).astype(np.float32)
    cuts = ((t == 4) & (lengths == 4)).astype(np.float32)
    inputs = (rng.standard_normal((steps, 3, INPUTS)) * (lives + cuts)[..., np.newaxis]).astype(np.float32)
    actions, rewards = rng.integers(2, size=(steps, 3)) * lives, 2 * rng.standard_normal((steps, 3)) * lives
    return Trajectories(inputs, actions.astype(np.int32), rewards.astype(np.float32), lives, cuts)


def gradient(network: Any, loss: Loss, memory: Any = None) -> Any:
    from hpc_es.algorithms.actor_critic.tensorflow_gradient import TensorFlowPolicy

    policy = TensorFlowPolicy(network)
    weights = Weights(network.initial(np.random.default_rng(0)), policy.initial_value(None), np.float32(0.1))  # type: ignore[arg-type]
    return policy.gradient(loss, weights, episodes(), memory)


def in_graph(theta: Any, is_recurrent: bool) -> tuple[Any, Any]:
    """Theta or its gradient with the columns of the output layer as the parameters of logits and value."""
    hidden, last = np.split(theta, [HIDDEN[is_recurrent]])
    logits, value = np.split(last.reshape(UNITS + 1, ACTIONS + 1), [ACTIONS], axis=1)
    return np.concatenate([hidden, logits.ravel()]), value.ravel()


@pytest.mark.parametrize("starts", ["at rest", "in an episode"])
@pytest.mark.parametrize(("is_recurrent", "unroll"), [(True, None), (True, 3), (False, None)])
def test_gradient_equals_that_of_lstm_and_mlp(is_recurrent: bool, unroll: int | None, starts: str) -> None:
    network, loss = OneLayer(is_recurrent), Loss(0.9, 0.7, 0.3, 1.0, unroll)
    other = GraphPolicy(DifferentiableNetwork(WIDTHS, None if is_recurrent else "tanh"))
    memory, leaves = None, None
    if starts == "in an episode":
        h_and_c = np.random.default_rng(5).standard_normal((3, 2, UNITS)).astype(np.float32)
        memory, leaves = ([h_and_c], [h_and_c[:, 1], h_and_c[:, 0]]) if is_recurrent else ([], [])
    weights = Weights(*in_graph(network.initial(np.random.default_rng(0)), is_recurrent), np.float32(0.1))
    expected, expected_sums = other.gradient(loss, weights, episodes(), memory)
    result, sums = gradient(network, loss, leaves)
    np.testing.assert_allclose(np.concatenate(in_graph(result, is_recurrent)), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5)


def test_steps_after_the_end_never_make_the_gradient_nan() -> None:
    result, sums = gradient(Normalised(True), Loss(0.9, 0.7, 0.3, 1.0, None))
    assert np.isfinite(result).all() and np.isfinite(sums).all()
