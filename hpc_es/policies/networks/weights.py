"""The weights of dense layers of several candidates in NumPy: a stack of matrices, or common weights and factors.

With low-rank perturbations (`noise.rank`) candidate i has the weights W + left_i^T right_i, so that

    z_i = x_i W + (x_i left_i^T) right_i + b_i

needs one product with W for all candidates, and no matrix of a candidate. The product with W is computed row by row,
where the bits of a row are its own, or as one matrix product, whose bits depend on the number and order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Float32
from hpc_es.core.population import LowRank, Population

LowRankProduct = Literal["rows", "matrix"]
Indices = npt.NDArray[np.intp]


class Weights(Protocol):
    """The weights of all layers, of several jobs."""

    def __len__(self) -> int:
        """Return the number of jobs."""
        ...

    def product(self, layer: int, inputs: Float32, out: Float32 | None = None) -> Float32:
        """Return x W + b of a layer, float32[jobs, episodes, outputs], in `out` if it is given.

        `inputs` are x and a last column of 1 for the biases, float32[jobs, episodes, inputs + 1]; without biases there
        is no such column.
        """
        ...

    def kept(self, jobs: Indices) -> Weights:
        """Return the weights of these jobs, intp[kept]."""
        ...


class StackedWeights:
    """A matrix for each job and layer, [jobs, inputs + 1, outputs], views of float32[jobs, params]."""

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
    """A layer whose weights are `common` plus factors, or those of each job if there are no factors."""

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
        return LowRankWeights([layer.kept(jobs) for layer in self._layers], len(jobs), self._by_rows)


def weights_of(
    population: Population,
    names: Sequence[str],
    matrices: Callable[[Float32], Iterable[Float32]],
    product: LowRankProduct,
) -> Weights:
    """Return the weights of a population.

    The parts of a layer are `<name>_kernel` and, if there are biases, `<name>_bias`. `matrices` returns the views
    [jobs, inputs + 1, outputs] of all layers of float32[jobs, params].
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
    left, right = (np.moveaxis(factor, 1, 0).copy() for factor in population.factors(kernel))  # [rank, jobs, ...]
    return LowRankLayer(population.centre_part(kernel), [*left], [*right[:, :, np.newaxis]], biases)
