"""LSTM layers over a batch of sequences in NumPy: step by step forwards, over all steps backwards.

The cell is that of `lstm.py`. Arrays are [steps, features, rows], so that a gate is one block of memory, and are kept
from call to call. Gates stand in the order j, i, f, o: the last three are sigmoids, of the first three the slope goes
with dc. sigmoid(x) = (1 + tanh(x / 2)) / 2, where the halves are taken into the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from hpc_es.core.data import Array
from hpc_es.policies.networks.lstm import FORGET_BIAS

ORDER = (1, 0, 2, 3)  # from i, j, f, o to j, i, f, o, and back
AT_ONCE = 10  # steps of a product backwards


class Layer:
    """One layer for so many steps of so many rows."""

    def __init__(self, inputs: int, units: int, steps: int, rows: int, dtype: str) -> None:
        self.inputs, self.units = inputs, units
        self.x = np.zeros((steps + 1, inputs + units + 1, rows), dtype)  # input, h before, 1
        self.x[:, -1] = 1
        self.gates = np.empty((steps, 4, units, rows), dtype)
        self.c = np.zeros((steps + 1, units, rows), dtype)  # before each step
        self.tanh_c, self.h = (np.empty((steps, units, rows), dtype) for _ in range(2))
        self._dz, self._product = np.empty((AT_ONCE, 4, units, rows), dtype), np.empty((units, rows), dtype)
        self._half = self.c.dtype.type(0.5)
        self._part: Layer | None = None  # memory for some of the rows

    @cached_property
    def _views(self) -> list[tuple[Array, ...]]:
        """Of each step."""
        return [self._at(t) for t in range(len(self.h))]

    def _at(self, t: int) -> tuple[Array, ...]:
        """Views of what step t reads and writes, made once: to make them takes as long as to compute with them."""
        gates, following = self.gates[t], self.x[t + 1, self.inputs : -1]
        flat = gates.reshape(4 * self.units, -1)
        return self.x[t], flat, gates[1:], *gates, self.c[t], self.c[t + 1], self.tanh_c[t], self.h[t], following

    def set(self, kernel: Array, bias: Array) -> None:
        """Take the weights: [inputs + units, 4 * units] and [4 * units], gates in the order of `lstm.py`."""
        forget = np.zeros((4, self.units), kernel.dtype)
        forget[2] = FORGET_BIAS
        whole = np.concatenate([kernel, (bias + forget.ravel())[np.newaxis]])
        ordered = whole.reshape(-1, 4, self.units)[:, ORDER].transpose(1, 2, 0)  # [4, units, inputs + units + 1]
        scale = np.array([1, 0.5, 0.5, 0.5], kernel.dtype)[:, np.newaxis, np.newaxis]
        self._weights = np.ascontiguousarray((scale * ordered).reshape(4 * self.units, -1))
        back = ordered.reshape(4 * self.units, -1).T
        self._to_inputs = np.ascontiguousarray(back[: self.inputs])
        self._to_h = np.ascontiguousarray(back[self.inputs : -1])

    def step(self, t: int) -> Array:
        """h [units, rows] of step t, whose input stands in `x`."""
        x, flat, sigmoids, j, i, f, o, c, c_after, tanh_c, h, following = self._views[t]
        np.matmul(self._weights, x, flat)
        np.tanh(flat, flat)
        np.multiply(sigmoids, self._half, sigmoids)
        np.add(sigmoids, self._half, sigmoids)
        np.multiply(c, f, c_after)
        np.multiply(i, j, self._product)
        np.add(c_after, self._product, c_after)
        np.tanh(c_after, tanh_c)
        np.multiply(tanh_c, o, h)
        following[:] = h
        return h

    def of(self, rows: slice) -> Layer:
        """Return a copy of some rows, to go backwards through; valid until the next of this layer."""
        steps, units, count = self.h[..., rows].shape
        if self._part is None or self._part.h.shape[-1] != count:
            self._part = Layer(self.inputs, units, steps, count, self.h.dtype.str)
        found = self._part
        for mine, theirs in ((found.x, self.x), (found.gates, self.gates), (found.c, self.c)):
            mine[:] = theirs[..., rows]
        found.tanh_c[:], found.h[:] = self.tanh_c[..., rows], self.h[..., rows]
        found._to_inputs, found._to_h = self._to_inputs, self._to_h
        return found

    def backwards(self, dh: Array) -> tuple[Array, Array, Array]:
        """Return the gradients of kernel, bias and input, from that of h [steps, units, rows] by what follows.

        Some steps at once, which stay in the cache.
        """
        steps, gates = len(dh), 4 * self.units
        whole, dx = np.zeros((gates, self.x.shape[1]), dh.dtype), np.empty((steps, self.inputs, dh.shape[-1]), dh.dtype)
        dc, through_h = np.zeros_like(self._product), np.zeros_like(self._product)
        for start in reversed(range(0, steps, AT_ONCE)):
            some = slice(start, min(start + AT_ONCE, steps))
            dz = self._slopes(some)
            self._through(some, dz, dh, dc, through_h)
            flat = dz.reshape(len(dz), gates, -1)
            left, right = (each.transpose(1, 0, 2).reshape(each.shape[1], -1) for each in (flat, self.x[some]))
            whole += left @ right.T
            np.matmul(self._to_inputs, flat, dx[some])
        whole = whole.reshape(4, self.units, -1)[ORDER, ...].reshape(gates, -1).T
        return whole[:-1], whole[-1], dx

    def _slopes(self, some: slice) -> Array:
        """[steps, 4, units, rows]: of c by j, i, f and of h by o, each by what stands under its tanh or sigmoid."""
        gates, c, tanh_c = self.gates[some], self.c[some], self.tanh_c[some]
        slopes = np.multiply(gates, gates, self._dz[: len(gates)])
        np.subtract(1, slopes[:, 0], slopes[:, 0])
        np.subtract(gates[:, 1:], slopes[:, 1:], slopes[:, 1:])
        for gate, factor in enumerate((gates[:, 1], gates[:, 0], c, tanh_c)):
            slopes[:, gate] *= factor
        return slopes

    def _through(self, some: slice, dz: Array, dh: Array, dc: Array, by_h: Array) -> None:
        """Make slopes dz, step by step backwards; `by_h` is what h gets of the step behind, and dc of the c there."""
        product, by_c = self._product, self.gates[some, 3] * (1 - self.tanh_c[some] ** 2)
        of_c, of_h, forget, dh = dz[:, :3], dz[:, 3], self.gates[some, 2], dh[some]
        for t in reversed(range(len(dz))):
            np.add(by_h, dh[t], by_h)
            np.multiply(by_h, by_c[t], product)
            np.add(dc, product, dc)
            dz_of_c, dz_of_h = of_c[t], of_h[t]
            np.multiply(dz_of_c, dc, dz_of_c)
            np.multiply(dz_of_h, by_h, dz_of_h)
            np.matmul(self._to_h, dz[t].reshape(4 * self.units, -1), by_h)
            np.multiply(dc, forget[t], dc)


class Layers:
    """Several, each on the outputs of the one before."""

    def __init__(self, inputs: int, sizes: Sequence[int], steps: int, rows: int, dtype: str) -> None:
        self._layers = [Layer(before, units, steps, rows, dtype) for before, units in pairwise((inputs, *sizes))]

    def of(self, rows: slice) -> Layers:
        """Return a copy of some rows, to go backwards through."""
        found = copy.copy(self)
        found._layers = [layer.of(rows) for layer in self._layers]
        return found

    def set(self, weights: Sequence[tuple[Array, Array]]) -> None:
        """Take kernel and bias of each."""
        for layer, (kernel, bias) in zip(self._layers, weights, strict=True):
            layer.set(kernel, bias)

    def input(self, t: int) -> Array:
        """Where the input of step t belongs, [inputs, rows]."""
        first = self._layers[0]
        return first.x[t, : first.inputs]

    def step(self, t: int) -> Array:
        """h [units, rows] of the last layer."""
        h = self._layers[0].step(t)
        for layer in self._layers[1:]:
            layer.x[t, : layer.inputs] = h
            h = layer.step(t)
        return h

    @property
    def h(self) -> Array:
        """[steps, units, rows] of the last layer."""
        return self._layers[-1].h

    def backwards(self, dh: Array) -> tuple[list[tuple[Array, Array]], Array]:
        """Return the gradients of each layer's kernel and bias, and of the input, from that of `h` [steps, ...]."""
        gradients = []
        for layer in reversed(self._layers):
            kernel, bias, dh = layer.backwards(dh)
            gradients.append((kernel, bias))
        return gradients[::-1], dh
