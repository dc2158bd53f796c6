"""Networks in JAX whose candidates are common weights and factors,
against the same networks with formed weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
import jax
import jax.numpy as jnp

from hpc_es.core.data import Box, ObservationSpec, Spaces
from hpc_es.core.keys import Keys
from hpc_es.core.population import Explicit, Factorisation, Layout, LowRank
from hpc_es.devices.jax_setup import configured_jax
from hpc_es.noise.counter import CounterNoise
from hpc_es.noise.low_rank import LowRankNoise
from hpc_es.policies import network
from hpc_es.policies.networks.jax_low_rank import LEFT, RIGHT, formed_weights, with_factors

configured_jax("cpu")

ROWS = 5  # calls of 4 candidates: the second one is padded
SHAPES = {
    "dense": (6, 7),
    "transposed": (5, 7),  # [outputs, inputs], as in equinox
    "heads": (5, 3, 4),  # inputs x heads x width
    "joined": (3, 4, 2),
    "table": (9, 6),
    "conv": (2, 2, 1, 8),
    "output": (8, 3),
}


def every_layer(parameters: Any, memory: Any, observation: Any) -> tuple[Any, Any]:
    """Rows of an embedding, dense layers of both forms, products with several axes,
    a convolution, and a product.
    """
    rows = jnp.take(parameters["table"], jnp.array([2, 0, 8]), axis=0)
    x = jnp.tanh((observation + rows) @ parameters["dense"])
    x = (
        jnp.tanh(jax.jit(lambda w, y: w @ y)(parameters["transposed"], x[0]))
        + (x @ parameters["transposed"].T)[1]
    )
    x = jnp.einsum("a,abc->bc", x, parameters["heads"])
    x = jnp.einsum("bc,bcd->d", x, parameters["joined"])
    image = jnp.outer(x, jnp.arange(3.0))[jnp.newaxis, :, :, jnp.newaxis]
    axes = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(
        image, parameters["conv"], (1, 1), "VALID", dimension_numbers=axes
    )
    return x.reshape(-1, 8).mean(axis=0) @ parameters["output"].reshape(2, 4, 3).reshape(
        8, 3
    ), memory


@pytest.mark.parametrize("rank", [1, 3])
def test_every_kind_of_layer_equals_the_one_with_formed_weights(rank: int) -> None:
    rng = np.random.default_rng(0)
    layout, names = Layout(SHAPES), list(SHAPES)
    common = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    factors, formed = {}, {}
    for name, shape in SHAPES.items():
        left = rng.standard_normal((ROWS, rank, int(np.prod(shape[:-1])))).astype(np.float32)
        right = rng.standard_normal((ROWS, rank, shape[-1])).astype(np.float32) / 2
        factors |= {name + LEFT: left, name + RIGHT: right}
        formed[name] = common[name] + np.einsum("jkr,jkc->jrc", left, right).reshape(ROWS, *shape)
    observations = rng.standard_normal((ROWS, 6)).astype(np.float32)
    apply = jax.vmap(with_factors(every_layer, layout, names), in_axes=(None, 0, None, 0))
    outputs, _ = jax.jit(apply)(common, factors, (), observations)
    expected, _ = jax.vmap(every_layer, in_axes=(0, None, 0))(formed, (), observations)
    np.testing.assert_allclose(outputs, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    observation = jax.ShapeDtypeStruct((6,), np.float32)
    assert formed_weights(every_layer, layout, names, (), observation) == ("conv",)


def keras_layers(observations: Any, outputs: int) -> Any:
    """A convolution, Dense, EinsumDense and Embedding."""
    import keras

    image = keras.Input(observations.shape)
    x = keras.layers.Conv2D(8, 3, activation="relu")(image)
    x = keras.layers.Dense(12, "tanh")(keras.layers.Flatten()(x))
    tokens = keras.ops.cast(keras.ops.round(3 * keras.ops.abs(x)), "int32")
    x = keras.layers.Embedding(9, 10)(tokens)  # [12, 10]
    x = keras.layers.EinsumDense("abc,cd->abd", output_shape=(None, 8), bias_axes="d")(x)
    return keras.Model(image, keras.layers.Dense(outputs)(keras.ops.mean(x, axis=1)))


def population(policy: Any, rank: int) -> LowRank:
    factorisation = Factorisation(policy.layout, rank)
    noise = LowRankNoise(CounterNoise(Keys(1), factorisation.compact.size), factorisation)
    scales = np.where(np.arange(ROWS) % 2 == 0, 0.3, -0.3).astype(np.float32)
    theta = policy.initial(np.random.default_rng(0))
    return LowRank(factorisation, theta, noise.numbers(0, range(3)), np.arange(ROWS) // 2, scales)


BUILDERS = {  # the library, and the number of matrices that are not formed
    "tests.policies.networks.test_jax_low_rank:keras_layers": ("keras", 4),
    "tests.helpers.own_networks:plain": ("jax", 2),
    "tests.helpers.own_networks:linen": ("flax", 2),
    "tests.helpers.own_networks:equinox": ("equinox", 2),
}


@pytest.mark.parametrize("builder", BUILDERS)
def test_actions_of_own_networks_equal_those_of_formed_candidates(
    builder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, count = BUILDERS[builder]
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    module = pytest.importorskip(library)
    if library == "keras" and module.backend.backend() != "jax":
        pytest.skip("Keras was imported with another backend")
    spec = ObservationSpec((6, 6, 2), np.dtype(np.float32))
    spaces = Spaces(spec, Box(np.full(3, -9, np.float32), np.full(3, 9, np.float32)))
    policy = network.build(network.Options(network=builder, candidates_per_call=4), spaces)
    candidates, observations = (
        population(policy, 1),
        np.random.default_rng(1).random((ROWS, 6, 6, 2), np.float32),
    )
    expected = policy.bind(Explicit(policy.layout, candidates.stacked()), None).act(observations)
    factored = policy.factored(tuple(candidates.matrices))
    assert len(factored) == count and not any("conv" in name for name in factored), factored
    actor = policy.bind(candidates, None)
    np.testing.assert_allclose(actor.act(observations), expected, rtol=1e-4, atol=1e-4)
    backwards = np.arange(ROWS)[::-1]
    turned = replace(
        candidates, rows=candidates.rows[backwards], scales=candidates.scales[backwards]
    )
    again = policy.bind(turned, None).act(observations[backwards])
    # whatever the position in a call
    assert again[backwards].tobytes() == actor.act(observations).tobytes()


@pytest.mark.parametrize(
    ("scale", "expected"), [(0.1, [-0.2, 8.1, 11.1]), (-0.1, [-0.8, 7.9, 11.9])]
)
def test_dense_layer_by_hand(scale: float, expected: list[float]) -> None:
    """x W + (s x B) A + b + s b'; see tests/core/test_population.py."""
    layout, x = Layout({"kernel": (2, 3), "bias": (3,)}), np.array([3, 4], np.float32)
    common = {"kernel": np.array([[1, 2, 0], [-1, 0.5, 3]], np.float32)}
    own = {
        "kernel" + LEFT: np.array([[2, -1]], np.float32),
        "kernel" + RIGHT: np.array([[1, 0, -2]], np.float32) * np.float32(scale),
        "bias": np.array([0.5, 0, -0.5], np.float32)
        + np.float32(scale) * np.array([1, 1, 0], np.float32),
    }

    def dense(parameters: Any, memory: Any, observation: Any) -> tuple[Any, Any]:
        return observation @ parameters["kernel"] + parameters["bias"], memory

    outputs, _ = with_factors(dense, layout, ["kernel"])(common, own, (), x)
    np.testing.assert_allclose(outputs, expected, rtol=1e-6)
