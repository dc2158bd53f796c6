"""Memory of a rank in addition to the interpreter and the environments,
without the shared noise table.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.jobs import ROOT, command

BARE = (
    "import gymnasium, numpy, sys; "
    "envs = [gymnasium.make('HalfCheetah-v5') for _ in range(16)]; [e.reset() for e in envs]; "
    "import psutil; print(psutil.Process().memory_full_info().uss)"
)


def run() -> list[dict[str, Any]]:
    """Return the largest private memory (USS, without shared
    pages) of 3 ranks during some generations.
    """
    bare = (
        int(
            subprocess.run(
                [sys.executable, "-c", BARE], capture_output=True, text=True, check=True
            ).stdout
        )
        / 1e6
    )
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "run"
        config = ROOT / "configs/es_halfcheetah.yaml"
        arguments = ("stop={generations: 4}", "evaluation.interval=0", "mpi.chunk_size=16")
        job = subprocess.Popen(
            command(3, config, output, *arguments), cwd=ROOT, stdout=subprocess.DEVNULL
        )
        largest = 0.0
        while job.poll() is None:
            largest = max([largest, *ranks_megabytes(job.pid)])
            time.sleep(0.2)
    beyond = largest - bare
    return [
        {
            "bare_mb": bare,
            "rank_mb": largest,
            "beyond_mb": beyond,
            "target": 150.0,
            "met": beyond < 150,
        }
    ]


def ranks_megabytes(launcher: int) -> list[float]:
    """Return the private memory of each rank of a job."""
    sizes = []
    try:
        for process in psutil.Process(launcher).children(recursive=True):
            if "hpc_es.main" in process.cmdline():
                sizes.append(process.memory_full_info().uss / 1e6)
    except psutil.Error:
        return sizes  # a process has just ended
    return sizes
