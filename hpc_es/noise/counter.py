"""Noise computed from its key: no memory, no start-up, any block at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from hpc_es.config.options import option, options
from hpc_es.core.data import Array, Float32
from hpc_es.core.keys import Keys, Purpose
from hpc_es.noise.sums import weighted_sums

KEPT = 1 << 23  # numbers, 32 MB a rank
BLOCK = 8192  # parameters a block; part of the result: every block has its own generator


@options
class Options:
    """`noise:` with `kind: counter`."""

    kind: Literal["counter"] = option("the noise's module in hpc_es/noise", "counter")


class CounterNoise:
    """Standard normal directions, each block of a direction from its own Philox counter.

    A direction that was drawn whole is kept for the generation's update, up to KEPT numbers: no bit depends on it.
    """

    block = BLOCK

    def __init__(self, keys: Keys, size: int) -> None:
        self._keys, self._size = keys, size
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
        if len(drawn) == self._size <= self._room:
            drawn.flags.writeable = False
            self._kept[pair] = drawn
            self._room -= self._size
        return drawn

    def _drawn(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        assert start % BLOCK == 0, start
        out = np.empty(stop - start, np.float32)
        for first in range(start, stop, BLOCK):
            self._keys.reset(self._generator, Purpose.PERTURBATION, generation, pair, first // BLOCK)
            self._generator.standard_normal(out=out[first - start : first - start + BLOCK], dtype=np.float32)
        return out

    def weighted_sums(
        self, generation: int, weights: Array, powers: Sequence[int], start: int, stop: int, dtype: np.dtype[Any]
    ) -> Array:
        """Return the weighted sums of one block, [k, stop - start]."""
        return weighted_sums(self, generation, weights, powers, start, stop, dtype)


def build(options: Options, keys: Keys, size: int, shared: None) -> CounterNoise:
    """Return the noise of `noise: {kind: counter}`."""
    return CounterNoise(keys, size)
