"""How genomes change: mutation, crossover, and selection by roulette, as in Abolafia et al. 2018 (arXiv:1801.03526).

A genome is bytes, its genes are 0 .. genes - 1; all lengths are kept. The randomness is the generator given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float64

Genome = bytes

Change = tuple[int, float, int, bool]  # place, what happens (0 to 1), a fresh gene, which of two ways

FLOOR = 0.05  # the weight of a genome without merit, and added to all others


def mutated(genome: Genome, changes: Iterable[Change]) -> Genome:
    """Change by change, by a number of 0 to 1: below 0.25 insert, 0.5 delete, 0.75 rotate, else replace.

    A place is one of the genome as earlier changes have left it. Insertion is not for the two ends: there it is
    deletion. What an insertion pushes out, and what fills the gap of a deletion, is at one end or the other: the last
    and the end if the flag is set. A genome of one gene or none is returned as it is.
    """
    last = len(genome) - 1
    if last < 1:
        return genome
    for place, kind, gene, flag in changes:
        fresh = _GENES[gene]
        if kind < 0.25 and 0 < place < last:
            before, after = (genome[:place], genome[place:-1]) if flag else (genome[1:place], genome[place:])
            genome = before + fresh + after
        elif kind < 0.5:
            rest = genome[:place] + genome[place + 1 :]
            genome = rest + fresh if flag else fresh + rest
        elif kind < 0.75:
            genome = genome[1:] + genome[:1] if flag else genome[-1:] + genome[:-1]
        else:
            genome = genome[:place] + fresh + genome[place + 1 :]
    return genome


_GENES = [bytes([gene]) for gene in range(256)]


def crossed(pairs: Array, places: npt.NDArray[np.int64]) -> Array:
    """[pairs, 2, length]: both of each pair with their tails from its place on swapped."""
    swapped = np.arange(pairs.shape[2]) >= places[:, np.newaxis, np.newaxis]
    return np.where(swapped, pairs[:, ::-1], pairs)


def offspring(
    parents: Sequence[Genome], crossover_rate: float, mutation_rate: float, genes: int, rng: np.random.Generator
) -> list[Genome]:
    """Pairs of neighbours are crossed with probability `crossover_rate`, then each place of both mutated with its own.

    An odd last one is kept. All are of one length.
    """
    pairs, length = len(parents) // 2, max(map(len, parents), default=0)
    crossing = rng.random(pairs) < crossover_rate
    places = np.where(crossing, rng.integers(max(length, 1), size=pairs), length)
    table = table_of(parents[: 2 * pairs], 2 * pairs, length).reshape(pairs, 2, length)
    children = crossed(table, places).reshape(2 * pairs, length)
    return _all_mutated(children, mutation_rate, genes, rng) + list(parents[2 * pairs :])


def _all_mutated(table: Array, rate: float, genes: int, rng: np.random.Generator) -> list[Genome]:
    """Return each place of each genome changed with probability `rate`; all is drawn at once, as it is faster."""
    rows, places = np.divmod(np.flatnonzero(rng.random(table.shape) < rate), max(table.shape[1], 1))
    count = len(rows)
    drawn = (rng.random(count), rng.integers(genes, size=count, dtype=np.uint8), rng.random(count) < 0.5)
    change = _compiled()
    if change is not None:
        change(table, rows, places, *drawn)
        return genomes_of(table)
    changes = list(zip(places.tolist(), *(array.tolist() for array in drawn), strict=True))
    ends = np.searchsorted(rows, np.arange(len(table) + 1)).tolist()
    return [mutated(genome, changes[ends[row] : ends[row + 1]]) for row, genome in enumerate(genomes_of(table))]


def table_of(genomes: Sequence[Genome], rows: int, length: int) -> Array:
    """uint8[rows, length], zeros behind the genomes."""
    return np.frombuffer(b"".join(genomes).ljust(rows * length, b"\0"), np.uint8).reshape(rows, length)


def genomes_of(table: Array) -> list[Genome]:
    """Return the rows of a table."""
    whole, length = table.tobytes(), table.shape[1]
    return [whole[start : start + length] for start in range(0, len(whole), max(length, 1))]


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., None] | None:
    """`mutated` for all genomes at once, where Numba is installed."""
    try:
        from hpc_es.algorithms.parts.genetics_compiled import change
    except ImportError:
        return None
    return change


def is_closed(genomes: Sequence[Genome]) -> bool:
    """Return whether no crossing of two of these genomes, all of one length, gives one that is not among them.

    At each place the crossings are all heads with all tails, of which there are heads * tails.
    """
    distinct = set(genomes)
    for place in range(1, max(map(len, distinct), default=0)):
        heads, tails = {genome[:place] for genome in distinct}, {genome[place:] for genome in distinct}
        if len(heads) * len(tails) != len(distinct):
            return False
    return True


def roulette(fitness: Float64, count: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """`count` independent draws of a place, each with a chance in proportion to max(fitness, 0) + FLOOR."""
    ends = np.cumsum(np.maximum(fitness, 0.0) + FLOOR)
    drawn: npt.NDArray[np.intp] = np.searchsorted(ends, rng.random(count) * ends[-1], side="right")
    return np.minimum(drawn, len(fitness) - 1)  # a product may round up to the end of the wheel
