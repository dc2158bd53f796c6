"""Busy ranks with evaluations of log-normal duration: `python -m benchmarks.scale.durations [--ranks 33] [--cv 0.3 1]`.

The function sleeps for a time that is drawn from its vector, or that follows from its first coordinate, on which its
value does not depend; `cv` is the coefficient of variation. The table has the share of the evaluating ranks' time spent
in the function, and the seconds of a generation over the mean duration. Rank 0 only hands out jobs.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import NormalDist

import numpy as np

from benchmarks.jobs import ROOT, command, metrics

MEAN = 0.5  # seconds of an evaluation
NOT_COUNTED = 2  # generations at the start
CONFIG = """
seed: 1
task:
  kind: function
  function: "benchmarks.scale.durations:cost"
  dimension: 10
  initial: 1.0
  arguments: {{cv: {cv}, is_smooth: {is_smooth}}}
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


def cost(x: np.ndarray, cv: float, is_smooth: bool) -> float:
    """Return the sphere of all coordinates of x, float64[size], but the first, after a sleep."""
    deviation = math.sqrt(math.log(1 + cv * cv))
    if is_smooth:
        normal = min(max((float(x[0]) - 1.0) / 0.5, -2.5), 2.5)  # about N(0, 1)
    else:
        bits = int.from_bytes(hashlib.sha256(x.tobytes()).digest()[:6], "little")
        normal = NormalDist().inv_cdf((bits + 0.5) / 2**48)
    time.sleep(MEAN * math.exp(deviation * normal - deviation**2 / 2))
    return float(x[1:] @ x[1:])


def measured(ranks: int, jobs: int, cv: float, generations: int, options: dict[str, str]) -> tuple[float, float]:
    """Return the share of the evaluating ranks' time in the function, and the mean seconds of a generation."""
    settings = {"is_smooth": "false", "close_at": "null", "algorithm": "restarts: none", **options}
    total = 2 * generations if settings["algorithm"] == SIDE_BY_SIDE else generations
    with tempfile.TemporaryDirectory() as directory:
        path, run = Path(directory) / "durations.yaml", Path(directory) / "run"
        path.write_text(
            CONFIG.format(cv=cv, population=(ranks - 1) * jobs, generations=total + NOT_COUNTED, **settings)
        )
        subprocess.run(command(ranks, path, run), cwd=ROOT, check=True, capture_output=True, timeout=3600)
        rows = metrics(run)[NOT_COUNTED:]
    seconds = sum(row["seconds_this_generation"] for row in rows)
    busy = sum(row["time_environment_mean"] for row in rows) * ranks / ((ranks - 1) * seconds)
    return busy, seconds / len(rows)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=33)
    parser.add_argument("--cv", type=float, nargs="+", default=[0.3, 1.0])
    parser.add_argument("--generations", type=int, default=12)
    parser.add_argument("--methods", nargs="+", default=[name for name, _, _ in METHODS])
    options = parser.parse_args()
    print("| method | cv | busy | seconds of a generation over those of an evaluation |\n|---|---|---|---|", flush=True)
    for name, jobs, changes in (method for method in METHODS if method[0] in options.methods):
        for cv in options.cv:
            busy, seconds = measured(options.ranks, jobs, cv, options.generations, changes)
            print(f"| {name} | {cv:g} | {busy:.2f} | {seconds / MEAN:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
