"""Compare the CPU time of a changed hpc_es with that of an older version.

    git clone . ../before && git -C ../before checkout before-house
    python -m benchmarks.cpu_pairs --before ../before --pairs 15

Each pair is one run of each version on one rank, back to back and in alternating order. The user
CPU seconds of the whole process are compared, because other load on the machine affects them least.
Prints the median and quartiles of the ratios; the exit status is 1 if a median is above --limit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.jobs import ROOT
from benchmarks.same_bits_runs import Checkout

COMMON = ("report={plot_interval_seconds: 0}", "evaluation.interval=0", "checkpoint.interval=0")
FUNCTION = (
    "stop={generations: 2000}",
    "task.record_evaluations=false",
    "checkpoint.interval_seconds=0",
)
JOBS: dict[str, tuple[str, tuple[str, ...]]] = {  # config, overrides
    "start-up": ("es_cartpole", ("stop={generations: 1}",)),
    "rollouts, CartPole": ("es_cartpole", ("stop={timesteps: 1_000_000}",)),
    "rollouts, Pendulum, normalised": ("es_pendulum", ("stop={timesteps: 1_000_000}",)),
    "rollouts, HalfCheetah": ("es_halfcheetah", ("stop={generations: 1}",)),
    "rollouts, LSTM": (
        "es_cartpole",
        ("policy={kind: lstm, hidden_dims: [16]}", "stop={timesteps: 300_000}"),
    ),
    "cma_es, 10 numbers": ("cma_function", (*FUNCTION, "algorithm.restarts=ipop")),
    "snes, 10 numbers": (
        "cma_function",
        (*FUNCTION, "algorithm={kind: snes, sigma: 0.5, restarts: ipop}"),
    ),
    "es, 10 numbers": (
        "cma_function",
        (*FUNCTION, "algorithm={kind: es, sigma: 0.05, population_size: 10}"),
    ),
    "pgpe, 1000 numbers": (
        "cma_function",
        (*FUNCTION, "task.dimension=1000", "algorithm={kind: pgpe, sigma: 0.3}"),
    ),
}


def main() -> int:
    """Print the table; the exit status is 1 if a job takes
    more than --limit times as long as before.
    """
    options = _options()
    checkouts = [Checkout(path.resolve(), 1) for path in (options.before, options.after)]
    print(f"before {checkouts[0].label()}, after {checkouts[1].label()}, {options.pairs} pairs\n")
    print(
        "| job | user CPU s before | after | ratio, median (quartiles) |\n|---|---|---|---|",
        flush=True,
    )
    slow = []
    for name, (config, overrides) in JOBS.items():
        if not any(fnmatch(name, glob) for glob in options.only):
            continue
        pairs = [
            _pair(checkouts, config, overrides, turn % 2 == 1) for turn in range(options.pairs)
        ]
        ratios = [after / before for before, after in pairs]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        before, after = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
        print(
            f"| {name} | {before:.2f} | {after:.2f} | {middle:.3f} ({low:.3f} to {high:.3f}) |",
            flush=True,
        )
        slow += [name] if middle > options.limit else []
    print(f"\nabove {options.limit}: {', '.join(slow) or 'none'}")
    return int(bool(slow))


def _pair(
    checkouts: Sequence[Checkout], config: str, overrides: Sequence[str], is_swapped: bool
) -> tuple[float, float]:
    """Return the user CPU seconds of a job before and after, run in this order unless swapped."""
    path, seconds = checkouts[0].path / f"configs/{config}.yaml", [0.0, 0.0]
    for which in (1, 0) if is_swapped else (0, 1):
        seconds[which] = _seconds(checkouts[which], path, overrides)
    return seconds[0], seconds[1]


def _seconds(checkout: Checkout, config: Path, overrides: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory() as cwd:
        words = [
            sys.executable,
            "-m",
            "hpc_es.main",
            str(config),
            "--output",
            f"{cwd}/run",
            *COMMON,
            *overrides,
        ]
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env=checkout.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{checkout.path}: status {process.returncode}: {' '.join(words)}")
    return usage.ru_utime


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu_pairs", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--before", type=Path, required=True, help="a checkout of the older version"
    )
    parser.add_argument(
        "--after",
        type=Path,
        default=ROOT,
        help="a checkout of the newer version; default: this one",
    )
    parser.add_argument("--pairs", type=int, default=15, help="number of runs of each version")
    parser.add_argument(
        "--limit", type=float, default=1.05, help="largest acceptable median of the ratios"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=["*"],
        metavar="GLOB",
        help="run the jobs whose names match one",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
