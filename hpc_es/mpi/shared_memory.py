"""Arrays shared by the ranks of a node.

`Windows` uses MPI-3 windows, which lie in /dev/shm. That is tiny in some containers, and writing
past its end raises SIGBUS, so its free space is checked first.

`MappedMemory` serves fault tolerance, because windows do not survive the failure of a rank. It maps
files in memory that have no name, so that killed ranks leave nothing behind; the other ranks of the
node open them under /proc.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array

if TYPE_CHECKING:
    from mpi4py import MPI


SHM_PATH = "/dev/shm"  # noqa: S108  (where MPI libraries allocate windows)
SPARE_BYTES = 16 << 20  # for the MPI library's own segments


class Ranks(Protocol):
    """The part of `World` that node memory uses."""

    rank: int
    notes: list[str]

    @property
    def host(self) -> str:
        """Name of this rank's host."""
        ...

    def wait(self, request: MPI.Request) -> None:
        """Wait for a request without blocking inside MPI."""
        ...

    def allgather(self, mine: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
        """Return the bytes of every rank, uint8[...], on every rank."""
        ...


class NodeMemory(Protocol):
    """Arrays shared by the ranks of a node."""

    def array(self, world: Ranks, count: int, dtype: np.dtype[np.generic]) -> Array:
        """Return an uninitialised array, dtype[count]; every rank of the world calls this.

        If it cannot be shared, each rank gets its own, and `world.notes` says so.
        """
        ...

    def __contains__(self, array: Array) -> bool: ...

    def sync(self) -> None:
        """Make writes visible; call before and after a barrier."""
        ...

    def unlock(self) -> None:
        """End the access, at the end of the job."""
        ...


class Windows:
    """Node memory in MPI-3 windows."""

    def __init__(self, mpi: ModuleType, node: MPI.Comm) -> None:
        self._mpi, self._node = mpi, node
        self._windows: list[tuple[MPI.Win, Array]] = []

    def array(self, world: Ranks, count: int, dtype: np.dtype[np.generic]) -> Array:
        """Return a window, dtype[count], or private memory if /dev/shm is too small."""
        if self._node.size == 1:
            return np.empty(count, dtype)
        wanted, free = count * dtype.itemsize, np.zeros(1, np.int64)
        if self._node.rank == 0:
            free[0] = free_bytes()
        # also a barrier: all ranks enter the blocking allocation together
        world.wait(self._node.Ibcast(free, 0))
        if free[0] < wanted + SPARE_BYTES:
            world.notes.append(
                f"{SHM_PATH} on {world.host} has {free[0] / 2**20:.0f} MiB free, but "
                f"{wanted / 2**20:.0f} MiB are needed: each of the {self._node.size} ranks "
                f"there keeps its own copy. Enlarge {SHM_PATH} (in a container: "
                "--shm-size), or share less"
            )
            return np.empty(count, dtype)
        own_bytes = wanted if self._node.rank == 0 else 0  # all on one rank: contiguous
        window = self._mpi.Win.Allocate_shared(own_bytes, dtype.itemsize, comm=self._node)
        window.Lock_all(self._mpi.MODE_NOCHECK)
        array = np.frombuffer(window.Shared_query(0)[0], dtype, count)
        self._windows.append((window, array))
        return array

    def __contains__(self, array: Array) -> bool:
        return any(array is shared for _, shared in self._windows)

    def sync(self) -> None:
        """Synchronise all windows."""
        for window, _ in self._windows:
            window.Sync()

    def unlock(self) -> None:
        """End the access epochs.

        The memory is kept until the process ends, because arrays may still refer to it.
        """
        for window, _ in self._windows:
            window.Unlock_all()


def unlink_segments() -> None:
    """Unlink MPICH's own shared segment, which a killed job would leave behind.

    All ranks have mapped it by now. It has 3 MB or more per node, so that a small /dev/shm would be
    full after some killed jobs. Windows have no names.
    """
    with contextlib.suppress(OSError):  # no /proc
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        for name in set(re.findall(rf"{SHM_PATH}/mpich_shm_\w+$", maps, re.MULTILINE)):
            Path(name).unlink()


def free_bytes() -> int:
    """Return the free bytes of this node's shared memory."""
    try:
        status = os.statvfs(SHM_PATH)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize


class MappedMemory:
    """Node memory in mapped files, which survive the loss of a rank."""

    def __init__(self, leaders: Sequence[int]) -> None:
        self.leaders = leaders  # a number for each rank of the world, equal for ranks on one node
        self._arrays: list[Array] = []

    def array(self, world: Ranks, count: int, dtype: np.dtype[np.generic]) -> Array:
        """Return mapped memory, dtype[count].

        It is private if a rank of the node cannot map the file.
        """
        node = [
            rank for rank, leader in enumerate(self.leaders) if leader == self.leaders[world.rank]
        ]
        size = count * dtype.itemsize
        descriptor = _create_file(size) if world.rank == node[0] and len(node) > 1 else None
        try:
            location = ""
            # the inode detects a path that means another file in another container
            if descriptor is not None:
                location = _location(descriptor)
            locations = world.allgather(_bytes(location))
            memory = _map_file(locations[node[0]].tobytes().decode(), size)
            is_mapped = world.allgather(_bytes("" if memory is None else "mapped"))
        finally:
            if descriptor is not None:
                os.close(descriptor)  # the memory exists as long as a process has it mapped
        # all or none: each rank fills its part
        if memory is None or any(is_mapped[rank].size == 0 for rank in node):
            if len(node) > 1:
                world.notes.append(
                    f"the {len(node)} ranks on {world.host} cannot see each other's files in /proc: each keeps its own "
                    f"copy of {size / 2**20:.0f} MiB. Start them in one container, or share less"
                )
            return np.empty(count, dtype)
        self._arrays.append(np.frombuffer(memory, dtype, count))
        return self._arrays[-1]

    def __contains__(self, array: Array) -> bool:
        return any(array is shared for shared in self._arrays)

    def sync(self) -> None:
        """Do nothing: mapped memory is coherent."""

    def unlock(self) -> None:
        """Do nothing: mapped memory has no access epochs."""


def _bytes(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)


def _create_file(size: int) -> int | None:
    """Return the descriptor of a new file in memory, of `size` bytes.

    It is None if the system has no such files (not Linux).
    """
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.memfd_create("hpc_es")
        os.ftruncate(descriptor, size)
        return descriptor
    return None


def _map_file(location: str, size: int) -> mmap.mmap | None:
    """Return the memory of a file; None if there is none or this process cannot open it."""
    inode, _, path = location.partition(" ")
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if str(os.fstat(descriptor).st_ino) == inode:
                return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    return None


def _location(descriptor: int) -> str:
    """Return inode and path of an open file, with which other processes of the node can map it."""
    return f"{os.fstat(descriptor).st_ino} /proc/{os.getpid()}/fd/{descriptor}"
