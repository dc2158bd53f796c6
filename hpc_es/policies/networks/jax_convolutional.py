"""Convolutional networks in JAX: convolutions, dense layers, LSTM and linear output layer.

Set up JAX before importing this. Images are [height, width, channels]; integers are divided by 255.

Parts of the parameter vector, in order: for each convolution i `conv_i_kernel` [k, k, inputs,
filters], for each dense layer `hidden_i_kernel` [inputs, units], each followed by its bias, or with
normalisation by `norm_n_gamma` and `norm_n_beta`, where n counts convolutions and dense layers
together; `lstm_0_kernel` [inputs + units, 4 * units] and `lstm_0_bias`; `output_kernel` [inputs,
outputs] and `output_bias`.

Normalisation comes before the activation:

- layer (Ba et al. 2016): y = gamma (z - m) / sqrt(v + 1e-5) + beta; m and v are mean and variance
  over the units of a dense layer, or over positions and channels of a convolution.
- virtual batch (Salimans et al. 2017): y = gamma (z - m) / sqrt(v + 1e-3) + beta; m and v are those
  of a unit or a channel over a fixed batch of reference images (and positions), which itself passes
  through the network normalised. As m and v depend on the parameters only, they are folded into
  kernels and biases once per candidate (`fold`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.core.data import Array, Float32
from hpc_es.core.policy import Tree
from hpc_es.core.population import Layout
from hpc_es.policies.networks.layers import (
    Activation,
    ArrayOps,
    array_activation,
    glorot_uniform,
    lstm_cell_shapes,
    lstm_gates,
    normalised_columns,
)

Normalisation = Literal["none", "layer", "virtual_batch"]
Padding = Literal["same", "valid"]

LAYER_EPSILON, VIRTUAL_BATCH_EPSILON = 1e-5, 1e-3
# activations for which weights are initialised as by He et al. 2015
RECTIFIERS = ("relu", "leaky_relu")
# (number and name of a layer, z [images, ..., units]) -> y of the same shape
Affine = Callable[[int, str, Any], Any]


class Convolution(NamedTuple):
    """A convolution with a square kernel."""

    filters: int
    kernel: int
    stride: int


@dataclass(frozen=True)
class ConvolutionalNetwork:
    """A `Network` for one image, without its parameters."""

    image: tuple[int, int, int]  # height, width, channels
    convolutions: tuple[Convolution, ...]
    padding: Padding
    hidden_dims: tuple[int, ...]
    lstm: int | None  # units; None: no LSTM layer
    activation: Activation
    normalisation: Normalisation
    outputs: int

    backend: Literal["jax"] = "jax"

    def sizes(self) -> Iterator[tuple[int, int, int]]:
        """Yield the size of the input of each convolution, and of the output of the last one."""
        height, width, channels = self.image
        yield self.image
        for filters, kernel, stride in self.convolutions:
            lost = 0 if self.padding == "same" else kernel - 1
            height, width, channels = (
                -(-(height - lost) // stride),
                -(-(width - lost) // stride),
                filters,
            )
            yield height, width, channels

    @cached_property
    def layout(self) -> Layout:
        """Layout of the parameter vector."""
        *inputs, last = self.sizes()
        kernels: dict[str, tuple[int, ...]] = {}
        for number, ((_, _, channels), (filters, kernel, _)) in enumerate(
            zip(inputs, self.convolutions, strict=True)
        ):
            kernels[f"conv_{number}"] = (kernel, kernel, channels, filters)
        features = math.prod(last)
        for number, units in enumerate(self.hidden_dims):
            kernels[f"hidden_{number}"] = (features, units)
            features = units
        shapes: dict[str, tuple[int, ...]] = {}
        for number, (name, shape) in enumerate(kernels.items()):
            parts = (
                ("norm_{}_gamma", "norm_{}_beta")
                if self.normalisation != "none"
                else (f"{name}_bias",)
            )
            shapes[f"{name}_kernel"] = shape
            shapes |= {part.format(number): shape[-1:] for part in parts}
        if self.lstm is not None:
            shapes |= {
                f"lstm_0_{name}": shape
                for name, shape in lstm_cell_shapes(features, self.lstm).items()
            }
            features = self.lstm
        return Layout(
            {**shapes, "output_kernel": (features, self.outputs), "output_bias": (self.outputs,)}
        )

    @property
    def folded(self) -> ConvolutionalNetwork:
        """The network whose parameters `fold` returns."""
        return replace(self, normalisation="none")

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return initial parameters, float32[layout.size].

        Kernels of relu and leaky_relu are normal with variance 2 / inputs (He et al. 2015), others
        uniform (Glorot and Bengio 2010). The columns of the output kernel are normal, scaled to
        length 0.01; gamma is 1, others are 0.
        """
        arrays: dict[str, Float32] = {}
        for name, shape in self.layout.shapes.items():
            if len(shape) == 1:
                arrays[name] = np.full(shape, name.endswith("gamma"), np.float32)
            elif name == "output_kernel":
                arrays[name] = normalised_columns(rng, (shape[0], shape[1]), 0.01)
            elif self.activation in RECTIFIERS and not name.startswith("lstm"):
                deviation = math.sqrt(2 / math.prod(shape[:-1]))
                arrays[name] = (deviation * rng.standard_normal(shape)).astype(np.float32)
            else:
                arrays[name] = glorot_uniform(rng, shape)
        return self.layout.join(arrays)

    def memory(self) -> Tree:
        """Return h and c of the LSTM layer, float32[units] each; () without one."""
        return (
            ()
            if self.lstm is None
            else (np.zeros(self.lstm, np.float32), np.zeros(self.lstm, np.float32))
        )

    def apply(
        self, parameters: Mapping[str, Array], memory: Tree, observation: Array
    ) -> tuple[Array, Tree]:
        """Return the outputs [outputs] and the next memory.

        A virtual batch must be folded into the parameters.
        """
        x, memory = self.features(parameters, memory, self.encode(parameters, observation))
        return self.outputs_of(parameters, x), memory

    def encode(self, parameters: Mapping[str, Array], observation: Array) -> Array:
        """Return the output of the last convolution or dense layer, [units].

        It does not depend on the memory.
        """
        assert self.normalisation != "virtual_batch"
        affine = layer_normalised if self.normalisation == "layer" else biased
        x: Array = self._hidden(
            parameters, self._images(observation[None]), partial(affine, parameters)
        )[0]
        return x

    def features(
        self, parameters: Mapping[str, Array], memory: Tree, x: Array
    ) -> tuple[Array, Tree]:
        """Return the inputs of the output layer, [features], and the next memory.

        x is the result of `encode`.
        """
        if self.lstm is None:
            return x, memory
        h, c = memory
        z = jnp.concatenate([x, h]) @ parameters["lstm_0_kernel"] + parameters["lstm_0_bias"]
        x, c = lstm_gates(ArrayOps(jnp), z, c)
        return x, (x, c)

    def outputs_of(self, parameters: Mapping[str, Array], features: Array) -> Array:
        """Return the outputs, [outputs], of the inputs of the output layer."""
        outputs: Array = features @ parameters["output_kernel"] + parameters["output_bias"]
        return outputs

    def fold(self, parameters: Mapping[str, Array], reference: Array) -> dict[str, Array]:
        """Return parameters of `folded` that compute the same as these with reference images.

        K' = K gamma / sqrt(v + epsilon), b' = beta - m gamma / sqrt(v + epsilon). Images are
        [images, *image].
        """
        others = {"lstm_0_kernel", "lstm_0_bias", "output_kernel", "output_bias"}
        result = {name: array for name, array in parameters.items() if name in others}

        def affine(number: int, name: str, z: Any) -> Any:
            axes = tuple(range(z.ndim - 1))
            m, v = jnp.mean(z, axes), jnp.var(z, axes)
            scale = parameters[f"norm_{number}_gamma"] / jnp.sqrt(v + VIRTUAL_BATCH_EPSILON)
            result[f"{name}_kernel"] = parameters[f"{name}_kernel"] * scale
            result[f"{name}_bias"] = bias = parameters[f"norm_{number}_beta"] - m * scale
            return z * scale + bias

        self._hidden(parameters, self._images(reference), affine)
        return result

    def _images(self, observations: Array) -> Array:
        """Return the input of the first layer, float32[images, height, width, channels]."""
        images: Array = jnp.asarray(observations, np.float32)
        if jnp.issubdtype(observations.dtype, jnp.integer):
            images = images / 255
        return images.reshape(len(images), *self.image)

    def _hidden(self, parameters: Mapping[str, Array], images: Array, affine: Affine) -> Array:
        """Return the output of the last hidden layer, [images, units]."""
        activate: Callable[[Any], Array] = array_activation(jnp, self.activation)
        x = images
        for number, (_, _, stride) in enumerate(self.convolutions):
            z = convolution(x, parameters[f"conv_{number}_kernel"], stride, self.padding)
            x = activate(affine(number, f"conv_{number}", z))
        x = x.reshape(len(images), -1)
        for number in range(len(self.hidden_dims)):
            z = x @ parameters[f"hidden_{number}_kernel"]
            x = activate(affine(len(self.convolutions) + number, f"hidden_{number}", z))
        return x


def biased(parameters: Mapping[str, Array], number: int, name: str, z: Any) -> Any:
    """Return z plus the bias of a layer, [images, ..., units]."""
    return z + parameters[f"{name}_bias"]


def layer_normalised(parameters: Mapping[str, Array], number: int, name: str, z: Any) -> Any:
    """Return z normalised for each image, [images, ..., units], with a layer's gain and bias."""
    axes = tuple(range(1, z.ndim))
    centred = z - jnp.mean(z, axes, keepdims=True)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axes, keepdims=True) + LAYER_EPSILON)
    return centred * scale * parameters[f"norm_{number}_gamma"] + parameters[f"norm_{number}_beta"]


def convolution(images: Array, kernel: Array, stride: int, padding: Padding) -> Array:
    """Return the convolution of [images, height, width, inputs] with [k, k, inputs, filters]."""
    axes = ("NHWC", "HWIO", "NHWC")
    strides = (stride, stride)
    result: Array = jax.lax.conv_general_dilated(
        images, kernel, strides, padding.upper(), dimension_numbers=axes
    )
    return result


class Folding:
    """Folds virtual batch normalisation into parameters, one candidate at a time.

    The batch is one of observations.
    """

    def __init__(self, network: ConvolutionalNetwork, reference: Array) -> None:
        """`reference` is [images, *shape of an observation]."""
        self._network = network
        self._reference = jnp.asarray(reference)

        def fold(theta: Any, reference: Any) -> Any:
            parts = network.fold(network.layout.split(theta, jnp.reshape), reference)
            return jnp.concatenate([parts[name].ravel() for name in network.folded.layout.shapes])

        self._fold = jax.jit(fold)

    def __call__(self, stack: Float32) -> Float32:
        """Return parameters of `folded`, float32[candidates, folded.layout.size].

        The argument is float32[candidates, size].
        """
        result = np.empty((len(stack), self._network.folded.layout.size), np.float32)
        for row, theta in enumerate(stack):
            if row and np.array_equal(theta, stack[row - 1]):  # such as copies of the centre
                result[row] = result[row - 1]
            else:
                result[row] = self._fold(theta, self._reference)
        return result
