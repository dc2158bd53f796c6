"""Noise: standard normal perturbations from counters or a table, and base classes of both.

`NoiseOptions` are the keys of all kinds. `BlockNoise` divides a vector into blocks, and computes
weighted sums of perturbations in the order of the pairs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from hpc_es.config.options import Count, option, options, unused
from hpc_es.core.data import Array, Float32, FloatDtype
from hpc_es.core.population import DrawsSeveral


@options
class NoiseOptions:
    """`noise:` of any kind; each kind overrides `kind`."""

    kind: str = option("name of the noise")
    rank: Count | None = option(
        "rank of the perturbations of matrices, products of normal factors, for `es`, `pgpe` and `snes`; null: full",
        None,
    )
    full: tuple[str, ...] = option(
        "matrices with full noise although there is a rank, by name of the part", ()
    )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for each option that has no effect."""
        if self.rank is None:
            yield from unused(self, ("full",), "rank is null")


class BlockNoise(DrawsSeveral):
    """Base class of noise, which computes weighted sums block by block.

    A subclass defines `direction`. Each block is summed by one rank, so with few blocks some ranks
    have no work.

    Args:
        size: number of parameters.
        blocks: width of all blocks (the last may be shorter), or the start index of each block,
            such as those of the parts of a layout.

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import BlockNoise, Keys, Purpose
        >>> class Uniform(BlockNoise):
        ...     keys = Keys(seed=1)
        ...
        ...     def direction(self, generation, pair, start, stop):
        ...         rng = self.keys.generator(Purpose.PERTURBATION, generation, pair)
        ...         return rng.uniform(-1, 1, self.size).astype(np.float32)[start:stop]
        >>> noise = Uniform(size=6, blocks=4)
        >>> weights = np.array([[0.5, -0.5]])
        >>> noise.weighted_sums(0, weights, powers=[1], block=1, dtype=np.dtype("f8")).shape
        (1, 2)
    """

    def __init__(self, size: int, blocks: int | Sequence[int]) -> None:
        self.size = size
        self.edges: Sequence[int] = range(0, size, blocks) if isinstance(blocks, int) else blocks

    @abstractmethod
    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """Return the elements start .. stop - 1 of a pair's direction, float32[stop - start].

        `start` is in `edges`. Every rank must get the same bits for the same arguments; the caller
        does not modify the array.
        """

    def stacked_directions(
        self, generation: int, pairs: Sequence[int], start: int, stop: int
    ) -> Float32:
        """Return `direction` of each pair, float32[pairs, stop - start].

        There is at least one pair.
        """
        drawn = [self.direction(generation, pair, start, stop) for pair in pairs]
        # as np.stack, which takes twice as long for short vectors
        return np.concatenate(drawn).reshape(len(drawn), -1)

    def weighted_sums(
        self, generation: int, weights: Array, powers: Sequence[int], block: int, dtype: FloatDtype
    ) -> Array:
        """Return sum_i weights[k, i] * direction_i ** powers[k] of one block; see `Noise`."""
        assert len(powers) == len(weights)
        assert set(powers) <= {1, 2}
        start = self.edges[block]
        stop = self.edges[block + 1] if block + 1 < len(self.edges) else self.size
        totals, scaled = (
            np.zeros((len(weights), stop - start), dtype),
            np.empty(stop - start, dtype),
        )
        typed = weights.astype(dtype, copy=False)
        for pair in np.flatnonzero(typed.any(axis=0)):
            direction = self.direction(generation, int(pair), start, stop)
            for k, (weight, power) in enumerate(zip(typed[:, pair], powers, strict=True)):
                if weight:
                    np.multiply(
                        direction if power == 1 else np.square(direction, dtype=dtype),
                        weight,
                        out=scaled,
                    )
                    totals[k] += scaled
        return totals
