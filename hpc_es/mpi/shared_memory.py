"""Memory shared by the ranks of a node: MPI-3 windows, which live in /dev/shm.

That is tiny in some containers, and writing past its end is a SIGBUS: so its free space is looked at first.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpc_es.mpi.waiting import Ranks

if TYPE_CHECKING:
    from mpi4py import MPI

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
