"""Number of files that a rank opens before its first generation: `python -m benchmarks.opens
[CONFIG ...]`.

`--checkout DIR` counts those of another version. Needs strace. Files below `sys.prefix` belong to
the virtual environment. Those of the kernel (/proc, /sys, /dev), most of which MPI reads, are not
on a disk. The others belong to Python, hpc_es and the system.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.jobs import MPIEXEC, ROOT

RANKS = 3
KERNEL = ("/proc/", "/sys/", "/dev/")
OPENED = re.compile(r'openat\([^"]*"([^"]+)".*\) = (-?\d+)')
TRACED = 'exec strace -f -e trace=openat -o "$0.$PMI_RANK" "$@"'


def main() -> int:
    """Print one row per config and rank."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.opens")
    parser.add_argument(
        "configs", nargs="*", default=["es_cartpole", "es_halfcheetah"], metavar="CONFIG"
    )
    parser.add_argument("--checkout", type=Path, default=ROOT, help="a checkout of another version")
    options = parser.parse_args()
    if shutil.which("strace") is None:
        sys.stderr.write("benchmarks.opens needs strace: apt install strace\n")
        return 2
    print(
        "| config | rank | files opened | of the kernel | of the environment | not found |\n|---|---|---|---|---|---|"
    )
    for config in options.configs:
        for rank, traced in enumerate(traces(options.checkout.resolve(), config)):
            if rank < 2:  # the others are like rank 1
                calls = [
                    match.groups() for match in map(OPENED.search, traced.splitlines()) if match
                ]
                opened = [path for path, result in calls if result != "-1"]
                kernel, inside = (
                    sum(path.startswith(start) for path in opened) for start in (KERNEL, sys.prefix)
                )
                missing = sum(
                    result == "-1" and not path.startswith(KERNEL) for path, result in calls
                )
                print(f"| {config} | {rank} | {len(opened)} | {kernel} | {inside} | {missing} |")
    return 0


def traces(checkout: Path, config: str) -> list[str]:
    """Return the output of strace for each rank of a job of one generation."""
    with tempfile.TemporaryDirectory() as directory:
        program = [
            sys.executable,
            "-m",
            "hpc_es.main",
            f"configs/{config}.yaml",
            "--output",
            f"{directory}/run",
        ]
        words = ["stop={generations: 1}", "evaluation.interval=0"]
        job = [
            str(MPIEXEC),
            "-n",
            str(RANKS),
            "sh",
            "-c",
            TRACED,
            f"{directory}/trace",
            *program,
            *words,
        ]
        subprocess.run(job, cwd=checkout, check=True, capture_output=True, timeout=300)
        return [
            Path(f"{directory}/trace.{rank}").read_text(errors="replace") for rank in range(RANKS)
        ]


if __name__ == "__main__":
    sys.exit(main())
