"""`python -m hpc_es.main` under external failures, without a launcher,
and without an MPI library.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hpc_es.storage.checkpoint import load
from hpc_es.storage.checkpoint_directory import Store
from tests.helpers import runs
from tests.helpers.harness import ROOT, Finished, mpiexec, python, script

PROMPT_SECONDS = 10.0


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run of forty generations with a checkpoint of each."""
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.here(runs.tiny(run.parent), run, [*runs.EVERY, "stop.generations=40"])
    return run


# Alone.


def test_main_runs_without_a_launcher(reference: Path, tmp_path: Path) -> None:
    done = runs.finished(0, tmp_path / "run")
    assert (
        done.stderr == "" and "finished by stop.generations: 6 after 6 generations" in done.stdout
    )
    runs.assert_same(tmp_path / "run", reference)
    message = runs.status(tmp_path / "run")
    assert (message["status"], message["exit_status"], message["generation"]) == ("finished", 0, 6)


@pytest.mark.long
def test_main_without_an_mpi_library_runs_one_rank_with_a_note(
    reference: Path, tmp_path: Path
) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text(
        "raise ImportError('libmpi.so.12 is not here')\n"
    )
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = runs.train(0, tmp_path / "run", env=env)
    assert done.status == 0 and "mpi none: libmpi.so.12 is not here" in done.stdout, str(done)
    assert (
        "one rank, without MPI; for more ranks install MPICH: pip install 'hpc_es[mpi]'"
        in done.stdout
    )
    runs.assert_same(tmp_path / "run", reference)
    done = runs.train(2, tmp_path / "other", env=env)  # two masters of one directory
    assert (
        done.status == 2
        and "there is no MPI library here (libmpi.so.12 is not here)" in done.stderr
    ), str(done)
    assert not (tmp_path / "other").exists()


# A full disk.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 KB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount, and not in every container")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.long
def test_full_disk_ends_the_run_and_keeps_checkpoints(small_disk: Path, reference: Path) -> None:
    run = small_disk / "run"
    done = runs.train(3, run, *runs.EVERY, "stop.generations=40")
    assert done.status == 1 and not done.timed_out, str(done)
    assert done.stderr.count("No space left on device") == 1 and "Traceback" not in done.stderr, (
        done.stderr
    )
    assert str(run) in done.stderr and "free space" in done.stderr
    paths = Store(run / "checkpoints").paths()
    assert len(paths) > 3 and all(load(path) for path in paths)
    before = runs.newest(run).state.generation
    done = runs.train(2, run, *runs.EVERY, "stop.generations=40")
    assert done.status == 1 and "No space left on device" in done.stderr, str(done)  # still full
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    done = runs.finished(2, run, *runs.EVERY, "stop.generations=40")
    assert f"from generation {before}" in done.stdout
    runs.assert_same(run, reference)


LIMITED = """
    import resource, runpy
    from hpc_es.mpi.connect import connect
    connect()  # MPI needs files of its own
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))  # metrics.jsonl comes to that, a checkpoint does not
    runpy.run_module("hpc_es.main", run_name="__main__")
"""


@pytest.mark.long
def test_quota_that_truncates_a_row_ends_the_run(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = runs.command(run, "checkpoint.interval=5", "stop.generations=40")[2:]
    done = python([*script(LIMITED), *arguments], cwd=ROOT)
    said = "metrics.jsonl could not be written (File too large): free space"
    assert done.status == 1 and said in done.stderr, str(done)
    assert said in runs.status(run)["reason"] and runs.status(run)["status"] == "failed"
    assert not (run / "metrics.jsonl").read_bytes().endswith(b"\n")
    runs.finished(1, run, "checkpoint.interval=5", "stop.generations=40")
    runs.assert_same(run, reference)


# Episodes that fail.


@pytest.mark.parametrize("fault", ["raise", pytest.param("nan", marks=pytest.mark.long)])
def test_failed_episodes_do_not_depend_on_the_number_of_ranks(fault: str, tmp_path: Path) -> None:
    faulty = f"task.env_kwargs.fault={fault}"
    runs.here(runs.tiny(tmp_path), tmp_path / "alone", [faulty, "stop.generations=3"])
    done = runs.finished(3, tmp_path / "run", faulty, "stop.generations=3")
    runs.assert_same(tmp_path / "run", tmp_path / "alone")
    failed = [row["failed_episodes"] for row in runs.rows(tmp_path / "run")]
    # both halves of a pair meet the same seed
    assert sum(failed) > 0 and not any(count % 2 for count in failed)
    said = (
        "ValueError: the simulator diverged"
        if fault == "raise"
        else "ValueError: the return is nan"
    )
    assert said in done.stdout + done.stderr


@pytest.mark.long
def test_hanging_episode_is_dropped(tmp_path: Path) -> None:
    hanging = [
        "task.env_kwargs.fault=hang",
        "task.env_kwargs.every=6",
        "task.episode_timeout_seconds=0.5",
    ]
    done = runs.finished(
        2, tmp_path / "run", *hanging, "stop.generations=2", "evaluation.interval=0"
    )
    assert "took longer than task.episode_timeout_seconds: 0.5" in done.stdout + done.stderr
    assert sum(row["failed_episodes"] for row in runs.rows(tmp_path / "run")) > 0


def test_run_fails_with_a_reason_if_all_episodes_fail(tmp_path: Path) -> None:
    """Lines of different ranks are never mixed, because rank 0 writes them all."""
    # with others some end before step 3
    faults = ("task.env_kwargs.fault=raise", "task.env_kwargs.every=1", "seed=2")
    done = runs.train(3, tmp_path / "run", *faults)
    assert done.status == 1 and "Traceback" not in done.stderr, str(done)
    text = "all jobs of generation 1 failed; first failure: ValueError: the simulator diverged (trouble.py:"
    assert done.stderr.count("\n") == 1 and done.stderr.startswith(f"hpc_es: {text}")
    message = runs.status(tmp_path / "run")
    assert (message["status"], message["exit_status"]) == ("failed", 1) and message[
        "reason"
    ].startswith(text)
    last = done.stdout.splitlines()[-1]
    assert (
        last.startswith("failed after 1 generations, ")
        and ", 12 failed episodes  best evaluation " in last
    )
    # at the start, the first of its kind, and the last line
    assert done.stdout.count("the simulator diverged") == 3
    (entry,) = (tmp_path / "run" / "failures.log").read_text().split("=== ")[1:]
    assert (
        entry.startswith("ValueError at trouble.py:")
        and "Traceback (most recent call last)" in entry
    )


def test_failure_on_another_rank_is_logged_by_rank_0_with_its_traceback(tmp_path: Path) -> None:
    faults = ("task.env_kwargs.fault=raise", "task.env_kwargs.rank=2", "mpi.schedule=static")
    done = runs.finished(3, tmp_path / "run", *faults, "stop.generations=3")
    assert done.stderr == ""
    lines = [line for line in done.stdout.splitlines() if "the simulator diverged" in line]
    assert len(lines) == 1 and lines[0].startswith("[rank 2] generation 1: ")
    entry = (tmp_path / "run" / "failures.log").read_text()
    assert (
        entry.count("=== ") == 1
        and "raise ValueError" in entry
        and "[rank 2] generation 1: " in entry
    )
    failed = sum(row["failed_episodes"] for row in runs.rows(tmp_path / "run"))
    assert runs.status(tmp_path / "run")["failed_episodes"] == failed > 0
    assert f", {failed} failed episodes" in done.stdout.splitlines()[-1]


# One rank fails: the others must not wait for it.


def ended(done: Finished, rank: int, *texts: str) -> None:
    """Assert that the job failed soon and the lines with the reason name the rank."""
    assert done.status not in {0, 2, 75} and not done.timed_out and done.seconds < PROMPT_SECONDS, (
        str(done)
    )
    for text in texts:
        assert any(
            text in line and f"[rank {rank} of 3 on " in line for line in done.stderr.splitlines()
        ), str(done)


@pytest.mark.parametrize("fault", ["raise", pytest.param("hang", marks=pytest.mark.long)])
def test_on_failure_abort_ends_all_ranks(fault: str, tmp_path: Path) -> None:
    aborting = [
        "task.on_failed_episode=abort",
        "task.env_kwargs.rank=1",
        "task.episode_timeout_seconds=1",
    ]
    done = runs.train(3, tmp_path / "run", *aborting, f"task.env_kwargs.fault={fault}")
    why = (
        "ValueError: the simulator diverged"
        if fault == "raise"
        else "EpisodeTimeout: the episode took longer"
    )
    ended(done, 1, "an episode failed and task.on_failed_episode is abort", why)
    assert "Traceback" not in done.stderr
    message = runs.status(tmp_path / "run")
    assert (message["status"], message["exit_status"]) == ("failed", 1)
    assert message["reason"].startswith("rank 1: an episode failed") and why in message["reason"]


BROKEN = """
    import runpy
    from {module} import {name} as owner
    def broken(*_, **__):
        raise MemoryError
    owner.{method} = broken
    runpy.run_module("hpc_es.main", run_name="__main__")
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ranks", [0, 3])
@pytest.mark.parametrize(
    ("module", "name", "method"),
    [
        ("hpc_es.algorithms.es", "EvolutionStrategy", "tell"),
        ("hpc_es.training.run_writer", "TriggerList", "__call__"),
        ("hpc_es.training.run_writer", "RunWriter", "result"),
    ],
)
def test_status_file_has_the_reason_of_any_failure(
    module: str, name: str, method: str, ranks: int, tmp_path: Path
) -> None:
    code = script(BROKEN.format(module=module, name=name, method=method))
    arguments = [*code, *runs.command(tmp_path / "run")[2:]]
    done = mpiexec(ranks, arguments, cwd=ROOT) if ranks else python(arguments, cwd=ROOT)
    assert done.status != 0 and not done.timed_out, str(done)
    message = runs.status(tmp_path / "run")
    assert (message["status"], message["exit_status"]) == ("failed", 1) and message[
        "reason"
    ].endswith("MemoryError")


@pytest.mark.parametrize("ranks", [0, 3])
def test_non_finite_theta_ends_the_run_and_is_not_saved(ranks: int, tmp_path: Path) -> None:
    run, steep = tmp_path / "run", "algorithm.optimizer.learning_rate=1e39"  # infinite in float32
    done = runs.train(ranks, run, steep, "checkpoint.interval=1")
    assert done.status == 1 and "Traceback" not in done.stderr, str(done)
    said = "theta is not finite after generation 1: lower algorithm.optimizer.learning_rate"
    assert done.stderr.count(said) == 1 and said in runs.status(run)["reason"]
    assert runs.status(run)["status"] == "failed"
    assert (
        runs.newest(run).state.generation == 0 and np.isfinite(runs.newest(run).state.theta).all()
    )


def test_failed_import_of_an_environment_on_one_rank_ends_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "lame.py").write_text(
        "import os\nimport tests.helpers.trouble\n"
        "if os.environ['PMI_RANK'] == '2':\n    raise ImportError('libsimulator.so.3 is not on this node')\n"
    )
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = runs.train(3, tmp_path / "run", "task.env_id=lame:Rough-v0", env=env)
    assert done.status != 0 and done.seconds < PROMPT_SECONDS, str(done)
    said = [line for line in done.stderr.splitlines() if "[rank 2 of 3 on " in line]
    assert any("libsimulator.so.3 is not on this node" in line for line in said), done.stderr


BROKEN_POLICY = """
    import os, runpy
    from hpc_es.policies.mlp import MLPActor

    act = MLPActor.act
    def broken(self, observations):
        if os.environ["PMI_RANK"] == "{rank}":
            raise FloatingPointError("overflow in the policy")
        return act(self, observations)
    MLPActor.act = broken
    runpy.run_module("hpc_es.main", run_name="__main__")
"""


@pytest.mark.parametrize("rank", [0, 2])
def test_exception_of_a_policy_on_one_rank_ends_all_ranks(rank: int, tmp_path: Path) -> None:
    args = [*script(BROKEN_POLICY.format(rank=rank)), *runs.command(tmp_path / "run")[2:]]
    done = mpiexec(3, args, cwd=ROOT)
    ended(done, rank, "FloatingPointError: overflow in the policy", "Traceback")
    assert runs.newest(tmp_path / "run").state.generation == 0
