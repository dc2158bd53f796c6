"""Counter-based noise: computed on demand, without a table in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from hpc_es.config.options import option, options
from hpc_es.core.data import Float32
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Layout
from hpc_es.noise import BlockNoise, NoiseOptions

MAX_CACHED = 1 << 23  # cached numbers, 32 MB per rank
# parameters per block; results depend on it, because every block has its own generator
BLOCK = 8192

# fills an array float32[n] with standard normal numbers
Fill = Callable[[np.random.Generator, Float32], None]


@options
class Options(NoiseOptions):
    """`noise:` with `kind: counter`."""

    kind: Literal["counter"] = option("name of the noise", "counter")


def standard_normal(generator: np.random.Generator, out: Float32) -> None:
    """Fill float32[n] with the normal numbers of NumPy."""
    generator.standard_normal(out=out, dtype=np.float32)


class CounterNoise(BlockNoise):
    """Standard normal directions, each block of a direction from its own Philox counter.

    Whole directions are cached until the update of their generation, up to MAX_CACHED numbers;
    results do not depend on the cache.
    """

    def __init__(self, keys: Keys, size: int, fill: Fill = standard_normal) -> None:
        super().__init__(size, BLOCK)
        self._keys, self._fill = keys, fill
        self._generator = keys.generator(Purpose.PERTURBATION)
        self._generation, self._cached, self._room = -1, dict[int, Float32](), MAX_CACHED

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """Return float32[stop - start], which must not be modified.

        `start` is a multiple of BLOCK.
        """
        self._begin(generation)
        cached = self._cached.get(pair)
        if cached is not None:
            return cached[start:stop]
        drawn = self._draw(generation, pair, start, stop)
        if len(drawn) == self.size <= self._room:
            drawn.flags.writeable = False
            self._cached[pair] = drawn
            self._room -= self.size
        return drawn

    def stacked_directions(
        self, generation: int, pairs: Sequence[int], start: int, stop: int
    ) -> Float32:
        """Return float32[pairs, stop - start], `direction` of each pair, not to be modified.

        Several short directions take half the time of one after the other.
        """
        self._begin(generation)
        if stop - start > BLOCK or not self._cached.keys().isdisjoint(pairs):
            return super().stacked_directions(generation, pairs, start, stop)
        drawn = np.empty((len(pairs), stop - start), np.float32)
        rows, block = list(drawn), start // BLOCK
        for pair, row in zip(pairs, rows, strict=True):
            self._keys.reset(self._generator, Purpose.PERTURBATION, generation, pair, block)
            self._fill(self._generator, row)
        if stop - start == self.size and drawn.size <= self._room:
            drawn.flags.writeable = False
            self._cached.update(zip(pairs, rows, strict=True))
            self._room -= drawn.size
        return drawn

    def _begin(self, generation: int) -> None:
        if generation != self._generation:
            self._generation, self._room = generation, MAX_CACHED
            self._cached.clear()

    def _draw(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        assert start % BLOCK == 0, start
        out = np.empty(stop - start, np.float32)
        for first in range(start, stop, BLOCK):
            self._keys.reset(
                self._generator, Purpose.PERTURBATION, generation, pair, first // BLOCK
            )
            self._fill(self._generator, out[first - start : first - start + BLOCK])
        return out


def build(options: Options, keys: Keys, layout: Layout, shared: None) -> CounterNoise:
    """Return the noise of `noise: {kind: counter}`."""
    return CounterNoise(keys, layout.size)
