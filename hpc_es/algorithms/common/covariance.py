"""Full covariance matrices: samples y = M z, sums of y y^T, and the symmetric square root.

Weighted sums are computed in blocks of rows. The result of a BLAS product depends on its shape and
on the position of a row in it. So a sample is always computed as the same row of a block of
SAMPLE_ROWS samples, on whichever rank. Blocks are cached for their other samples and for the
update; no result depends on what is cached.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from hpc_es.core.data import Float64
from hpc_es.core.population import Directions, Noise

MAX_PARAMETERS = 2_000  # the covariance has the square of this number of elements
BLOCK_ROWS = 256  # rows of the covariance per block of the update; results depend on it
# samples from which ranks share the sum in such blocks; results depend on it
MIN_SHARED_SAMPLES = 128
CACHE_ROWS = 32  # rows of the covariance that fit into a processor's cache
# samples per block, the default population of 1,000 parameters; results depend on it
SAMPLE_ROWS = 24
MAX_CACHED = 1 << 22  # elements of all y of a generation, 32 MB per rank, and the same of all z


def expected_length(size: int) -> float:
    """Return chi_n = E|N(0, I)| in n dimensions, approximately (Hansen 2016, before eq. 44)."""
    return math.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size**2))


def blocks(samples: int, size: int) -> int:
    """Return the number of blocks of rows in which a covariance of this size is summed."""
    return -(-size // _block_rows(samples, size))


def _block_rows(samples: int, size: int) -> int:
    """Return the rows per block.

    With few samples there is one block, so that summing is cheaper than sending.
    """
    return BLOCK_ROWS if samples >= MIN_SHARED_SAMPLES else size


def rows_of_sum(weights: Float64, y: Float64, block: int) -> Float64:
    """Return a block of rows of sum_i w_i y_i y_i^T, float64[rows, size].

    w is [samples], y is [samples, size].
    """
    rows = _block_rows(*y.shape)
    product: Float64 = (y[:, block * rows : (block + 1) * rows] * weights[:, np.newaxis]).T @ y
    return product


def updated(
    old: Float64, decay: float, path: Float64, c_1: float, rank_mu: Sequence[Float64]
) -> Float64:
    """Return decay * old + c_1 * path path^T + rank_mu, float64[size, size].

    It is computed in parts that fit into the cache. `rank_mu` is a matrix in blocks of rows, each
    float64[rows, size].
    """
    new, size, start = np.empty_like(old), len(old), 0
    for block in rank_mu:
        for first in range(0, len(block), CACHE_ROWS):
            part = block[first : first + CACHE_ROWS]
            rows = slice(start + first, start + first + len(part))
            np.multiply(old[rows], decay, out=new[rows])
            new[rows] += np.multiply((c_1 * path[rows])[:, np.newaxis], path)
            new[rows] += part
        start += len(block)
    assert start == size, (start, size)
    return new


def root_of(covariance: Float64) -> tuple[Float64, Float64, Float64]:
    """Return C^(1/2), its eigenvalues and its eigenvectors.

    Arrays are float64[size, size], [size] and [size, size]: the root, the square roots of the
    eigenvalues of C, ascending, and the eigenvectors as columns.

    Only the lower triangle is read; the upper one differs by rounding only. Eigenvalues that
    rounding made negative or too small are raised to the smallest one that float64 can represent
    beside the largest.
    """
    values, axes = np.linalg.eigh(covariance)
    lengths = np.sqrt(np.maximum(values, values[-1] * np.finfo(np.float64).eps))
    half = axes * np.sqrt(lengths)
    root = half @ half.T  # symmetric rank-k product, half the time of axes * lengths @ axes.T
    root.flags.writeable = False  # a read-only array is sent only once
    return root, lengths, axes


def too_large(kind: str, size: int) -> Iterator[tuple[str, str]]:
    """Yield a message if the covariance of this number of parameters is too large: (key, text)."""
    if size > MAX_PARAMETERS:
        yield (
            "algorithm.kind",
            f"is {kind!r}, whose covariance has the square of {size:,} parameters: expected at "
            f"most {MAX_PARAMETERS:,}; try sep_cma_es, snes or cr_fm_nes",
        )


class BlockSampler:
    """Samples of a generation: z from N(0, I) and y = M z, computed on demand in blocks."""

    def __init__(self, noise: Noise, size: int) -> None:
        self._noise, self._size = noise, size
        self._generation, self._matrix = -1, np.empty((0, 0))
        self._blocks: dict[int, tuple[Float64, Float64]] = {}
        self._all: tuple[Float64, Float64] | None = None  # z and y of all samples

    def y(self, generation: int, population: int, samples: range, matrix: Float64) -> Float64:
        """Return y of consecutive samples, float64[samples, size], read-only."""
        self._begin(generation, matrix)
        first, last = samples.start // SAMPLE_ROWS, (samples.stop - 1) // SAMPLE_ROWS
        parts = [self._block(block, population)[1] for block in range(first, last + 1)]
        y = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return y[samples.start - first * SAMPLE_ROWS : samples.stop - first * SAMPLE_ROWS]

    def z_and_y(self, generation: int, population: int, matrix: Float64) -> tuple[Float64, Float64]:
        """Return z and y of all samples, each float64[population, size], read-only."""
        self._begin(generation, matrix)
        if self._all is not None and len(self._all[0]) == population:
            return self._all
        parts = [self._block(block, population) for block in range(-(-population // SAMPLE_ROWS))]
        z, y = (
            arrays[0] if len(parts) == 1 else np.concatenate(arrays)
            for arrays in zip(*parts, strict=True)
        )
        if population * self._size <= MAX_CACHED:
            self._all = z[:population], y[:population]
            for block in self._blocks:  # parts of them, in place of copies
                rows = slice(block * SAMPLE_ROWS, (block + 1) * SAMPLE_ROWS)
                self._blocks[block] = z[rows], y[rows]
        return z[:population], y[:population]

    def _begin(self, generation: int, matrix: Float64) -> None:
        """Forget the samples of another generation, or of another matrix."""
        if generation != self._generation or matrix is not self._matrix:
            self._generation, self._matrix, self._all = generation, matrix, None
            self._blocks.clear()

    def _block(self, block: int, population: int) -> tuple[Float64, Float64]:
        """Return z and y of a block, each float64[SAMPLE_ROWS, size].

        They are 0 after the last sample of the population.
        """
        cached = self._blocks.get(block)
        if cached is not None:
            return cached
        first = block * SAMPLE_ROWS
        samples = range(first, min(first + SAMPLE_ROWS, population))
        z = np.zeros((SAMPLE_ROWS, self._size))
        z[: len(samples)] = Directions(self._noise, self._generation, samples).elements(
            0, self._size
        )
        result = z, z @ self._matrix.T
        if population * self._size <= MAX_CACHED:
            self._blocks[block] = result
        return result
