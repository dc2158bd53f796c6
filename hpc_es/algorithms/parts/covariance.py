"""Constants of CMA-ES, and its products with the root of the covariance in fixed shapes (Hansen, arXiv:1604.00772).

A BLAS product's bits depend on its shape and on a row's place in it, so a sample is always multiplied as the same row
of a block of ROWS, whoever computes it and whatever else is computed beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpc_es.core.data import Array, Float64

LARGEST = 2_000  # parameters, of whose square the covariance is
ROWS = 8  # samples that are multiplied as one; part of the result
BLOCK = 256  # rows of the covariance that are summed as one; part of the result


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
        """Generations that the root of the covariance may be old, so that its cost is no more than a sample's."""
        return max(1, int(1 / (10 * self.size * (self.c_1 + self.c_mu))))


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


def products(directions: Array, first: int, root: Float64) -> Float64:
    """Return root @ direction of each of some consecutive samples, float64[samples, size].

    `first` is the number of the first, and `root` symmetric: the bits are the same in any other company.
    """
    samples, size = directions.shape
    lead = first % ROWS
    padded = np.zeros((-(-(lead + samples) // ROWS) * ROWS, size))
    padded[lead : lead + samples] = directions
    blocks = [padded[start : start + ROWS] @ root for start in range(0, len(padded), ROWS)]
    return np.concatenate(blocks)[lead : lead + samples]


def rows_of_sum(weights: Float64, steps: Float64, block: int) -> Float64:
    """Return one block of rows of sum_i weights_i * steps_i steps_i^T, float64[at most BLOCK, size]."""
    some = steps[:, block * BLOCK : (block + 1) * BLOCK]
    product: Float64 = (some * weights[:, np.newaxis]).T @ steps
    return product


def blocks(size: int) -> int:
    """Return how many blocks of rows a covariance has."""
    return -(-size // BLOCK)


def root_of(covariance: Float64) -> tuple[Float64, Float64, Float64]:
    """Return the symmetric root of a covariance, and the lengths (rising) and columns of its axes.

    Rounding may leave an axis of no length, or less: it gets the least that the others allow.
    """
    values, axes = np.linalg.eigh((covariance + covariance.T) / 2)
    lengths = np.sqrt(np.maximum(values, values[-1] * np.finfo(np.float64).eps))
    return (axes * lengths) @ axes.T, lengths, axes


def too_large(kind: str, size: int) -> Iterator[tuple[str, str]]:
    """Yield that a strategy with a full covariance does not fit so many parameters: (key, text)."""
    if size > LARGEST:
        text = f"is {kind!r}, whose covariance has the square of {size:,} parameters"
        yield "algorithm.kind", f"{text}: expected at most {LARGEST:,}; try sep_cma_es, snes or cr_fm_nes"
