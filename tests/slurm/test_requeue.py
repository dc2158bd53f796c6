"""Jobs that are requeued or lose a node in a generation:
the same final theta on any number of nodes.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import Batch, srun, submit

INTERVAL = 3  # generations between checkpoints
GENERATIONS = 12


FEWER = "-n$((4 - 2 * ${SLURM_RESTART_COUNT:-0}))"  # tasks: 4, and 2 after a requeue


def started(cluster: Cluster, run: Path) -> Batch:
    """A batch job that hangs in generation 6 or later, after its last checkpoint."""
    slow = run.parent / "slow"
    overrides = (
        f"stop.generations={GENERATIONS}",
        f"checkpoint.interval={INTERVAL}",
        "evaluation.interval=0",
    )
    slowly = (f"task.env_kwargs.pause_file={slow}", "task.env_kwargs.pause_seconds=0.002")
    script = srun(runs.command(run, *overrides, *slowly)).replace("srun", f"srun {FEWER}", 1)
    batch = submit(cluster, run.parent, script, "-N2", "--ntasks-per-node=2", "--requeue")
    batch.wait_for(lambda: runs.generation(run) >= INTERVAL + 1, "generations")
    slow.touch()
    time.sleep(0.5)
    return batch


def comes_to_the_same(
    batch: Batch, run: Path, reference: Path, measured: list[str], what: str
) -> None:
    """Start again after the interruption, check that little was lost, and wait for the end."""
    batch.requeued(1)
    finished = runs.generation(run)
    assert finished < GENERATIONS, "it was not cut in the middle"
    (run.parent / "slow").unlink()
    since = time.monotonic()
    batch.start_now()
    batch.says("rank=host:pid", 2)
    # rows beyond the checkpoint are gone
    started_after, first = time.monotonic() - since, runs.generation(run)
    batch.wait_for(lambda: runs.generation(run) > first, "a generation")
    measured.append(
        f"{what}: job start to rank table {started_after:.1f} s, to first generation {time.monotonic() - since:.1f} s"
    )
    batch.ends("COMPLETED")
    lost = finished - int(re.findall(r"resumed from generation (\d+)", batch.text())[-1])
    assert 0 <= lost <= INTERVAL, batch.text()
    runs.assert_same(run, reference)


def test_job_requeued_in_a_generation_has_identical_results(
    cluster: Cluster, shared: Path, unevaluated: Path, record_times: list[str]
) -> None:
    batch = started(cluster, shared / "run")
    cluster.call("scontrol", "requeue", batch.number)
    comes_to_the_same(batch, shared / "run", unevaluated, record_times, "scontrol requeue")


@pytest.mark.usefixtures("apart")
def test_job_resumes_on_the_other_node_if_the_first_dies(
    cluster: Cluster, shared: Path, unevaluated: Path, record_times: list[str]
) -> None:
    batch = started(cluster, shared / "run")
    for pid in cluster.processes("n1"):  # rank 0, srun and the script among them
        os.kill(pid, signal.SIGKILL)
    cluster.call("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")
    batch.requeued(1)
    cluster.call("scontrol", "update", f"JobId={batch.number}", "NumNodes=1-1", "NumTasks=2")
    comes_to_the_same(batch, shared / "run", unevaluated, record_times, "node down")
    tables = [
        line.split()[1:] for line in batch.text().splitlines() if line.startswith("rank=host:pid")
    ]
    assert [[entry[2:4] for entry in table] for table in tables] == [
        ["n1", "n1", "n2", "n2"],
        ["n2", "n2"],
    ], tables
