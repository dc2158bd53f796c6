"""Jobs on this machine: generations of the timer, start-up, messages, chunks handed out a second."""

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
GENERATIONS = 4  # of which the first is not counted
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
NOTHING = "benchmarks.scale.measured:nothing"
JOBS = 4_000  # evaluations that take no time, each a chunk of its own


def nothing(x: Any) -> float:
    """An objective that costs nothing."""
    return float(x[0])


@dataclass(frozen=True)
class Measured:
    """The generations of a job."""

    ranks: int
    startup: float  # seconds from the command to the end of the first generation, less that generation
    seconds: float  # of a generation, the median
    tail: float
    idle: float  # the share of rank time
    update: float


def config(directory: Path) -> Path:
    """Return the file of the timer's config."""
    path = directory / "timer.yaml"
    path.write_text(CONFIG)
    return path


def generations(ranks: int, *overrides: str) -> Measured:
    """Run the timer on so many ranks."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "run"
        since = time.perf_counter()
        job = command(ranks, config(Path(directory)), output, *overrides)
        subprocess.run(job, cwd=ROOT, check=True, capture_output=True, timeout=3600)
        elapsed = time.perf_counter() - since
        rows = metrics(output)
    counted = rows[1:]
    spent = [sum(row[f"time_{name}_mean"] for name in TIMES) for row in counted]
    return Measured(
        ranks,
        startup=elapsed - sum(row["seconds_this_generation"] for row in rows),
        seconds=median(row["seconds_this_generation"] for row in counted),
        tail=median(row["tail_seconds"] for row in counted),
        idle=median(row["time_idle_mean"] / total for row, total in zip(counted, spent, strict=True)),
        update=median(row["time_update_mean"] for row in counted),
    )


def messages(ranks: int) -> dict[str, float]:
    """Return seconds by message and size."""
    job = [str(MPIEXEC), "-n", str(ranks), sys.executable, "-m", "benchmarks.scale.messages"]
    done = subprocess.run(job, cwd=ROOT, check=True, capture_output=True, text=True, timeout=900)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def chunks_a_second(ranks: int) -> float:
    """Return how many chunks rank 0, which evaluates none itself, hands out a second."""
    words = (
        f"algorithm.population_size={JOBS}",
        "mpi={chunk_size: 1, master_evaluates: false}",
        "evaluation.interval=0",
        "report.plot_interval_seconds=0",
        "stop={generations: 3}",
        "noise={kind: counter}",
        "checkpoint.interval=0",
        f"task={{kind: function, function: '{NOTHING}', dimension: 2, record_evaluations: false, journal: false}}",
        "algorithm.kind=snes",
    )
    with tempfile.TemporaryDirectory() as directory:
        path, output = Path(directory) / "nothing.yaml", Path(directory) / "run"
        path.write_text("seed: 1\n")
        subprocess.run(command(ranks, path, output, *words), cwd=ROOT, check=True, capture_output=True, timeout=900)
        rows = metrics(output)[1:]
    return JOBS / median(row["seconds_this_generation"] for row in rows)
