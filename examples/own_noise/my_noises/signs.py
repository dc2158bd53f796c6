"""Perturbations of random signs: every number is +1 or -1, as in SPSA (Spall 1992); mean 0 and variance 1."""

from __future__ import annotations

import numpy as np

from hpc_es.config.options import Positive, option, options
from hpc_es.core.data import Float32
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Layout
from hpc_es.noise.blocks import BlockNoise

WIDTH = 4096  # of a block; part of the result


@options
class Options:
    """`noise:` with `kind: my_noises.signs`."""

    kind: str = option("this module", "my_noises.signs")
    size: Positive = option("every number is this or minus this", 1.0)


class Signs(BlockNoise):
    """Directions computed from their keys alone, block by block, so that any rank can have any part of any of them."""

    def __init__(self, options: Options, keys: Keys, size: int) -> None:
        super().__init__(size, WIDTH)
        self._sign, self._keys = np.float32(options.size), keys

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """Return the elements start .. stop - 1 of a pair's direction; `start` is a block's edge."""
        parts = [self._part(generation, pair, first, stop) for first in range(start, stop, WIDTH)]
        return np.concatenate(parts)

    def _part(self, generation: int, pair: int, first: int, stop: int) -> Float32:
        rng = self._keys.generator(Purpose.PERTURBATION, generation, pair, first // WIDTH)
        bits = rng.integers(2, size=WIDTH)[: stop - first]
        return np.where(bits, self._sign, -self._sign)


def build(options: Options, keys: Keys, layout: Layout, shared: None) -> Signs:
    """Return the noise for vectors of this layout; `shared` is what a function `share`, if there is one, made."""
    return Signs(options, keys, layout.size)
