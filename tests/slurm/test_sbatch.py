"""`hpc-es sbatch` and what it submits: interrupted, cancelled, in an array, with a mistake; the
time limit is tested in test_scripts.py.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import yaml

from hpc_es.storage import results
from tests.helpers import runs
from tests.helpers.harness import ROOT
from tests.jobs.test_signals import APART_SECONDS
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import PYTHON, Batch

# the only checkpoint is that of the signal
ENDLESS = ("stop.generations=100000", "checkpoint.interval=0")
USR1 = ("scancel", "--batch", "--signal=USR1")  # to the batch shell, as --signal=B:USR1 sends it


def sbatch(cluster: Cluster, config: Path, *arguments: str) -> Batch:
    """Submit as a user does, from the directory of the config."""
    here = ("env", f"--chdir={config.parent}")
    number = cluster.call(*here, PYTHON, "-m", "hpc_es", "sbatch", config.name, *arguments).strip()
    return Batch(cluster, number, config.parent / f"{config.stem}-{number}.log")


def wait_for_generations(batch: Batch, run: Path, generations: int = 1) -> None:
    """Return when this number of generations is finished."""
    batch.wait_for(lambda: runs.generation(run) >= generations, f"{generations} generations")


def restarted(batch: Batch) -> None:
    """Wait for the requeue, and do not wait for the restart."""
    batch.requeued(1)
    batch.start_now()


def slow(directory: Path) -> str:
    """The override with which generations take seconds while the file exists."""
    (directory / "slow").touch()
    return f"task.env_kwargs.pause_file={directory}/slow"


def test_interrupted_job_saves_and_is_requeued(
    cluster: Cluster, shared: Path, reference: Path
) -> None:
    directory = shared / "a b's"  # quotes survive YAML, shell and sbatch
    config, run = runs.tiny(directory), directory / "runs" / "tiny"
    batch = sbatch(
        cluster,
        config,
        "stop.generations=150",
        "checkpoint.interval=0",
        slow(directory),
        "--nodes=2",
    )
    wait_for_generations(batch, run)
    cluster.call(*USR1, batch.number)
    batch.says("hpc-es requeue: ")
    assert runs.status(run)["status"] == "interrupted" and runs.generation(run) < 150
    (directory / "slow").unlink()
    restarted(batch)
    batch.ends("COMPLETED")
    assert "hpc-es requeue: " in batch.text() and "from generation" in batch.text()  # one log
    assert batch.restarts == 1
    runs.assert_same(run, reference)


def test_signal_to_ranks_and_batch_shell_saves_and_requeues(
    cluster: Cluster, shared: Path, reference: Path
) -> None:
    """Some sites preempt by SIGTERM to both: the shell must stay until the ranks have saved."""
    config, run = runs.tiny(shared), shared / "runs" / "tiny"
    batch = sbatch(cluster, config, "stop.generations=150", "checkpoint.interval=0", slow(shared))
    wait_for_generations(batch, run)
    for whom in (["--batch"], []):  # the shell alone; the ranks
        cluster.call("scancel", *whom, "--signal=TERM", batch.number)
    batch.says("hpc-es requeue: ")
    assert runs.status(run)["status"] == "interrupted"
    (shared / "slow").unlink()
    restarted(batch)
    batch.ends("COMPLETED")
    runs.assert_same(run, reference)


def test_killed_rank_ends_the_step_and_requeues_the_job(cluster: Cluster, shared: Path) -> None:
    run = shared / "runs" / "tiny"
    batch = sbatch(cluster, runs.tiny(shared), *ENDLESS)
    wait_for_generations(batch, run)
    os.kill(batch.pid(1), signal.SIGKILL)
    # without --kill-on-bad-exit the others would wait for it without end
    batch.says("hpc-es requeue: ", seconds=30)
    assert runs.newest(run).state.generation >= 1
    batch.requeued(1)


def test_rank_has_one_thread_per_core(cluster: Cluster, shared: Path) -> None:
    batch = sbatch(
        cluster, runs.tiny(shared), "stop.generations=1", "--ntasks-per-node=1", "--cpus-per-task=2"
    )
    batch.ends("COMPLETED")
    assert "blas_threads: 2" in (shared / "runs" / "tiny" / "config.yaml").read_text()


def test_cancelled_job_is_not_requeued(cluster: Cluster, shared: Path) -> None:
    run = shared / "runs" / "tiny"
    batch = sbatch(cluster, runs.tiny(shared), *ENDLESS)
    wait_for_generations(batch, run)
    cluster.call("scancel", batch.number)
    batch.ends("CANCELLED")
    batch.says("is COMPLETING: left to SLURM")
    time.sleep(1)  # for a requeue, if there were one
    assert batch.restarts == 0 and batch.state == "CANCELLED"
    assert runs.status(run)["status"] == "interrupted"  # and yet it has saved
    assert runs.newest(run).state.generation == runs.status(run)["generation"] > 0


@pytest.mark.parametrize("repetitions", [1, 2])
def test_long_generation_is_discarded_before_the_time_limit(
    repetitions: int, cluster: Cluster, shared: Path
) -> None:
    run = shared / "runs" / "tiny"
    long = (
        "algorithm.population_size=8000",
        f"task.env_kwargs.pause_file={shared}/slow",
        "--time=4",
    )
    batch = sbatch(cluster, runs.tiny(shared), *ENDLESS, *long, f"repetitions={repetitions}")
    (shared / "slow").touch()
    batch.says("name tiny")
    cluster.call(*USR1, batch.number)
    if repetitions > 1:
        time.sleep(APART_SECONDS)
        cluster.call(*USR1, batch.number)
    # 40 seconds later the script sends another; SLURM itself would after 120 to 180
    batch.says("given up", seconds=90)
    batch.says("interrupted after 0 generations: requeued")
    batch.requeued(1)
    assert (
        runs.status(run / "repetition_0000" if repetitions > 1 else run)["status"] == "interrupted"
    )


def test_job_with_a_user_error_is_not_requeued(cluster: Cluster, shared: Path) -> None:
    config = runs.tiny(shared)
    batch = sbatch(cluster, config, *ENDLESS)
    wait_for_generations(batch, shared / "runs" / "tiny")
    cluster.call(*USR1, batch.number)
    batch.says("interrupted after")
    config.write_text("seed: -1")  # and the status file still says interrupted
    restarted(batch)
    batch.ends("FAILED")
    batch.says("srun ended with status 2; see the messages above")
    assert "seed: expected a whole number" in batch.text() and batch.restarts == 1


def test_only_the_interrupted_array_task_is_requeued(cluster: Cluster, shared: Path) -> None:
    config, run = runs.tiny(shared), shared / "runs" / "tiny"
    overrides = ("repetitions=2", "stop.generations=20", "checkpoint.interval=0")
    array = sbatch(cluster, config, *overrides, slow(shared), "--array", "--ntasks-per-node=2")
    first, last = (
        Batch(cluster, f"{array.number}_{task}", shared / f"tiny-{array.number}_{task}.log")
        for task in (0, 1)
    )
    wait_for_generations(first, run / "repetition_0000")
    wait_for_generations(last, run / "repetition_0001")
    assert last.fields()["JobId"] == array.number  # its number is that of the whole array
    cluster.call(*USR1, last.number)
    last.says("hpc-es requeue: ")
    (shared / "slow").unlink()
    restarted(last)
    for task in (first, last):
        task.ends("COMPLETED")
    assert (first.restarts, last.restarts) == (0, 1)
    rows = [
        json.loads(line)
        for path in run.glob("results/*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert sorted(row["repetition"] for row in rows) == [0, 1]
    runs.finished(2, shared / "plain", "repetitions=2", "stop.generations=20")
    for row in results.read_results(shared / "plain"):
        (same,) = [other for other in rows if other["repetition"] == row["repetition"]]
        assert same["state_sha256"] == row["state_sha256"]
    assert json.loads((run / "status_1_of_2.json").read_text())["status"] == "finished"


def test_mpi_plugin_is_selected(cluster: Cluster) -> None:
    assert cluster.call(PYTHON, "-m", "hpc_es.mpi.plugin") == "pmi2\n"


@pytest.mark.parametrize("script", ["array_repetitions", "array_tune"])
def test_array_scripts_of_the_repository_run_unchanged(
    script: str, cluster: Cluster, shared: Path
) -> None:
    config, run = runs.tiny(shared), shared / "run"
    (shared / "tune.yaml").write_text("base: tiny.yaml\nspace: {algorithm.sigma: [0.1, 0.2]}\n")
    arguments = [str(shared / "tune.yaml")] if script == "array_tune" else [str(config)]
    several = [] if script == "array_tune" else ["repetitions=2"]
    path = f"PATH={Path(PYTHON).parent}:{cluster.environment['PATH']}"
    options = ("--parsable", "--array=0-1", "--ntasks-per-node=2", "--output=job_%a.log")
    command = (
        "env",
        f"--chdir={shared}",
        path,
        "sbatch",
        *options,
        str(ROOT / "slurm" / f"{script}.sbatch"),
    )
    number = cluster.call(*command, *arguments, str(run), *several).strip()
    for task in (0, 1):
        Batch(cluster, f"{number}_{task}", shared / f"job_{task}.log").ends("COMPLETED")
    for task in (0, 1):
        assert json.loads((run / f"status_{task}_of_2.json").read_text())["status"] == "finished"


def test_ranks_start_from_copies_of_the_environment(
    cluster: Cluster, shared: Path, reference: Path
) -> None:
    """A small one: a directory with links to the packages and the MPI library."""
    environment = shared / "environment"
    cluster.call(PYTHON, "-m", "venv", "--without-pip", str(environment))
    packages = Path(yaml.__file__).parent.parent
    (inside,) = environment.glob("lib/python*/site-packages")
    (inside / "there.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    # where mpi4py looks first; all but python3.x
    for library in Path(PYTHON).parents[1].glob("lib/[!p]*"):
        (environment / "lib" / library.name).symlink_to(library)
    config, run = runs.tiny(shared), shared / "run"
    options = (
        "--nodes",
        "2",
        "--ntasks-per-node",
        "2",
        "--time",
        "0:10:00",
        "--node-copy",
        "--output",
        str(run),
    )
    python = str(environment / "bin/python")
    here = ("env", f"--chdir={shared}")
    number = cluster.call(*here, python, "-m", "hpc_es", "sbatch", config.name, *options).strip()
    batch = Batch(cluster, number, shared / f"{config.stem}-{number}.log")
    batch.ends("COMPLETED")
    assert f"copies of {environment} on n[1-2]" in batch.output.read_text()
    runs.assert_same(run, reference)
