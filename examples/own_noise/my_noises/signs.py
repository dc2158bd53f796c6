"""Perturbations of random signs: every number is +1 or -1, as in SPSA (Spall 1992); mean 0 and variance 1."""

from __future__ import annotations

import numpy as np

from hpc_es.extend import BlockNoise, Float32, Keys, Layout, Positive, Purpose, option, options

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
        self._signs, self._keys = np.array([-options.size, options.size], np.float32), keys

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """Return the elements start .. stop - 1 of a pair's direction; `start` is a block's edge."""
        blocks = range(start // WIDTH, -(-stop // WIDTH))
        rngs = [self._keys.generator(Purpose.PERTURBATION, generation, pair, block) for block in blocks]
        return np.concatenate([self._signs[rng.integers(2, size=WIDTH)] for rng in rngs])[: stop - start]


def build(options: Options, keys: Keys, layout: Layout, shared: None) -> Signs:
    """Return the noise for vectors of this layout; `shared` is what a function `share`, if there is one, made."""
    return Signs(options, keys, layout.size)
