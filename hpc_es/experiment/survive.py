"""Beginning again at the last checkpoint, in the same job, when rank 0 died or ranks were lost outside of training."""

from __future__ import annotations

import time
from collections.abc import Callable

from hpc_es.errors import LaunchError
from hpc_es.experiment import lock
from hpc_es.experiment.agreed import Ended
from hpc_es.mpi.faults import Meeting, StartAgain
from hpc_es.mpi.world import World

TRIES, TRY_SECONDS = 60, 2.0  # a file server may keep the lock of a dead node for a while (NFS: 90 s)


def outliving(world: World, run: Callable[[bool], Ended]) -> Ended:
    """Call `run(again)` until all ranks that live are through with it; all of them get the same answer."""
    try:
        world.outlive_ranks()
    except LaunchError as error:
        return Ended(error.status, str(error))
    again = False
    while True:
        ended: Ended | None = None
        try:
            ended = _when_free(world, run, again)
        except StartAgain:  # they have met
            again = True
            continue
        except Exception as error:
            if not world.faults.is_loss(error):
                raise
        if world.faults.meet(ended is not None, in_place=False) is Meeting.THROUGH and ended is not None:
            return ended
        again = True


def _when_free(world: World, run: Callable[[bool], Ended], again: bool) -> Ended:
    """Run; where a lost rank had the directory, wait until it is given free."""
    for host, pid in world.faults.lost:
        lock.died(host, pid)
    ended = run(again)
    for _ in range(TRIES if world.faults.lost else 0):
        if not ended.in_use:
            break
        time.sleep(TRY_SECONDS)
        ended = run(again)
    return ended
