"""The LSTM that writes programs token by token, in NumPy.

Abolafia et al. 2018, arXiv:1801.03526, section 3.

    embedding of the last token -> LSTM layers -> logits of the next token

The first input is token 0. Token 0 (`END`) ends a program, tokens 1 to 8 are the characters of
Brainf*ck. A second stack of layers on the same embedding can predict the value of each position.
All weights are one flat vector.

The cell is that of `hpc_es.policies.lstm`. The forward pass runs step by step. In the backward pass
only the recurrence does so; the gradients of weights and inputs are matrix products over several
steps. Arrays are [steps, features, rows], so that a gate is one block of memory, and are reused
from call to call. Gates are ordered j, i, f, o: the last three are sigmoids, and the gradients of
the first three come from the cell. sigmoid(x) = (1 + tanh(x / 2)) / 2, with the factors 1/2
included in the weights.

`sample_programs` writes programs, and reads further ones (imitated or replayed) in the same pass by
teacher forcing.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

import numpy as np

from hpc_es.core.data import Array, Float32
from hpc_es.core.population import Layout, Shape
from hpc_es.policies.networks import layers
from hpc_es.policies.networks.layers import FORGET_BIAS
from hpc_es.programs.policy_gradient.options import TOKENS

END = 0  # the token that ends a program
ORDER = (1, 0, 2, 3)  # permutation of the gates i, j, f, o to j, i, f, o, and back
STEPS_PER_PRODUCT = 10  # steps of one matrix product backwards, which fit into the cache


class LSTMLayer:
    """One layer, with memory for a number of steps and rows."""

    def __init__(self, inputs: int, units: int, steps: int, rows: int, dtype: str) -> None:
        self.inputs, self.units = inputs, units
        self.x = np.zeros((steps + 1, inputs + units + 1, rows), dtype)  # input, previous h, 1
        self.x[:, -1] = 1
        self.gates = np.empty((steps, 4, units, rows), dtype)
        self.c = np.zeros((steps + 1, units, rows), dtype)  # before each step
        self.tanh_c, self.h = (np.empty((steps, units, rows), dtype) for _ in range(2))
        self._dz, self._product = (
            np.empty((STEPS_PER_PRODUCT, 4, units, rows), dtype),
            np.empty((units, rows), dtype),
        )
        self._half = self.c.dtype.type(0.5)
        self._part: LSTMLayer | None = None  # memory for a part of the rows

    @cached_property
    def _views(self) -> list[tuple[Array, ...]]:
        """The views of each step."""
        return [self._view(t) for t in range(len(self.h))]

    def _view(self, t: int) -> tuple[Array, ...]:
        """Return views of the arrays of step t.

        They are cached, since creating them takes as long as using them.
        """
        gates, next_h = self.gates[t], self.x[t + 1, self.inputs : -1]
        flat = gates.reshape(4 * self.units, -1)
        return (
            self.x[t],
            flat,
            gates[1:],
            *gates,
            self.c[t],
            self.c[t + 1],
            self.tanh_c[t],
            self.h[t],
            next_h,
        )

    def set(self, kernel: Array, bias: Array) -> None:
        """Set the weights: kernel [inputs + units, 4 * units] and bias [4 * units].

        Gates are ordered i, j, f, o.
        """
        forget = np.zeros((4, self.units), kernel.dtype)
        forget[2] = FORGET_BIAS
        whole = np.concatenate([kernel, (bias + forget.ravel())[np.newaxis]])
        # [4, units, inputs + units + 1]
        ordered = whole.reshape(-1, 4, self.units)[:, ORDER].transpose(1, 2, 0)
        scale = np.array([1, 0.5, 0.5, 0.5], kernel.dtype)[:, np.newaxis, np.newaxis]
        self._weights = np.ascontiguousarray((scale * ordered).reshape(4 * self.units, -1))
        back = ordered.reshape(4 * self.units, -1).T
        self._to_inputs = np.ascontiguousarray(back[: self.inputs])
        self._to_h = np.ascontiguousarray(back[self.inputs : -1])

    def step(self, t: int) -> Array:
        """Compute step t, whose input is in `x`, and return h, [units, rows]."""
        x, flat, sigmoids, j, i, f, o, c, next_c, tanh_c, h, next_h = self._views[t]
        np.matmul(self._weights, x, flat)
        np.tanh(flat, flat)
        np.multiply(sigmoids, self._half, sigmoids)
        np.add(sigmoids, self._half, sigmoids)
        np.multiply(c, f, next_c)
        np.multiply(i, j, self._product)
        np.add(next_c, self._product, next_c)
        np.tanh(next_c, tanh_c)
        np.multiply(tanh_c, o, h)
        next_h[:] = h
        return h

    def select(self, rows: slice) -> LSTMLayer:
        """Return a copy of these rows for `backwards`; it is valid until the next call."""
        steps, units, count = self.h[..., rows].shape
        if self._part is None or self._part.h.shape[-1] != count:
            self._part = LSTMLayer(self.inputs, units, steps, count, self.h.dtype.str)
        part = self._part
        part.x[:], part.gates[:], part.c[:] = (
            self.x[..., rows],
            self.gates[..., rows],
            self.c[..., rows],
        )
        part.tanh_c[:], part.h[:] = self.tanh_c[..., rows], self.h[..., rows]
        part._to_inputs, part._to_h = self._to_inputs, self._to_h
        return part

    def backwards(self, dh: Array) -> tuple[Array, Array, Array]:
        """Return the gradients of kernel, bias and input from that of h.

        They are [steps, inputs, rows] and [steps, units, rows].
        """
        steps, gates = len(dh), 4 * self.units
        weights = np.zeros((gates, self.x.shape[1]), dh.dtype)
        dx = np.empty((steps, self.inputs, dh.shape[-1]), dh.dtype)
        dc, dh_later = np.zeros_like(self._product), np.zeros_like(self._product)
        for start in reversed(range(0, steps, STEPS_PER_PRODUCT)):
            part = slice(start, min(start + STEPS_PER_PRODUCT, steps))
            dz = self._gate_slopes(part)
            self._backwards_through_time(part, dz, dh, dc, dh_later)
            flat = dz.reshape(len(dz), gates, -1)
            left, right = (
                array.transpose(1, 0, 2).reshape(array.shape[1], -1)
                for array in (flat, self.x[part])
            )
            weights += left @ right.T
            np.matmul(self._to_inputs, flat, dx[part])
        weights = weights.reshape(4, self.units, -1)[ORDER, ...].reshape(gates, -1).T
        return weights[:-1], weights[-1], dx

    def _gate_slopes(self, part: slice) -> Array:
        """Return the derivatives of c (for j, i, f) and h (for o) by the gates' inputs.

        They are [steps, 4, units, rows].
        """
        gates, c, tanh_c = self.gates[part], self.c[part], self.tanh_c[part]
        slopes = np.multiply(gates, gates, self._dz[: len(gates)])
        np.subtract(1, slopes[:, 0], slopes[:, 0])
        np.subtract(gates[:, 1:], slopes[:, 1:], slopes[:, 1:])
        for gate, factor in enumerate((gates[:, 1], gates[:, 0], c, tanh_c)):
            slopes[:, gate] *= factor
        return slopes

    def _backwards_through_time(
        self, part: slice, dz: Array, dh: Array, dc: Array, dh_later: Array
    ) -> None:
        """Turn slopes dz into gradients in place, step by step backwards.

        dc and dh_later, [units, rows], are the gradients of c and h from later steps; they are
        updated in place.
        """
        product, h_by_c = self._product, self.gates[part, 3] * (1 - self.tanh_c[part] ** 2)
        dz_c, dz_h, forget, dh = dz[:, :3], dz[:, 3], self.gates[part, 2], dh[part]
        for t in reversed(range(len(dz))):
            np.add(dh_later, dh[t], dh_later)
            np.multiply(dh_later, h_by_c[t], product)
            np.add(dc, product, dc)
            np.multiply(dz_c[t], dc, dz_c[t])
            np.multiply(dz_h[t], dh_later, dz_h[t])
            np.matmul(self._to_h, dz[t].reshape(4 * self.units, -1), dh_later)
            np.multiply(dc, forget[t], dc)


class LSTMLayers:
    """A stack of layers."""

    def __init__(
        self, inputs: int, sizes: Sequence[int], steps: int, rows: int, dtype: str
    ) -> None:
        self._layers = [
            LSTMLayer(before, units, steps, rows, dtype)
            for before, units in pairwise((inputs, *sizes))
        ]

    def select(self, rows: slice) -> LSTMLayers:
        """Return a copy of these rows for `backwards`; it is valid until the next call."""
        part = copy.copy(self)
        part._layers = [layer.select(rows) for layer in self._layers]
        return part

    def set(self, weights: Sequence[tuple[Array, Array]]) -> None:
        """Set kernel and bias of each layer; see `LSTMLayer.set` for their shapes."""
        for layer, (kernel, bias) in zip(self._layers, weights, strict=True):
            layer.set(kernel, bias)

    def input(self, t: int) -> Array:
        """Return the array for the input of step t, [inputs, rows]."""
        first = self._layers[0]
        return first.x[t, : first.inputs]

    def step(self, t: int) -> Array:
        """Compute step t and return h of the last layer, [units, rows]."""
        h = self._layers[0].step(t)
        for layer in self._layers[1:]:
            layer.x[t, : layer.inputs] = h
            h = layer.step(t)
        return h

    @property
    def h(self) -> Array:
        """h of the last layer, [steps, units, rows]."""
        return self._layers[-1].h

    def backwards(self, dh: Array) -> tuple[list[tuple[Array, Array]], Array]:
        """Return the gradients of all kernels and biases and of the input from that of h.

        The latter is [steps, units, rows].
        """
        gradients = []
        for layer in reversed(self._layers):
            kernel, bias, dh = layer.backwards(dh)
            gradients.append((kernel, bias))
        return gradients[::-1], dh


@dataclass(frozen=True)
class TokenLSTM:
    """Architecture of the network."""

    policy_sizes: tuple[int, ...]
    value_sizes: tuple[int, ...]  # empty: no values
    embedding_size: int
    length: int  # maximum number of tokens of a program
    ends: bool  # whether END may be written; otherwise all programs have full length

    @functools.cached_property
    def layout(self) -> Layout:
        """The parts of the parameter vector.

        These are the embedding, layers and output of the policy, then of the values.
        """
        shapes: dict[str, Shape] = {"embedding": (TOKENS, self.embedding_size)}
        for stack, sizes, outputs in (
            ("policy", self.policy_sizes, TOKENS),
            ("value", self.value_sizes, 1),
        ):
            for number, (inputs, units) in enumerate(pairwise((self.embedding_size, *sizes))):
                for name, shape in layers.lstm_cell_shapes(inputs, units).items():
                    shapes[f"{stack}/{number}/{name}"] = shape
            if sizes:
                shapes[f"{stack}/output"] = (sizes[-1], outputs)
        return Layout(shapes)

    @property
    def first_token(self) -> int:
        """The smallest token that can be written."""
        return END if self.ends else END + 1

    def initial(self, rng: np.random.Generator, factor: float = 1.0) -> Float32:
        """Return initial parameters, float32[params].

        The embedding is uniform in [-1, 1], weights in +-sqrt(6 factor / (inputs + outputs))
        (Glorot); biases are 0.
        """

        def initial_part(name: str, shape: Shape) -> Array:
            if len(shape) == 1:
                return np.zeros(shape)
            limit = 1.0 if name == "embedding" else np.sqrt(6 * factor / sum(shape))
            return rng.uniform(-limit, limit, shape)

        return self.layout.join(
            {name: initial_part(name, shape) for name, shape in self.layout.shapes.items()}
        )

    def weights(self, arrays: Mapping[str, Array], stack: str) -> list[tuple[Array, Array]]:
        """Return kernel and bias of each layer of a stack, "policy" or "value".

        They have the shapes of the layout.
        """
        sizes = self.policy_sizes if stack == "policy" else self.value_sizes
        return [
            (arrays[f"{stack}/{number}/kernel"], arrays[f"{stack}/{number}/bias"])
            for number in range(len(sizes))
        ]

    @functools.cached_property
    def embedding_parameters(self) -> int:
        """Number of parameters of the embedding, which are the first ones."""
        return prod(self.layout.shapes["embedding"])


def lengths(tokens: Array) -> Array:
    """Return the number of tokens of each program, int32[rows], from [rows, length].

    The end token counts.
    """
    ended = tokens == END
    result: Array = np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, tokens.shape[1]).astype(
        np.int32
    )
    return result


@dataclass(frozen=True)
class ForwardPass:
    """One pass over a batch of programs.

    It is valid until the next pass of the same shape, which reuses its memory.
    """

    network: TokenLSTM
    arrays: dict[str, Array]  # the parameters
    tokens: Array  # uint8[rows, length], padded with 0
    inputs: Array  # int64[steps, rows], input token of each step
    logits: Array  # dtype[steps, tokens, rows], of the tokens that can be written
    policy: LSTMLayers
    values: LSTMLayers | None  # not computed yet

    @property
    def steps(self) -> int:
        """Number of steps, the length of the longest program."""
        return len(self.inputs)


def sample_programs(
    network: TokenLSTM,
    theta: Array,
    uniforms: Array,
    sharpness: float = 1.0,
    forced: Array | None = None,
    forced_inputs: Array | None = None,
    noise: float = 0.0,
) -> ForwardPass:
    """Sample programs with uniform random numbers, [programs, length], and read forced ones.

    These are uint8[forced, length]. `forced_inputs` replaces the input tokens of the forced
    programs, uint8[forced, length]. A token is sampled from softmax(sharpness * logits) by
    inversion of the cumulative distribution; with `noise`, that fraction of the probability is
    uniform over all tokens. Computations have the dtype of theta, [params].
    """
    forced = np.zeros((0, network.length), np.uint8) if forced is None else forced
    sampled, rows, steps = (
        len(uniforms),
        len(uniforms) + len(forced),
        int(lengths(forced).max(initial=0)),
    )
    arrays = network.layout.split(theta)
    policy, values = _layers(network, rows, theta.dtype.str)
    policy.set(network.weights(arrays, "policy"))
    embedding, output = (
        arrays["embedding"].T.copy(),
        arrays["policy/output"][:, network.first_token :].T.copy(),
    )
    numbers, factor = uniforms.T.astype(theta.dtype), theta.dtype.type(sharpness)
    # the first token is the input of the first step
    tokens = np.zeros((network.length + 1, rows), np.int64)
    tokens[1:, sampled:] = (forced if forced_inputs is None else forced_inputs).T
    triangle = np.tri(len(output), dtype=theta.dtype)
    logits, ended = (
        np.empty((network.length, len(output), rows), theta.dtype),
        np.zeros(sampled, np.bool_),
    )
    t = 0
    while t < network.length and (t < steps or not ended.all()):
        # the default mode makes a copy
        embedding.take(tokens[t], axis=1, out=policy.input(t), mode="clip")
        np.matmul(output, policy.step(t), out=logits[t])
        chosen = network.first_token + _sample_tokens(
            factor * logits[t, :, :sampled], triangle, numbers[t], noise
        )
        if network.ends:
            chosen[ended] = END
            ended |= chosen == END
        t += 1
        tokens[t, :sampled] = chosen
    programs = tokens[1:].T.astype(np.uint8)
    programs[sampled:] = forced
    return ForwardPass(network, arrays, programs, tokens[:t], logits[:t], policy, values)


def _sample_tokens(logits: Array, triangle: Array, numbers: Array, noise: float) -> Array:
    """Return indices sampled from softmax(logits), int64[rows].

    `triangle` is a lower triangle of ones for the sums.
    """
    odds = np.exp(logits - np.maximum.reduce(logits))
    if noise:
        odds += np.add.reduce(odds) * odds.dtype.type(noise / (1 - noise) / len(odds))
    sums = np.matmul(triangle, odds)
    indices: Array = np.add.reduce(sums[:-1] <= numbers * sums[-1], dtype=np.int64)
    return indices


@functools.lru_cache(maxsize=4)
def _layers(network: TokenLSTM, rows: int, dtype: str) -> tuple[LSTMLayers, LSTMLayers | None]:
    """Return the layers of policy and values, with memory for this number of rows."""
    stacks = [
        LSTMLayers(network.embedding_size, sizes, network.length, rows, dtype) if sizes else None
        for sizes in (network.policy_sizes, network.value_sizes)
    ]
    assert stacks[0] is not None
    return stacks[0], stacks[1]
