"""How genomes change: mutation, crossover, and selection by roulette, as in Abolafia et al. 2018 (arXiv:1801.03526).

A genome is bytes, its genes are 0 .. genes - 1; all lengths are kept. The randomness is the generator given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Float64

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


def crossed(one: Genome, other: Genome, place: int) -> tuple[Genome, Genome]:
    """Both with their tails from one place on swapped."""
    return one[:place] + other[place:], other[:place] + one[place:]


def offspring(
    parents: Sequence[Genome], crossover_rate: float, mutation_rate: float, genes: int, rng: np.random.Generator
) -> list[Genome]:
    """Pairs of neighbours are crossed with probability `crossover_rate`, then each place of both mutated with its own.

    An odd last one is kept. All are of one length.
    """
    pairs, length = len(parents) // 2, max(map(len, parents), default=0)
    crossing = (rng.random(pairs) < crossover_rate).tolist()
    places = rng.integers(max(length, 1), size=pairs).tolist()
    children: list[Genome] = []
    for pair in range(pairs):
        one, other = parents[2 * pair : 2 * pair + 2]
        children += crossed(one, other, places[pair]) if crossing[pair] else (one, other)
    return _all_mutated(children, mutation_rate, genes, rng) + list(parents[len(children) :])


def _all_mutated(genomes: Sequence[Genome], rate: float, genes: int, rng: np.random.Generator) -> list[Genome]:
    """Return each place of each genome changed with probability `rate`; all is drawn at once, as it is faster."""
    length = len(genomes[0]) if genomes else 0
    rows, places = np.nonzero(rng.random((len(genomes), length)) < rate)
    count = len(rows)
    drawn = (rng.random(count), rng.integers(genes, size=count, dtype=np.uint8), rng.random(count) < 0.5)
    change = _compiled()
    if change is not None:
        table = np.frombuffer(b"".join(genomes), np.uint8).reshape(len(genomes), length).copy()
        change(table, rows, places, *drawn)
        return [row.tobytes() for row in table]
    changes = list(zip(places.tolist(), *(array.tolist() for array in drawn), strict=True))
    ends = np.searchsorted(rows, np.arange(len(genomes) + 1)).tolist()
    return [mutated(genome, changes[ends[row] : ends[row + 1]]) for row, genome in enumerate(genomes)]


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
