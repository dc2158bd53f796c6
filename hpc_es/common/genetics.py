"""How genomes change: mutation, crossover, and selection by roulette, as in Abolafia et al. 2018 (arXiv:1801.03526).

A genome is uint8[length], its genes are 0 .. genes - 1; all lengths are kept. The randomness is the generator given.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hpc_es.interfaces import Float64

Genome = npt.NDArray[np.uint8]

FLOOR = 0.05  # the weight of a genome without merit, and added to all others


def mutated(genome: Genome, rate: float, genes: int, rng: np.random.Generator) -> Genome:
    """Place by place, with probability `rate`: insert, delete, rotate or replace, a quarter of the time each.

    A place takes part in the genome as earlier ones have left it. Insertion is not for the two ends: there it is
    deletion. What an insertion pushes out, and what fills the gap of a deletion, is at one end or the other, half the
    time each. A genome of one gene or none is returned as it is.
    """
    places = [int(gene) for gene in genome]
    length = len(places)
    if length <= 1:
        return np.array(places, np.uint8)
    for place in np.flatnonzero(rng.random(length) < rate).tolist():
        kind, fresh, first = rng.random(), int(rng.integers(genes)), rng.random() < 0.5
        if kind < 0.25 and 0 < place < length - 1:
            before, after = (places[:place], places[place:-1]) if first else (places[1:place], places[place:])
            places = [*before, fresh, *after]
        elif kind < 0.5:
            rest = places[:place] + places[place + 1 :]
            places = [*rest, fresh] if first else [fresh, *rest]
        elif kind < 0.75:
            places = places[1:] + places[:1] if first else places[-1:] + places[:-1]
        else:
            places[place] = fresh
    return np.array(places, np.uint8)


def crossed(one: Genome, other: Genome, rng: np.random.Generator) -> tuple[Genome, Genome]:
    """Both with their tails from one place on swapped; of unequal lengths the place is in the longer."""
    place = int(rng.integers(max(len(one), len(other), 1)))
    return np.concatenate([one[:place], other[place:]]), np.concatenate([other[:place], one[place:]])


def offspring(
    parents: Sequence[Genome], crossover_rate: float, mutation_rate: float, genes: int, rng: np.random.Generator
) -> list[Genome]:
    """Pairs of neighbours are crossed with probability `crossover_rate`, then both mutated; an odd last one is kept."""
    children: list[Genome] = []
    for first in range(0, len(parents) - 1, 2):
        pair = (parents[first], parents[first + 1])
        if rng.random() < crossover_rate:
            pair = crossed(*pair, rng)
        children += [mutated(genome, mutation_rate, genes, rng) for genome in pair]
    return children + [parent.copy() for parent in parents[len(children) :]]


def roulette(fitness: Float64, count: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """`count` independent draws of a place, each with a chance in proportion to max(fitness, 0) + FLOOR."""
    ends = np.cumsum(np.maximum(fitness, 0.0) + FLOOR)
    drawn: npt.NDArray[np.intp] = np.searchsorted(ends, rng.random(count) * ends[-1], side="right")
    return np.minimum(drawn, len(fitness) - 1)  # a product may round up to the end of the wheel
