"""Layers of networks over any array library: activations, dense and LSTM layers.

Libraries are NumPy, TensorFlow and jax.numpy. The end of the file has the weights of several
candidates in NumPy.

The LSTM cell has one kernel for x and h, with gates in the order i, j, f, o (Zaremba et al. 2014):

    z = [x, h] K + b;  c' = c sigmoid(f + 1) + sigmoid(i) tanh(j);  h' = tanh(c') sigmoid(o)

The NumPy actors in `policies/mlp.py` and `policies/lstm.py` compute the same in place; the results
agree to about 1e-6 (tests/policies/test_mlp.py and test_lstm.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from types import ModuleType
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Float32, Float64
from hpc_es.core.policy import Tensor
from hpc_es.core.population import Layout, LowRank, Population, Shape

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


def layer_normalised(
    x: Tensor, mean: Callable[..., Tensor] = np.mean, sqrt: Callable[..., Tensor] = np.sqrt
) -> Tensor:
    """Return x [..., units] minus its mean over units, divided by its standard deviation (Ba et al.
    2016).

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
    """Return the activation after the normalisation, for float32[..., units].

    It overwrites its argument.
    """
    activate = ACTIVATIONS[name]
    if normalisation == "none":
        return activate

    def normalise_and_activate(x: Float32) -> Float32:
        x[...] = layer_normalised(x)
        return activate(x)

    return normalise_and_activate


def array_activation(
    xp: ModuleType, name: str, normalisation: Normalisation = "none"
) -> Callable[[Tensor], Tensor]:
    """Return the activation after the normalisation, over an array namespace like `jax.numpy`."""
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "tanh": xp.tanh,
        "relu": lambda x: xp.maximum(x, 0),
        "leaky_relu": lambda x: xp.maximum(x, LEAK * x),
        "elu": lambda x: xp.where(x < 0, xp.expm1(xp.minimum(x, 0)), x),
    }
    activate = functions[name]
    return (
        activate
        if normalisation == "none"
        else lambda x: activate(layer_normalised(x, xp.mean, xp.sqrt))
    )


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
    return (
        activate
        if normalisation == "none"
        else lambda x: activate(layer_normalised(x, tf.reduce_mean, tf.sqrt))
    )


def dense(
    matmul: Callable[[Tensor, Tensor], Tensor],
    activate: Callable[[Tensor], Tensor] | None,
    layers: Sequence[tuple[Tensor, Tensor]],
    x: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return (outputs [..., outputs], features [..., features]) from x [..., inputs].

    Features are the inputs of the last layer of this feed-forward network. `layers` are (weights
    [..., inputs, outputs], biases [..., outputs]); `activate` is applied after every layer but the
    last, and may be None for a single layer.
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

    The numbers of a large matrix are drawn twice, first to compute the lengths of the columns, so
    that the whole matrix is never in memory in float64.
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

    This is the initialisation of Glorot and Bengio (2010). For the kernel of a convolution, inputs
    and outputs are multiplied by its number of positions.
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


def lstm_step(
    ops: LayerOps, arrays: Mapping[str, Tensor], x: Tensor, memory: Memory
) -> tuple[Tensor, Memory]:
    """Return (outputs [..., outputs], new memory) of one step of all layers.

    x is [..., observations]. The memory is h and c [..., units] of each layer. `arrays` are the
    parts of `lstm_layout` by name: kernels that `ops.product` takes, and biases that can be added.
    """
    new_memory: list[tuple[Tensor, Tensor]] = []
    for number, (h, c) in enumerate(memory):
        z = (
            ops.product(ops.joined(x, h), arrays[f"lstm_{number}_kernel"])
            + arrays[f"lstm_{number}_bias"]
        )
        new_memory.append(lstm_gates(ops, z, c))
        x = new_memory[-1][0]
    return ops.product(x, arrays["output_kernel"]) + arrays["output_bias"], tuple(new_memory)


def lstm_gates(ops: GateOps, z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return the new (h, c), [..., units] each.

    z = [x, h] K + b is [..., 4 * units], c the previous one.
    """
    i, j, f, o = ops.split(z, 4)
    c = c * ops.sigmoid(f + FORGET_BIAS) + ops.sigmoid(i) * ops.tanh(j)
    return ops.tanh(c) * ops.sigmoid(o), c


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

    The vector has, for each layer, the weights [inputs, outputs] in row-major order, then the
    biases [outputs].
    """

    def __init__(self, widths: tuple[int, ...], bias: bool = True) -> None:
        self.widths, self.bias = widths, bias
        self.names = (*(f"hidden_{number}" for number in range(len(widths) - 2)), "output")
        shapes: dict[str, Shape] = {}
        for name, (n, m) in zip(self.names, pairwise(widths), strict=True):
            shapes |= {f"{name}_kernel": (n, m), **({f"{name}_bias": (m,)} if bias else {})}
        self.layout = Layout(shapes)

    def matrices(self, parameters: Float32) -> Iterator[Float32]:
        """Yield views [..., inputs + 1, outputs] of float32[..., params].

        The last row is the biases; without biases views are [..., inputs, outputs].
        """
        start, lead = 0, parameters.shape[:-1]
        for n, m in pairwise(self.widths):
            stop = start + (n + self.bias) * m
            yield parameters[..., start:stop].reshape(*lead, n + self.bias, m)
            start = stop

    def layers(self, parameters: Float32) -> Iterator[tuple[Float32, Float32]]:
        """Yield views (weights [..., inputs, outputs], biases [..., 1, outputs]) of parameters.

        These are float32[..., params]. Without biases, new arrays of zeros take their place.
        """
        for matrix in self.matrices(parameters):
            if self.bias:
                yield matrix[..., :-1, :], matrix[..., -1:, :]
            else:
                yield matrix, np.zeros_like(matrix[..., :1, :])


def lstm_layout(observations: int, hidden_dims: tuple[int, ...], outputs: int) -> Layout:
    """Return the layout of an LSTM network's parameter vector.

    Its parts are lstm_0_kernel [inputs + units, 4 * units], lstm_0_bias [4 * units], lstm_1_kernel,
    ..., output_kernel [units, outputs], output_bias [outputs].
    """
    parts: dict[str, tuple[int, ...]] = {}
    for number, (inputs, units) in enumerate(pairwise((observations, *hidden_dims))):
        parts |= {
            f"lstm_{number}_{name}": shape
            for name, shape in lstm_cell_shapes(inputs, units).items()
        }
    return Layout(parts | {"output_kernel": (hidden_dims[-1], outputs), "output_bias": (outputs,)})


# The weights of several candidates in NumPy: a matrix for each, or common weights and factors.
#
# With low-rank perturbations (`noise.rank`) candidate i has the weights W + left_i^T right_i, so
# that  z_i = x_i W + (x_i left_i^T) right_i + b_i  needs one product with W for all candidates, and
# no matrix of a candidate. The product with W is computed row by row, where the bits of a row are
# its own, or as one matrix product, whose bits depend on the number and order of the rows.

LowRankProduct = Literal["rows", "matrix"]
Indices = npt.NDArray[np.intp]


class Weights(Protocol):
    """The weights of all layers, of several jobs."""

    def __len__(self) -> int:
        """Return the number of jobs."""
        ...

    def product(self, layer: int, inputs: Float32, out: Float32 | None = None) -> Float32:
        """Return x W + b of a layer, float32[jobs, episodes, outputs], in `out` if it is given.

        `inputs` are x and a last column of 1 for the biases, float32[jobs, episodes, inputs + 1];
        without biases there is no such column.
        """
        ...

    def kept(self, jobs: Indices) -> Weights:
        """Return the weights of these jobs, intp[kept]."""
        ...


class StackedWeights:
    """A matrix for each job and layer, [jobs, inputs + 1, outputs].

    They are views of float32[jobs, params].
    """

    def __init__(self, stack: Float32, matrices: Callable[[Float32], Iterable[Float32]]) -> None:
        self._stack, self._views, self._matrices = stack, matrices, list(matrices(stack))

    def __len__(self) -> int:
        return len(self._stack)

    def product(self, layer: int, inputs: Float32, out: Float32 | None = None) -> Float32:
        z: Float32 = np.matmul(inputs, self._matrices[layer], out=out)
        return z

    def kept(self, jobs: Indices) -> StackedWeights:
        return StackedWeights(self._stack[jobs], self._views)


@dataclass(frozen=True)
class LowRankLayer:
    """A layer whose weights are `common` plus factors, or those of each job without factors."""

    common: Float32  # float32[inputs, outputs], or [jobs, inputs, outputs] without factors
    left: Sequence[Float32]  # float32[jobs, inputs] for each number of the rank; (): no factors
    right: Sequence[Float32]  # float32[jobs, 1, outputs] for each number of the rank
    bias: Float32 | None  # float32[jobs, 1, outputs]

    def kept(self, jobs: Indices) -> LowRankLayer:
        return replace(
            self,
            common=self.common if self.left else self.common[jobs],
            left=[factor[jobs] for factor in self.left],
            right=[factor[jobs] for factor in self.right],
            bias=None if self.bias is None else self.bias[jobs],
        )

    def product(self, inputs: Float32, out: Float32 | None, by_rows: bool) -> Float32:
        x = inputs if self.bias is None else inputs[:, :, :-1]
        if by_rows or not self.left:
            z: Float32 = np.matmul(x, self.common, out=out)
        else:
            z = np.empty((*x.shape[:2], self.common.shape[1]), np.float32) if out is None else out
            # reshaping copies neither array: z is contiguous, or has one episode per job
            np.matmul(x.reshape(-1, x.shape[2]), self.common, out=z.reshape(-1, z.shape[2]))
        for left, right in zip(self.left, self.right, strict=True):
            along = np.einsum("jei,ji->je", x, left)  # sums each row on its own
            z += along[:, :, np.newaxis] * right
        if self.bias is not None:
            z += self.bias
        return z


class LowRankWeights:
    """Common weights and the factors of each job."""

    def __init__(self, layers: Sequence[LowRankLayer], jobs: int, by_rows: bool) -> None:
        self._layers, self._jobs, self._by_rows = layers, jobs, by_rows

    def __len__(self) -> int:
        return self._jobs

    def product(self, layer: int, inputs: Float32, out: Float32 | None = None) -> Float32:
        return self._layers[layer].product(inputs, out, self._by_rows)

    def kept(self, jobs: Indices) -> LowRankWeights:
        return LowRankWeights(
            [layer.kept(jobs) for layer in self._layers], len(jobs), self._by_rows
        )


def weights_of(
    population: Population,
    names: Sequence[str],
    matrices: Callable[[Float32], Iterable[Float32]],
    product: LowRankProduct,
) -> Weights:
    """Return the weights of a population.

    The parts of a layer are `<name>_kernel` and, if there are biases, `<name>_bias`. `matrices`
    returns the views [jobs, inputs + 1, outputs] of all layers of float32[jobs, params].
    """
    if isinstance(population, LowRank) and population.matrices:
        layers = [_low_rank_layer(population, name) for name in names]
        return LowRankWeights(layers, len(population), product == "rows")
    return StackedWeights(population.stacked(), matrices)


def _low_rank_layer(population: LowRank, name: str) -> LowRankLayer:
    kernel, bias = f"{name}_kernel", f"{name}_bias"
    biases = population.part(bias)[:, np.newaxis] if bias in population.layout.shapes else None
    if kernel not in population.matrices:
        return LowRankLayer(population.part(kernel), (), (), biases)
    # [rank, jobs, ...]
    left, right = (np.moveaxis(factor, 1, 0).copy() for factor in population.factors(kernel))
    return LowRankLayer(population.centre_part(kernel), [*left], [*right[:, :, np.newaxis]], biases)
