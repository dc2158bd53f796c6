"""A table of standard normal numbers, one for all ranks of a node; a direction is a slice of it.

As in OpenAI-ES (Salimans et al. 2017, section 2.1). The table is filled by all ranks of the node in blocks of fixed
size, each from its own Philox counter, so its values do not depend on how many ranks there were.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from hpc_es.config.options import Count, option, options
from hpc_es.core.data import Float32
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Layout
from hpc_es.mpi.world import World
from hpc_es.noise.blocks import BlockNoise
from hpc_es.noise.counter import BLOCK

FILL_BLOCK = 1 << 20  # numbers; part of the result


@options
class Options:
    """`noise:` with `kind: table`."""

    kind: Literal["table"] = option("name of the noise", "table")
    table_size: Count = option("float32 numbers in the table (4 bytes each)", 25_000_000)


def fill(table: Float32, keys: Keys, worker: int, workers: int) -> None:
    """Fill this worker's share of the blocks of `table`, in place."""
    keys = Keys(keys.seed)  # one table for all repetitions
    for block in range(worker, -(-len(table) // FILL_BLOCK), workers):
        generator = keys.generator(Purpose.NOISE_TABLE, block=block)
        generator.standard_normal(out=table[block * FILL_BLOCK : (block + 1) * FILL_BLOCK], dtype=np.float32)


def check_size(table_size: int, size: int) -> None:
    """ConfigError if directions of `size` parameters do not fit into the table."""
    if table_size < size:
        text = f"is {table_size}, but the policy has {size} parameters: at least {size} are needed (try {100 * size})"
        raise ConfigError([("noise.table_size", text)])


class TableNoise(BlockNoise):
    """Directions as slices of a shared table, at offsets computed from their key."""

    def __init__(self, table: Float32, keys: Keys, size: int) -> None:
        check_size(len(table), size)
        super().__init__(size, BLOCK)
        self._table, self._keys = table, keys
        self._generation, self._offsets = -1, dict[int, int]()  # of one generation: others are not asked for again

    def offset(self, generation: int, pair: int) -> int:
        """Return where a direction begins: uniform in 0 .. table size - parameters, both included."""
        if generation != self._generation:
            self._generation, self._offsets = generation, {}
        if pair not in self._offsets:
            self._offsets[pair] = self._offset(generation, pair)
        return self._offsets[pair]

    def _offset(self, generation: int, pair: int) -> int:
        generator = self._keys.borrowed(Purpose.PERTURBATION, generation, pair)
        return int(generator.integers(len(self._table) - self.size + 1))

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """float32[stop - start], a view of the table."""
        begin = self.offset(generation, pair)
        return self._table[begin + start : begin + stop]


def check(options: Options, layout: Layout) -> None:
    """ConfigError if the table is too small for the parameters."""
    check_size(options.table_size, layout.size)


def share(options: Options, keys: Keys, world: World) -> Float32:
    """Return the table, one per node and the same for all repetitions; every rank calls this."""
    table = world.shared_array("noise", options.table_size, np.float32)
    part, count = world.filling(table)
    fill(table, keys, part, count)
    world.node_barrier()
    frozen: Float32 = table.view()
    frozen.flags.writeable = False
    return frozen


def build(options: Options, keys: Keys, layout: Layout, shared: Float32) -> TableNoise:
    """Return the noise of `noise: {kind: table}` in this table."""
    return TableNoise(shared, keys, layout.size)
