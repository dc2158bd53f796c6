"""Activations between layers, one set of names for every array library.

Feed-forward layers, written once over an array library.

The NumPy actor (`policies/mlp/numpy_actor.py`) computes the same in place, with biases as a row of the weights; both
are equal to about 1e-6 (tests/policies/test_mlp.py measures it).


Initial weights.

The LSTM cell that the ported systems share: one joint kernel, gates in the order i, j, f, o (Zaremba et al. 2014).

    z = [x, h] K + b;  c' = c sigmoid(f + 1) + sigmoid(i) tanh(j);  h' = tanh(c') sigmoid(o)

It is written once for all array libraries: `ops` has `tanh`, `sigmoid` and `split`.


The form of a feed-forward network: where its layers lie, its activation and its head.

The form of a recurrent network: where its layers lie, and its head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np

from hpc_es.core.data import Float32, Float64
from hpc_es.core.population import Layout, Shape
from hpc_es.policies.networks.heads import ActionHead

Activation = Literal["tanh", "relu", "leaky_relu", "elu"]
LEAK = 0.2  # slope of leaky_relu below zero, as in OpenAI's ES


def tanh(x: Float32) -> Float32:
    """In place."""
    np.tanh(x, out=x)
    return x


def relu(x: Float32) -> Float32:
    """In place."""
    return np.maximum(x, 0, out=x)


def leaky_relu(x: Float32) -> Float32:
    """Slope LEAK below zero; in place."""
    np.maximum(x, np.float32(LEAK) * x, out=x)
    return x


def elu(x: Float32) -> Float32:
    """exp(x) - 1 below zero (Clevert et al. 2016); in place."""
    np.copyto(x, np.expm1(np.minimum(x, 0)), where=x < 0)
    return x


ACTIVATIONS: dict[str, Callable[[Float32], Float32]] = {
    "tanh": tanh,
    "relu": relu,
    "leaky_relu": leaky_relu,
    "elu": elu,
}


def pure(xp: Any, name: str) -> Callable[[Any], Any]:
    """Return the activation of this name over an array namespace, such as `jax.numpy`: not in place."""
    functions: dict[str, Callable[[Any], Any]] = {
        "tanh": xp.tanh,
        "relu": lambda x: xp.maximum(x, 0),
        "leaky_relu": lambda x: xp.maximum(x, LEAK * x),
        "elu": lambda x: xp.where(x < 0, xp.expm1(xp.minimum(x, 0)), x),
    }
    return functions[name]


def in_tensorflow(tf: Any, name: str) -> Callable[[Any], Any]:
    """Return the activation of this name on tensors."""
    functions: dict[str, Callable[[Any], Any]] = {
        "tanh": tf.tanh,
        "relu": tf.nn.relu,
        "leaky_relu": lambda x: tf.nn.leaky_relu(x, LEAK),
        "elu": tf.nn.elu,
    }
    return functions[name]


def dense(
    matmul: Callable[[Any, Any], Any],
    activate: Callable[[Any], Any] | None,
    layers: Sequence[tuple[Any, Any]],
    x: Any,
) -> tuple[Any, Any]:
    """Return (outputs, features) of x [..., inputs]; features are what the last layer sees.

    `layers` are (weights [..., inputs, outputs], biases [..., outputs]); `activate` stands between them, and may be
    None where there is one layer.
    """
    for weights, biases in layers[:-1]:
        assert activate is not None
        x = activate(matmul(x, weights) + biases)
    weights, biases = layers[-1]
    return matmul(x, weights) + biases, x


AT_ONCE = 1 << 20  # numbers of a large matrix that are drawn together, in float64; no bit depends on it


def normalised_columns(rng: np.random.Generator, shape: tuple[int, int], length: float) -> Float32:
    """Normal columns scaled to this length, float32[inputs, outputs].

    Large ones are drawn twice, once for the lengths of the columns, so that they are never there in float64.
    """
    if shape[0] * shape[1] <= AT_ONCE:
        columns = rng.standard_normal(shape)
        return _scaled(columns, np.square(columns).sum(axis=0), length)
    rows = max(AT_ONCE // shape[1], 1)
    parts = [(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows)]
    begin, squares = rng.bit_generator.state, np.zeros((1, shape[1]))
    for start, stop in parts:
        drawn = np.square(rng.standard_normal((stop - start, shape[1])))
        squares = np.concatenate([squares, drawn]).sum(axis=0, keepdims=True)  # row after row, as of the whole matrix
    rng.bit_generator.state = begin
    scaled = np.empty(shape, np.float32)
    for start, stop in parts:
        scaled[start:stop] = _scaled(rng.standard_normal((stop - start, shape[1])), squares, length)
    return scaled


def _scaled(columns: Float64, squares: Float64, length: float) -> Float32:
    scaled: Float32 = (length * columns / np.sqrt(squares)).astype(np.float32)
    return scaled


def glorot_uniform(rng: np.random.Generator, shape: tuple[int, int]) -> Float32:
    """U(-b, b) with b = sqrt(6 / (inputs + outputs)), float32[inputs, outputs]."""
    bound = np.sqrt(6.0 / sum(shape))
    return rng.uniform(-bound, bound, shape).astype(np.float32)


Memory = tuple[tuple[Any, Any], ...]  # (h, c) of each layer
FORGET_BIAS = 1.0  # added to f, outside of the bias


class Ops(Protocol):
    """The functions of an array library."""

    def tanh(self, x: Any) -> Any:
        """Elementwise."""

    def sigmoid(self, x: Any) -> Any:
        """Elementwise."""

    def split(self, x: Any, parts: int) -> Sequence[Any]:
        """Equal parts of the last axis."""


class LayerOps(Ops, Protocol):
    """And those of whole layers."""

    def joined(self, x: Any, h: Any) -> Any:
        """[x, h] along the last axis."""

    def product(self, x: Any, kernel: Any) -> Any:
        """x K."""


def shapes(inputs: int, units: int) -> dict[str, tuple[int, ...]]:
    """Return the parameters of a cell: 4 * units * (inputs + units + 1)."""
    return {"kernel": (inputs + units, 4 * units), "bias": (4 * units,)}


def step(ops: LayerOps, arrays: Mapping[str, Any], x: Any, memory: Memory) -> tuple[Any, Memory]:
    """Return (outputs, memory) after a step of all layers, from x [..., observations] and h and c [..., units] of each.

    `arrays` are those of `policies/lstm/network.layout`: kernels that `ops.product` takes, and biases to add.
    """
    after: list[tuple[Any, Any]] = []
    for number, (h, c) in enumerate(memory):
        z = ops.product(ops.joined(x, h), arrays[f"lstm_{number}_kernel"]) + arrays[f"lstm_{number}_bias"]
        after.append(gates(ops, z, c))
        x = after[-1][0]
    return ops.product(x, arrays["output_kernel"]) + arrays["output_bias"], tuple(after)


def gates(ops: Ops, z: Any, c: Any) -> tuple[Any, Any]:
    """(h, c) after a step, each [..., units], from z [..., 4 * units] = [x, h] K + b and the cell state before."""
    i, j, f, o = ops.split(z, 4)
    c = c * ops.sigmoid(f + FORGET_BIAS) + ops.sigmoid(i) * ops.tanh(j)
    return ops.tanh(c) * ops.sigmoid(o), c


class NumPyOps:
    """Of float32 arrays."""

    def tanh(self, x: Float32) -> Float32:
        """Elementwise."""
        y: Float32 = np.tanh(x)
        return y

    def sigmoid(self, x: Float32) -> Float32:
        """Without overflow: (1 + tanh(x / 2)) / 2."""
        y: Float32 = np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + np.float32(1))
        return y

    def split(self, x: Float32, parts: int) -> Sequence[Float32]:
        """Equal parts of the last axis."""
        return np.split(x, parts, axis=-1)


class InPlace:
    """`gates` of float32 arrays with one tanh for all four gates and few temporary arrays; it overwrites z."""

    def __init__(self, units: int) -> None:
        self._units = units
        self._scale = np.repeat(np.array([0.5, 1.0, 0.5, 0.5], np.float32), units)  # sigmoid(x) = tanh(x / 2) / 2 + 1/2
        self._before = np.repeat(np.array([0.0, 0.0, 0.5 * FORGET_BIAS, 0.0], np.float32), units)
        self._after = np.repeat(np.array([0.5, 0.0, 0.5, 0.5], np.float32), units)

    def gates(self, z: Float32, c: Float32) -> tuple[Float32, Float32]:
        """(h, c) after a step, as the function `gates`."""
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
    """Of tensors."""

    def __init__(self, tf: Any) -> None:
        self.tanh, self.sigmoid = tf.tanh, tf.sigmoid
        self._tf, self.product = tf, tf.matmul

    def split(self, x: Any, parts: int) -> Sequence[Any]:
        """Equal parts of the last axis."""
        split: Sequence[Any] = self._tf.split(x, parts, axis=-1)
        return split

    def joined(self, x: Any, h: Any) -> Any:
        """[x, h] along the last axis."""
        return self._tf.concat([x, h], -1)


class ArrayOps:
    """Of one row over an array namespace, such as `jax.numpy`."""

    def __init__(self, xp: Any) -> None:
        self.tanh, self.product, self._xp = xp.tanh, xp.matmul, xp

    def sigmoid(self, x: Any) -> Any:
        """Without overflow, as `NumPyOps` has it."""
        return 0.5 * (self._xp.tanh(0.5 * x) + 1)

    def split(self, x: Any, parts: int) -> Sequence[Any]:
        """Equal parts of the last axis."""
        split: Sequence[Any] = self._xp.split(x, parts, axis=-1)
        return split

    def joined(self, x: Any, h: Any) -> Any:
        """[x, h]."""
        return self._xp.concatenate([x, h])


class Layers:
    """The layers of a network in its parameter vector: of each the weights in row order, then the biases."""

    def __init__(self, widths: tuple[int, ...], bias: bool = True) -> None:
        self.widths, self.bias = widths, bias
        names = [*(f"hidden_{number}" for number in range(len(widths) - 2)), "output"]
        shapes: dict[str, Shape] = {}
        for name, (n, m) in zip(names, pairwise(widths), strict=True):
            shapes |= {f"{name}_kernel": (n, m), **({f"{name}_bias": (m,)} if bias else {})}
        self.layout = Layout(shapes)

    def matrices(self, parameters: Float32) -> Iterator[Float32]:
        """Views [..., inputs + 1, outputs] of float32[..., size]; the last row, the biases, meets a constant 1.

        Without biases [..., inputs, outputs].
        """
        start, lead = 0, parameters.shape[:-1]
        for n, m in pairwise(self.widths):
            stop = start + (n + self.bias) * m
            yield parameters[..., start:stop].reshape(*lead, n + self.bias, m)
            start = stop

    def layers(self, parameters: Float32) -> Iterator[tuple[Float32, Float32]]:
        """Views (weights [..., inputs, outputs], biases [..., 1, outputs]) of float32[..., size].

        Biases that there are not are zeros.
        """
        for matrix in self.matrices(parameters):
            if self.bias:
                yield matrix[..., :-1, :], matrix[..., -1:, :]
            else:
                yield matrix, np.zeros_like(matrix[..., :1, :])


@dataclass(frozen=True)
class MLPNetwork:
    """What computes actions, but for the parameters."""

    layers: Layers
    activation: str
    head: ActionHead

    def parameters(self, xp: Any, theta: Any) -> list[tuple[Any, Any]]:
        """Return (weights [inputs, outputs], biases [outputs]) of each layer, of one theta [params]."""
        matrices = self.layers.matrices(theta)
        if self.layers.bias:
            return [(each[:-1], each[-1]) for each in matrices]
        return [(each, xp.zeros(each.shape[1], each.dtype)) for each in matrices]

    def step(self, xp: Any, parameters: Any, memory: Any, observations: Any) -> tuple[Any, Any]:
        """Return (memory, outputs) of one row, from [observations], over an array namespace.

        It remembers nothing. The NumPy actor gives the same to about 1e-6.
        """
        outputs, _ = dense(xp.matmul, pure(xp, self.activation), parameters, observations)
        return memory, outputs


def layout(observations: int, hidden_dims: tuple[int, ...], outputs: int) -> Layout:
    """lstm_0_kernel, lstm_0_bias, lstm_1_kernel, ..., output_kernel [units, outputs], output_bias [outputs]."""
    parts: dict[str, tuple[int, ...]] = {}
    for number, (inputs, units) in enumerate(pairwise((observations, *hidden_dims))):
        parts |= {f"lstm_{number}_{name}": shape for name, shape in shapes(inputs, units).items()}
    return Layout(parts | {"output_kernel": (hidden_dims[-1], outputs), "output_bias": (outputs,)})


def matrices(stack: Float32, layout: Layout) -> list[Float32]:
    """Views [jobs, inputs + 1, outputs] of float32[jobs, size], of layers and output; the last row is biases."""
    found, start = [], 0
    for shape in layout.shapes.values():
        if len(shape) == 2:  # a kernel, with its bias behind it
            rows, columns = shape[0] + 1, shape[1]
            found.append(stack[:, start : start + rows * columns].reshape(-1, rows, columns))
            start += rows * columns
    return found


@dataclass(frozen=True)
class LSTMNetwork:
    """What computes actions, but for the parameters and the memory."""

    observations: int
    hidden_dims: tuple[int, ...]
    outputs: int
    layout: Layout
    head: ActionHead

    def parameters(self, xp: Any, theta: Any) -> dict[str, Any]:
        """Return the arrays of one theta [params] by name."""
        return self.layout.split(theta, xp.reshape)

    def step(self, xp: Any, parameters: Any, memory: Memory, observations: Any) -> tuple[Memory, Any]:
        """Return (memory, outputs) of one row, from [observations], over an array namespace.

        The NumPy actor gives the same to about 1e-6.
        """
        outputs, after = step(ArrayOps(xp), parameters, observations, memory)
        return after, outputs

    def first_memory(self, xp: Any) -> Memory:
        """Return h and c of each layer at the begin of an episode, float32[units] of zeros."""
        return tuple((xp.zeros(units, np.float32), xp.zeros(units, np.float32)) for units in self.hidden_dims)
