"""The one loop over pairs: weighted sums of their directions, in the order of the pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from hpc_es.core.data import Array, Float32


class Directions(Protocol):
    """The part of a Noise that the loop needs."""

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """Return a part of a pair's direction."""
        ...


def weighted_sums(
    noise: Directions,
    generation: int,
    weights: Array,
    powers: Sequence[int],
    start: int,
    stop: int,
    dtype: np.dtype[Any],
) -> Array:
    """Return sum_i weights[k, i] * direction_i ** powers[k], [k, stop - start]; see `interfaces.Noise`."""
    assert len(powers) == len(weights)
    assert set(powers) <= {1, 2}
    totals, scaled = np.zeros((len(weights), stop - start), dtype), np.empty(stop - start, dtype)
    typed = weights.astype(dtype, copy=False)
    for pair in np.flatnonzero(typed.any(axis=0)):
        direction = noise.direction(generation, int(pair), start, stop)
        for k, (weight, power) in enumerate(zip(typed[:, pair], powers, strict=True)):
            if weight:
                np.multiply(direction if power == 1 else np.square(direction, dtype=dtype), weight, out=scaled)
                totals[k] += scaled
    return totals
