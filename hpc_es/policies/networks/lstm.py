"""The LSTM cell that the ported systems share: one joint kernel, gates in the order i, j, f, o (Zaremba et al. 2014).

    z = [x, h] K + b;  c' = c sigmoid(f + 1) + sigmoid(i) tanh(j);  h' = tanh(c') sigmoid(o)

It is written once for all array libraries: `ops` has `tanh`, `sigmoid` and `split`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hpc_es.core.data import Float32

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
