"""What ranks send to rank 0 besides rows: blocks of the update, arrays of chunks, what problems learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpc_es.core.data import Array, Arrays, Chunk


@dataclass(frozen=True)
class Gathered:
    """What rank 0 gets of a generation besides its rows."""

    blocks: Sequence[Arrays]
    chunk_arrays: Sequence[Arrays]
    learned: Sequence[Sequence[Arrays]]


def first_units(chunks: Sequence[Chunk], unit: int) -> dict[int, int]:
    """Return, by chunk index, the number of the unit that a chunk's first job belongs to."""
    numbers, following = {}, 0
    for chunk in chunks:
        numbers[chunk.index] = following - (chunk.offset > 0)
        following = numbers[chunk.index] - (-(chunk.offset + chunk.jobs) // unit)
    return numbers


def pack(packed: dict[str, Array], where: str, arrays: Arrays) -> None:
    """Put the arrays of a place, such as block/3, among what is sent."""
    for name, array in arrays.items():
        packed[f"{where}/{name}"] = array


def unpacked(parts: Sequence[Arrays], blocks: int, chunks: Sequence[int]) -> Gathered:
    """Return what `pack` has packed on all ranks."""
    groups: dict[str, dict[str, dict[str, Array]]] = {"block": {}, "chunk": {}, "unit": {}}
    for part in parts:
        for where, array in part.items():
            group, place, name = where.split("/", 2)
            groups[group].setdefault(place, {})[name] = array
    units: dict[int, list[Arrays]] = {}
    for unit, index, number in sorted(tuple(map(int, place.split("."))) for place in groups["unit"]):
        units.setdefault(unit, []).append(groups["unit"][f"{unit}.{index}.{number}"])
    return Gathered(
        [groups["block"].get(str(block), {}) for block in range(blocks)],
        [groups["chunk"].get(str(index), {}) for index in chunks],
        list(units.values()),
    )
