"""Busy ranks with `algorithm.delay`: `python -m benchmarks.scale.delay [--ranks 8] [--jobs 1 2]`.

An environment whose steps sleep for 10 ms plays episodes of 100 steps or of 2 to 11, half of them each. The table has
the share of all ranks' time spent in the environment, and the seconds of a generation.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from benchmarks.jobs import ROOT, command, metrics

GENERATIONS, NOT_COUNTED = 44, 4
CONFIG = """
seed: 1
task:
  kind: episodes
  env_id: "benchmarks.scale.timer:Timer-v0"
  env_kwargs: {{which: between, scale: 0.1}}
policy: {{kind: mlp, hidden_dims: [8]}}
algorithm: {{kind: es, population_size: {population}, mirrored_sampling: false, delay: {delay}}}
noise: {{kind: counter}}
evaluation: {{interval: 0}}
checkpoint: {{interval: 0}}
report: {{plot_interval_seconds: 0}}
stop: {{generations: {generations}}}
"""


def measured(ranks: int, jobs: int, delay: int) -> tuple[float, float]:
    """Return the share of the ranks' time in the environment, and the seconds of a generation."""
    with tempfile.TemporaryDirectory() as directory:
        path, run = Path(directory) / "delay.yaml", Path(directory) / "run"
        path.write_text(CONFIG.format(population=ranks * jobs, delay=delay, generations=GENERATIONS))
        subprocess.run(command(ranks, path, run), cwd=ROOT, check=True, capture_output=True, timeout=1800)
        rows = metrics(run)[NOT_COUNTED:]
    seconds = sum(row["seconds_this_generation"] for row in rows)
    return sum(row["time_environment_mean"] for row in rows) / seconds, seconds / len(rows)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2], help="jobs per rank")
    options = parser.parse_args()
    print("| jobs per rank | delay | busy | seconds per generation |\n|---|---|---|---|", flush=True)
    for jobs in options.jobs:
        for delay in (0, 1, 2):
            busy, seconds = measured(options.ranks, jobs, delay)
            print(f"| {jobs} | {delay} | {busy:.2f} | {seconds:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
