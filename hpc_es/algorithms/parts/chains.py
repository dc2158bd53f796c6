"""Genomes as chains of keys: how a vector began, and each of its mutations (Such et al. 2017, arXiv:1712.06567).

A chain is int32[length, 2]. Its first key is that of the vector it began with, each further one, (generation, child),
that of a mutation. Mutations are added in the order of the chain, so that a vector that is rebuilt from its chain has
the bits of one that was made from its parent's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Arrays

Chain = npt.NDArray[np.int32]

KEY_BYTES = 8


def chain(*keys: tuple[int, int]) -> Chain:
    """Return the chain of these keys."""
    return np.array(keys, np.int32).reshape(-1, 2)


def longer(parent: Chain, key: tuple[int, int]) -> Chain:
    """Return the chain of a child: its parent's, and one mutation more."""
    return np.concatenate([parent, chain(key)])


def packed(chains: Sequence[Chain]) -> dict[str, Array]:
    """Return chains as a part of the state: int32[chains, longest, 2], zeros behind the end, and their lengths."""
    lengths = np.array([len(each) for each in chains], np.int64)
    table = np.zeros((len(chains), max(lengths.tolist(), default=0), 2), np.int32)
    for row, each in zip(table, chains, strict=True):
        row[: len(each)] = each
    return {"chains": table, "chain_lengths": lengths}


def unpacked(arrays: Arrays) -> list[Chain]:
    """Return the chains that `packed` gave."""
    lengths = arrays["chain_lengths"].tolist()
    return [row[:length] for row, length in zip(arrays["chains"], lengths, strict=True)]


class Rebuilder:
    """Makes vectors of chains; those of the parents are kept, since most chains to come go on from one of them.

    `begun(origin, key)` gives the vector of a first key, `mutated(vector, key)` that of a child. No bit depends on what
    is kept: as many vectors as there are parents, and twice that while a generation begins.
    """

    def __init__(
        self,
        begun: Callable[[Array, tuple[int, int]], Array],
        mutated: Callable[[Array, tuple[int, int]], Array],
    ) -> None:
        self._begun, self._mutated = begun, mutated
        self._kept: dict[bytes, Array] = {}  # by the bytes of the chain
        self._arrays: Array | None = None
        self._origin: Array = np.zeros(0)

    def keep(self, arrays: Arrays, origin: Array) -> None:
        """Have the vectors of the parents ready, `arrays` as `packed` gives them, and forget all others."""
        if arrays["chains"] is self._arrays and origin is self._origin:
            return
        if not np.array_equal(origin, self._origin):
            self._kept = {}
        self._arrays, self._origin = arrays["chains"], origin
        parents = unpacked(arrays)
        names = [each.tobytes() for each in parents]
        self._kept = {old: self._kept[old] for old in self._kept if any(name.startswith(old) for name in names)}
        if not self._kept and parents:  # after a restart: what all of them share is rebuilt once
            ancestor = _shared(parents)
            if len(ancestor):
                self._kept[ancestor.tobytes()] = self.vector(ancestor)
        for name, parent in zip(names, parents, strict=True):
            self._kept[name] = self.vector(parent)
        self._kept = {name: self._kept[name] for name in names}

    def vector(self, wanted: Chain) -> Array:
        """Return the vector of a chain, [size], not to be written to; from its nearest ancestor among those kept."""
        name = wanted.tobytes()
        known = max((old for old in self._kept if name.startswith(old)), key=len, default=b"")
        keys: list[tuple[int, int]] = [(generation, child) for generation, child in wanted.tolist()]
        vector = self._kept[known] if known else self._begun(self._origin, keys[0])
        for key in keys[max(len(known) // KEY_BYTES, 1) :]:
            vector = self._mutated(vector, key)
        return vector


def _shared(chains: Sequence[Chain]) -> Chain:
    """Return what all chains begin with."""
    shortest = min(map(len, chains))
    equal = [(each[:shortest] == chains[0][:shortest]).all(axis=1) for each in chains]
    return chains[0][: int(np.cumprod(np.all(equal, axis=0)).sum())]
