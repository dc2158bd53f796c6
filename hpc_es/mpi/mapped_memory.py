"""Memory shared by the ranks of a node where ranks may be lost: mapped files, since windows do not survive a failure.

The files are in memory and have no name, so ranks that are killed leave nothing behind. The others of a node open them
below /proc, where the rank that made one says.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_es.mpi.waiting import Ranks


class MappedMemory:
    """The shared arrays of a node, like `shared_memory.Windows`."""

    def __init__(self, leaders: Sequence[int]) -> None:
        self.leaders = leaders  # of each rank of the world: a number that names its node
        self._arrays: list[npt.NDArray[Any]] = []

    def array(self, world: Ranks, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An uninitialised array; every rank of the world calls this. Each gets its own if it cannot be shared."""
        node = [rank for rank, leader in enumerate(self.leaders) if leader == self.leaders[world.rank]]
        size = count * dtype.itemsize
        made = _made(size) if world.rank == node[0] and len(node) > 1 else None
        try:
            told = world.allgather(_bytes("" if made is None else _place(made)))
            memory = _mapped(told[node[0]].tobytes().decode(), size)
            have = world.allgather(_bytes("" if memory is None else "mapped"))
        finally:
            if made is not None:
                os.close(made)  # the memory stays until nobody has it mapped
        if memory is None or any(have[rank].size == 0 for rank in node):  # all or none, since each fills its part
            if len(node) > 1:
                world.notes.append(_not_shared(world.host, len(node), size))
            return np.empty(count, dtype)
        self._arrays.append(np.frombuffer(memory, dtype, count))
        return self._arrays[-1]

    def __contains__(self, array: npt.NDArray[Any]) -> bool:
        return any(array is each for each in self._arrays)

    def sync(self) -> None:
        """Nothing to do: mapped memory is coherent."""

    def unlock(self) -> None:
        """Nothing to do."""


def _bytes(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)


def _made(size: int) -> int | None:
    """Return the descriptor of a new file in memory, of so many bytes; None where there are none (they are Linux's)."""
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.memfd_create("hpc_es")
        os.ftruncate(descriptor, size)
        return descriptor
    return None


def _place(descriptor: int) -> str:
    """Where this process's file is seen, and the number that tells it from one of a process of another container."""
    return f"{os.fstat(descriptor).st_ino} /proc/{os.getpid()}/fd/{descriptor}"


def _mapped(place: str, size: int) -> mmap.mmap | None:
    """Return the memory of a file; None where there is none, or this process cannot see it."""
    number, _, path = place.partition(" ")
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if str(os.fstat(descriptor).st_ino) == number:
                return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    return None


def _not_shared(host: str, ranks: int, wanted: int) -> str:
    """Return what a user should know, and do, if the ranks of a node cannot map one file; its size in bytes."""
    return (
        f"the {ranks} ranks on {host} cannot see each other's files below /proc: each of them keeps a copy of its own "
        f"of {wanted / 2**20:.0f} MiB. Start them in one container, or share less"
    )
