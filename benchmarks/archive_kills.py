"""Archives after many kills: digests of runs that were killed at random moments.

    python -m benchmarks.archive_kills                 # 100 kills
    python -m benchmarks.archive_kills --kills 5 --only dms

A small noisy function with measures. For each algorithm a run without interruption on one rank is
the reference. Then runs are started on one to three ranks, a random one of them is killed (-9) at a
random moment, and the next start resumes, on another number of ranks. A run that gets to its end is
compared and the next one begins. Prints a table; the exit status is 1 if a digest differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.jobs import ROOT, command
from benchmarks.quality_diversity import ONE_THREAD

FUNCTION = """
import time
import numpy as np

def f(x, seed):
    time.sleep(0.002)
    noise = 0.1 * np.random.default_rng(seed).standard_normal()
    return {"value": float(((x - 0.3) ** 2).sum() + noise), "measures": [x[0], np.tanh(x[1:]).mean()]}
"""
CONFIG = """
task: {kind: function, function: "here:f", dimension: 6, initial: 0.0, measures: {a: [-1, 1], b: [-1, 1]}}
algorithm: {%s}
checkpoint: {interval: 1, full_interval: 5}
report: {plot_interval_seconds: 0}
stop: {generations: 30}
seed: 4
"""
KINDS = {
    "map_elites": "kind: map_elites, population_size: 20, sigma: 0.3, archive: {cells: [8, 8]}",
    "cma_me": "kind: cma_me, population_size: 6, emitters: {improvement: 2, random_direction: 1}, "
    "sigma: 0.3, archive: {cells: [8, 8]}",
    "cma_mae": "kind: cma_mae, population_size: 6, emitters: 3, sigma: 0.3, "
    "archive: {cells: [8, 8], threshold_min: -9}",
    "dms": "kind: dms, population_size: 6, emitters: 3, sigma: 0.3, threshold_min: -9, "
    "threshold_max: 0, archive: {cells: [8, 8]}, discount: {hidden: [16]}",
}
ENVIRONMENT = {**os.environ, **ONE_THREAD}


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process has started, and theirs."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in map(int, children):
        yield child
        yield from descendants(child)


def ranks_of(job: subprocess.Popen[bytes]) -> list[int]:
    """Return the processes of the ranks of a job."""
    found = []
    for pid in descendants(job.pid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"hpc_es.main" in words and b"mpiexec" not in words and b"hydra" not in words:
            found.append(pid)
    return found


def digest(run: Path) -> tuple[str, str] | None:
    """Return what must be equal of a finished run; None if it has not finished."""
    result = run / "result.json"
    if not result.is_file():
        return None
    table = hashlib.sha256((run / "archive.csv").read_bytes()).hexdigest()
    return json.loads(result.read_text())["state_sha256"], table


def killed(words: Sequence[str], run: Path, chance: random.Random, longest: float) -> bool:
    """Start a job and kill one of its ranks; whether it was still running."""
    before = sum(1 for _ in run.glob("checkpoints/*")) if run.exists() else 0
    with subprocess.Popen(
        words, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as job:
        until = time.monotonic() + 120
        # Imports take longest; the moment is counted from the first change that is not theirs.
        while job.poll() is None and time.monotonic() < until:
            if (run / "lock").exists() and (before == 0 or ranks_of(job)):
                break
            time.sleep(0.02)
        time.sleep(chance.uniform(0, longest))
        pids = ranks_of(job)
        if job.poll() is not None or not pids:
            job.wait()
            return False
        os.kill(chance.choice(pids), signal.SIGKILL)
        job.wait()
    return True


def kind_of_kills(kind: str, kills: int, directory: Path, chance: random.Random) -> tuple[int, int]:
    """Return how many runs of a kind came to their end after kills, and how many differ."""
    directory.mkdir()
    (directory / "here.py").write_text(FUNCTION)
    config = directory / "c.yaml"
    config.write_text(CONFIG % KINDS[kind])
    since = time.monotonic()
    subprocess.run(
        command(1, config, directory / "whole"),
        cwd=ROOT,
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
    )
    longest = time.monotonic() - since  # with its start, so that some kills are near the end
    expected, made, ended, different, number = digest(directory / "whole"), 0, 0, 0, 0
    assert expected is not None
    while made < kills:
        run = directory / f"run_{number}"
        made += killed(command(chance.randint(1, 3), config, run), run, chance, longest)
        if made == kills:
            subprocess.run(
                command(chance.randint(1, 3), config, run),
                cwd=ROOT,
                env=ENVIRONMENT,
                check=True,
                capture_output=True,
            )
        if (found := digest(run)) is not None:
            ended, number = ended + 1, number + 1
            different += found != expected
    return ended, different


def main() -> int:
    """Print the table; the exit status is 1 if something differs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.archive_kills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=100, help="of all algorithms together")
    parser.add_argument("--only", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    options = parser.parse_args()
    print("| algorithm | kills | finished runs | that differ |\n|---|---|---|---|")
    wrong = 0
    for index, kind in enumerate(options.only):
        kills = options.kills // len(options.only) + (index < options.kills % len(options.only))
        with tempfile.TemporaryDirectory() as directory:
            chance = random.Random(f"{options.seed} {kind}")
            ended, different = kind_of_kills(kind, kills, Path(directory) / kind, chance)
        wrong += different
        print(f"| `{kind}` | {kills} | {ended} | {different} |", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
