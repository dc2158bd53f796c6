"""The MPI side of a world of several ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpc_es.mpi.shared_memory import Windows
from hpc_es.mpi.waiting import NodeMemory

if TYPE_CHECKING:
    from mpi4py import MPI

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Communicators:
    """Communicators: each kind of traffic has its own."""

    mpi: Any  # the module mpi4py.MPI
    collectives: MPI.Comm
    messages: MPI.Comm
    node: MPI.Comm
    place: tuple[int, int]  # rank on the node, ranks there
    memory: NodeMemory

    def sent(self, mine: Array) -> Any:
        """Bytes as MPI takes them."""
        assert mine.dtype == np.uint8, f"bytes are uint8, not {mine.dtype}: use .view(np.uint8)"
        return [np.ascontiguousarray(mine).reshape(-1), self.mpi.BYTE]

    def received(self, every: Array, lengths: Array) -> Any:
        """Room for so many bytes of each rank."""
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        return [every, lengths.tolist(), starts.tolist(), self.mpi.BYTE]

    def part(self, group: int, rank: int) -> Communicators:
        """Links among the ranks that name the same group; blocking, as is `connected`."""
        return connected(self.mpi, self.collectives.Split(group, rank))


def connected(mpi: Any, ranks: Any) -> Communicators:
    """Links among these ranks; blocking, so they come here together."""
    node = ranks.Split_type(mpi.COMM_TYPE_SHARED)
    return Communicators(mpi, ranks.Dup(), ranks.Dup(), node, (node.rank, node.size), Windows(mpi, node))
