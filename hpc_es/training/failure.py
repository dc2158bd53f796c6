"""How a run that fails says so: status.json gets "failed", the reason and the exit status, whatever the exception.

A rank that fails ends the job by abort soon after (mpi/guard.py). It tells rank 0 why before that, which has
guard.FIRST_WORD_SECONDS to write it down. Where rank 0 cannot look at messages for so long (one long step of an
environment or a compiled call), or the rank was killed by a signal, status.json still says "running": that
srun or mpiexec ended with a failure is then what tells it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from hpc_es.core.errors import RunFailedError, UserError
from hpc_es.mpi.launch import patience
from hpc_es.mpi.scheduler import GIVE_UP, GiveUp, OtherRankFailed, tell_failure
from hpc_es.mpi.world import World
from hpc_es.training.collective import INTERRUPTED

if TYPE_CHECKING:
    from hpc_es.training.recorder import Recorder

OTHERS_SAVE_SECONDS = 2.0  # for other groups of ranks, which got the signal too


def reason_of(error: BaseException) -> tuple[str, int]:
    """Return the reason in words and the exit status."""
    if isinstance(error, UserError):
        return str(error), error.status
    return f"{type(error).__name__}: {error}".removesuffix(": "), 1


@contextlib.contextmanager
def told_in_status(world: World, writer: Recorder | None) -> Iterator[None]:
    """Let what fails in here be said in status.json, on rank 0, or be told to rank 0; it is raised again.

    Leaving early (GeneratorExit) is no failure, nor is the loss of a rank that the others outlive.
    """
    try:
        yield
    except GeneratorExit:
        raise
    except OtherRankFailed as error:
        _end(world, writer, error)
    except BaseException as error:
        if isinstance(error, Exception) and world.fault_handler.is_rank_loss(error):
            raise
        reason, status = reason_of(error)
        if writer is not None:
            _write(writer, reason, status)
        elif not isinstance(error, RunFailedError):  # which rank 0 knows of: it has told all
            with contextlib.suppress(Exception):
                tell_failure(world, reason)
        raise


def _write(writer: Recorder, reason: str, status: int) -> None:
    with contextlib.suppress(Exception):  # the disk may be full, or the memory: the failure itself is told in any case
        writer.status("failed", exit_status=status, reason=reason)


def _end(world: World, writer: Recorder | None, error: OtherRankFailed) -> NoReturn:
    """Write down why another rank failed, and leave it to that rank to say so and to end the job."""
    if writer is not None:
        _write(writer, str(error), 1)
        writer.close()
    time.sleep(patience(os.environ))
    world.abort(1)


def give_up(world: World, writer: Recorder | None, reason: GiveUp, others_save: bool) -> None:
    """Save the last finished state and end the job; a worker leaves both to rank 0. Other groups may save, too."""
    if writer is None:
        world.send(0, GIVE_UP, [])
        time.sleep(patience(os.environ))
        os._exit(INTERRUPTED)
    writer.save()
    writer.status("interrupted", exit_status=INTERRUPTED, reason=str(reason))
    failed, again = writer.counters["failed_episodes"], "the same command carries on from the last finished generation"
    writer.finish(f"given up ({reason}), {failed:,} failed evaluations; {again}")
    writer.close()
    if others_save:
        time.sleep(OTHERS_SAVE_SECONDS)
    world.abort(INTERRUPTED)
