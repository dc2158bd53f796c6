"""Busy ranks with `algorithm.delay`: `python -m benchmarks.scale.delay [--ranks 8 16] [--jobs 1 2]
[--lengths early]`.

An environment whose steps sleep (10 ms, or --step-seconds) plays episodes with the lengths of
Humanoid: half of them 100 steps and half 2 to 11 ("between", a tenth of the lengths), or 16 to 106
("early"). The table has the share of all ranks' time spent in the environment and the seconds of a
generation, measured and as `hpc-es plan` simulates them from a measurement on one rank.
`--simulate` only simulates, with the constants of a cluster: for thousands of ranks.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.jobs import ROOT, command, metrics
from benchmarks.scale.modelled import HERE, simulated
from benchmarks.scale.timer import STEP_SECONDS
from hpc_es.cluster.measure import Cluster, MeasuredGeneration, measure
from hpc_es.cluster.predict import simulate_delay
from hpc_es.config.loading import load

GENERATIONS, NOT_COUNTED = 44, 4
MEASURED_SECONDS = 10.0  # on one rank
SCALES = {"between": 0.1, "early": 1.0}
CONFIG = """
seed: 1
task:
  kind: episodes
  env_id: "benchmarks.scale.timer:Timer-v0"
  env_kwargs: {{which: {lengths}, scale: {scale}, step_seconds: {step}}}
policy: {{kind: mlp, hidden_dims: [8]}}
algorithm: {{kind: es, population_size: {population}, mirrored_sampling: false, delay: {delay}}}
noise: {{kind: counter}}
evaluation: {{interval: 0}}
checkpoint: {{interval: 0}}
report: {{plot_interval_seconds: 0}}
stop: {{generations: {generations}}}
"""


def config(directory: Path, lengths: str, step: float, population: int, delay: int) -> Path:
    """Write the config of a job and return its path."""
    path = directory / "delay.yaml"
    names = {"lengths": lengths, "scale": SCALES[lengths], "step": step, "population": population}
    path.write_text(CONFIG.format(delay=delay, generations=GENERATIONS, **names))
    return path


def measured(
    ranks: int, lengths: str, step: float, population: int, delay: int
) -> tuple[float, float]:
    """Return the seconds of a generation, and the share of the ranks' time in the environment."""
    with tempfile.TemporaryDirectory() as directory:
        path, run = (
            config(Path(directory), lengths, step, population, delay),
            Path(directory) / "run",
        )
        subprocess.run(
            command(ranks, path, run), cwd=ROOT, check=True, capture_output=True, timeout=1800
        )
        rows = metrics(run)[NOT_COUNTED : GENERATIONS - delay]
    seconds = sum(row["seconds_this_generation"] for row in rows)
    return seconds / len(rows), sum(row["time_environment_mean"] for row in rows) / seconds


def predicted(
    one: MeasuredGeneration, ranks: int, population: int, delay: int, cluster: Cluster = HERE
) -> tuple[float, float]:
    """Return the same, simulated from the costs on one rank."""
    if delay:
        return simulate_delay(one, delay, ranks, cluster, population)
    generation = simulated(one, population, ranks, cluster)
    return generation.seconds, generation.efficiency


def simulate(
    one: MeasuredGeneration, ranks: Sequence[int], jobs: Sequence[int], delays: Sequence[int]
) -> None:
    """Print a table of simulations of a cluster."""
    print(
        "| ranks | jobs per rank | " + " | ".join(f"busy, delay {delay}" for delay in delays) + " |"
    )
    print("|---|---|" + "---|" * len(delays))
    for number in ranks:
        for per_rank in jobs:
            shares = [
                predicted(one, number, number * per_rank, delay, Cluster())[1] for delay in delays
            ]
            print(
                f"| {number:,} | {per_rank} | "
                + " | ".join(f"{share:.2f}" for share in shares)
                + " |",
                flush=True,
            )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8])
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2], help="jobs per rank")
    parser.add_argument("--delays", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--simulate", action="store_true", help="start no job")
    parser.add_argument("--step-seconds", type=float, default=STEP_SECONDS)
    parser.add_argument("--lengths", choices=list(SCALES), default="between")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        one = measure(
            load(config(Path(directory), options.lengths, options.step_seconds, 64, 0)),
            MEASURED_SECONDS,
        )
    if options.simulate:
        simulate(one, options.ranks, options.jobs, options.delays)
        return 0
    print(
        "| ranks | jobs per rank | delay | busy | simulated | s per generation | simulated | over measured |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for ranks in options.ranks:
        for jobs in options.jobs:
            for delay in options.delays:
                seconds, busy = measured(
                    ranks, options.lengths, options.step_seconds, ranks * jobs, delay
                )
                expected, share = predicted(one, ranks, ranks * jobs, delay)
                columns = f"{busy:.2f} | {share:.2f} | {seconds:.2f} | {expected:.2f} | {expected / seconds:.2f}"
                print(f"| {ranks} | {jobs} | {delay} | {columns} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
