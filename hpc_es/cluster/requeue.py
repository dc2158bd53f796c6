"""Whether a job that has ended goes back into the queue: if it was interrupted, and as long as it makes progress.

The status of srun cannot tell, since it is the highest of any task's: where one rank ends with 75 and another is then
killed, it is 137 or 143; only a lower one says that no rank was interrupted. So the status file decides, which rank 0
writes with the number of the job. A restart that fails before it writes counts as one without progress: a cluster's
trouble may pass, and a mistake ends at the limit.


A chain of jobs: each begins when the one before has ended in any way, and carries on where that stopped.

For clusters where a preempted job is cancelled and not requeued. The job that ends the run cancels those behind it. If
it cannot, each of them finds the run finished, and ends in seconds.
"""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpc_es.api.job import status_name
from hpc_es.core import slurm
from hpc_es.storage.files import write_json
from hpc_es.storage.shard import Shard
from hpc_es.training.collective import INTERRUPTED

MOST_IDLE_RESTARTS = 3


@dataclass(frozen=True)
class Restarts:
    """The record: generations that were finished when it was last asked, and restarts since then without another."""

    generation: int
    idle: int = 0


@dataclass(frozen=True)
class Decision:
    """`restarts` is what to remember, if there is something."""

    requeue: bool
    reason: str
    restarts: Restarts | None = None


def decide(status: Mapping[str, Any] | None, exit_status: int, before: Restarts | None) -> Decision:
    """Return the decision, from this job's status file, the status of srun and the record of this submission."""
    again = "Submit it again: it carries on"
    if status is None:
        text = f"training never began, srun ended with status {exit_status}; what is above says why"
        return Decision(False, f"{text}. {again}")
    said, reason = status.get("status"), status.get("reason", "")
    if said == "finished":
        return Decision(False, f"the run is finished ({reason})")
    if said == "failed":
        return Decision(False, f"the run has failed ({reason}). {again}")
    if said != "interrupted" or exit_status < INTERRUPTED:
        return Decision(False, f"srun ended with status {exit_status}; what is above says why. {again}")
    generation = int(status.get("generation", 0))
    idle = 0 if before is None or generation > before.generation else before.idle + 1
    restarts = Restarts(generation, idle)
    if idle >= MOST_IDLE_RESTARTS:
        text = f"{idle} restarts in a row have not finished a generation, since {generation}: not requeued. "
        remedy = f"Look above; or ask for more time or ranks, or make generations shorter. {again}"
        return Decision(False, text + remedy, restarts)
    without = f", {idle} of {MOST_IDLE_RESTARTS} restarts without a new one" if idle else ""
    return Decision(True, f"interrupted after {generation} generations{without}: requeued", restarts)


def decide_in(directory: Path, shard: Shard | None, exit_status: int, this_run: Mapping[str, Any]) -> Decision:
    """Return the decision for a run directory; remembers it there. A new submission begins to count anew.

    `this_run` is what slurm.this_run says.
    """
    path = directory / status_name(shard)
    record = path.with_name(path.name.replace("status", "restarts"))
    found = read_status(record) if this_run.get("restarts") else None
    before = Restarts(int(found["generation"]), int(found["idle"])) if found and found.keys() >= KEYS else None
    decision = decide(said_of(path, this_run), exit_status, before)
    if decision.restarts is not None:
        write_json(record, asdict(decision.restarts))
    return decision


def said_of(path: Path, this_run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a status file says, if it is of this job.

    Where several runs are below it (repetitions, trials) and one gave a generation up, that ended all ranks at once:
    only its own file then says interrupted. The generations of all are what has been done.
    """
    status = read_status(path)
    if status is None or status.get("job") != this_run.get("job"):
        return None
    below = [read_status(file) or {} for file in sorted(path.parent.rglob("*/status.json"))]
    below = [run for run in below if run.get("job") == status.get("job")]
    if not below:
        return status
    given_up = any(run["status"] == "interrupted" and this_run.items() <= run.items() for run in below)
    if given_up and status["status"] == "running":
        status["status"] = "interrupted"
    return {**status, "generation": sum(int(run["generation"]) for run in below)}


KEYS = set(asdict(Restarts(0)))


def read_status(path: Path) -> dict[str, Any] | None:
    """Return the mapping in a JSON file, or None where there is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


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
        slurm.call("scancel", *rest)
    return f"{reason}; cancelled {', '.join(rest) or 'nothing: it was the last of its chain'}"


def pending() -> str:
    """Return a line "ID DEPENDENCY" for each of the user's jobs that wait."""
    user = f"--user={getpass.getuser()}"
    return slurm.call("squeue", "--noheader", user, "--states=PENDING", "--format=%i %E")


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
