"""Env-steps/s of two evaluating ranks over one, on two free cores; and of two jobs of one rank each, side by side.

The second figure is what the machine gives: two jobs share nothing but its cores, caches and clock.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.jobs import ROOT, command, metrics

REPEATS = 5
CONFIG = ROOT / "configs/es_halfcheetah.yaml"
SHORT = (
    "stop={generations: 5}",
    "task.max_episode_steps=500",
    "evaluation.interval=0",
    "report.plot_interval_seconds=0",
)


def run() -> list[dict[str, Any]]:
    """Alternate one rank, two ranks, and two jobs of one rank."""
    rates: dict[str, list[float]] = {"one": [], "two": [], "jobs": []}
    idle: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        for repeat in range(REPEATS):
            for name, ranks in (("one", [1]), ("two", [2]), ("jobs", [1, 1])):
                outputs = [Path(directory) / f"{name}-{repeat}-{job}" for job in range(len(ranks))]
                rates[name].append(together(ranks, outputs))
                if name == "two":
                    idle += [share(row) for row in metrics(outputs[0])[1:]]
    speedup, independent = (
        median(many / one for one, many in zip(rates["one"], rates[name], strict=True)) for name in ("two", "jobs")
    )
    row = {"env": "HalfCheetah-v5", "speedup": speedup, "target": 1.85, "met": speedup >= 1.85}
    machine = {"two_jobs": independent, "of_two_jobs": speedup / independent, "idle_percent": 100 * median(idle)}
    return [{**row, **machine, "one_rank": median(rates["one"])}]


def together(ranks: list[int], outputs: list[Path]) -> float:
    """Env-steps/s of jobs with so many ranks each, run at the same time, all added up."""
    jobs = [
        subprocess.Popen(
            command(count, CONFIG, output, *SHORT), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for count, output in zip(ranks, outputs, strict=True)
    ]
    for job in jobs:
        if job.wait(timeout=900):
            raise subprocess.CalledProcessError(job.returncode, "the job")
    return sum(rate(metrics(output)[1:]) for output in outputs)


def share(row: dict[str, Any]) -> float:
    """Of a generation, how much the mean rank waited for the other."""
    part: float = row["time_idle_mean"] / row["seconds_this_generation"]
    return part


def rate(rows: list[dict[str, Any]]) -> float:
    """Env-steps/s over these generations."""
    steps = sum(row["timesteps_this_generation"] for row in rows)
    seconds: float = sum(row["seconds_this_generation"] for row in rows)
    return steps / seconds
