"""The searches for programs against each other: every experiment on every task, some repetitions.

    python -m benchmarks.searches --out runs/searches
    hpc-es program-table runs/searches/*/*                        each at its own number of programs executed (NPE)
    hpc-es program-table runs/searches/*/* --npe-limit 32000      all at the same

A run takes one core; `--at-once` so many run side by side. Runs carry on where
they stopped, so the command may be interrupted and repeated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.jobs import ROOT

# The configs and how many programs a repetition may execute; the first two are 20 times as fast as the others.
EXPERIMENTS = {"rand-20M": 1_000_000, "ga-20M": 1_000_000, "pg-20M": 32_000, "topk-20M": 32_000, "pg-topk-20M": 32_000}
TASKS = ("print-hello", "reverse", "remove-char", "count-char", "echo-twice", "divide-2")
REPETITIONS = 5


def main() -> int:
    """Run them all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.searches", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "runs/searches")
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    runs = [(experiment, task) for task in TASKS for experiment in EXPERIMENTS]
    with ThreadPoolExecutor(options.at_once) as pool:
        for (experiment, task), seconds in zip(
            runs, pool.map(lambda run: search(*run, options.out), runs), strict=True
        ):
            print(f"{experiment} {task}: {seconds:.0f} s", flush=True)
    return 0


def search(experiment: str, task: str, out: Path) -> float:
    """Run the repetitions of an experiment on a task; seconds taken."""
    words = [f"task.name={task}", f"repetitions={REPETITIONS}", f"stop.episodes={EXPERIMENTS[experiment]}"]
    job = [sys.executable, "-m", "hpc_es.main", str(ROOT / f"configs/{experiment}.yaml"), *words]
    since = time.perf_counter()
    subprocess.run(
        [*job, "--output", str(out / experiment / task)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - since


if __name__ == "__main__":
    sys.exit(main())
