"""Constants of CMA-ES, its covariance in blocks of rows and the root of it (Hansen 2016, arXiv:1604.00772).

Samples of a normal distribution with a full covariance: directions z, and steps y = M z.

A BLAS product's bits depend on its shape and on a row's place in it, so a sample is always multiplied as the same row
of a block of ROWS, whoever computes it. A block is made at once and kept for its other samples and the generation's
update: no bit depends on what is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpc_es.core.data import Float64
from hpc_es.core.population import Noise

LARGEST = 2_000  # parameters, of whose square the covariance is
BLOCK = 256  # rows of the covariance that are summed as one; part of the result
SHARED = 128  # samples from which on ranks share a sum in such blocks; part of the result
IN_CACHE = 32  # rows of the covariance


@dataclass(frozen=True)
class Constants:
    """How fast each part of the distribution learns, by the names of the tutorial (table 1)."""

    size: int
    mu: int  # samples with a positive weight
    weights: Float64  # float64[population], the best first; those behind mu are negative, or 0
    mueff: float
    c_s: float  # step-size path
    d_s: float
    c_c: float  # covariance path
    c_1: float
    c_mu: float
    chi: float  # expected length of a standard normal vector

    @property
    def stale(self) -> int:
        """Generations that the root of the covariance may be old, as in pycma: it has changed little until then."""
        return math.ceil(1 / (10 * self.size * (self.c_1 + self.c_mu)))


def expected_length(size: int) -> float:
    """Return the expected length of a standard normal vector, nearly."""
    return math.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size**2))


@lru_cache(maxsize=64)
def constants(size: int, population: int, active: bool) -> Constants:
    """Return the constants for `size` parameters; without `active` no weight is negative."""
    raw = math.log((population + 1) / 2) - np.log(np.arange(1, population + 1))
    mu = population // 2
    good, bad = raw[:mu], raw[mu:]
    mueff, mueff_bad = (float(part.sum() ** 2 / np.square(part).sum()) if part.any() else 0.0 for part in (good, bad))
    c_s = (mueff + 2) / (size + mueff + 5)
    d_s = 1 + 2 * max(0.0, math.sqrt((mueff - 1) / (size + 1)) - 1) + c_s
    c_c = (4 + mueff / size) / (size + 4 + 2 * mueff / size)
    c_1 = 2 / ((size + 1.3) ** 2 + mueff) * min(1.0, population / 6)
    c_mu = min(1 - c_1, 2 * (0.25 + mueff + 1 / mueff - 2) / ((size + 2) ** 2 + mueff))
    limits = (1 + c_1 / c_mu, 1 + 2 * mueff_bad / (mueff + 2), (1 - c_1 - c_mu) / (size * c_mu))
    total = min(limits) if active else 0.0
    negative = bad * (total / -bad.sum()) if bad.any() else bad
    weights = np.concatenate([good / good.sum(), negative])
    return Constants(size, mu, weights, mueff, c_s, d_s, c_c, c_1, c_mu, expected_length(size))


def height(samples: int, size: int) -> int:
    """Return of how many rows of a covariance a block is; of all, where few samples make a sum cheaper than sending."""
    return BLOCK if samples >= SHARED else size


def blocks(samples: int, size: int) -> int:
    """Return how many blocks of rows the covariance of so many samples has."""
    return -(-size // height(samples, size))


def rows_of_sum(weights: Float64, steps: Float64, block: int) -> Float64:
    """Return one block of rows of sum_i weights_i * steps_i steps_i^T, float64[height, size]."""
    rows = height(*steps.shape)
    product: Float64 = (steps[:, block * rows : (block + 1) * rows] * weights[:, np.newaxis]).T @ steps
    return product


def updated(old: Float64, kept: float, path: Float64, weight: float, rows: Sequence[Float64]) -> Float64:
    """Return kept * old + weight * path path^T + the blocks of rows, in parts that fit into a processor's cache."""
    new, size, start = np.empty_like(old), len(old), 0
    for block in rows:
        for first in range(0, len(block), IN_CACHE):
            part = block[first : first + IN_CACHE]
            here = slice(start + first, start + first + len(part))
            np.multiply(old[here], kept, out=new[here])
            new[here] += np.multiply((weight * path[here])[:, np.newaxis], path)
            new[here] += part
        start += len(block)
    assert start == size, (start, size)
    return new


def root_of(covariance: Float64) -> tuple[Float64, Float64, Float64]:
    """Return the symmetric root of a covariance, and the lengths (rising) and columns of its axes.

    Only what is on and below the diagonal is looked at: the rest is that but for rounding. Rounding may leave an axis
    of no length, or less: it gets the least that the others allow.
    """
    values, axes = np.linalg.eigh(covariance)
    lengths = np.sqrt(np.maximum(values, values[-1] * np.finfo(np.float64).eps))
    half = axes * np.sqrt(lengths)
    root = half @ half.T  # a product with itself takes half the time
    root.flags.writeable = False  # so that it is sent once
    return root, lengths, axes


def too_large(kind: str, size: int) -> Iterator[tuple[str, str]]:
    """Yield that a strategy with a full covariance does not fit so many parameters: (key, text)."""
    if size > LARGEST:
        text = f"is {kind!r}, whose covariance has the square of {size:,} parameters"
        yield "algorithm.kind", f"{text}: expected at most {LARGEST:,}; try sep_cma_es, snes or cr_fm_nes"


ROWS = 24  # the default population of 1,000 parameters; part of the result
KEPT = 1 << 22  # numbers of all steps, 32 MB a rank; and as much of all directions


class Transformed:
    """The samples of a generation, made on demand."""

    def __init__(self, noise: Noise, size: int) -> None:
        self._noise, self._size = noise, size
        self._generation, self._matrix = -1, np.empty((0, 0))
        self._blocks: dict[int, tuple[Float64, Float64]] = {}

    def steps(self, generation: int, population: int, samples: range, matrix: Float64) -> Float64:
        """Return y of some consecutive samples of a population, float64[samples, size], to be read only."""
        return self._some(generation, population, samples, matrix)[1]

    def both(self, generation: int, population: int, matrix: Float64) -> tuple[Float64, Float64]:
        """Return z and y of all samples, each float64[population, size], to be read only."""
        return self._some(generation, population, range(population), matrix)

    def _some(self, generation: int, population: int, samples: range, matrix: Float64) -> tuple[Float64, Float64]:
        if generation != self._generation or matrix is not self._matrix:
            self._generation, self._matrix = generation, matrix
            self._blocks.clear()
        first, last = samples.start // ROWS, (samples.stop - 1) // ROWS
        found = [self._block(block, population) for block in range(first, last + 1)]
        here = slice(samples.start - first * ROWS, samples.stop - first * ROWS)
        if len(found) == 1:
            return found[0][0][here], found[0][1][here]
        z, y = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return z[here], y[here]

    def _block(self, block: int, population: int) -> tuple[Float64, Float64]:
        """Return z and y of a block of samples; zeros behind the last of the population."""
        known = self._blocks.get(block)
        if known is not None:
            return known
        drawn = np.zeros((ROWS, self._size))
        for place, sample in enumerate(range(block * ROWS, min((block + 1) * ROWS, population))):
            drawn[place] = self._noise.direction(self._generation, sample, 0, self._size)
        made = drawn, drawn @ self._matrix.T
        if population * self._size <= KEPT:
            self._blocks[block] = made
        return made
