"""mpi.fault_tolerance with compiled episodes: identical results after the loss of a rank.

`make test-ft`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-ft")
from tests.helpers import runs
from tests.helpers.harness import Job
from tests.helpers.ulfm import HANG_SECONDS, assert_survived, needs_ulfm, start, trains
from tests.jobs.test_jax_episodes import TINY

START_SECONDS = 4 * HANG_SECONDS  # importing and compiling, on a machine where others run beside it
OPTIONS = ("stop.generations=300", "checkpoint.interval=50", "mpi.fault_tolerance=true")


def begin(ranks: int, run: Path) -> Job:
    """A job with Open MPI whose ranks may die."""
    config = run.parent / "tiny.yaml"
    config.write_text(TINY)
    return start(ranks, ["-m", "hpc_es.main", str(config), *OPTIONS, "--output", str(run)])


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank, undisturbed."""
    run = tmp_path_factory.mktemp("reference") / "run"
    with begin(1, run) as job:
        done = job.wait(START_SECONDS)
    assert done.status == 0, str(done)
    return run


@needs_ulfm
@pytest.mark.parametrize("rank", [0, 1])
def test_results_do_not_change_if_a_rank_dies(rank: int, reference: Path, tmp_path: Path) -> None:
    with begin(3, tmp_path / "run") as job:
        job.wait_for_output("rank=host:pid", START_SECONDS)
        pids = trains(job, tmp_path / "run", 20)
        os.kill(pids[rank], signal.SIGKILL)
        done = job.wait(START_SECONDS)
    assert_survived(done)
    runs.assert_same(tmp_path / "run", reference)
