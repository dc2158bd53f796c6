"""Random signs as perturbations, as in SPSA (Spall 1992): every element is +1 or -1;
mean 0 and variance 1.
"""

from __future__ import annotations

import numpy as np

from hpc_es.extend import BlockNoise, Float32, Keys, Layout, Positive, Purpose, option, options

WIDTH = 4096  # elements of a block; results depend on it


@options
class Options:
    """`noise:` with `kind: my_noises.signs`."""

    kind: str = option("this module", "my_noises.signs")
    size: Positive = option("absolute value of every element", 1.0)


class Signs(BlockNoise):
    """Directions computed from their keys, block by block,
    so that any rank can compute any part.
    """

    def __init__(self, options: Options, keys: Keys, size: int) -> None:
        super().__init__(size, WIDTH)
        self._signs, self._keys = np.array([-options.size, options.size], np.float32), keys

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """Return elements start .. stop - 1 of a direction, float32[stop - start];
        `start` is the edge of a block.
        """
        blocks = range(start // WIDTH, -(-stop // WIDTH))
        rngs = [
            self._keys.generator(Purpose.PERTURBATION, generation, pair, block) for block in blocks
        ]
        return np.concatenate([self._signs[rng.integers(2, size=WIDTH)] for rng in rngs])[
            : stop - start
        ]


def build(options: Options, keys: Keys, layout: Layout, shared: None) -> Signs:
    """Return the noise for vectors of this layout; `shared` is the return value of `share`,
    None without it.
    """
    return Signs(options, keys, layout.size)
