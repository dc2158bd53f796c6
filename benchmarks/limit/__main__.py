"""How much of the speed of a bare loop a whole job reaches, with default settings.

    python -m benchmarks.limit                               every path that is installed
    python -m benchmarks.limit --paths numpy --ranks 1 2     some of them, also on two ranks

A bare loop (`benchmarks/limit/bare.py`) does the work of one process and nothing else. It runs in a
process of its own; where the number of candidates in a call matters, the fastest counts. On two
ranks the job is compared with two bare loops side by side. Jobs and loops alternate, and ratios are
medians over rounds. MuJoCo is compared with `mj_step` by `python -m benchmarks mujoco`.

The last columns say where the ranks' time goes, as shares of a generation: episodes or evaluations
without the policy, the policy, waiting for other ranks, the update with its noise, and messages.
What is left belongs to candidates, rows and files.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.jobs import ROOT, command, metrics
from benchmarks.limit.works import PATHS, Work

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
SHARES = (
    "time_environment_mean",
    "time_policy_mean",
    "time_idle_mean",
    "time_update_mean",
    "time_messages_mean",
)


def environment() -> dict[str, str]:
    """Return the environment of loops and jobs, which find this package."""
    return {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}


def bare(work: Work, processes: int, seconds: float) -> float:
    """Return the units per second of bare loops side by side, each on a part of the work."""
    best = 0.0
    for block in work.blocks or (0,):
        arguments: dict[str, Any] = dict(work.arguments)
        if block:
            arguments |= {"block": block} if "jobs" in arguments else {"jobs": block}
        if block > arguments.get("jobs", block):
            continue
        line = [sys.executable, "-m", "benchmarks.limit.bare", work.loop, json.dumps(arguments)]
        line += ["--seconds", str(seconds)]
        pinned = [[*pin(number, processes), *line] for number in range(processes)]
        started = [
            subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True)
            for words in pinned
        ]
        printed = [process.communicate(timeout=900)[0] for process in started]
        if any(process.returncode for process in started):
            raise RuntimeError(f"a loop failed: {line}")
        best = max(best, sum(json.loads(text.splitlines()[-1])["rate"] for text in printed))
    return best


def pin(number: int, processes: int) -> list[str]:
    """Return the words that bind a process to a core, as jobs are if there are several ranks."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[number % len(cores)])] if processes <= len(cores) else []


def job(work: Work, ranks: int, seconds: float) -> tuple[float, dict[str, float]]:
    """Return the units per second of a job without its first quarter,
    and the shares of rank 0's time.
    """
    with tempfile.TemporaryDirectory() as directory:
        config, output = Path(directory) / "limit.yaml", Path(directory) / "run"
        config.write_text(yaml.safe_dump({**work.config, "stop": {"seconds": seconds}}), "utf-8")
        line = [*(pin(0, 1) if ranks == 1 else []), *command(ranks, config, output)]
        ran = subprocess.run(
            line,
            cwd=directory,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if ran.returncode:
            raise RuntimeError(f"the job of {work.name} failed:\n{ran.stdout}{ran.stderr}")
        rows = metrics(output)
    times = [row["seconds_this_generation"] for row in rows]
    passed, counted = 0.0, []
    for row, time_ in zip(rows, times, strict=True):
        passed += time_
        if passed > sum(times) / 4:
            counted.append(row)
    total = sum(row["seconds_this_generation"] for row in counted)
    shares = {name: sum(row.get(name, 0.0) for row in counted) / total for name in SHARES}
    return sum(row[work.unit] for row in counted) / total, shares


def measured(work: Work, ranks: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Return a row of the table."""
    loops, jobs, shares = [], [], []
    for _ in range(rounds):
        loops.append(bare(work, ranks, seconds))
        speed, own = job(work, ranks, seconds)
        jobs.append(speed)
        shares.append(own)
    ratios = [speed / loop for speed, loop in zip(jobs, loops, strict=True)]
    row = {
        "path": work.path,
        "work": work.name,
        "ranks": ranks,
        "bare": median(loops),
        "job": median(jobs),
    }
    row |= {
        "ratio": median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "target": work.target,
    }
    return row | {name: median(one[name] for one in shares) for name in SHARES}


def text(row: dict[str, Any]) -> str:
    """Return a row of the table as Markdown."""
    spread = f"{row['ratio']:.2f} ({row['lowest']:.2f} to {row['highest']:.2f})"
    shares = [f"{100 * row[name]:.0f} %" for name in SHARES]
    numbers = [f"{row['bare']:,.0f}", f"{row['job']:,.0f}", spread, f"{row['target']:.2f}", *shares]
    return f"| {' | '.join([row['path'], row['work'], str(row['ranks']), *numbers])} |"


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limit")
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of work")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a loop and of a job")
    parser.add_argument("--csv", type=Path, help="file for the rows")
    options = parser.parse_args(words)
    print(
        "| path | work | ranks | bare loop, per s | job, per s | ratio (range) | target "
        "| evaluating | policy | waiting | update | messages |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    rows = []
    for path in options.paths:
        for work in PATHS[path]():
            if options.only and not any(part in work.name for part in options.only):
                continue
            for ranks in options.ranks:
                rows.append(measured(work, ranks, options.rounds, options.seconds))
                print(text(rows[-1]), flush=True)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
