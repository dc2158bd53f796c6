"""slurm/train.sbatch: time limits and preemptions requeue the job; jobs without progress end."""

from __future__ import annotations

import time
from pathlib import Path

from tests.helpers import runs
from tests.helpers.harness import ROOT
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import Batch, sbatch, submit

GRACE_SECONDS = 30.0  # in the configuration of the cluster


def train(cluster: Cluster, run: Path, *options: str, overrides: tuple[str, ...] = ()) -> Batch:
    """Submit the script with two ranks per node; slow while the file `slow` exists."""
    slow = run.parent / "slow"
    slow.touch()
    changes = (
        "evaluation.interval=0",
        "checkpoint.interval=0",
        f"task.env_kwargs.pause_file={slow}",
        *overrides,
    )
    script = [str(ROOT / "slurm" / "train.sbatch"), str(runs.tiny(run.parent)), str(run), *changes]
    return sbatch(cluster, run.parent, script, "-N2", "--ntasks-per-node=2", *options)


def carries_on(batch: Batch, run: Path, reference: Path) -> None:
    """Assert that the requeued job had saved and reaches the same result."""
    batch.requeued(1)
    message = runs.status(run)
    assert message["status"] == "interrupted" and message["exit_status"] == 75, batch.text()
    assert message["generation"] == runs.newest(run).state.generation == runs.generation(run) > 0
    (run.parent / "slow").unlink()
    batch.start_now()
    batch.ends("COMPLETED")
    assert f"resumed from generation {message['generation']}" in batch.text()
    runs.assert_same(run, reference)


def test_job_is_requeued_at_its_time_limit(
    cluster: Cluster, shared: Path, unevaluated: Path, record_times: list[str]
) -> None:
    run = shared / "run"
    generations = ("stop.generations=30",)
    # SLURM may send the signal a minute early; in the first second it would meet a Python without
    # handlers
    batch = train(cluster, run, "--time=2", "--signal=B:USR1@50", overrides=generations)
    batch.says("interrupted by a signal")
    carries_on(batch, run, unevaluated)
    assert "DUE TO TIME LIMIT" not in batch.text()


def test_preempted_job_is_requeued(
    cluster: Cluster, shared: Path, unevaluated: Path, record_times: list[str]
) -> None:
    run = shared / "run"
    batch = train(cluster, run, "--exclusive", overrides=("stop.generations=30",))
    batch.wait_for(lambda: runs.generation(run) > 0, "a generation")
    (shared / "high").mkdir()
    other, since = (
        submit(cluster, shared / "high", "sleep 5", "-N2", "-phigh", "--exclusive"),
        time.monotonic(),
    )
    batch.wait_for(lambda: runs.status(run)["status"] == "interrupted", "a checkpoint")
    record_times.append(
        f"preemption: from its submission to the last checkpoint {time.monotonic() - since:.1f} s"
    )
    other.wait_for(lambda: other.state == "RUNNING", "the nodes")
    seconds = time.monotonic() - since
    record_times.append(f"preemption: from its submission to the other job's start {seconds:.1f} s")
    assert seconds < GRACE_SECONDS
    carries_on(batch, run, unevaluated)


def test_job_without_progress_is_not_requeued_forever(cluster: Cluster, shared: Path) -> None:
    run = shared / "run"
    # a generation takes minutes
    batch = train(cluster, run, overrides=("task.env_kwargs.pause_seconds=1",))
    for restart in range(4):
        batch.says("rank=host:pid", restart + 1)
        time.sleep(1)
        cluster.call("scancel", "--signal=TERM", batch.number)
        if restart < 3:
            batch.requeued(restart + 1)
            batch.start_now()
    batch.ends("FAILED")
    assert "3 restarts in a row have finished no generation" in batch.text(), batch.text()
    assert batch.restarts == 3 and runs.status(run)["status"] == "interrupted"
