"""Jobs on this machine: generations of the timer, and measurements by modules of this package."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.jobs import MPIEXEC, ROOT, command, metrics

POPULATION = 128
GENERATIONS = 4  # the first is not counted
CONFIG = f"""
seed: 1
task: {{kind: episodes, env_id: "benchmarks.scale.timer:Timer-v0"}}
policy: {{kind: mlp, hidden_dims: [8]}}
algorithm: {{kind: es, population_size: {POPULATION}}}
noise: {{kind: counter}}
evaluation: {{interval: 0}}
checkpoint: {{interval: 0}}
report: {{plot_interval_seconds: 0}}
stop: {{generations: {GENERATIONS}}}
"""
TIMES = ("environment", "policy", "update", "messages", "idle")


@dataclass(frozen=True)
class JobTimes:
    """The times of a job's generations."""

    ranks: int
    # seconds from the command to the end of the first generation, less that generation
    startup: float
    seconds: float  # per generation, median
    tail: float
    idle: float  # share of the time of the ranks
    update: float


def config(directory: Path) -> Path:
    """Write the config of the timer, and return its path."""
    path = directory / "timer.yaml"
    path.write_text(CONFIG)
    return path


def generations(ranks: int, groups: int = 1) -> JobTimes:
    """Run the timer; with several groups, each runs one repetition,
    and the first one is measured.
    """
    first = "repetition_0000" if groups > 1 else ""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "run"
        since = time.perf_counter()
        shared = (f"repetitions={groups}", f"repetition_groups={groups}") if groups > 1 else ()
        job = command(ranks, config(Path(directory)), output, *shared)
        subprocess.run(job, cwd=ROOT, check=True, capture_output=True, timeout=3600)
        elapsed = time.perf_counter() - since
        rows = metrics(output / first)
    counted = rows[1:]
    spent = [sum(row[f"time_{name}_mean"] for name in TIMES) for row in counted]
    return JobTimes(
        ranks,
        startup=elapsed - sum(row["seconds_this_generation"] for row in rows),
        seconds=median(row["seconds_this_generation"] for row in counted),
        tail=median(row["tail_seconds"] for row in counted),
        idle=median(
            row["time_idle_mean"] / total for row, total in zip(counted, spent, strict=True)
        ),
        update=median(row["time_update_mean"] for row in counted),
    )


def run_module(ranks: int, module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of this package as a job, and return the JSON that rank 0 prints."""
    job = [
        str(MPIEXEC),
        "-n",
        str(ranks),
        sys.executable,
        "-m",
        f"benchmarks.scale.{module}",
        *arguments,
    ]
    done = subprocess.run(job, cwd=ROOT, check=True, capture_output=True, text=True, timeout=1800)
    result: dict[str, Any] = json.loads(
        next(line for line in reversed(done.stdout.splitlines()) if line[:1] == "{")
    )
    return result
