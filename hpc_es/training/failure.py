"""How a rank ends a run that cannot continue.

It does so by an exception, or by giving up a generation that hangs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpc_es.core import streams
from hpc_es.core.errors import INTERRUPTED, RunFailedError, UserError, exits_as_errors
from hpc_es.core.handlers import OwnProcess
from hpc_es.mpi.launch import abandon_timeout, by_srun
from hpc_es.mpi.scheduler import GiveUp, OtherRankFailed, tell_failure
from hpc_es.mpi.tags import Tag
from hpc_es.mpi.world import World

if TYPE_CHECKING:
    from hpc_es.training.recorder import Recorder

OTHERS_SAVE_SECONDS = 2.0  # for other groups of ranks, which received the signal too


@contextlib.contextmanager
def report_failure(world: World, writer: Recorder | None) -> Iterator[None]:
    """Write the reason of an exception in here to status.json, and raise it again.

    Other ranks send it to rank 0. A rank that fails aborts the job soon after (mpi/guard.py); rank
    0 has RANK_0_LEAD_SECONDS to write the reason. If rank 0 cannot look at messages for that long
    (one long step of an environment or a compiled call), or if the rank was killed by a signal,
    status.json still says "running", and only the exit status of srun or mpiexec shows the failure.
    The loss of a rank in a fault-tolerant run is not a failure. Exceptions of the user's that would
    end the program become a RunError.
    """

    def write(reason: str, status: int) -> None:
        assert writer is not None
        # such as a full disk; the original exception is reported anyway
        with contextlib.suppress(Exception):
            writer.status("failed", exit_status=status, reason=reason)

    process = OwnProcess()
    try:
        with exits_as_errors():
            yield
    except OtherRankFailed as error:
        process.end_forked()
        if writer is not None:
            write(str(error), 1)
            writer.close()
        # the failing rank prints its error and ends the job
        time.sleep(abandon_timeout(os.environ))
        world.abort(1)
    except BaseException as error:
        process.end_forked()
        if isinstance(error, Exception) and world.fault_handler.is_rank_loss(error):
            raise
        reason, status = f"{type(error).__name__}: {error}".removesuffix(": "), 1
        if isinstance(error, UserError):
            reason, status = str(error), error.status
        if writer is not None:
            write(reason, status)
        elif not isinstance(error, RunFailedError):  # which came from rank 0
            with contextlib.suppress(Exception):
                tell_failure(world, reason)
        raise


def give_up(world: World, writer: Recorder | None, reason: GiveUp, others_save: bool) -> None:
    """Save the last finished generation and end the job; workers leave both to rank 0.

    With `others_save`, wait for other groups of ranks to save.
    """
    if writer is None:
        world.send(0, Tag.GIVE_UP, [])
        streams.flush(sys.stdout, sys.stderr)  # the last line of an evaluation may not have ended
        time.sleep(abandon_timeout(os.environ))
        # The status of srun is the highest of all ranks: that of rank 0, which knows whether
        # another rank has failed.
        os._exit(1 if by_srun(os.environ) else INTERRUPTED)
    writer.save()
    writer.status("interrupted", exit_status=INTERRUPTED, reason=str(reason))
    failed = writer.standing.counters["failed_episodes"]
    writer.finish(
        f"given up ({reason}), {failed:,} failed evaluations; "
        "the same command resumes from the last finished generation"
    )
    writer.close()
    if others_save:
        time.sleep(OTHERS_SAVE_SECONDS)
    world.abort(INTERRUPTED)
