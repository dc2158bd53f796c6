"""Noise computed from its key: no memory, no start-up, any block at once."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hpc_es.config.options import option, options
from hpc_es.core.data import Float32
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Layout
from hpc_es.noise.blocks import BlockNoise

KEPT = 1 << 23  # numbers, 32 MB a rank
BLOCK = 8192  # parameters a block; part of the result: every block has its own generator


@options
class Options:
    """`noise:` with `kind: counter`."""

    kind: Literal["counter"] = option("name of the noise", "counter")


class CounterNoise(BlockNoise):
    """Standard normal directions, each block of a direction from its own Philox counter.

    A direction that was drawn whole is kept for the generation's update, up to KEPT numbers: no bit depends on it.
    """

    def __init__(self, keys: Keys, size: int) -> None:
        super().__init__(size, BLOCK)
        self._keys = keys
        self._generator = keys.generator(Purpose.PERTURBATION)
        self._generation, self._kept, self._room = -1, dict[int, Float32](), KEPT

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """float32[stop - start] of a pair's direction, to be read only; `start` must be a multiple of BLOCK."""
        if generation != self._generation:
            self._generation, self._room = generation, KEPT
            self._kept.clear()
        known = self._kept.get(pair)
        if known is not None:
            return known[start:stop]
        drawn = self._drawn(generation, pair, start, stop)
        if len(drawn) == self.size <= self._room:
            drawn.flags.writeable = False
            self._kept[pair] = drawn
            self._room -= self.size
        return drawn

    def _drawn(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        assert start % BLOCK == 0, start
        out = np.empty(stop - start, np.float32)
        for first in range(start, stop, BLOCK):
            self._keys.reset(self._generator, Purpose.PERTURBATION, generation, pair, first // BLOCK)
            self._generator.standard_normal(out=out[first - start : first - start + BLOCK], dtype=np.float32)
        return out


def build(options: Options, keys: Keys, layout: Layout, shared: None) -> CounterNoise:
    """Return the noise of `noise: {kind: counter}`."""
    return CounterNoise(keys, layout.size)
