"""Noise table: standard normal numbers, of which a direction is a slice.

As in OpenAI-ES (Salimans et al. 2017, section 2.1). The ranks of a node share it. All of them fill
the table in blocks of fixed size, each from its own Philox counter, so its values do not depend on
the number of ranks.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from hpc_es.config.options import Count, option, options
from hpc_es.core.data import Float32
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Layout
from hpc_es.core.streams import announce
from hpc_es.mpi.world import World
from hpc_es.noise import BlockNoise, NoiseOptions
from hpc_es.noise.counter import BLOCK

ANNOUNCED_NUMBERS = 200_000_000  # per rank, which take about 2 s
FILL_BLOCK = 1 << 20  # numbers per generator; results depend on it


@options
class Options(NoiseOptions):
    """`noise:` with `kind: table`."""

    kind: Literal["table"] = option("name of the noise", "table")
    table_size: Count = option("float32 numbers in the table (4 bytes each)", 25_000_000)


def fill(table: Float32, keys: Keys, worker: int, workers: int) -> None:
    """Fill the blocks of one worker in the table, float32[table_size], in place."""
    keys = Keys(keys.seed)  # one table for all repetitions
    for block in range(worker, -(-len(table) // FILL_BLOCK), workers):
        generator = keys.generator(Purpose.NOISE_TABLE, block=block)
        generator.standard_normal(
            out=table[block * FILL_BLOCK : (block + 1) * FILL_BLOCK], dtype=np.float32
        )


def check_size(table_size: int, size: int) -> None:
    """Raise ConfigError if the table is smaller than a direction of `size` parameters."""
    if table_size < size:
        raise ConfigError(
            [
                (
                    "noise.table_size",
                    f"is {table_size}, but the policy has {size} parameters: expected at least {size} "
                    f"(try {100 * size})",
                )
            ]
        )


class TableNoise(BlockNoise):
    """Directions as slices of a shared table, at random offsets."""

    def __init__(self, table: Float32, keys: Keys, size: int) -> None:
        check_size(len(table), size)
        super().__init__(size, BLOCK)
        self._table, self._keys = table, keys
        self._generation, self._offsets = -1, dict[int, int]()  # pair -> offset, of one generation

    def offset(self, generation: int, pair: int) -> int:
        """Return the start index of a direction in the table:
        uniform in 0 .. table_size - size, inclusive.
        """
        if generation != self._generation:
            self._generation, self._offsets = generation, {}
        if pair not in self._offsets:
            generator = self._keys.borrowed(Purpose.PERTURBATION, generation, pair)
            self._offsets[pair] = int(generator.integers(len(self._table) - self.size + 1))
        return self._offsets[pair]

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """Return a view of the table, float32[stop - start]."""
        offset = self.offset(generation, pair)
        return self._table[offset + start : offset + stop]


def check(options: Options, layout: Layout) -> None:
    """Raise ConfigError if the table is too small for the parameters."""
    check_size(options.table_size, layout.size)


def share(options: Options, keys: Keys, world: World) -> Float32:
    """Return the table, float32[table_size], one per node and the same for all repetitions.

    Every rank calls this.
    """
    table = world.shared_array("noise", options.table_size, np.float32)
    part, count = world.filling(table)
    if world.rank == 0 and options.table_size > ANNOUNCED_NUMBERS * count:
        announce(
            f"filling the noise table, {options.table_size * table.itemsize / 1e9:.1f} GB per node"
        )
    fill(table, keys, part, count)
    world.node_barrier()
    frozen: Float32 = table.view()
    frozen.flags.writeable = False
    return frozen


def build(options: Options, keys: Keys, layout: Layout, shared: Float32) -> TableNoise:
    """Return the noise of `noise: {kind: table}`.

    `shared` is the table of `share`, float32[table_size].
    """
    return TableNoise(shared, keys, layout.size)
