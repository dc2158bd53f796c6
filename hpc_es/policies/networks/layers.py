"""Layers of networks over any array library (NumPy, TensorFlow, jax.numpy): activations, dense and LSTM layers.

The LSTM cell has one kernel for x and h, with gates in the order i, j, f, o (Zaremba et al. 2014):

    z = [x, h] K + b;  c' = c sigmoid(f + 1) + sigmoid(i) tanh(j);  h' = tanh(c') sigmoid(o)

The NumPy actors in `policies/mlp.py` and `policies/lstm.py` compute the same in place; the results agree to about 1e-6
(tests/policies/test_mlp.py and test_lstm.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from types import ModuleType
from typing import Literal, Protocol

import numpy as np

from hpc_es.core.data import Float32, Float64
from hpc_es.core.policy import Tensor
from hpc_es.core.population import Layout, Shape
from hpc_es.policies.networks.heads import ActionHead

Activation = Literal["tanh", "relu", "leaky_relu", "elu"]
LEAK = 0.2  # slope of leaky_relu below zero, as in OpenAI's ES


def _leaky_relu(x: Float32) -> Float32:
    """max(x, LEAK x), in place."""
    np.maximum(x, np.float32(LEAK) * x, out=x)
    return x


def _elu(x: Float32) -> Float32:
    """exp(x) - 1 below zero (Clevert et al. 2016), in place."""
    np.copyto(x, np.expm1(np.minimum(x, 0)), where=x < 0)
    return x


Normalisation = Literal["none", "layer"]
EPSILON = 1e-5  # added to variances


def layer_normalised(x: Tensor, mean: Callable[..., Tensor] = np.mean, sqrt: Callable[..., Tensor] = np.sqrt) -> Tensor:
    """Return x [..., units] minus its mean over units, divided by its standard deviation (Ba et al. 2016).

    There are no learned factors. `mean` and `sqrt` are functions of the array library.
    """
    centred = x - mean(x, axis=-1, keepdims=True)
    return centred / sqrt(mean(centred * centred, axis=-1, keepdims=True) + EPSILON)


# NumPy functions that overwrite their argument
ACTIVATIONS: dict[str, Callable[[Float32], Float32]] = {
    "tanh": lambda x: np.tanh(x, out=x),
    "relu": lambda x: np.maximum(x, 0, out=x),
    "leaky_relu": _leaky_relu,
    "elu": _elu,
}


def in_place_activation(name: str, normalisation: Normalisation) -> Callable[[Float32], Float32]:
    """Return the activation, after the normalisation, which overwrites its argument, float32[..., units]."""
    activate = ACTIVATIONS[name]
    if normalisation == "none":
        return activate

    def normalise_and_activate(x: Float32) -> Float32:
        x[...] = layer_normalised(x)
        return activate(x)

    return normalise_and_activate


def array_activation(xp: ModuleType, name: str, normalisation: Normalisation = "none") -> Callable[[Tensor], Tensor]:
    """Return the activation, after the normalisation, over an array namespace, such as `jax.numpy`."""
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "tanh": xp.tanh,
        "relu": lambda x: xp.maximum(x, 0),
        "leaky_relu": lambda x: xp.maximum(x, LEAK * x),
        "elu": lambda x: xp.where(x < 0, xp.expm1(xp.minimum(x, 0)), x),
    }
    activate = functions[name]
    return activate if normalisation == "none" else lambda x: activate(layer_normalised(x, xp.mean, xp.sqrt))


def tensorflow_activation(
    tf: ModuleType, name: str, normalisation: Normalisation = "none"
) -> Callable[[Tensor], Tensor]:
    """Return the activation, after the normalisation, for tensors."""
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "tanh": tf.tanh,
        "relu": tf.nn.relu,
        "leaky_relu": lambda x: tf.nn.leaky_relu(x, LEAK),
        "elu": tf.nn.elu,
    }
    activate = functions[name]
    return activate if normalisation == "none" else lambda x: activate(layer_normalised(x, tf.reduce_mean, tf.sqrt))


def dense(
    matmul: Callable[[Tensor, Tensor], Tensor],
    activate: Callable[[Tensor], Tensor] | None,
    layers: Sequence[tuple[Tensor, Tensor]],
    x: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return (outputs [..., outputs], features [..., features]) of a feed-forward network from x [..., inputs].

    Features are the inputs of the last layer. `layers` are (weights [..., inputs, outputs], biases [..., outputs]);
    `activate` is applied after every layer but the last, and may be None for a single layer.
    """
    for weights, biases in layers[:-1]:
        assert activate is not None
        x = activate(matmul(x, weights) + biases)
    weights, biases = layers[-1]
    return matmul(x, weights) + biases, x


# Numbers of a large matrix that are drawn in one call, in float64; results do not depend on it.
DRAWN_TOGETHER = 1 << 20


def normalised_columns(rng: np.random.Generator, shape: tuple[int, int], length: float) -> Float32:
    """Return normal columns scaled to this length, float32[inputs, outputs].

    The numbers of a large matrix are drawn twice, first to compute the lengths of the columns, so that the whole
    matrix is never in memory in float64.
    """
    if shape[0] * shape[1] <= DRAWN_TOGETHER:
        columns = rng.standard_normal(shape)
        return _scaled(columns, np.square(columns).sum(axis=0), length)
    rows = max(DRAWN_TOGETHER // shape[1], 1)
    parts = [(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows)]
    begin, squares = rng.bit_generator.state, np.zeros((1, shape[1]))
    for start, stop in parts:
        drawn = np.square(rng.standard_normal((stop - start, shape[1])))
        # adds row by row, like the sum over the whole matrix
        squares = np.concatenate([squares, drawn]).sum(axis=0, keepdims=True)
    rng.bit_generator.state = begin
    scaled = np.empty(shape, np.float32)
    for start, stop in parts:
        scaled[start:stop] = _scaled(rng.standard_normal((stop - start, shape[1])), squares, length)
    return scaled


def _scaled(columns: Float64, squares: Float64, length: float) -> Float32:
    scaled: Float32 = (length * columns / np.sqrt(squares)).astype(np.float32)
    return scaled


def glorot_uniform(rng: np.random.Generator, shape: Shape) -> Float32:
    """Return float32[..., inputs, outputs] uniform in (-b, b), b = sqrt(6 / (inputs + outputs)).

    This is the initialisation of Glorot and Bengio (2010). For the kernel of a convolution, inputs and outputs are
    multiplied by its number of positions.
    """
    bound = np.sqrt(6.0 / (prod(shape[:-2]) * sum(shape[-2:])))
    return rng.uniform(-bound, bound, shape).astype(np.float32)


Memory = tuple[tuple[Tensor, Tensor], ...]  # (h, c) of each layer
FORGET_BIAS = 1.0  # added to f; not a part of the bias b


class GateOps(Protocol):
    """The functions of an array library that `lstm_gates` uses."""

    def tanh(self, x: Tensor) -> Tensor:
        """Return tanh(x), elementwise."""

    def sigmoid(self, x: Tensor) -> Tensor:
        """Return 1 / (1 + exp(-x)), elementwise."""

    def split(self, x: Tensor, parts: int) -> Sequence[Tensor]:
        """Split the last axis into equal parts."""


class LayerOps(GateOps, Protocol):
    """The functions of an array library that `lstm_step` uses."""

    def joined(self, x: Tensor, h: Tensor) -> Tensor:
        """Return [x, h], concatenated along the last axis."""

    def product(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Return the matrix product x K."""


def lstm_cell_shapes(inputs: int, units: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of one cell by name."""
    return {"kernel": (inputs + units, 4 * units), "bias": (4 * units,)}


def lstm_step(ops: LayerOps, arrays: Mapping[str, Tensor], x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
    """Return (outputs [..., outputs], new memory) of one step of all layers, from x [..., observations].

    The memory is h and c [..., units] of each layer. `arrays` are the parts of `lstm_layout` by name: kernels that
    `ops.product` takes, and biases that can be added.
    """
    new_memory: list[tuple[Tensor, Tensor]] = []
    for number, (h, c) in enumerate(memory):
        z = ops.product(ops.joined(x, h), arrays[f"lstm_{number}_kernel"]) + arrays[f"lstm_{number}_bias"]
        new_memory.append(lstm_gates(ops, z, c))
        x = new_memory[-1][0]
    return ops.product(x, arrays["output_kernel"]) + arrays["output_bias"], tuple(new_memory)


def lstm_gates(ops: GateOps, z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return the new (h, c), [..., units] each, from z [..., 4 * units] = [x, h] K + b and the previous c."""
    i, j, f, o = ops.split(z, 4)
    c = c * ops.sigmoid(f + FORGET_BIAS) + ops.sigmoid(i) * ops.tanh(j)
    return ops.tanh(c) * ops.sigmoid(o), c


class NumPyOps:
    """`GateOps` for float32 arrays."""

    def tanh(self, x: Float32) -> Float32:  # elementwise, float32[...]
        y: Float32 = np.tanh(x)
        return y

    def sigmoid(self, x: Float32) -> Float32:  # elementwise, float32[...]
        # (1 + tanh(x / 2)) / 2 does not overflow
        y: Float32 = np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + np.float32(1))
        return y

    def split(self, x: Float32, parts: int) -> Sequence[Float32]:  # [..., n] -> [..., n / parts] each
        return np.split(x, parts, axis=-1)


class InPlaceGates:
    """`lstm_gates` for float32 arrays with one tanh for all four gates and few temporary arrays; it overwrites z."""

    def __init__(self, units: int) -> None:
        self._units = units
        self._scale = np.repeat(np.array([0.5, 1.0, 0.5, 0.5], np.float32), units)  # sigmoid(x) = tanh(x / 2) / 2 + 1/2
        self._before = np.repeat(np.array([0.0, 0.0, 0.5 * FORGET_BIAS, 0.0], np.float32), units)
        self._after = np.repeat(np.array([0.5, 0.0, 0.5, 0.5], np.float32), units)

    def gates(self, z: Float32, c: Float32) -> tuple[Float32, Float32]:
        """Return the new (h, c), float32[..., units] each, from z [..., 4 * units] and the previous c."""
        z *= self._scale
        z += self._before
        np.tanh(z, out=z)
        z *= self._scale
        z += self._after
        n = self._units
        c = c * z[..., 2 * n : 3 * n]
        c += z[..., :n] * z[..., n : 2 * n]
        h = np.tanh(c)
        h *= z[..., 3 * n :]
        return h, c


class TensorFlowOps:
    """`LayerOps` for tensors."""

    def __init__(self, tf: ModuleType) -> None:
        self.tanh, self.sigmoid = tf.tanh, tf.sigmoid
        self._tf, self.product = tf, tf.matmul

    def split(self, x: Tensor, parts: int) -> Sequence[Tensor]:
        split: Sequence[Tensor] = self._tf.split(x, parts, axis=-1)
        return split

    def joined(self, x: Tensor, h: Tensor) -> Tensor:
        return self._tf.concat([x, h], -1)


class ArrayOps:
    """`LayerOps` for one row over an array namespace, such as `jax.numpy`."""

    def __init__(self, xp: ModuleType) -> None:
        self.tanh, self.product, self._xp = xp.tanh, xp.matmul, xp

    def sigmoid(self, x: Tensor) -> Tensor:
        return 0.5 * (self._xp.tanh(0.5 * x) + 1)

    def split(self, x: Tensor, parts: int) -> Sequence[Tensor]:
        split: Sequence[Tensor] = self._xp.split(x, parts, axis=-1)
        return split

    def joined(self, x: Tensor, h: Tensor) -> Tensor:
        return self._xp.concatenate([x, h])


class Layers:
    """The layers of a feed-forward network as views of its parameter vector.

    The vector has, for each layer, the weights [inputs, outputs] in row-major order, then the biases [outputs].
    """

    def __init__(self, widths: tuple[int, ...], bias: bool = True) -> None:
        self.widths, self.bias = widths, bias
        self.names = (*(f"hidden_{number}" for number in range(len(widths) - 2)), "output")
        shapes: dict[str, Shape] = {}
        for name, (n, m) in zip(self.names, pairwise(widths), strict=True):
            shapes |= {f"{name}_kernel": (n, m), **({f"{name}_bias": (m,)} if bias else {})}
        self.layout = Layout(shapes)

    def matrices(self, parameters: Float32) -> Iterator[Float32]:
        """Yield views [..., inputs + 1, outputs] of float32[..., params], whose last row is the biases.

        Without biases they are [..., inputs, outputs].
        """
        start, lead = 0, parameters.shape[:-1]
        for n, m in pairwise(self.widths):
            stop = start + (n + self.bias) * m
            yield parameters[..., start:stop].reshape(*lead, n + self.bias, m)
            start = stop

    def layers(self, parameters: Float32) -> Iterator[tuple[Float32, Float32]]:
        """Yield views (weights [..., inputs, outputs], biases [..., 1, outputs]) of float32[..., params].

        Without biases, new arrays of zeros take their place.
        """
        for matrix in self.matrices(parameters):
            if self.bias:
                yield matrix[..., :-1, :], matrix[..., -1:, :]
            else:
                yield matrix, np.zeros_like(matrix[..., :1, :])


@dataclass(frozen=True)
class MLPNetwork:
    """A feed-forward network without its parameters."""

    layers: Layers
    activation: str
    head: ActionHead
    normalisation: Normalisation = "none"

    def parameters(self, xp: ModuleType, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return (weights [inputs, outputs], biases [outputs]) of each layer from theta [params]."""
        matrices = self.layers.matrices(theta)
        if self.layers.bias:
            return [(matrix[:-1], matrix[-1]) for matrix in matrices]
        return [(matrix, xp.zeros(matrix.shape[1], matrix.dtype)) for matrix in matrices]

    def step(self, xp: ModuleType, parameters: Tensor, memory: Tensor, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return (the unchanged memory, outputs [outputs]) of one row, from [observations], over an array namespace."""
        activate = array_activation(xp, self.activation, self.normalisation)
        outputs, _ = dense(xp.matmul, activate, parameters, observations)
        return memory, outputs


def lstm_layout(observations: int, hidden_dims: tuple[int, ...], outputs: int) -> Layout:
    """Return the layout of an LSTM network's parameter vector.

    Its parts are lstm_0_kernel [inputs + units, 4 * units], lstm_0_bias [4 * units], lstm_1_kernel, ...,
    output_kernel [units, outputs], output_bias [outputs].
    """
    parts: dict[str, tuple[int, ...]] = {}
    for number, (inputs, units) in enumerate(pairwise((observations, *hidden_dims))):
        parts |= {f"lstm_{number}_{name}": shape for name, shape in lstm_cell_shapes(inputs, units).items()}
    return Layout(parts | {"output_kernel": (hidden_dims[-1], outputs), "output_bias": (outputs,)})


def lstm_matrices(stack: Float32, layout: Layout) -> list[Float32]:
    """Return views [jobs, inputs + 1, outputs] of each layer of float32[jobs, params]; the last row is the bias."""
    views, start = [], 0
    for shape in layout.shapes.values():
        if len(shape) == 2:  # a kernel; its bias follows it in the vector
            rows, columns = shape[0] + 1, shape[1]
            views.append(stack[:, start : start + rows * columns].reshape(-1, rows, columns))
            start += rows * columns
    return views


@dataclass(frozen=True)
class LSTMNetwork:
    """A recurrent network without its parameters and memory."""

    observations: int
    hidden_dims: tuple[int, ...]
    outputs: int
    layout: Layout
    head: ActionHead

    def parameters(self, xp: ModuleType, theta: Tensor) -> dict[str, Tensor]:
        """Return the parts of theta [params] by name."""
        return self.layout.split(theta, xp.reshape)

    def step(self, xp: ModuleType, parameters: Tensor, memory: Memory, observations: Tensor) -> tuple[Memory, Tensor]:
        """Return (new memory, outputs [outputs]) of one row, from [observations], over an array namespace."""
        outputs, new_memory = lstm_step(ArrayOps(xp), parameters, observations, memory)
        return new_memory, outputs

    def initial_memory(self, xp: ModuleType) -> Memory:
        """Return h and c of each layer at the start of an episode, float32[units] of zeros."""
        return tuple((xp.zeros(units, np.float32), xp.zeros(units, np.float32)) for units in self.hidden_dims)
