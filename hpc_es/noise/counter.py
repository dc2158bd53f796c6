"""Noise computed from its key: no memory, no start-up, any block at once."""

from __future__ import annotations

import numpy as np

from hpc_es.interfaces import Float32
from hpc_es.keys import Keys, Purpose

BLOCK = 8192  # parameters a block; part of the result: every block has its own generator


class CounterNoise:
    """Standard normal directions, each block of a direction from its own Philox counter."""

    def __init__(self, keys: Keys, size: int) -> None:
        self._keys, self._size = keys, size

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """float32[stop - start] of a pair's direction; `start` must be a multiple of BLOCK."""
        assert start % BLOCK == 0, start
        out = np.empty(stop - start, np.float32)
        for first in range(start, stop, BLOCK):
            generator = self._keys.generator(Purpose.PERTURBATION, generation, pair, first // BLOCK)
            generator.standard_normal(out=out[first - start : first - start + BLOCK], dtype=np.float32)
        return out
