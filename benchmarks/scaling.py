"""Speed-up of two ranks over one on two free cores, and of two concurrent jobs of one rank each.

Two jobs share only the machine (cores, caches, clock), so their speed-up is the upper bound.
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
    """Return one row; one rank, two ranks and two jobs of one rank alternate."""
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
        median(many / one for one, many in zip(rates["one"], rates[name], strict=True))
        for name in ("two", "jobs")
    )
    row = {"env": "HalfCheetah-v5", "speedup": speedup, "target": 1.85, "met": speedup >= 1.85}
    machine = {
        "two_jobs": independent,
        "of_two_jobs": speedup / independent,
        "idle_percent": 100 * median(idle),
    }
    return [{**row, **machine, "one_rank": median(rates["one"])}]


def together(ranks: list[int], outputs: list[Path]) -> float:
    """Run jobs with these numbers of ranks at the same time;
    return the sum of their steps per second.
    """
    jobs = [
        subprocess.Popen(
            command(count, CONFIG, output, *SHORT),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for count, output in zip(ranks, outputs, strict=True)
    ]
    for job in jobs:
        if job.wait(timeout=900):
            raise subprocess.CalledProcessError(job.returncode, "the job")
    return sum(rate(metrics(output)[1:]) for output in outputs)


def share(row: dict[str, Any]) -> float:
    """Return the share of a generation for which a rank waited, averaged over the ranks."""
    part: float = row["time_idle_mean"] / row["seconds_this_generation"]
    return part


def rate(rows: list[dict[str, Any]]) -> float:
    """Return the steps per second over these generations."""
    steps = sum(row["timesteps_this_generation"] for row in rows)
    seconds: float = sum(row["seconds_this_generation"] for row in rows)
    return steps / seconds
