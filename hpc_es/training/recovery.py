"""Going on without ranks that died: with the generation they died in, or from the last checkpoint.

A loss is an exception on every rank, at whatever it was doing. Where all were training and rank 0 lives they run that
generation again, with what they have of it (`rows`). Else, in a new session, they begin again at the last checkpoint
(`outliving`), whoever is rank 0 then.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator

from hpc_es.core.errors import LaunchError
from hpc_es.mpi.faults import outlive_ranks
from hpc_es.mpi.losses import Meeting, StartAgain
from hpc_es.mpi.world import World
from hpc_es.storage import run_lock as lock
from hpc_es.training.loop import Training
from hpc_es.training.metrics_row import Row
from hpc_es.training.on_rank_0 import ExitReason

TRIES, TRY_SECONDS = 60, 2.0  # a file server may keep the lock of a dead node for a while (NFS: 90 s)


def outliving(world: World, run: Callable[[bool], ExitReason]) -> ExitReason:
    """Call `run(again)` until all ranks that live are through with it; all of them get the same answer."""
    try:
        outlive_ranks(world)
    except LaunchError as error:
        return ExitReason(error.status, str(error))
    again = False
    while True:
        ended: ExitReason | None = None
        gc.collect()  # of what was begun before, the noise table above all, nothing is to stay
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


def _when_free(world: World, run: Callable[[bool], ExitReason], again: bool) -> ExitReason:
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


def rows(world: World, training: Training) -> Generator[Row]:
    """Yield what `training.run()` yields, on through losses that can be outlived in place; StartAgain after another.

    The caller takes all of it: leaving early is not for jobs that lose ranks.
    """
    meeting = Meeting.GO_ON
    while meeting is not Meeting.THROUGH:
        through = False
        try:
            yield from training.run()
            through = True
        except Exception as error:
            if not world.faults.is_loss(error):
                raise
        meeting = world.faults.meet(through, in_place=True)
        if meeting is Meeting.START_AGAIN:
            raise StartAgain
        if meeting is Meeting.GO_ON:
            training.go_on()
