"""status.json: the state of a run, for scripts.

Rank 0 writes it at each checkpoint and updates its `heartbeat` every HEARTBEAT_SECONDS, also during
long generations, as long as it polls for messages. A killed process leaves the status "running";
`run_state` detects this.
"""

from __future__ import annotations

import calendar
import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hpc_es.core.data import JsonObject
from hpc_es.core.errors import unreadable_reason
from hpc_es.core.run_files import LARGEST_CONFIG, read_json
from hpc_es.core.vocabulary import inside
from hpc_es.storage.run_lock import is_alive, is_held

if TYPE_CHECKING:
    from hpc_es.storage.checkpoint import BestCentre

EndStatus = Literal["finished", "interrupted", "failed"]

STATUS = "status.json"
# whether the final evaluation is the best one, if the task derives its fitness
FINAL_IS_BEST = "final_is_best"
RUNNING, FINISHED, NOT_BEGUN, UNREADABLE = "running", "finished", "not begun", "unreadable"
_TIME = "%Y-%m-%dT%H:%M:%SZ"  # UTC
HEARTBEAT_SECONDS = 30.0
STALE_SECONDS = 300.0  # age of the heartbeat after which a run on another host counts as killed
_REPORTED = ("pid", "host", "job", "started", "heartbeat", "generation", "reason")


def now() -> str:
    """Return the current time in ISO 8601, UTC."""
    return time.strftime(_TIME, time.gmtime())


def this_process() -> dict[str, str | int]:
    """Return process id, host and start time of this process."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": now()}


def run_state(directory: Path) -> JsonObject:
    """Return `state` and other fields of status.json.

    The state is running, killed, finished, failed, interrupted, not begun, or unreadable with a
    `reason`.
    """
    try:
        status = read_json(directory / STATUS, LARGEST_CONFIG)
    except FileNotFoundError:
        return {"state": NOT_BEGUN}
    except (OSError, ValueError) as error:
        return {"state": UNREADABLE, "reason": unreadable_reason(error)}
    if not isinstance(status, dict) or not isinstance(status.get("status"), str):
        return _unreadable(directory, "expected a JSON object with a status")
    if not (type(status.get("generation", 0)) is int and 0 <= status.get("generation", 0) < 2**63):
        return _unreadable(directory, "expected the number of a generation")
    is_locked = is_held(directory)
    state = RUNNING if is_locked else status["status"]
    if state == RUNNING and not is_locked and not _may_run(status, is_known=is_locked is not None):
        state = "killed"
    return {"state": state, **{name: status[name] for name in _REPORTED if name in status}}


def _unreadable(directory: Path, reason: str) -> JsonObject:
    return {"state": UNREADABLE, "reason": f"{directory / STATUS}: {reason}"}


def _may_run(status: JsonObject, is_known: bool) -> bool:
    """Whether a run may be running although no lock is visible.

    Some file systems have no locks, or none that are visible to other hosts. `is_known`: no process
    on this host has it.
    """
    if status.get("host") in {None, socket.gethostname()}:
        pid = status.get("pid")
        return not is_known and isinstance(pid, int) and is_alive(pid)
    age = seconds_since(str(status.get("heartbeat", "")))
    return age is not None and age < STALE_SECONDS


def seconds_since(stamp: str) -> float | None:
    """Return the seconds since a time as returned by `now`; None if it is invalid."""
    try:
        return time.time() - calendar.timegm(time.strptime(stamp, _TIME))
    except (ValueError, OverflowError):
        return None


def state_text(status: JsonObject) -> str:
    """Return the result of `run_state` in one line."""
    job = f", SLURM job {status['job']}" if "job" in status else ""
    age = seconds_since(str(status.get("heartbeat", "")))
    beat = f", last heartbeat {max(age, 0):,.0f} s ago" if age is not None else ""
    process = (
        f" (process {status['pid']} on host {status.get('host')}{job}{beat})"
        if "pid" in status
        else ""
    )
    match status["state"]:
        case "running":
            return f"running{process}"
        case "killed":
            return f"killed{process}: the same command resumes from the last checkpoint"
        case state:
            return f"{state} ({status['reason']})" if status.get("reason") else str(state)


def final_evaluation(directory: Path, generation: int | None) -> dict[str, float]:
    """Return the final evaluation in status.json if it is of this generation, else {}."""
    try:
        status = inside(read_json(directory / STATUS, LARGEST_CONFIG))
        names = [name for name in status if name.startswith("final_")]
        return (
            {name: float(status[name]) for name in names}
            if status["generation"] == generation
            else {}
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}


def is_surpassed(best: BestCentre | None, final: Mapping[str, float]) -> bool:
    """Return whether the final evaluation is better than the best evaluation during training.

    If the task derives its fitness, the run has compared them and recorded the result.
    """
    if best is not None and best.rows is not None:
        return bool(final.get(FINAL_IS_BEST))
    return best is not None and final.get("final_return_mean", -math.inf) > best.return_
