"""Decides whether a job that has ended is requeued.

It is if it was interrupted, and as long as it makes progress. The exit status of srun is not
enough, because it is the highest of any task: if one rank ends with 75 and another one is then
killed, it is 137 or 143; only a lower one shows that no rank was interrupted. So the status file
decides, which rank 0 writes with the number of the job. A restart that fails before it writes the
file counts as one without progress: cluster problems may pass, and user errors end at the limit.

For clusters that cancel a preempted job instead of requeueing it, `end_chain` handles a chain of
jobs: each starts when the previous one has ended, and resumes the run. The job that finishes the
run cancels the following ones; if it cannot, each of them finds the run finished and ends within
seconds.
"""

from __future__ import annotations

import getpass
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from hpc_es.api.job import status_name
from hpc_es.core import slurm
from hpc_es.core.data import JsonObject
from hpc_es.core.errors import INTERRUPTED
from hpc_es.core.run_files import read_json
from hpc_es.storage.files import write_json
from hpc_es.storage.results import Shard

MOST_IDLE_RESTARTS = 3


@dataclass(frozen=True)
class Restarts:
    """The record of a submission: finished generations, and restarts without a new one.

    The generations are those at the last decision.
    """

    generation: int
    idle: int = 0


@dataclass(frozen=True)
class RequeueDecision:
    """The decision; `restarts` is the record to write, if any."""

    requeue: bool
    reason: str
    restarts: Restarts | None = None


def decide(status: JsonObject | None, exit_status: int, before: Restarts | None) -> RequeueDecision:
    """Return the decision.

    It follows from this job's status file, the status of srun and the record of this submission.
    """
    again = "Submit the job again to resume the run"
    if status is None:
        return RequeueDecision(
            False,
            f"training never started, and srun ended with status {exit_status}; see the "
            f"messages above. {again}",
        )
    state, reason = status.get("status"), status.get("reason", "")
    if state == "finished":
        return RequeueDecision(False, f"the run is finished ({reason})")
    if state == "failed":
        return RequeueDecision(False, f"the run has failed ({reason}). {again}")
    if state != "interrupted" or exit_status < INTERRUPTED:
        return RequeueDecision(
            False, f"srun ended with status {exit_status}; see the messages above. {again}"
        )
    generation = _generation(status)
    idle = 0 if before is None or generation > before.generation else before.idle + 1
    restarts = Restarts(generation, idle)
    if idle >= MOST_IDLE_RESTARTS:
        text = f"not requeued: {idle} restarts in a row have finished no generation after generation {generation}. "
        remedy = f"See the messages above, request more time or ranks, or make generations shorter. {again}"
        return RequeueDecision(False, text + remedy, restarts)
    without = f", {idle} of {MOST_IDLE_RESTARTS} restarts without a new generation" if idle else ""
    return RequeueDecision(
        True, f"interrupted after {generation} generations{without}: requeued", restarts
    )


def decide_in(
    directory: Path, shard: Shard | None, exit_status: int, this_run: JsonObject
) -> RequeueDecision:
    """Return the decision for a run directory, and record it there.

    A new submission starts a new count. `this_run` is the result of slurm.this_run.
    """
    path = directory / status_name(shard)
    record = path.with_name(path.name.replace("status", "restarts"))
    last = read_status(record) if this_run.get("restarts") else None
    before = None
    if last and all(type(last.get(name)) is int for name in asdict(Restarts(0))):
        before = Restarts(last["generation"], last["idle"])
    decision = decide(status_of(path, this_run), exit_status, before)
    if decision.restarts is not None:
        write_json(record, asdict(decision.restarts))
    return decision


def status_of(path: Path, this_run: JsonObject) -> JsonObject | None:
    """Return the content of a status file if this job wrote it.

    It has the generations of all runs below it. If one of several runs (repetitions, trials) gave a
    generation up, all ranks ended at once, and only the file of that run says "interrupted"; the
    result then does, too.
    """
    status = read_status(path)
    if status is None or status.get("job") != this_run.get("job"):
        return None
    # of repetitions, or of trials and their repetitions
    files = [file for glob in ("*", "*/*") for file in path.parent.glob(f"{glob}/status.json")]
    below = [read_status(file) or {} for file in sorted(files)]
    below = [run for run in below if run.get("job") == status.get("job")]
    if not below:
        return status
    given_up = any(
        run.get("status") == "interrupted" and this_run.items() <= run.items() for run in below
    )
    if given_up and status.get("status") == "running":
        status = {**status, "status": "interrupted"}
    return {**status, "generation": sum(map(_generation, below))}


def _generation(status: JsonObject) -> int:
    """Return the finished generations of a status; 0 if it does not say, as a damaged file."""
    generation = status.get("generation")
    return generation if type(generation) is int else 0


def read_status(path: Path) -> JsonObject | None:
    """Return the mapping in a JSON file, None if there is none."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


USER_ERROR = 2  # exit status


def over(directory: Path, exit_status: int, this_run: JsonObject) -> str | None:
    """Return why no further job is needed, or None; `this_run` is the result of slurm.this_run."""
    if exit_status == USER_ERROR:
        return "an error in the command or config"
    status = status_of(directory / "status.json", this_run) or {}
    state = status.get("status")
    # Status 0 of a run that is still "running": code of the user's has ended the process
    # (os._exit).
    if state == "finished" or (exit_status == 0 and state != "running"):
        return "the run is finished"
    if state == "failed":
        return f"the run has failed ({status.get('reason', '')})"
    return None


def end_chain(
    directory: Path, shard: Shard | None, exit_status: int, job: str, this_run: JsonObject
) -> str:
    """Cancel the following jobs of the chain if nothing is left to do; return what was done.

    UserError.
    """
    if shard is not None:
        return "the next job of the chain starts when all tasks of this array have ended"
    reason = over(directory, exit_status, this_run)
    if reason is None:
        return f"srun ended with status {exit_status}: the next job of the chain resumes the run"
    rest = behind(job, pending())
    if rest:
        slurm.call("scancel", *rest)
    return f"{reason}; cancelled {', '.join(rest) or 'nothing: this was the last job of the chain'}"


def pending() -> str:
    """Return a line "ID DEPENDENCY" for each pending job of the user."""
    return slurm.call(
        "squeue", "--noheader", f"--user={getpass.getuser()}", "--states=PENDING", "--format=%i %E"
    )


def behind(job: str, lines: str) -> list[str]:
    """Return the jobs that depend on this one, directly or through others, in order."""
    after: dict[str, str] = {}
    for line in lines.splitlines():
        match = re.match(r"(\d+) .*afterany:(\d+)", line)
        if match:
            after[match[2]] = match[1]
    rest: list[str] = []
    while job in after:
        job = after.pop(job)
        rest.append(job)
    return rest
