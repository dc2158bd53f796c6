"""The MPI side of a world of several ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpc_es.mpi.shared import Windows

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Links:
    """Communicators: each kind of traffic has its own."""

    mpi: Any  # the module mpi4py.MPI
    collectives: MPI.Intracomm
    messages: MPI.Intracomm
    node: MPI.Comm
    windows: Windows

    def part(self, group: int, rank: int) -> Links:
        """Links among the ranks that name the same group; blocking, as is `connected`."""
        return connected(self.mpi, self.collectives.Split(group, rank))


def connected(mpi: Any, ranks: Any) -> Links:
    """Links among these ranks; blocking, so they come here together."""
    node = ranks.Split_type(mpi.COMM_TYPE_SHARED)
    return Links(mpi, ranks.Dup(), ranks.Dup(), node, Windows(mpi, node))
