"""Samples of a normal distribution with a full covariance: directions z, and steps y = M z.

A BLAS product's bits depend on its shape and on a row's place in it, so a sample is always multiplied as the same row
of a block of ROWS, whoever computes it. A block is made at once and kept for its other samples and the generation's
update: no bit depends on what is kept.
"""

from __future__ import annotations

import numpy as np

from hpc_es.core.data import Float64
from hpc_es.core.population import Noise

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
