"""LSTM layers over a batch of sequences in NumPy: step by step forwards, over all steps backwards.

The cell is that of `lstm.py`. Arrays are [steps, features, rows], so that a gate is one block of memory, and are kept
from call to call. Gates stand in the order j, i, f, o: the last three are sigmoids, of the first three the slope goes
with dc. sigmoid(x) = (1 + tanh(x / 2)) / 2, where the halves are taken into the weights.


A network that writes programs token by token (Abolafia et al. 2018, arXiv:1801.03526, section 3).

    embedding of the last token -> LSTM layers -> logits of the next; the first token follows 0

Token 0 ends a program, 1 to 8 are the characters of Brainf*ck. A second stack on the same embedding may tell the value
of each position. Weights are in one flat vector. Here is its form; `writing.py` writes programs by it, and
`program_gradient.py` differentiates their loss.


Programs written token by token, with all that their gradient needs of the way there.

Programs that are given (imitated or replayed ones) are read in the same pass, as rows behind those that are written.
It ends when all of them have ended.
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


END = 0


@dataclass(frozen=True)
class TokenLSTM:
    """The network's form."""

    policy_sizes: tuple[int, ...]
    value_sizes: tuple[int, ...]  # none: it tells no values
    embedding_size: int
    length: int  # tokens of the longest program
    ends: bool  # whether token 0 may be written; otherwise all programs are of full length

    @functools.cached_property
    def layout(self) -> Layout:
        """The embedding, the policy's layers and its output, then the same of the values."""
        shapes: dict[str, Shape] = {"embedding": (TOKENS, self.embedding_size)}
        for stack, sizes, outputs in (("policy", self.policy_sizes, TOKENS), ("value", self.value_sizes, 1)):
            for number, (inputs, units) in enumerate(pairwise((self.embedding_size, *sizes))):
                for name, shape in layers.lstm_cell_shapes(inputs, units).items():
                    shapes[f"{stack}/{number}/{name}"] = shape
            if sizes:
                shapes[f"{stack}/output"] = (sizes[-1], outputs)
        return Layout(shapes)

    @property
    def first_token(self) -> int:
        """The smallest that is written."""
        return END if self.ends else END + 1

    def initial(self, rng: np.random.Generator, factor: float = 1.0) -> Float32:
        """float32[params]: embedding in +-1, biases 0, weights in +-sqrt(6 factor / (inputs + outputs)) (Glorot)."""

        def drawn(name: str, shape: Shape) -> Array:
            if len(shape) == 1:
                return np.zeros(shape)
            limit = 1.0 if name == "embedding" else np.sqrt(6 * factor / sum(shape))
            return rng.uniform(-limit, limit, shape)

        return self.layout.join({name: drawn(name, shape) for name, shape in self.layout.shapes.items()})

    def weights(self, arrays: Mapping[str, Array], stack: str) -> list[tuple[Array, Array]]:
        """Kernel and bias of each layer of a stack."""
        sizes = self.policy_sizes if stack == "policy" else self.value_sizes
        return [(arrays[f"{stack}/{number}/kernel"], arrays[f"{stack}/{number}/bias"]) for number in range(len(sizes))]

    @functools.cached_property
    def embedded(self) -> int:
        """How many parameters the embedding has; they come first."""
        return prod(self.layout.shapes["embedding"])


def lengths(tokens: Array) -> Array:
    """int32[rows]: tokens of each program up to and with the one that ends it, from [rows, length]."""
    ended = tokens == END
    found: Array = np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, tokens.shape[1]).astype(np.int32)
    return found


@dataclass(frozen=True)
class Writing:
    """One pass over a batch of programs; valid until the next pass of the same form, which uses its memory again."""

    network: TokenLSTM
    arrays: dict[str, Array]  # the parameters
    tokens: Array  # uint8[rows, length], zeros behind the end
    before: Array  # int64[steps, rows]: the token that each step has read
    logits: Array  # [steps, tokens that can be written, rows]
    policy: Layers
    values: Layers | None  # not run yet

    @property
    def steps(self) -> int:
        """How many the pass has: the length of the longest program."""
        return len(self.before)


def write(
    network: TokenLSTM,
    theta: Array,
    uniforms: Array,
    sharpness: float = 1.0,
    given: Array | None = None,
    read: Array | None = None,
    noise: float = 0.0,
) -> Writing:
    """Write programs by uniform numbers [programs, length], and read those that are given, uint8[more, length].

    `read` is what is read in their place, where they are to be learned from other tokens than their own.
    A token is the place of its number among the sums of the probabilities, softmax(sharpness * logits); with noise a
    share of them is even over all tokens. Arithmetic is that of theta.
    """
    given = np.zeros((0, network.length), np.uint8) if given is None else given
    written, rows, steps = len(uniforms), len(uniforms) + len(given), int(lengths(given).max(initial=0))
    arrays = network.layout.split(theta)
    policy, values = _layers(network, rows, theta.dtype.str)
    policy.set(network.weights(arrays, "policy"))
    embedding, output = arrays["embedding"].T.copy(), arrays["policy/output"][:, network.first_token :].T.copy()
    numbers, factor = uniforms.T.astype(theta.dtype), theta.dtype.type(sharpness)
    tokens = np.zeros((network.length + 1, rows), np.int64)  # after the one that every program begins with
    tokens[1:, written:] = (given if read is None else read).T
    below = np.tri(len(output), dtype=theta.dtype)
    logits, ended = np.empty((network.length, len(output), rows), theta.dtype), np.zeros(written, np.bool_)
    t = 0
    while t < network.length and (t < steps or not ended.all()):
        embedding.take(tokens[t], axis=1, out=policy.input(t), mode="clip")
        np.matmul(output, policy.step(t), out=logits[t])
        chosen = network.first_token + _drawn(factor * logits[t, :, :written], below, numbers[t], noise)
        if network.ends:
            chosen[ended] = END
            ended |= chosen == END
        t += 1
        tokens[t, :written] = chosen
    programs = tokens[1:].T.astype(np.uint8)
    programs[written:] = given
    return Writing(network, arrays, programs, tokens[:t], logits[:t], policy, values)


def _drawn(logits: Array, below: Array, numbers: Array, noise: float) -> Array:
    """Places among the sums of softmax(logits [tokens, rows]), for numbers [rows]; `below` is a triangle of ones."""
    odds = np.exp(logits - np.maximum.reduce(logits))
    if noise:
        odds += np.add.reduce(odds) * odds.dtype.type(noise / (1 - noise) / len(odds))
    sums = np.matmul(below, odds)
    places: Array = np.add.reduce(sums[:-1] <= numbers * sums[-1], dtype=np.int64)
    return places


@functools.lru_cache(maxsize=4)
def _layers(network: TokenLSTM, rows: int, dtype: str) -> tuple[Layers, Layers | None]:
    """Policy and values, with memory for so many rows."""
    stacks = [
        Layers(network.embedding_size, sizes, network.length, rows, dtype) if sizes else None
        for sizes in (network.policy_sizes, network.value_sizes)
    ]
    assert stacks[0] is not None
    return stacks[0], stacks[1]
