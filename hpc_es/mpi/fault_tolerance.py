"""Fault tolerance: jobs that survive the loss of ranks, with Open MPI's ULFM. Experimental.

ULFM is user-level failure mitigation (Bland et al. 2013). After a loss, MPI calls raise on the
ranks that notice it. Each of these revokes the communicators, so that the calls of the others raise
too. All surviving ranks, including those that have finished, then call `regroup`. There they agree,
over the revoked communicators, whether any work is left; if so they create new communicators and
renumber themselves, keeping their order. No rank revokes a communicator before all have agreed that
they have it, because Open MPI 5.0 crashes if one is revoked while it is created.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hpc_es.core.errors import LaunchError
from hpc_es.mpi.shared_memory import MappedMemory
from hpc_es.mpi.world import Communicators, NoFaultTolerance, Regroup, World

if TYPE_CHECKING:
    from mpi4py import MPI

ENABLED = "OMPI_MCA_mpi_ft_enable"  # set by `mpiexec --with-ft ulfm`
END_SECONDS = 10.0  # maximum wait for other ranks at the end
DONE, COMPLETE, CAN_CONTINUE = 1, 1, 2  # bits of the agreements


@dataclass
class UlfmFaultTolerance:
    """The fault handler of a world that continues after the loss of ranks."""

    is_fault_tolerant: ClassVar = True
    world: World
    comms: Communicators
    lost: list[tuple[str, int]] = field(default_factory=list)  # host and process id

    def is_rank_loss(self, error: Exception) -> bool:
        """Return whether MPI reports that a rank died, or that another rank has noticed a death."""
        mpi, ranks = self.comms.mpi, self.comms.collectives
        if not isinstance(error, mpi.Exception):
            return False
        kind = error.Get_error_class()
        if kind in (mpi.ERR_PROC_FAILED, mpi.ERR_PROC_FAILED_PENDING, mpi.ERR_REVOKED):
            return True
        # Open MPI reports this if a rank dies while a nonblocking collective starts.
        return bool(kind == mpi.ERR_OTHER and (ranks.Is_revoked() or ranks.Get_failed().size))

    def regroup(self, is_done: bool, can_continue: bool) -> Regroup:
        """Agree by ULFM, and shrink the communicators to the surviving ranks."""
        # which could raise, but all ranks must take the same steps here
        with self.world.polling(None):
            return self._regroup(is_done, can_continue)

    def _regroup(self, is_done: bool, can_continue: bool) -> Regroup:
        if not is_done:
            self.comms.collectives.Revoke()
            self.comms.messages.Revoke()
        agreed, all_alive = self._agree(self.comms.collectives, DONE if is_done else 0)
        if all_alive and agreed & DONE:
            return Regroup.DONE
        agreed, collectives, messages = self._new_communicators(CAN_CONTINUE if can_continue else 0)
        survivors = _old_ranks(collectives, self.comms.collectives)
        self._replace_comms(survivors, collectives, messages)
        return Regroup.CONTINUE if agreed & CAN_CONTINUE and survivors[0] == 0 else Regroup.RESTART

    def _agree(self, ranks: MPI.Comm, bits: int) -> tuple[int, bool]:
        """Return the bits that all ranks set, and whether all ranks are alive.

        This works on revoked communicators.
        """
        value = np.array([bits], np.int32)
        try:
            self.world.wait(ranks.Iagree(value))
        except self.comms.mpi.Exception as error:
            if not self.is_rank_loss(error):
                raise
            return int(value[0]), False
        return int(value[0]), True

    def _new_communicators(self, bits: int) -> tuple[int, MPI.Comm, MPI.Comm]:
        """Return the bits that all ranks set, and two communicators of the surviving ranks.

        All ranks call this together, so Shrink may block: it returns when all surviving ranks have
        called it.
        """
        ranks = self.comms.collectives
        while True:
            collectives, messages = ranks.Shrink(), ranks.Shrink()
            # else a rank died between the two
            complete = COMPLETE if collectives.size == messages.size else 0
            agreed, all_alive = self._agree(collectives, complete | bits)
            if all_alive and agreed & COMPLETE:
                return agreed, collectives, messages
            ranks = collectives

    def _replace_comms(
        self, survivors: list[int], collectives: MPI.Comm, messages: MPI.Comm
    ) -> None:
        lost = [entry for entry in self.world.table() if entry[0] not in survivors]
        assert isinstance(self.comms.memory, MappedMemory)
        leaders = [self.comms.memory.leaders[rank] for rank in survivors]
        self.comms = replace(
            self.comms,
            collectives=collectives,
            messages=messages,
            node=collectives,
            node_position=node_position(leaders, collectives.rank),
            memory=MappedMemory(leaders),
        )
        self.world.use_comms(self.comms, survivors)
        self.lost += [(host, pid) for _, host, pid in lost]
        self.world.notes.append(
            f"WARNING: lost {'  '.join(f'{rank}={host}:{pid}' for rank, host, pid in lost)}; continuing with "
            + "  ".join(f"{rank}={host}:{pid}" for rank, host, pid in self.world.table())
        )

    def wait_for_others(self) -> bool:
        """Wait at most END_SECONDS and return True.

        MPI_Finalize hangs if a rank dies in it.
        """
        limit = time.monotonic() + END_SECONDS
        with contextlib.suppress(self.comms.mpi.Exception):
            request = self.comms.collectives.Ibarrier()
            self.world.wait_until(lambda: request.Test() or time.monotonic() > limit)
        return True


def _old_ranks(ranks: MPI.Comm, old: MPI.Comm) -> list[int]:
    """Return the ranks of these processes in an older communicator, in their order."""
    group = ranks.Get_group()
    return [int(rank) for rank in group.Translate_ranks(list(range(group.size)), old.Get_group())]


def node_position(leaders: list[int], rank: int) -> tuple[int, int]:
    """Return a rank's index on its node and the number of ranks there.

    Ranks of one node have equal leaders.
    """
    return leaders[:rank].count(leaders[rank]), leaders.count(leaders[rank])


def is_enabled(environ: Mapping[str, str]) -> bool:
    """Return whether the launcher has enabled ULFM."""
    return environ.get(ENABLED, "").lower() in {"1", "true"}


def enable_fault_tolerance(world: World) -> None:
    """Make the world survive the loss of ranks; every rank calls this.

    Raises LaunchError if it is not supported.
    """
    if not world.comms or not isinstance(world.fault_handler, NoFaultTolerance):
        return
    if "Open MPI" not in world.library or not is_enabled(os.environ):
        how = " started without it" if "Open MPI" in world.library else ""
        raise LaunchError(
            "mpi.fault_tolerance is true, but needs Open MPI (5 or newer) started with its failure mitigation; found "
            f"{world.library}{how}. Remedies:\n"
            "  with Open MPI: mpiexec --with-ft ulfm -n RANKS python -m hpc_es.main ...\n"
            "  otherwise:     mpi.fault_tolerance=false; a dead rank then ends the job, and the same command resumes it"
        )
    leader = np.array([world.rank], np.int64)
    world.wait(world.comms.node.Ibcast(leader, 0))
    leaders = [int(message.view(np.int64)[0]) for message in world.allgather(leader.view(np.uint8))]
    comms = replace(world.comms, node=world.comms.collectives, memory=MappedMemory(leaders))
    world.fault_handler = UlfmFaultTolerance(world, comms)
    world.use_comms(comms)
