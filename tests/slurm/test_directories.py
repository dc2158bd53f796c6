"""Run directories that are in use, read-only, removed or full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.helpers.harness import Finished
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import STEP_SECONDS, srun, step, submit

ENDLESS = ("stop.generations=1000000", "evaluation.interval=0", "checkpoint.interval=1")


def attempt(
    cluster: Cluster, run: Path, *options: str, tasks: int = 2, overrides: tuple[str, ...] = ()
) -> Finished:
    """A step that should end by itself."""
    with step(cluster, tasks, runs.command(run, *overrides), *options) as job:
        done = job.wait(90)
    assert not done.timed_out, str(done)
    return done


def test_second_job_on_a_directory_is_refused_with_the_owner(
    cluster: Cluster, shared: Path
) -> None:
    run = shared / "run"
    batch = submit(cluster, shared, srun(runs.command(run, *ENDLESS)), "-wn1", "-n2")
    batch.wait_for(lambda: runs.generation(run) > 0, "a generation")
    owner = json.loads((run / "lock").read_text())
    done = attempt(cluster, run, "-wn2", "-N1")
    assert done.status == 2 and "Traceback" not in done.stderr, str(done)
    said = next(line for line in done.stderr.splitlines() if "is in use by" in line)
    host = f"on host {'n1' if cluster.apart else owner['host']} (SLURM job {batch.number})"
    assert f"process {owner['pid']} {host}" in said and f"scancel {batch.number}" in said
    assert batch.state == "RUNNING"
    cluster.call("scancel", batch.number)
    batch.ends("CANCELLED")
    generations = runs.newest(run).state.generation + 1
    done = attempt(
        cluster, run, "-wn2", "-N1", overrides=(*ENDLESS, f"stop.generations={generations}")
    )
    assert done.status == 0, str(done)  # its lock went with it


@pytest.mark.usefixtures("apart")
def test_read_only_directory_is_refused_before_the_run(cluster: Cluster, shared: Path) -> None:
    cluster.on("n1", "mount", "--bind", str(shared), str(shared))
    cluster.on("n1", "mount", "-o", "remount,bind,ro", str(shared))
    done = attempt(cluster, shared / "run", "-N2")
    assert done.status == 2 and "generation 1" not in done.stdout, str(done)
    assert done.stderr.count("Read-only file system; choose another --output") == 1
    cluster.on("n1", "umount", str(shared))


@pytest.mark.usefixtures("apart")
def test_full_disk_ends_the_run_and_keeps_the_old_checkpoint(
    cluster: Cluster, shared: Path, unevaluated: Path
) -> None:
    run, kept = shared / "run", shared / "kept"
    run.mkdir()
    cluster.on("n1", "mount", "-t", "tmpfs", "-o", "size=1m", "small", str(run))
    overrides = ("evaluation.interval=0", "checkpoint.interval=1", "checkpoint.keep_last=1000")
    done = attempt(cluster, run, "-N2", overrides=(*overrides, "stop.generations=140"))
    assert done.status not in {0, 75} and "Traceback" not in done.stderr, str(done)
    assert "No space left on device; free space or raise the quota" in done.stderr
    cluster.on("n1", "cp", "-r", str(run), str(kept))
    cluster.on("n1", "umount", str(run))
    generations = runs.newest(kept).state.generation
    assert 3 < generations < 140
    runs.finished(2, kept, *overrides, f"stop.generations={generations + 2}")  # there is space here
    runs.assert_same(kept, unevaluated)


def test_removed_directory_ends_the_run(cluster: Cluster, shared: Path) -> None:
    run = shared / "run"
    with step(cluster, 3, runs.command(run, *ENDLESS)) as job:
        job.wait_for_output("rank=host:pid", 60)
        runs.wait_for(lambda: runs.generation(run) > 2, STEP_SECONDS)
        run.rename(shared / "elsewhere")
        done = job.wait(60)
    assert done.status not in {0, 75} and not done.timed_out, str(done)
    assert (
        "cannot be written: No such file or directory" in done.stderr
        and "Traceback" not in done.stderr
    )
    assert runs.newest(shared / "elsewhere").state.generation > 0


def test_parent_that_is_not_a_directory_is_refused_before_the_run(
    cluster: Cluster, shared: Path
) -> None:
    (shared / "scratch").write_text("not mounted")
    done = attempt(cluster, shared / "run", overrides=("--output", str(shared / "scratch" / "run")))
    assert done.status == 2 and "cannot be created: Not a directory" in done.stderr, str(done)
    assert not (shared / "run").exists()
