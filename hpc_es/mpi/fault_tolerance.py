"""Outliving ranks that die, with Open MPI's ULFM (user-level failure mitigation; Bland et al. 2013). Experimental.

After a loss MPI calls raise on the ranks that notice it. Each of them revokes the communicators, so that the others'
calls raise too; all leave what they were doing and come to `meet`, as do those that were through with it. There they
agree, on the communicators that were lost, whether anything is to be done again; if so they make new ones among
themselves and number themselves anew, in their old order. Nobody revokes a communicator before all have agreed that
they have it: Open MPI 5.0 crashes on a revocation of one that is still being made.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hpc_es.core.errors import LaunchError
from hpc_es.mpi.shared_memory import MappedMemory
from hpc_es.mpi.world import Communicators, NoFaultTolerance, Regroup, World

if TYPE_CHECKING:
    from mpi4py import MPI

ENABLED = "OMPI_MCA_mpi_ft_enable"  # set by `mpiexec --with-ft ulfm`
START_SECONDS = 180.0  # at most, for all ranks to come to MPI_Init
PART_SECONDS = 10.0  # at most, at the end
DONE, COMPLETE, CAN_CONTINUE = 1, 1, 2  # bits that ranks agree on


@dataclass
class UlfmFaultTolerance:
    """What a world needs to outlive its ranks."""

    is_fault_tolerant: ClassVar = True
    world: World
    comms: Communicators
    lost: list[tuple[str, int]] = field(default_factory=list)  # host and process id

    def is_rank_loss(self, error: Exception) -> bool:
        """Return whether it is MPI saying that a rank died, or that another rank has noticed it."""
        mpi = self.comms.mpi
        kinds = (mpi.ERR_PROC_FAILED, mpi.ERR_PROC_FAILED_PENDING, mpi.ERR_REVOKED)
        return isinstance(error, mpi.Exception) and error.Get_error_class() in kinds

    def regroup(self, is_done: bool, can_continue: bool) -> Regroup:
        """Agree with all surviving ranks on how to go on, and replace the communicators if a rank was lost.

        `is_done`: this rank has finished its work. `can_continue`: otherwise it could go on from where it is.
        """
        self.world.poll = None  # it could raise, and all must take the same steps here
        if not is_done:
            self._revoke()
        agreed, all_live = self._agreed(self.comms.collectives, DONE if is_done else 0)
        if all_live and agreed & DONE:
            return Regroup.DONE
        agreed, collectives, messages = self._renewed(CAN_CONTINUE if can_continue else 0)
        survivors = _old_ranks(collectives, self.comms.collectives)
        self._take(survivors, replace(self.comms, collectives=collectives, messages=messages, node=collectives))
        return Regroup.CONTINUE if agreed & CAN_CONTINUE and survivors[0] == 0 else Regroup.RESTART

    def _revoke(self) -> None:
        self.comms.collectives.Revoke()
        self.comms.messages.Revoke()

    def _agreed(self, ranks: MPI.Comm, bits: int) -> tuple[int, bool]:
        """Return the bits that all have set, and whether all of these ranks live; also on a revoked communicator."""
        value = np.array([bits], np.int32)
        try:
            self.world.wait(ranks.Iagree(value))
        except self.comms.mpi.Exception as error:
            if not self.is_rank_loss(error):
                raise
            return int(value[0]), False
        return int(value[0]), True

    def _renewed(self, bits: int) -> tuple[int, MPI.Comm, MPI.Comm]:
        """Return the bits that all have set, and two communicators of the living.

        All come here together, so Shrink may block: it ends when all that live have called it, or died.
        """
        ranks = self.comms.collectives
        while True:
            collectives, messages = ranks.Shrink(), ranks.Shrink()
            complete = COMPLETE if collectives.size == messages.size else 0  # else a rank died between the two
            agreed, all_live = self._agreed(collectives, complete | bits)
            if all_live and agreed & COMPLETE:
                return agreed, collectives, messages
            ranks = collectives

    def _take(self, survivors: list[int], comms: Communicators) -> None:
        table = self.world.table()
        lost = [entry for entry in table if entry[0] not in survivors]
        assert isinstance(comms.memory, MappedMemory)
        leaders = [comms.memory.leaders[rank] for rank in survivors]
        self.comms = replace(comms, place=place(leaders, comms.collectives.rank), memory=MappedMemory(leaders))
        self.world.use_comms(self.comms, survivors)
        self.lost += [(host, pid) for _, host, pid in lost]
        self.world.notes.append(
            f"WARNING: lost {'  '.join(f'{rank}={host}:{pid}' for rank, host, pid in lost)}; the others go on as "
            + "  ".join(f"{rank}={host}:{pid}" for rank, host, pid in self.world.table())
        )

    def wait_for_others(self) -> bool:
        """Wait shortly for the others, at the end. Nobody calls MPI_Finalize: it hangs where a rank dies in it."""
        limit = time.monotonic() + PART_SECONDS
        with contextlib.suppress(self.comms.mpi.Exception):
            request = self.comms.collectives.Ibarrier()
            self.world.wait_until(lambda: request.Test() or time.monotonic() > limit)
        return True


def _old_ranks(ranks: MPI.Comm, old: MPI.Comm) -> list[int]:
    """Return the numbers that these ranks have in an older communicator, in their order."""
    group = ranks.Get_group()
    return [int(rank) for rank in group.Translate_ranks(list(range(group.size)), old.Get_group())]


def place(leaders: list[int], rank: int) -> tuple[int, int]:
    """(rank on its node, ranks there), where ranks of one node have one leader."""
    return leaders[:rank].count(leaders[rank]), leaders.count(leaders[rank])


def enabled(environ: Mapping[str, str]) -> bool:
    """Return whether the launcher lets ranks die."""
    return environ.get(ENABLED, "").lower() in {"1", "true"}


@contextlib.contextmanager
def limit_init_time(environ: Mapping[str, str]) -> Iterator[None]:
    """In MPI_Init ranks wait for ever for one that died before: in here they end, with a traceback.

    MPI_Init keeps Python from running meanwhile, so that only faulthandler can do that.
    """
    if not enabled(environ):
        yield
        return
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def enable_fault_tolerance(world: World) -> None:
    """Let the world outlive ranks that die, from now on; every rank calls this. LaunchError where that cannot be."""
    if world.comms and isinstance(world.fault_handler, NoFaultTolerance):
        handler = tolerant(world, world.comms)
        world.fault_handler = handler
        world.use_comms(handler.comms)


def tolerant(world: World, comms: Communicators) -> UlfmFaultTolerance:
    """Return what the world needs from now on; every rank calls this. LaunchError where ranks cannot be outlived."""
    if "Open MPI" not in world.library or not enabled(os.environ):
        raise LaunchError(refusal(world.library))
    leader = np.array([world.rank], np.int64)
    world.wait(comms.node.Ibcast(leader, 0))
    leaders = [int(told.view(np.int64)[0]) for told in world.allgather(leader.view(np.uint8))]
    return UlfmFaultTolerance(world, replace(comms, node=comms.collectives, memory=MappedMemory(leaders)))


def refusal(library: str) -> str:
    """Return the message where ranks cannot be outlived."""
    return (
        "mpi.fault_tolerance is true, but needs Open MPI (5 or newer) started with its failure mitigation; found "
        f"{library}{'' if 'Open MPI' not in library else ' started without it'}. Remedies:\n"
        "  with Open MPI: mpiexec --with-ft ulfm -n RANKS python -m hpc_es.main ...\n"
        "  otherwise:     mpi.fault_tolerance=false; a dead rank then ends the job, and the same command resumes it"
    )
