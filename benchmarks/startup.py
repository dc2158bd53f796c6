"""Start-up of a job: seconds to its first generation, and the processor time of each rank.

    python -m benchmarks startup                                          3 ranks, beside the target
    git clone . ../before && git -C ../before checkout before-house
    python -m benchmarks.startup --before ../before --ranks 64 --pairs 5  beside an older version

Processor time is that of the whole job of one generation, divided by the number of ranks. Byte code
is stored in a temporary directory, by a first job that does not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.jobs import ROOT, command
from benchmarks.same_bits_runs import Checkout

CONFIGS = ("es_cartpole", "es_halfcheetah")
ONE_GENERATION = (
    "stop={generations: 1}",
    "evaluation.interval=0",
    "report.plot_interval_seconds=0",
)


class Start(NamedTuple):
    """The start of a job."""

    seconds: float  # until the run reports that it is running, which it does before generation 0
    user: float  # seconds of processor time per rank, up to the end of the job
    system: float


def run() -> list[dict[str, Any]]:
    """Return one row per config: the median of three starts."""
    rows = []
    for config in CONFIGS:
        seconds = median(started(ROOT / f"configs/{config}.yaml").seconds for _ in range(3))
        rows.append(
            {"config": config, "ranks": 3, "seconds": seconds, "target": 5.0, "met": seconds < 5}
        )
    return rows


def started(config: Path, ranks: int = 3, environment: Mapping[str, str] | None = None) -> Start:
    """Run a job of one generation and return how it started."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "run"
        since = time.time()
        job = subprocess.Popen(
            command(ranks, config, output, *ONE_GENERATION),
            cwd=directory if environment else ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        status = output / "status.json"
        while not status.exists():
            if job.poll() is not None:
                raise RuntimeError(
                    f"the job ended with status {job.returncode} before its first generation"
                )
            time.sleep(0.01)
        seconds = status.stat().st_mtime - since
        _, code, usage = os.wait4(job.pid, 0)
        job.returncode = os.waitstatus_to_exitcode(code)
        if job.returncode:
            raise RuntimeError(f"the job ended with status {job.returncode}")
        return Start(seconds, usage.ru_utime / ranks, usage.ru_stime / ranks)


def main() -> int:
    """Print one row per config and number of ranks: medians before and after,
    and of the ratios of pairs.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup")
    parser.add_argument(
        "configs", nargs="*", default=["es_cartpole", "cma_function"], metavar="CONFIG"
    )
    parser.add_argument(
        "--before", type=Path, required=True, help="a checkout of the older version"
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[64])
    parser.add_argument("--pairs", type=int, default=5, help="number of jobs of each version")
    options = parser.parse_args()
    checkouts = [Checkout(path.resolve(), 1) for path in (options.before, ROOT)]
    print(f"before {checkouts[0].label()}, after {checkouts[1].label()}, {options.pairs} pairs\n")
    print(
        "| config | ranks | user CPU s per rank, before | after | ratio | s to the start, before | after |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as byte_code:
        for config in options.configs:
            path = checkouts[0].path / f"configs/{config}.yaml"  # both versions can read it
            _pair(checkouts, path, 3, byte_code)
            for ranks in options.ranks:
                pairs = [_pair(checkouts, path, ranks, byte_code) for _ in range(options.pairs)]
                ratio = median(after.user / before.user for before, after in pairs)
                user, seconds = (
                    [median(getattr(pair[which], name) for pair in pairs) for which in (0, 1)]
                    for name in ("user", "seconds")
                )
                cells = f"{user[0]:.3f} | {user[1]:.3f} | {ratio:.2f} | {seconds[0]:.1f} | {seconds[1]:.1f}"
                print(f"| {config} | {ranks} | {cells} |", flush=True)
    return 0


def _pair(
    checkouts: Sequence[Checkout], config: Path, ranks: int, byte_code: str
) -> tuple[Start, Start]:
    """Return the start of a job before and after."""
    # an empty value means: write it
    storing = {"PYTHONPYCACHEPREFIX": byte_code, "PYTHONDONTWRITEBYTECODE": ""}
    before, after = (
        started(config, ranks, {**checkout.environment(), **storing}) for checkout in checkouts
    )
    return before, after


if __name__ == "__main__":
    sys.exit(main())
