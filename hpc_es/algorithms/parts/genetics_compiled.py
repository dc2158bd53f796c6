"""`genetics.mutated` for many genomes at once, compiled by Numba; the same genomes come out."""

from __future__ import annotations

from hpc_es.core.compiled import compiled
from hpc_es.core.data import Array


@compiled
def change(genomes: Array, rows: Array, places: Array, kinds: Array, fresh: Array, flags: Array) -> None:
    """Change uint8[genomes, length] in place, change by change: each is of one row."""
    last = genomes.shape[1] - 1
    if last < 1:
        return
    for number in range(len(rows)):
        genome, place, kind = genomes[rows[number]], places[number], kinds[number]
        gene, flag = fresh[number], flags[number]
        if kind < 0.25 and 0 < place < last:
            if flag:
                right(genome, place, last)
                genome[place] = gene
            else:
                left(genome, 0, place - 1)
                genome[place - 1] = gene
        elif kind < 0.5:
            if flag:
                left(genome, place, last)
                genome[last] = gene
            else:
                right(genome, 0, place)
                genome[0] = gene
        elif kind < 0.75:
            if flag:
                moved = genome[0]
                left(genome, 0, last)
                genome[last] = moved
            else:
                moved = genome[last]
                right(genome, 0, last)
                genome[0] = moved
        else:
            genome[place] = gene


@compiled
def left(genome: Array, start: int, stop: int) -> None:
    """What is behind `start`, up to `stop`, moves one place to the left."""
    for place in range(start, stop):
        genome[place] = genome[place + 1]


@compiled
def right(genome: Array, start: int, stop: int) -> None:
    """What is from `start` on, before `stop`, moves one place to the right."""
    for place in range(stop, start, -1):
        genome[place] = genome[place - 1]
