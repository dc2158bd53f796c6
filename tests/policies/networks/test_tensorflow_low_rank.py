"""Keras models in TensorFlow whose candidates are common weights and factors,
against formed candidates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpc_es.core.data import Box, ObservationSpec, Spaces
from hpc_es.core.keys import Keys
from hpc_es.core.population import Explicit, Factorisation, Layout, LowRank
from hpc_es.noise.counter import CounterNoise
from hpc_es.noise.low_rank import LowRankNoise
from hpc_es.policies import network

pytestmark = pytest.mark.tensorflow
ROWS = 5  # calls of 4 candidates: the second one is padded
IMAGES = ObservationSpec((6, 6, 2), np.dtype(np.float32))


@pytest.fixture(autouse=True, scope="module")
def _backend() -> None:
    keras = pytest.importorskip("keras", reason="Keras is not installed here")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras was imported with another backend")


def every_layer(observations: Any, outputs: int) -> Any:
    """A convolution, Dense on vectors and on sequences, EinsumDense and Embedding."""
    import keras

    image = keras.Input(observations.shape)
    x = keras.layers.Conv2D(8, 3, activation="relu")(image)
    x = keras.layers.Dense(12, "tanh")(keras.layers.Flatten()(x))
    tokens = keras.ops.cast(keras.ops.round(3 * keras.ops.abs(x)), "int32")
    x = keras.layers.Embedding(9, 10)(tokens)  # [12, 10]
    x = keras.layers.Dense(8, "tanh")(x)
    x = keras.layers.EinsumDense("abc,cd->abd", output_shape=(None, 8), bias_axes="d")(x)
    return keras.Model(image, keras.layers.Dense(outputs)(keras.ops.mean(x, axis=1)))


def recurrent(observations: Any, outputs: int) -> Any:
    """An LSTM layer, whose kernels are used in a loop, and a dense layer."""
    import keras

    image = keras.Input(observations.shape)
    x = keras.layers.LSTM(8)(keras.layers.Reshape((6, 12))(image))
    return keras.Model(image, keras.layers.Dense(outputs)(keras.layers.Dense(12, "tanh")(x)))


def population(policy: Any, rank: int) -> LowRank:
    factorisation = Factorisation(policy.layout, rank)
    noise = LowRankNoise(CounterNoise(Keys(1), factorisation.compact.size), factorisation)
    scales = np.where(np.arange(ROWS) % 2 == 0, 0.3, -0.3).astype(np.float32)
    theta = policy.initial(np.random.default_rng(0))
    return LowRank(factorisation, theta, noise.numbers(0, range(3)), np.arange(ROWS) // 2, scales)


@pytest.mark.long
@pytest.mark.parametrize(
    ("builder", "rank", "formed"), [("every_layer", 2, ["conv2d"]), ("recurrent", 1, ["lstm"])]
)
def test_actions_equal_those_of_formed_candidates(
    builder: str, rank: int, formed: list[str]
) -> None:
    options = network.Options(
        network=f"{__name__}:{builder}", backend="tensorflow", candidates_per_call=4
    )
    policy = network.build(
        options, Spaces(IMAGES, Box(np.full(3, -9, np.float32), np.full(3, 9, np.float32)))
    )
    candidates, observations = (
        population(policy, rank),
        np.random.default_rng(1).random((ROWS, 6, 6, 2), np.float32),
    )
    expected = policy.bind(Explicit(policy.layout, candidates.stacked()), None).act(observations)
    others = set(candidates.matrices) - set(policy.factored(tuple(candidates.matrices)))
    assert {name.split("/")[0].rstrip("_0123456789") for name in others} == set(formed), others
    actor = policy.bind(candidates, None)
    np.testing.assert_allclose(actor.act(observations), expected, rtol=1e-4, atol=1e-4)
    backwards = np.arange(ROWS)[::-1]
    turned = replace(
        candidates, rows=candidates.rows[backwards], scales=candidates.scales[backwards]
    )
    again = policy.bind(turned, None).act(observations[backwards])
    assert again[backwards].tobytes() == policy.bind(candidates, None).act(observations).tobytes()


class Dense:
    """A `Network` of one dense layer."""

    layout = Layout({"kernel": (2, 3), "bias": (3,)})

    def memory(self) -> Any:
        return ()

    def apply(self, parameters: Any, memory: Any, observation: Any) -> Any:
        import keras

        return keras.ops.matmul(observation[None], parameters["kernel"])[0] + parameters[
            "bias"
        ], memory


@pytest.mark.parametrize(
    ("scale", "expected"), [(0.1, [-0.2, 8.1, 11.1]), (-0.1, [-0.8, 7.9, 11.9])]
)
def test_dense_layer_by_hand(scale: float, expected: list[float]) -> None:
    """x W + (s x B) A + b + s b'; see tests/core/test_population.py."""
    import tensorflow as tf

    from hpc_es.policies.networks.tensorflow_low_rank import apply_factored, parameters_of

    common = {"kernel": tf.constant([[1, 2, 0], [-1, 0.5, 3]], tf.float32)}
    left, right, bias, change = ([[2.0, -1]], [[1.0, 0, -2]], [0.5, 0, -0.5], [1.0, 1, 0])
    own = {"kernel:left": tf.constant(left), "kernel:right": scale * tf.constant(right)}
    own["bias"] = tf.constant(bias) + scale * tf.constant(change)
    network: Any = Dense()

    @tf.function(autograph=False)
    def call(x: Any) -> Any:
        return apply_factored(network, parameters_of(Dense.layout, common, own), (), x)[0]

    np.testing.assert_allclose(call(tf.constant([3.0, 4])), expected, rtol=1e-6)
