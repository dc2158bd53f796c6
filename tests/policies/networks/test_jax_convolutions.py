"""Convolutions of custom networks: their results,
and the programs in which they are computed in turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
import jax
import jax.numpy as jnp

from hpc_es.devices.jax_setup import configured_jax
from hpc_es.policies.networks.jax_convolutions import convolving_in_turn

configured_jax("cpu")

CANDIDATES = 3


def convolution(images: Any, kernel: Any) -> Any:
    axes = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        images, kernel, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=axes
    )


def plain(parameters: Any, image: Any) -> tuple[Any, Any]:
    """Return two outputs: a convolution with options,
    and the mean of a second one in a compiled function.
    """
    x = jax.nn.relu(convolution(image[jnp.newaxis], parameters["first"]))
    return x, {
        "mean": jax.jit(lambda x: jax.nn.silu(convolution(x, parameters["second"])).mean())(x)
    }


def linen() -> Any:
    """Return a function of a tree and an image, a network of flax, and its parameters."""
    nn: Any = pytest.importorskip("flax.linen")

    class Module(nn.Module):  # type: ignore[misc]
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.LayerNorm()(nn.Conv(4, (3, 3), strides=2)(x))
            return nn.Dense(2)(nn.gelu(nn.Conv(5, (2, 2), padding="VALID")(x)).ravel())

    module = Module()
    trees = [module.init(jax.random.key(seed), jnp.zeros((8, 8, 2))) for seed in range(CANDIDATES)]
    return module.apply, jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def kernels() -> Any:
    rng = np.random.default_rng(0)
    shapes = {"first": (3, 2, 2, 4), "second": (2, 2, 4, 3)}
    return {
        name: rng.standard_normal((CANDIDATES, *shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("library", ["plain", "linen"])
def test_convolutions_are_computed_in_turn_with_the_same_results(library: str) -> None:
    function, parameters = (plain, kernels()) if library == "plain" else linen()
    images = np.random.default_rng(1).standard_normal((CANDIDATES, 8, 8, 2)).astype(np.float32)
    grouped, in_turn = jax.vmap(function), jax.vmap(convolving_in_turn(function))
    expected, outputs = grouped(parameters, images), jax.jit(in_turn)(parameters, images)
    assert jax.tree.structure(outputs) == jax.tree.structure(expected)
    for output, wanted in zip(jax.tree.leaves(outputs), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)
    group = f"feature_group_count={CANDIDATES}"
    assert str(jax.make_jaxpr(grouped)(parameters, images)).count(group) == 2
    assert group not in str(jax.make_jaxpr(in_turn)(parameters, images))


def test_functions_without_convolutions_are_left_as_they_are() -> None:
    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, y: y * x, jnp.tanh(x))

    x = jnp.arange(3.0)
    assert str(jax.make_jaxpr(convolving_in_turn(loop))(x)) == str(jax.make_jaxpr(loop)(x))
