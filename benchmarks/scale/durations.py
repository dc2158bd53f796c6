"""Busy ranks with evaluations of log-normal duration: `python -m benchmarks.scale.durations
[--ranks 33] [--cv 0.3 1]`.

The function sleeps for a time that is drawn from its vector, or that follows from its first
coordinate, on which its value does not depend; `cv` is the coefficient of variation. The table has
the share of the evaluating ranks' time spent in the function, beside that of a schedule of the same
durations without any other cost, the seconds of a generation over the mean duration, and the
seconds from the end of a generation's last evaluation to the start of the next one's first. Rank 0
only hands out jobs.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import heapq
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import NormalDist

import numpy as np

from benchmarks.jobs import ROOT, command, metrics

NOT_COUNTED = 2  # generations at the start
CONFIG = """
seed: 1
task:
  kind: function
  function: "benchmarks.scale.durations:cost"
  dimension: 10
  initial: 1.0
  arguments: {{cv: {cv}, is_smooth: {is_smooth}, mean: {mean}, log: "{log}"}}
  close_at: {close_at}
algorithm: {{kind: cma_es, population_size: {population}, sigma: 0.5, {algorithm}}}
mpi: {{master_evaluates: false}}
evaluation: {{interval: 0}}
checkpoint: {{interval: 0}}
report: {{plot_interval_seconds: 0}}
stop: {{generations: {generations}}}
"""
SIDE_BY_SIDE = "restarts: bipop, side_by_side: true"
METHODS = (  # name, jobs per evaluating rank, and options
    ("generations of 1 job per rank", 1, {}),
    ("of 2", 2, {}),
    ("of 4", 4, {}),
    ("of 4, durations follow from the vector", 4, {"is_smooth": "true"}),
    ("of 1, closed at 0.9", 1, {"close_at": "0.9"}),
    ("2 searches of 1, side by side", 1, {"algorithm": SIDE_BY_SIDE}),
)


def duration(x: np.ndarray, cv: float, is_smooth: bool) -> float:
    """Return the duration of the evaluation of x, float64[size], over the mean duration."""
    deviation = math.sqrt(math.log(1 + cv * cv))
    if is_smooth:
        normal = min(max((float(x[0]) - 1.0) / 0.5, -2.5), 2.5)  # about N(0, 1)
    else:
        bits = int.from_bytes(hashlib.sha256(x.tobytes()).digest()[:6], "little")
        normal = NormalDist().inv_cdf((bits + 0.5) / 2**48)
    return math.exp(deviation * normal - deviation**2 / 2)


def cost(x: np.ndarray, cv: float, is_smooth: bool, mean: float, log: str) -> float:
    """Return the sphere of all coordinates of x, float64[size], but the first, after a sleep.

    `log` is a directory, to which start and end are written.
    """
    start = time.time()
    time.sleep(mean * duration(x, cv, is_smooth))
    with Path(log, str(os.getpid())).open("a") as file:
        file.write(f"{start} {time.time()}\n")
    return float(x[1:] @ x[1:])


def scheduled(durations: Sequence[float], workers: int) -> float:
    """Return the end of jobs that free workers take in this order."""
    free = [0.0] * workers
    for seconds in durations:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def ideal(evaluations: Path, workers: int, cv: float, is_smooth: bool) -> float:
    """Return the busy share of a schedule of a run's evaluations,
    longest first if durations can be predicted.
    """
    with evaluations.open(newline="") as file:
        rows = [(int(row[0]), np.array(row[3:], np.float64)) for row in list(csv.reader(file))[1:]]
    total = seconds = 0.0
    for generation, items in groupby(rows, lambda row: row[0]):
        if generation >= NOT_COUNTED:
            jobs = [duration(x, cv, is_smooth) for _, x in items]
            total += sum(jobs)
            seconds += scheduled(sorted(jobs, reverse=True) if is_smooth else jobs, workers)
    return total / (workers * seconds)


def between_generations(log: Path, jobs: int) -> float:
    """Return the mean seconds between generations of this number of evaluations."""
    files = [np.loadtxt(path, ndmin=2) for path in log.iterdir()]
    times = np.concatenate(files)
    times = times[times[:, 0].argsort()].reshape(-1, jobs, 2)
    return float(
        (times[1:, :, 0].min(axis=1) - times[:-1, :, 1].max(axis=1))[NOT_COUNTED - 1 :].mean()
    )


@dataclass(frozen=True)
class Measured:
    """Results of a run; None where generations overlap or are closed early."""

    busy: float  # share of the evaluating ranks' time in the function
    ideal: float | None  # the same of a schedule without other costs
    seconds: float  # per generation
    between: float | None  # seconds between generations


def measured(
    ranks: int, jobs: int, cv: float, generations: int, mean: float, options: dict[str, str]
) -> Measured:
    settings = {"is_smooth": "false", "close_at": "null", "algorithm": "restarts: none", **options}
    total = 2 * generations if settings["algorithm"] == SIDE_BY_SIDE else generations
    with tempfile.TemporaryDirectory() as directory:
        path, run, log = (
            Path(directory) / "durations.yaml",
            Path(directory) / "run",
            Path(directory) / "log",
        )
        log.mkdir()
        sizes = {"population": (ranks - 1) * jobs, "generations": total + NOT_COUNTED}
        path.write_text(CONFIG.format(cv=cv, mean=mean, log=log, **sizes, **settings))
        subprocess.run(
            command(ranks, path, run), cwd=ROOT, check=True, capture_output=True, timeout=3600
        )
        rows = metrics(run)[NOT_COUNTED:]
        best = between = None
        if settings["algorithm"] != SIDE_BY_SIDE and settings["close_at"] == "null":
            best = ideal(run / "evaluations.csv", ranks - 1, cv, settings["is_smooth"] == "true")
            between = between_generations(log, sizes["population"])
    seconds = sum(row["seconds_this_generation"] for row in rows)
    busy = sum(row["time_environment_mean"] for row in rows) * ranks / ((ranks - 1) * seconds)
    return Measured(busy, best, seconds / len(rows), between)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=33)
    parser.add_argument("--cv", type=float, nargs="+", default=[0.3, 1.0])
    parser.add_argument("--generations", type=int, default=12)
    parser.add_argument("--mean", type=float, default=0.5, help="mean seconds of an evaluation")
    parser.add_argument("--methods", nargs="+", default=[name for name, _, _ in METHODS])
    options = parser.parse_args()
    print(
        "| method | cv | busy | without other costs | generation / evaluation | seconds between generations |"
    )
    print("|---|---|---|---|---|---|", flush=True)
    for name, jobs, changes in (method for method in METHODS if method[0] in options.methods):
        for cv in options.cv:
            result = measured(options.ranks, jobs, cv, options.generations, options.mean, changes)
            best, between = (
                "-" if item is None else f"{item:.2f}" for item in (result.ideal, result.between)
            )
            numbers = (
                f"{result.busy:.2f} | {best} | {result.seconds / options.mean:.2f} | {between}"
            )
            print(f"| {name} | {cv:g} | {numbers} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
