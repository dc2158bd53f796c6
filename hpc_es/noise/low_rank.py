"""Low-rank noise (`noise.rank`): perturbations of matrices are products of two factors.

EGGROLL, arXiv:2511.16652. The numbers of a perturbation, the factors of all matrices and full noise
for the other parts, are one compact direction of another noise, so that every rank can compute
those of any pair. The update of a matrix is the sum over pairs of weight * left^T right /
sqrt(rank), one matrix product for GROUP pairs; the update of the other parts is the sum of their
noise. No perturbation of a matrix is formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float32, FloatDtype
from hpc_es.core.population import Directions, Factorisation, LowRank, Noise

# Results depend on these numbers.
BLOCK = 1 << 16  # parameters per block, unless this gives more than MAX_BLOCKS
MAX_BLOCKS = 64
GROUP = 256  # pairs of a matrix product
GROUP_NUMBERS = 1 << 22  # numbers of such a product; with large factors it has fewer pairs

# compact directions of this size are computed completely, since the noise then caches them
WHOLE = 1 << 14


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a matrix, or elements of a part with full noise, in one block."""

    name: str
    first: int
    stop: int
    width: int  # number of parameters


def blocks_of(factorisation: Factorisation) -> list[list[Piece]]:
    """Divide the parameters into blocks of about BLOCK parameters.

    They consist of whole rows of matrices.
    """
    most = max(BLOCK, -(-factorisation.layout.size // MAX_BLOCKS))
    blocks: list[list[Piece]] = []
    room = 0
    for name, (start, stop) in factorisation.layout.spans.items():
        columns = factorisation.matrices[name][1] if name in factorisation.matrices else 1
        rows, step = (stop - start) // columns, max(most // columns, 1)
        for first in range(0, rows, step):
            end = min(first + step, rows)
            piece = Piece(name, first, end, (end - first) * columns)
            if piece.width > room:
                blocks.append([])
                room = most
            blocks[-1].append(piece)
            room -= piece.width
    return blocks


class LowRankNoise:
    """`FactorisedNoise` on top of another noise, which computes compact directions.

    These have the layout `factorisation.compact`.
    """

    def __init__(self, noise: Noise, factorisation: Factorisation) -> None:
        self.factorisation, self._noise = factorisation, noise
        self._blocks = blocks_of(factorisation)
        widths = [sum(piece.width for piece in block) for block in self._blocks]
        self.edges: Sequence[int] = [0, *np.cumsum(widths)[:-1].tolist()]

    # float32[pairs, factorisation.compact.size]
    def numbers(self, generation: int, pairs: Sequence[int]) -> Float32:
        numbers: Float32 = Directions(self._noise, generation, pairs).elements(
            0, self.factorisation.compact.size
        )
        return numbers

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """Return the elements start .. stop - 1 of E of a pair, float32[stop - start]."""
        one, zeros = np.ones(1, np.float32), np.zeros(self.factorisation.layout.size, np.float32)
        row = np.zeros(1, np.intp)
        formed = LowRank(self.factorisation, zeros, self.numbers(generation, [pair]), row, one)
        direction: Float32 = formed.elements(start, stop)[0]
        return direction

    def weighted_sums(
        self, generation: int, weights: Array, powers: Sequence[int], block: int, dtype: FloatDtype
    ) -> Array:
        """Return sum_i weights[k, i] * E_i ** powers[k] of one block, dtype[k, width of the block].

        The power 2 needs rank 1, where E^2 = (left^2)^T right^2.
        """
        assert len(powers) == len(weights)
        assert set(powers) <= ({1, 2} if self.factorisation.rank == 1 else {1})
        pieces = self._blocks[block]
        typed = weights.astype(dtype, copy=False)
        totals = np.zeros((len(weights), sum(piece.width for piece in pieces)), dtype)
        start, stop = self._span(pieces)
        group = max(min(GROUP, GROUP_NUMBERS // (stop - start)), 1)
        pairs = np.flatnonzero(typed.any(axis=0))
        for index in range(0, len(pairs), group):
            chosen = pairs[index : index + group]
            numbers = Directions(self._noise, generation, chosen.tolist()).elements(start, stop)
            self._add(
                totals, pieces, numbers.astype(dtype, copy=False), start, typed[:, chosen], powers
            )
        return totals

    def _span(self, pieces: Sequence[Piece]) -> tuple[int, int]:
        """Return the first and last index + 1 of the compact numbers that pieces need."""
        compact, matrices = self.factorisation.compact, self.factorisation.matrices
        if compact.size <= WHOLE:
            return 0, compact.size
        first, last = pieces[0].name, pieces[-1].name
        start, _ = compact.spans[f"{first}:left" if first in matrices else first]
        _, stop = compact.spans[f"{last}:right" if last in matrices else last]
        return start, stop

    def _add(
        self,
        totals: Array,
        pieces: Sequence[Piece],
        numbers: Array,
        start: int,
        weights: Array,
        powers: Sequence[int],
    ) -> None:
        """Add the sums over some pairs to `totals`, [k, width].

        Their `numbers` begin at the index `start`.
        """
        offset = 0
        for piece in pieces:
            target = totals[:, offset : offset + piece.width]
            offset += piece.width
            if piece.name in self.factorisation.matrices:
                left, right = self.factorisation.factors(numbers, piece.name, start)
                left = left[:, :, piece.first : piece.stop]
                for k, power in enumerate(powers):
                    scaled = weights[k] / np.sqrt(self.factorisation.rank) ** power
                    target[k] += _product(left**power, right**power, scaled)
            else:
                first = self.factorisation.compact.spans[piece.name][0] - start
                full = numbers[:, first + piece.first : first + piece.stop]
                for k, power in enumerate(powers):
                    target[k] += weights[k] @ full**power


def _product(left: Array, right: Array, weights: npt.NDArray[np.floating]) -> Array:
    """Return sum_i weights[i] * left[i].T @ right[i] as a vector.

    Factors are [pairs, rank, ...].
    """
    rows, columns = left.shape[2], right.shape[2]
    weighted = right * weights.astype(right.dtype)[:, np.newaxis, np.newaxis]
    product: Array = left.reshape(-1, rows).T @ weighted.reshape(-1, columns)
    return product.reshape(-1)
