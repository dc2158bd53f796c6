"""Jobs of Open MPI whose ranks may die, and the killing of them.

`make test-ft` runs the tests that need them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.helpers.harness import MPIEXEC, ROOT, Finished, Job

HANG_SECONDS = 60.0
ROOT_MAY = ["--allow-run-as-root"] if os.geteuid() == 0 else []
MANY = ["--oversubscribe", "--bind-to", "none", *ROOT_MAY]
ULFM = ["--with-ft", "ulfm", *MANY]
# looking for networks takes a second at each start
HERE = ["--mca", "pml", "ob1", "--mca", "btl", "self,sm"]


def open_mpi() -> bool:
    """Whether the launcher is Open MPI's."""
    if MPIEXEC is None:
        return False
    return (
        "Open MPI"
        in subprocess.run(
            [MPIEXEC, "--version"], capture_output=True, text=True, check=False
        ).stdout
    )


needs_ulfm = pytest.mark.skipif(
    not open_mpi(), reason="surviving dead ranks needs Open MPI: make test-ft"
)


def start(ranks: int, args: Sequence[str], launcher: Sequence[str] = (*ULFM, *HERE)) -> Job:
    """Start `python *args` on ranks that may die."""
    assert MPIEXEC
    return Job([MPIEXEC, *launcher, "-n", str(ranks), sys.executable, *args], cwd=ROOT)


def begin(ranks: int, run: Path, *arguments: str, launcher: Sequence[str] = (*ULFM, *HERE)) -> Job:
    """Start training of the tiny config with fault tolerance."""
    return start(ranks, runs.command(run, *arguments, "mpi.fault_tolerance=true"), launcher)


def trains(job: Job, run: Path, generation: int = 0) -> dict[int, int]:
    """Wait for this number of recorded generations; return the process of each rank,
    by its initial number.
    """
    job.wait_for_output("rank=host:pid", HANG_SECONDS)
    pids = job.pids()
    runs.wait_for(lambda: runs.generation(run) >= generation, HANG_SECONDS)
    return pids


def assert_survived(done: Finished, losses: int = 1) -> None:
    """Assert that the job ended with status 0 after the loss of the killed ranks."""
    assert done.status == 0 and not done.timed_out, str(done)
    assert done.stdout.count("WARNING: lost ") >= losses, str(done)
