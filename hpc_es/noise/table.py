"""A table of standard normal numbers, one for all ranks of a node; a direction is a slice of it.

As in OpenAI-ES (Salimans et al. 2017, section 2.1). The table is filled by all ranks of the node in blocks of fixed
size, each from its own Philox counter, so its values do not depend on how many ranks there were.
"""

from __future__ import annotations

import functools

import numpy as np

from hpc_es.errors import ConfigError
from hpc_es.interfaces import Float32
from hpc_es.keys import Keys, Purpose

FILL_BLOCK = 1 << 20  # numbers; part of the result


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


class TableNoise:
    """Directions as slices of a shared table, at offsets computed from their key."""

    def __init__(self, table: Float32, keys: Keys, size: int) -> None:
        check_size(len(table), size)
        self._table, self._keys, self._size = table, keys, size
        self._cached = functools.lru_cache(maxsize=1 << 16)(self._offset)

    def offset(self, generation: int, pair: int) -> int:
        """Where a direction begins: uniform in 0 .. table size - parameters, both included."""
        return self._cached(generation, pair)

    def _offset(self, generation: int, pair: int) -> int:
        generator = self._keys.generator(Purpose.PERTURBATION, generation, pair)
        return int(generator.integers(len(self._table) - self._size + 1))

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """float32[stop - start], a view of the table."""
        begin = self.offset(generation, pair)
        return self._table[begin + start : begin + stop]
