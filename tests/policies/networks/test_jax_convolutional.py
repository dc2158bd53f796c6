"""Convolutional networks: sizes, layouts, initial parameters,
and their outputs for numbers worked out by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
import jax
import jax.numpy as jnp

from hpc_es.devices.jax_setup import configured_jax
from hpc_es.policies.networks import jax_convolutional
from hpc_es.policies.networks.jax_convolutional import (
    Convolution,
    ConvolutionalNetwork,
    convolution,
)

configured_jax("cpu")

PLAIN = ConvolutionalNetwork((1, 1, 2), (), "valid", (), None, "relu", "none", 2)
ATARI = replace(
    PLAIN,
    image=(84, 84, 4),
    convolutions=(Convolution(16, 8, 4), Convolution(32, 4, 2)),
    padding="same",
    hidden_dims=(256,),
    outputs=6,
)
MINATAR = replace(
    PLAIN, image=(10, 10, 4), convolutions=(Convolution(16, 3, 1),), hidden_dims=(128,), outputs=6
)
A3C = replace(
    PLAIN,
    image=(42, 42, 1),
    convolutions=(Convolution(32, 3, 2),) * 4,
    padding="same",
    lstm=256,
    activation="elu",
    outputs=6,
)


def array(values: Any, *shape: int) -> Any:
    return np.array(values, np.float32).reshape(shape or np.shape(values))


def random_parts(network: ConvolutionalNetwork, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    theta = network.initial(rng) + 0.1 * rng.standard_normal(network.layout.size).astype(np.float32)
    return network.layout.split(theta)


# Layouts.


@pytest.mark.parametrize(
    ("network", "size"),
    [
        (replace(ATARI, padding="valid"), 677_686),
        (MINATAR, 132_566),
        (A3C, 587_943 - 257),  # the published network has a value head of 256 weights and a bias
        # 84 -> 21 -> 11: kernels without biases, a gain and a bias of each unit, and the output
        # layer
        (
            replace(ATARI, normalisation="virtual_batch"),
            8 * 8 * 4 * 16 + 4 * 4 * 16 * 32 + 11 * 11 * 32 * 256 + 2 * (16 + 32 + 256) + 257 * 6,
        ),
    ],
)
def test_networks_of_publications_have_their_number_of_parameters(
    network: ConvolutionalNetwork, size: int
) -> None:
    assert network.layout.size == size


def test_sizes_of_the_images_follow_kernel_stride_and_padding() -> None:
    assert [size[:2] for size in ATARI.sizes()] == [(84, 84), (21, 21), (11, 11)]
    assert [size[:2] for size in replace(ATARI, padding="valid").sizes()] == [
        (84, 84),
        (20, 20),
        (9, 9),
    ]
    assert [size[0] for size in A3C.sizes()] == [42, 21, 11, 6, 3]


def test_parts_are_named_in_the_order_of_the_layers() -> None:
    network = replace(ATARI, lstm=3, normalisation="layer")
    norms = [
        [f"{name}_kernel", f"norm_{n}_gamma", f"norm_{n}_beta"]
        for n, name in enumerate(["conv_0", "conv_1", "hidden_0"])
    ]
    ends = ["lstm_0_kernel", "lstm_0_bias", "output_kernel", "output_bias"]
    assert list(network.layout.shapes) == [*norms[0], *norms[1], *norms[2], *ends]
    assert network.layout.shapes["lstm_0_kernel"] == (256 + 3, 12)
    assert list(replace(network, normalisation="none").layout.shapes)[:2] == [
        "conv_0_kernel",
        "conv_0_bias",
    ]


# Initial parameters.


def test_relu_has_initial_weights_of_variance_2_over_the_inputs() -> None:
    parts = ATARI.layout.split(ATARI.initial(np.random.default_rng(0)))
    for name, inputs in (("conv_0_kernel", 256), ("conv_1_kernel", 256), ("hidden_0_kernel", 3872)):
        assert parts[name].var() == pytest.approx(2 / inputs, rel=0.1)
    np.testing.assert_allclose(np.linalg.norm(parts["output_kernel"], axis=0), 0.01, rtol=1e-5)
    assert not parts["conv_0_bias"].any() and not parts["output_bias"].any()


def test_a3c_has_the_initial_weights_of_the_universe_starter_agent() -> None:
    """Uniform within sqrt(6 / (9 channels + 9 * 32))."""
    parts = A3C.layout.split(A3C.initial(np.random.default_rng(0)))
    for number, channels in enumerate((1, 32, 32, 32)):
        bound = np.sqrt(6 / (9 * channels + 9 * 32))
        kernel = np.abs(parts[f"conv_{number}_kernel"])
        assert kernel.max() <= bound and kernel.mean() == pytest.approx(bound / 2, rel=0.1)


def test_gains_begin_at_1_and_biases_at_0() -> None:
    network = replace(ATARI, normalisation="virtual_batch")
    parts = network.layout.split(network.initial(np.random.default_rng(0)))
    assert (parts["norm_2_gamma"] == 1).all() and (parts["norm_2_beta"] == 0).all()


# Convolutions.


def test_convolution_is_a_sum_over_patches() -> None:
    kernel = array([[1, 0], [-1, 2], [0, 1], [0.5, 0]], 2, 2, 1, 2)
    image = array(range(1, 10), 1, 3, 3, 1)
    np.testing.assert_allclose(
        np.asarray(convolution(image, kernel, 1, "valid")).reshape(4, 2),
        [[1.5, 8], [2, 11], [3, 17], [3.5, 20]],
    )


def test_same_padding_adds_zeros_on_both_sides_and_the_odd_one_at_the_end() -> None:
    """With stride 2 three pixels need one zero, which follows them: 1 + 2 and 3 + 0."""
    image, kernel = array([1, 2, 3], 1, 1, 3, 1), array([1, 1], 1, 2, 1, 1)
    assert np.asarray(convolution(image, kernel, 2, "same")).ravel().tolist() == [3, 3]


# Outputs.


def plainly(network: ConvolutionalNetwork, parts: Any, image: Any) -> Any:
    """The outputs of a network without normalisation and LSTM layer, by loops over patches,
    in float64.
    """
    x = np.asarray(image, np.float64) / (255 if image.dtype.kind in "iu" else 1)
    for number, (_, kernel, stride) in enumerate(network.convolutions):
        rows, columns = x.shape[:2]
        weights, bias = parts[f"conv_{number}_kernel"], parts[f"conv_{number}_bias"]
        if network.padding == "same":
            missing = [max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in (rows, columns)]
            x = np.pad(x, [*((n // 2, n - n // 2) for n in missing), (0, 0)])
        starts = [range(0, n - kernel + 1, stride) for n in x.shape[:2]]
        patches = [[x[i : i + kernel, j : j + kernel] for j in starts[1]] for i in starts[0]]
        x = np.maximum(np.tensordot(np.array(patches), weights, 3) + bias, 0)
    x = x.ravel()
    for number in range(len(network.hidden_dims)):
        x = np.maximum(x @ parts[f"hidden_{number}_kernel"] + parts[f"hidden_{number}_bias"], 0)
    return x @ parts["output_kernel"] + parts["output_bias"]


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_outputs_are_those_of_loops_over_patches(padding: Any, dtype: Any) -> None:
    """Integers are divided by 255, floating-point numbers are not."""
    network = replace(
        PLAIN,
        image=(9, 8, 3),
        convolutions=(Convolution(4, 4, 2), Convolution(5, 2, 1)),
        padding=padding,
        hidden_dims=(6, 7),
    )
    parts = random_parts(network)
    image = (np.random.default_rng(1).random((9, 8, 3)) * (255 if dtype == np.uint8 else 1)).astype(
        dtype
    )
    outputs, memory = network.apply(parts, (), image)
    np.testing.assert_allclose(outputs, plainly(network, parts, image), rtol=1e-4, atol=1e-5)
    assert memory == ()


def test_images_of_two_axes_have_one_channel() -> None:
    network = replace(MINATAR, image=(10, 10, 1))
    parts, image = random_parts(network), np.random.default_rng(1).random((10, 10), np.float32)
    np.testing.assert_array_equal(
        network.apply(parts, (), image)[0], network.apply(parts, (), image[:, :, np.newaxis])[0]
    )


def test_layer_normalisation_of_a_dense_layer_and_of_a_convolution() -> None:
    """z = [1, 3]: mean 2, variance 1, so y = gamma [-1, 1] / sqrt(1 + 1e-5) + beta; relu;
    outputs are the same.
    """
    network = replace(PLAIN, hidden_dims=(2,), normalisation="layer")
    parts = {
        **{
            "hidden_0_kernel": np.eye(2, dtype=np.float32),
            "output_kernel": np.eye(2, dtype=np.float32),
        },
        **{
            "norm_0_gamma": array([2, 3]),
            "norm_0_beta": array([2.5, 0.5]),
            "output_bias": array([0, 0]),
        },
    }
    outputs, _ = network.apply(parts, (), array([1, 3], 1, 1, 2))
    np.testing.assert_allclose(
        outputs, [2.5 - 2 / np.sqrt(1.00001), 0.5 + 3 / np.sqrt(1.00001)], rtol=1e-6
    )
    # as a convolution with two positions of one channel
    positions = replace(
        network, image=(1, 2, 1), convolutions=(Convolution(1, 1, 1),), hidden_dims=()
    )
    one = {
        "conv_0_kernel": array([1], 1, 1, 1, 1),
        "norm_0_gamma": array([2]),
        "norm_0_beta": array([2.5]),
    }
    outputs, _ = positions.apply({**parts, **one}, (), array([1, 3], 1, 2, 1))
    np.testing.assert_allclose(
        outputs, [2.5 - 2 / np.sqrt(1.00001), 2.5 + 2 / np.sqrt(1.00001)], rtol=1e-6
    )


def test_lstm_layer_is_the_cell_of_the_lstm_policy() -> None:
    """One unit, kernel and bias 0: i = o = 0.5, f = sigmoid(1), j = 0,
    so c' = c sigmoid(1) and h' = tanh(c') / 2.
    """
    network = replace(PLAIN, lstm=1, outputs=1)
    parts = {name: np.zeros(shape, np.float32) for name, shape in network.layout.shapes.items()}
    parts["output_kernel"] += 1
    outputs, (h, c) = network.apply(parts, (array([0.3]), array([2])), array([1, 2], 1, 1, 2))
    cell = 2 / (1 + np.exp(-1))
    np.testing.assert_allclose([h[0], c[0]], [np.tanh(cell) / 2, cell], rtol=1e-6)
    np.testing.assert_allclose(outputs, h)
    assert [part.shape for part in network.memory()] == [(1,), (1,)]


# Virtual batch normalisation. Means and variances by hand: see each test.


def dense_batch(network: ConvolutionalNetwork, parts: Any, reference: Any) -> Any:
    """The folded kernels and biases of dense layers, for reference batches [images, inputs]."""
    shapes = network.layout.shapes
    rest = {name: np.zeros(shapes[name], np.float32) for name in ("output_kernel", "output_bias")}
    return network.fold({**parts, **rest}, array(reference).reshape(-1, 1, 1, 2))


def test_virtual_batch_of_a_dense_layer() -> None:
    """z = [1, 2], [3, 2], [5, 0], [-1, 4]: m = [2, 2], v = [5, 2]."""
    network = replace(PLAIN, hidden_dims=(2,), normalisation="virtual_batch")
    parts = {
        "hidden_0_kernel": np.eye(2),
        "norm_0_gamma": array([1.5, 0.5]),
        "norm_0_beta": array([0.1, -0.2]),
    }
    folded = dense_batch(network, parts, [[1, 2], [3, 2], [5, 0], [-1, 4]])
    outputs = array([[2, 3], [0, -1]]) @ folded["hidden_0_kernel"] + folded["hidden_0_bias"]
    np.testing.assert_allclose(outputs, [[0.1, 0.153465], [-1.241507, -1.260395]], rtol=1e-5)


def test_virtual_batch_of_two_layers() -> None:
    """The batch reaches the second layer normalised: m2 = -0.421831, v2 = 1.257137."""
    network = replace(PLAIN, hidden_dims=(2, 1), normalisation="virtual_batch")
    parts = {
        **{
            "hidden_0_kernel": array([[1, -1], [0.5, 2]]),
            "norm_0_gamma": np.ones(2),
            "norm_0_beta": np.zeros(2),
        },
        **{
            "hidden_1_kernel": array([[1], [-2]]),
            "norm_1_gamma": np.ones(1),
            "norm_1_beta": np.zeros(1),
        },
    }
    folded = dense_batch(network, parts, [[1, 0], [0, 1], [1, 1], [2, -1]])
    hidden = np.maximum(array([1, 2]) @ folded["hidden_0_kernel"] + folded["hidden_0_bias"], 0)
    np.testing.assert_allclose(
        hidden @ folded["hidden_1_kernel"] + folded["hidden_1_bias"], [-0.471140], rtol=1e-5
    )
    np.testing.assert_allclose(
        folded["hidden_1_kernel"], parts["hidden_1_kernel"] / np.sqrt(1.257137 + 1e-3), rtol=1e-5
    )


def test_virtual_batch_of_a_convolution() -> None:
    """Two images of 2 x 2 pixels, 0 to 7: mean 3.5, variance 5.25."""
    network = replace(
        PLAIN,
        image=(2, 2, 1),
        convolutions=(Convolution(1, 1, 1),),
        outputs=1,
        normalisation="virtual_batch",
    )
    ones = {
        "conv_0_kernel": array([1], 1, 1, 1, 1),
        "norm_0_gamma": np.ones(1),
        "norm_0_beta": np.zeros(1),
    }
    parts = {**ones, "output_kernel": np.zeros((4, 1)), "output_bias": np.zeros(1)}
    folded = network.fold(parts, array(range(8), 2, 2, 2, 1))
    assert 7 * folded["conv_0_kernel"].item() + folded["conv_0_bias"].item() == pytest.approx(
        1.527380, rel=1e-5
    )


def test_folded_parameters_have_the_layout_of_the_network_without_normalisation() -> None:
    network = replace(MINATAR, lstm=4, normalisation="virtual_batch")
    reference = np.random.default_rng(0).integers(2, size=(5, 10, 10, 4)).astype(np.float32)
    folded = network.fold(random_parts(network), reference)
    assert {name: np.shape(part) for name, part in folded.items()} == network.folded.layout.shapes
    outputs, _ = network.folded.apply(folded, network.memory(), reference[0])
    assert np.isfinite(outputs).all()


def test_reference_images_have_mean_0_and_variance_1_in_each_layer_of_the_folded_network() -> None:
    """Each unit of a layer has mean 0 and variance v / (v + 1e-3) over the batch before relu,
    with gamma 1, beta 0.
    """
    network = replace(ATARI, hidden_dims=(5,), normalisation="virtual_batch")
    reference = np.random.default_rng(0).integers(256, size=(9, 84, 84, 4), dtype=np.uint8)
    parts = network.layout.split(network.initial(np.random.default_rng(1)))
    folded, z = network.fold(parts, reference), dict[str, Any]()

    def recorded(number: int, name: str, value: Any) -> Any:
        z[name] = jax_convolutional.biased(folded, number, name, value)
        return z[name]

    network.folded._hidden(folded, network._images(reference), recorded)
    for value in z.values():
        axes = tuple(range(value.ndim - 1))
        np.testing.assert_allclose(np.mean(value, axes), 0, atol=1e-4)
        assert (np.var(value, axes) <= 1).all() and (np.var(value, axes) > 0.5).all()


def test_compiled_outputs_are_independent_of_the_other_candidates() -> None:
    """In calls of one size, at any position."""
    rng = np.random.default_rng(0)
    theta = np.stack([MINATAR.initial(rng) for _ in range(4)])
    images = rng.random((4, 10, 10, 4), np.float32)
    step = jax.jit(
        jax.vmap(
            lambda theta, image: MINATAR.apply(MINATAR.layout.split(theta, jnp.reshape), (), image)[
                0
            ]
        )
    )
    outputs, turned = (
        np.asarray(step(theta, images)),
        np.asarray(step(theta[[2, 0, 3, 1]], images[[2, 0, 3, 1]])),
    )
    assert turned.tobytes() == outputs[[2, 0, 3, 1]].tobytes()
