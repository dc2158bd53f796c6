"""Memory shared by the ranks of a node where ranks may be lost: mapped files, since windows do not survive a failure.

The files are in memory and have no name, so ranks that are killed leave nothing behind. The others of a node open them
below /proc, where the rank that made one says.


Memory shared by the ranks of a node: MPI-3 windows, which live in /dev/shm.

That is tiny in some containers, and writing past its end is a SIGBUS: so its free space is looked at first.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpc_es.mpi.waiting import Ranks

if TYPE_CHECKING:
    from mpi4py import MPI


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


SHM_PATH = "/dev/shm"  # noqa: S108  (where MPI libraries put them)
SPARE_BYTES = 16 << 20  # for the MPI library's own segments


class Windows:
    """The shared arrays of a node."""

    def __init__(self, mpi: Any, node: MPI.Comm) -> None:
        self._mpi, self._node = mpi, node
        self._windows: list[tuple[MPI.Win, npt.NDArray[Any]]] = []

    def array(self, world: Ranks, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An uninitialised array; every rank of the world calls this. Each has one of its own if there is no room."""
        if self._node.size == 1:
            return np.empty(count, dtype)
        wanted, free = count * dtype.itemsize, np.zeros(1, np.int64)
        if self._node.rank == 0:
            free[0] = free_bytes()
        world.wait(self._node.Ibcast(free, 0))  # a barrier too: all come to the blocking allocation together
        if free[0] < wanted + SPARE_BYTES:
            world.notes.append(too_small(world.host, self._node.size, int(free[0]), wanted))
            return np.empty(count, dtype)
        mine = count * dtype.itemsize if self._node.rank == 0 else 0  # whole on one rank: contiguous
        window = self._mpi.Win.Allocate_shared(mine, dtype.itemsize, comm=self._node)
        window.Lock_all(self._mpi.MODE_NOCHECK)
        array = np.frombuffer(window.Shared_query(0)[0], dtype, count)
        self._windows.append((window, array))
        return array

    def __contains__(self, array: npt.NDArray[Any]) -> bool:
        return any(array is each for _, each in self._windows)

    def sync(self) -> None:
        """Make what was written visible: before and after a barrier."""
        for window, _ in self._windows:
            window.Sync()

    def unlock(self) -> None:
        """End the access epochs; the memory stays as long as the process, for arrays may still point to it."""
        for window, _ in self._windows:
            window.Unlock_all()


def unlink_mapped() -> None:
    """Take the name from MPICH's own segment, which all ranks have mapped by now: a killed job would leave it for ever.

    3 MB a node and more; some killed jobs later a small /dev/shm would be full. Windows are nameless from the start.
    """
    with contextlib.suppress(OSError):  # no /proc
        for name in set(re.findall(rf"{SHM_PATH}/mpich_shm_\w+$", Path("/proc/self/maps").read_text(), re.MULTILINE)):
            Path(name).unlink()


def free_bytes() -> int:
    """Return the free bytes of this node's shared memory."""
    try:
        found = os.statvfs(SHM_PATH)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def too_small(host: str, ranks: int, free: int, wanted: int) -> str:
    """Return what a user should know, and do, if shared memory does not suffice; sizes in bytes."""
    return (
        f"{SHM_PATH} of {host} has {free / 2**20:.0f} MiB free, {wanted / 2**20:.0f} MiB are to be shared: each of the "
        f"{ranks} ranks there keeps a copy of its own. Enlarge {SHM_PATH} (in a container: --shm-size), or share less"
    )
