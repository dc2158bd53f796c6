"""The base of the kinds of noise: the blocks of a vector, and weighted sums in the order of the pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Float32


class BlockNoise(ABC):
    """A noise for vectors of `size` elements, cut into blocks.

    `blocks` is their width, of which the last block may be shorter, or the first element of each of them, such as
    those of the parts of a layout. A block is computed by one rank, so few large ones leave ranks without work.
    """

    def __init__(self, size: int, blocks: int | Sequence[int]) -> None:
        self.size = size
        self.edges: Sequence[int] = range(0, size, blocks) if isinstance(blocks, int) else blocks

    @abstractmethod
    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """Return the elements start .. stop - 1 of a pair's direction; `start` is the edge of a block."""

    def weighted_sums(
        self, generation: int, weights: Array, powers: Sequence[int], block: int, dtype: np.dtype[Any]
    ) -> Array:
        """Return sum_i weights[k, i] * direction_i ** powers[k] of one block, dtype[k, width of the block]."""
        assert len(powers) == len(weights)
        assert set(powers) <= {1, 2}
        start = self.edges[block]
        stop = self.edges[block + 1] if block + 1 < len(self.edges) else self.size
        totals, scaled = np.zeros((len(weights), stop - start), dtype), np.empty(stop - start, dtype)
        typed = weights.astype(dtype, copy=False)
        for pair in np.flatnonzero(typed.any(axis=0)):
            direction = self.direction(generation, int(pair), start, stop)
            for k, (weight, power) in enumerate(zip(typed[:, pair], powers, strict=True)):
                if weight:
                    np.multiply(direction if power == 1 else np.square(direction, dtype=dtype), weight, out=scaled)
                    totals[k] += scaled
        return totals
