"""The gradient of custom networks in TensorFlow equals that of mlp and lstm,
whose graph is tested by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_es.actor_critic.differentiable import GraphPolicy
from hpc_es.actor_critic.loss import Loss, LossWeights
from hpc_es.policies.networks.tensorflow_sequences import DifferentiableNetwork
from tests.actor_critic.one_layer import ACTIONS, INPUTS, UNITS, OneLayer, episodes, in_graph

pytestmark = pytest.mark.tensorflow


class TensorFlowLayer(OneLayer):
    backend = "tensorflow"

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


class Normalised(TensorFlowLayer):
    """Its gradient is NaN where the observation is 0."""

    def apply(self, p: Any, memory: Any, x: Any) -> Any:
        import tensorflow as tf

        return super().apply(p, memory, x / tf.norm(x))


def gradient(network: Any, loss: Loss, memory: Any = None) -> Any:
    from hpc_es.actor_critic.differentiable import TensorFlowPolicy

    policy = TensorFlowPolicy(network)
    weights = LossWeights(
        network.initial(np.random.default_rng(0)), policy.initial_value(None), np.float32(0.1)
    )  # type: ignore[arg-type]
    return policy.gradient(loss, weights, episodes(), memory)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("starts", ["at rest", "in an episode"])
@pytest.mark.parametrize(("is_recurrent", "unroll"), [(True, None), (True, 3), (False, None)])
def test_gradient_equals_that_of_lstm_and_mlp(
    is_recurrent: bool, unroll: int | None, starts: str
) -> None:
    network, loss = TensorFlowLayer(is_recurrent), Loss(0.9, 0.7, 0.3, 1.0, unroll)
    other = GraphPolicy(
        DifferentiableNetwork((INPUTS, UNITS, ACTIONS), None if is_recurrent else "tanh")
    )
    memory, leaves = None, None
    if starts == "in an episode":
        h_and_c = np.random.default_rng(5).standard_normal((3, 2, UNITS)).astype(np.float32)
        memory, leaves = ([h_and_c], [h_and_c[:, 1], h_and_c[:, 0]]) if is_recurrent else ([], [])
    weights = LossWeights(*in_graph(network.initial(np.random.default_rng(0))), np.float32(0.1))
    expected, expected_sums = other.gradient(loss, weights, episodes(), memory)
    result, sums = gradient(network, loss, leaves)
    np.testing.assert_allclose(np.concatenate(in_graph(result)), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5)


@pytest.mark.parametrize("kind", ["episodes", "segments", "custom"])
def test_gradient_is_the_same_if_functions_run_eagerly(kind: str) -> None:
    """After tf.config.run_functions_eagerly(True), with which users find the line of an error."""
    import tensorflow as tf

    loss, network = Loss(0.9, 0.7, 0.3, 1.0, None), TensorFlowLayer(kind != "custom")

    def computed() -> Any:
        if kind == "custom":
            return gradient(network, loss)
        policy = GraphPolicy(DifferentiableNetwork((INPUTS, UNITS, ACTIONS), None))
        weights = LossWeights(*in_graph(network.initial(np.random.default_rng(0))), np.float32(0.1))
        return policy.gradient(
            loss, weights, episodes(), policy.memory(3) if kind == "segments" else None
        )

    expected, expected_sums = computed()
    tf.config.run_functions_eagerly(True)
    try:
        result, sums = computed()
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-4)


def test_steps_after_the_end_never_make_the_gradient_nan() -> None:
    result, sums = gradient(Normalised(True), Loss(0.9, 0.7, 0.3, 1.0, None))
    assert np.isfinite(result).all() and np.isfinite(sums).all()
