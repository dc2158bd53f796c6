"""Commands and metrics of the jobs that benchmarks start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MPIEXEC = Path(sys.executable).parent / "mpiexec"


def command(ranks: int, config: Path, output: Path, *overrides: str) -> list[str]:
    """Return the command line of a job."""
    program = [
        sys.executable,
        "-m",
        "hpc_es.main",
        str(config),
        "--output",
        str(output),
        *overrides,
    ]
    return [str(MPIEXEC), "-n", str(ranks), *program]


def train(ranks: int, config: Path, output: Path, *overrides: str) -> list[dict[str, Any]]:
    """Run a job to its end; its metrics."""
    subprocess.run(
        command(ranks, config, output, *overrides),
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=900,
    )
    return metrics(output)


def metrics(output: Path) -> list[dict[str, Any]]:
    """Return the rows of a job's metrics.jsonl."""
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
