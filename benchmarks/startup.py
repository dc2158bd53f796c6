"""Seconds from the start of a job on 3 ranks to its first generation."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.jobs import ROOT, command


def run() -> list[dict[str, Any]]:
    """Return one row per config: the median of three starts."""
    rows = []
    for config in ("es_cartpole", "es_halfcheetah"):
        seconds = median(started(ROOT / f"configs/{config}.yaml") for _ in range(3))
        rows.append({"config": config, "ranks": 3, "seconds": seconds, "target": 5.0, "met": seconds < 5})
    return rows


def started(config: Path) -> float:
    """Return the seconds until the run reports that it is running, which it does before generation 0."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "run"
        since = time.time()
        job = subprocess.Popen(
            command(3, config, output, "stop={generations: 1}", "evaluation.interval=0"),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not (output / "status.json").exists():
            if job.poll() is not None:
                raise RuntimeError(f"the job ended with status {job.returncode} before its first generation")
            time.sleep(0.01)
        seconds = (output / "status.json").stat().st_mtime - since
        job.wait(timeout=300)
        return seconds
