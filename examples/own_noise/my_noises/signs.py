"""Perturbations of random signs: every number is +1 or -1, as in SPSA (Spall 1992); mean 0 and variance 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpc_es.config.options import Positive, option, options
from hpc_es.core.data import Array, Float32
from hpc_es.core.keys import Keys, Purpose
from hpc_es.noise.sums import weighted_sums


@options
class Options:
    """`noise:` with `kind: my_noises.signs`."""

    kind: str = option("this module", "my_noises.signs")
    size: Positive = option("every number is this or minus this", 1.0)


class Signs:
    """Directions computed from their keys alone, block by block, so that any rank can have any part of any of them."""

    block = 4096

    def __init__(self, options: Options, keys: Keys) -> None:
        self._size, self._keys = np.float32(options.size), keys

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """Return the elements start .. stop - 1 of a pair's direction; `start` is a block's edge."""
        parts = [self._part(generation, pair, first, stop) for first in range(start, stop, self.block)]
        return np.concatenate(parts)

    def _part(self, generation: int, pair: int, first: int, stop: int) -> Float32:
        rng = self._keys.generator(Purpose.PERTURBATION, generation, pair, first // self.block)
        bits = rng.integers(2, size=self.block)[: stop - first]
        return np.where(bits, self._size, -self._size)

    def weighted_sums(
        self, generation: int, weights: Array, powers: Sequence[int], start: int, stop: int, dtype: np.dtype[Any]
    ) -> Array:
        """Return the weighted sums of one block, by the loop that all noises use."""
        return weighted_sums(self, generation, weights, powers, start, stop, dtype)


def build(options: Options, keys: Keys, size: int, shared: None) -> Signs:
    """Return the noise for vectors of `size` numbers; `shared` is what a function `share`, if there is one, made."""
    return Signs(options, keys)
