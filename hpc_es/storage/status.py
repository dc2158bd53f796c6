"""status.json, which scripts read: how a run stands.

Rank 0 writes it at each checkpoint, and renews the time in it, `heartbeat`, every HEARTBEAT_SECONDS, also amid a long
generation, as long as it looks at messages. A killed process leaves "running" behind: `run_state` tells it from one
that runs.
"""

from __future__ import annotations

import calendar
import json
import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_es.storage.run_lock import is_alive, is_held

if TYPE_CHECKING:
    from hpc_es.storage.checkpoint import Best

STATUS = "status.json"
RUNNING = "running"
_TIME = "%Y-%m-%dT%H:%M:%SZ"  # UTC
HEARTBEAT_SECONDS = 30.0
STALE_SECONDS = 300.0  # without a heartbeat, after which a run on another host counts as killed
_SHOWN = ("pid", "host", "job", "started", "heartbeat", "generation", "reason")


def now() -> str:
    """Return the time as ISO 8601, UTC."""
    return time.strftime(_TIME, time.gmtime())


def this_process() -> dict[str, str | int]:
    """Return who writes, and since when."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": now()}


def run_state(directory: Path) -> dict[str, Any]:
    """Return `state` (running, killed, finished, failed, interrupted or not begun) of a run, and what else is told."""
    try:
        told = json.loads((directory / STATUS).read_text())
    except (OSError, ValueError):
        told = None
    if not isinstance(told, dict) or "status" not in told:
        return {"state": "not begun"}
    held = is_held(directory)
    state = RUNNING if held else told["status"]
    if state == RUNNING and not held and not _may_run(told, is_known=held is not None):
        state = "killed"
    return {"state": state, **{name: told[name] for name in _SHOWN if name in told}}


def _may_run(told: Mapping[str, Any], is_known: bool) -> bool:
    """Return whether a run without a visible lock may be running all the same; `is_known`: here nobody has the lock.

    Some file systems have no locks, or none that other hosts see.
    """
    if told.get("host") in {None, socket.gethostname()}:
        return not is_known and is_alive(int(told.get("pid", 0)))
    age = seconds_since(str(told.get("heartbeat", "")))
    return age is not None and age < STALE_SECONDS


def seconds_since(stamp: str) -> float | None:
    """Return the seconds since a time of `now`; None where it is none."""
    try:
        return time.time() - calendar.timegm(time.strptime(stamp, _TIME))
    except ValueError:
        return None


def state_text(told: Mapping[str, Any]) -> str:
    """Return what `run_state` gave, in one line."""
    job = f", SLURM job {told['job']}" if "job" in told else ""
    age = seconds_since(str(told.get("heartbeat", "")))
    beat = f", last heartbeat {max(age, 0):,.0f} s ago" if age is not None else ""
    process = f" (process {told['pid']} on host {told['host']}{job}{beat})" if "pid" in told else ""
    match told["state"]:
        case "running":
            return f"running{process}"
        case "killed":
            return f"killed{process}: the same command resumes from the last checkpoint"
        case state:
            return f"{state} ({told['reason']})" if told.get("reason") else str(state)


def final_evaluation(directory: Path, generation: int | None) -> dict[str, float]:
    """Return the final evaluation of a run that was finished already, at this generation; nothing of another one."""
    try:
        status = json.loads((directory / STATUS).read_text())
        names = [name for name in status if name.startswith("final_")]
        return {name: float(status[name]) for name in names} if status["generation"] == generation else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def is_surpassed(best: Best | None, final: Mapping[str, float]) -> bool:
    """Whether the final evaluation, of the last theta, gave more than the best of the evaluations on the way."""
    return best is not None and final.get("final_return_mean", -math.inf) > best.return_
