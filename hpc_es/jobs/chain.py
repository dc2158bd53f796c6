"""A chain of jobs: each begins when the one before has ended in any way, and carries on where that stopped.

For clusters where a preempted job is cancelled and not requeued. The job that ends the run cancels those behind it. If
it cannot, each of them finds the run finished, and ends in seconds.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpc_es.core import slurm
from hpc_es.jobs.requeue import said_of
from hpc_es.storage.shard import Shard

MISTAKE = 2  # exit status


def over(directory: Path, exit_status: int, this_run: Mapping[str, Any]) -> str | None:
    """Return why no other job need begin, or None; `this_run` is what slurm.this_run says."""
    if exit_status == MISTAKE:
        return "a mistake in the command or config"
    status = said_of(directory / "status.json", this_run) or {}
    if status.get("status") == "finished" or exit_status == 0:
        return "the run is finished"
    if status.get("status") == "failed":
        return f"the run has failed ({status.get('reason', '')})"
    return None


def end_chain(directory: Path, shard: Shard | None, exit_status: int, job: str, this_run: Mapping[str, Any]) -> str:
    """Cancel the jobs behind this one if nothing is left for them; return what was done. UserError."""
    if shard is not None:
        return "the next job of the chain begins when all tasks of this array have ended"
    reason = over(directory, exit_status, this_run)
    if reason is None:
        return f"srun ended with status {exit_status}: the next job of the chain carries on"
    rest = behind(job, pending())
    if rest:
        slurm.ask("scancel", *rest)
    return f"{reason}; cancelled {', '.join(rest) or 'nothing: it was the last of its chain'}"


def pending() -> str:
    """Return a line "ID DEPENDENCY" for each of the user's jobs that wait."""
    user = f"--user={getpass.getuser()}"
    return slurm.ask("squeue", "--noheader", user, "--states=PENDING", "--format=%i %E")


def behind(job: str, lines: str) -> list[str]:
    """Return the jobs that wait for this one to end, directly or behind others, in their order."""
    after: dict[str, str] = {}
    for line in lines.splitlines():
        found = re.match(r"(\d+) .*afterany:(\d+)", line)
        if found:
            after[found[2]] = found[1]
    rest: list[str] = []
    while job in after:
        job = after.pop(job)
        rest.append(job)
    return rest
