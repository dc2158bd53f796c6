"""Resuming: identical results and metrics; different experiments and damaged files are refused."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpc_es.storage.checkpoint import load, save
from hpc_es.storage.checkpoint_directory import Store
from tests.helpers import runs
from tests.helpers.harness import Finished

NORMALISED = (
    "task.observation_normalization.enabled=true",
    "task.observation_normalization.probability=0.5",
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run of eight generations with a checkpoint of each."""
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.finished(1, run, *runs.EVERY, *NORMALISED, "stop.generations=8")
    return run


@pytest.fixture
def stopped(reference: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, at generation 8."""
    return Path(shutil.copytree(reference, tmp_path / "run"))


def checkpoint(run: Path, generation: int) -> Path:
    return run / "checkpoints" / f"checkpoint_{generation:010d}.h5"


def again(run: Path, *arguments: str, env: dict[str, str] | None = None) -> Finished:
    """Start once more with the same config on one rank."""
    return runs.train(0, run, *NORMALISED, *arguments, env=env)


def test_stopped_run_resumes_with_identical_results_on_other_ranks(
    reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    runs.finished(2, run, *NORMALISED, "stop.generations=3")
    done = runs.finished(
        3, run, *NORMALISED, "stop.generations=5", "mpi.schedule=static", "checkpoint.interval=0"
    )
    assert "from generation 3" in done.stdout
    runs.finished(1, run, *NORMALISED, "stop.generations=8", "mpi.master_evaluates=false")
    runs.assert_same(run, reference)
    evaluated = [row["generation"] for row in runs.rows(run) if row["evaluation_episodes"]]
    assert evaluated == [0, 2, 4, 6]
    assert runs.newest(run).counters["timesteps"] == runs.newest(reference).counters["timesteps"]
    assert [row["ranks"] for row in _ranks(run)] == [2, 2, 2, 3, 3, 1, 1, 1]


def _ranks(run: Path) -> list[dict[str, float]]:
    from hpc_es.storage import metrics_log as metrics

    return [{"ranks": row["ranks"] or 0} for row in metrics.read_metrics(run)]


@pytest.mark.parametrize("kind", ["sgd", pytest.param("none", marks=pytest.mark.long)])
def test_every_optimizer_resumes_with_identical_results(kind: str, tmp_path: Path) -> None:
    optimizer = f"algorithm.optimizer.kind={kind}"
    runs.finished(0, tmp_path / "whole", optimizer, "stop.generations=4")
    runs.finished(0, tmp_path / "run", optimizer, "stop.generations=2")
    runs.finished(0, tmp_path / "run", optimizer, "stop.generations=4", "seed=1")
    runs.assert_same(tmp_path / "run", tmp_path / "whole")


def test_missing_metrics_table_is_written_again_with_a_warning(
    reference: Path, stopped: Path
) -> None:
    (stopped / "log.csv").unlink()
    done = again(stopped, "stop.generations=8")
    assert (
        done.status == 0 and "log.csv is missing: it is written again" in done.stdout + done.stderr
    ), str(done)
    runs.assert_same(stopped, reference)


def test_rows_after_the_last_checkpoint_are_removed(reference: Path, stopped: Path) -> None:
    for generation in (6, 7, 8):
        checkpoint(stopped, generation).unlink()
    assert len(runs.rows(stopped)) == 8
    with (stopped / "metrics.jsonl").open("a") as file:
        file.write('{"generation": 8, "return_m')  # as a kill leaves it
    done = again(stopped, "stop.generations=7")
    assert done.status == 0 and "from generation 5" in done.stdout, str(done)
    runs.assert_same(stopped, reference)
    assert len(runs.rows(stopped)) == len(runs.table(stopped)) == 7


def test_restarted_finished_run_ends_at_once_and_changes_no_file(stopped: Path) -> None:
    before = runs.files(stopped)
    done = again(stopped, *runs.EVERY, "stop.generations=8")
    assert done.status == 0 and "finished" in done.stdout, str(done)
    after = runs.files(stopped)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed <= {"status.json", "config.yaml"}  # with the numbers of this start
    assert runs.status(stopped)["status"] == "finished" and runs.status(stopped)["generation"] == 8


def test_resume_never_refuses_a_used_directory(stopped: Path) -> None:
    before = runs.files(stopped)
    done = again(stopped, "--resume", "never")
    assert (
        done.status == 2 and "already holds a run" in done.stderr and "Traceback" not in done.stderr
    ), str(done)
    assert runs.files(stopped) == before


def test_resume_require_refuses_a_new_directory(tmp_path: Path) -> None:
    done = again(tmp_path / "run", "--resume", "require")
    assert done.status == 2 and "there is no checkpoint in" in done.stderr, str(done)
    assert again(tmp_path / "run", "stop.generations=1").status == 0


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            ["policy.hidden_dims=[9]", "task.env_id=Pendulum-v1", "seed=2"],
            [
                "seed: 1 in the checkpoint, 2 in the config",
                "task.env_id: tests.helpers.trouble:Rough-v0 in the checkpoint, Pendulum-v1 in the config",
                "policy.hidden_dims: [8] in the checkpoint, [9] in the config",
            ],
        ),
        (
            ["algorithm.population_size=14", "noise={kind: counter}", "mpi.chunk_size=3"],
            [
                "algorithm.population_size: 12 in the checkpoint, 14 in the config",
                "noise.kind: table in the checkpoint, counter in the config",
                "noise.table_size: 20000 in the checkpoint, nothing in the config",
            ],
        ),
        (
            ["algorithm.optimizer.kind=sgd", "algorithm.sigma=0.2", "noise.table_size=30_000"],
            [
                "algorithm.sigma: 0.1 in the checkpoint, 0.2 in the config",
                "algorithm.optimizer.kind: adam in the checkpoint, sgd in the config",
                "noise.table_size: 20000 in the checkpoint, 30000 in the config",
            ],
        ),
    ],
)
def test_different_experiment_is_refused_with_the_changed_keys(
    stopped: Path, changes: list[str], lines: list[str]
) -> None:
    before = runs.files(stopped)
    done = again(stopped, *changes)
    assert done.status == 2 and "Traceback" not in done.stderr, str(done)
    message = [line.strip() for line in done.stderr.splitlines()]
    assert [line for line in message if "in the checkpoint" in line] == lines
    assert runs.files(stopped) == before


def test_different_number_of_blas_threads_is_refused(stopped: Path) -> None:
    done = again(stopped, env={"OMP_NUM_THREADS": "2"})
    assert done.status == 2, str(done)
    assert "blas_threads: 1 in the checkpoint, 2 in the config" in done.stderr


@pytest.mark.parametrize("damage", ["truncated", "bit flipped"])
def test_damaged_newest_checkpoint_is_reported_and_set_aside(
    damage: str, reference: Path, stopped: Path
) -> None:
    path = checkpoint(stopped, 8)
    whole = path.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    path.write_bytes(whole[:-100] if damage == "truncated" else flipped)
    done = again(stopped, *runs.EVERY, "stop.generations=8")
    assert done.status == 0 and "from generation 7" in done.stdout, str(done)
    assert re.search(
        rf"WARNING: .*{path.name}: damaged: .*continuing from {checkpoint(stopped, 7).name}",
        done.stdout,
    )
    assert path.with_name(path.name + ".damaged").exists()
    runs.assert_same(stopped, reference)


def test_directory_with_damaged_checkpoints_only_is_refused(stopped: Path) -> None:
    for path in Store(stopped / "checkpoints").paths():
        path.write_bytes(path.read_bytes()[:700])
    before = runs.files(stopped)
    done = again(stopped)
    assert done.status == 2 and "every checkpoint is damaged" in done.stderr, str(done)
    assert runs.files(stopped) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            b"\x89HDF\r\n\x1a\n of somebody else" + bytes(1000),
            "not a checkpoint of hpc_es: it begins with",
        ),
        (None, "format 3, but this hpc_es reads up to 2"),
    ],
)
def test_checkpoints_of_other_formats_are_refused(
    stopped: Path, text: bytes | None, said: str
) -> None:
    import hashlib

    path = checkpoint(stopped, 8)
    if text is None:  # as a later version would seal it
        whole = path.read_bytes()
        sealed = whole[:447].replace(b"format 1", b"format 3")
        text = sealed + hashlib.sha256(sealed).hexdigest().encode() + b"\n" + whole[512:]
    path.write_bytes(text)
    done = again(stopped)
    assert done.status == 2 and said in done.stderr and path.name in done.stderr, str(done)


@pytest.mark.parametrize("which", ["run", "checkpoint"])
def test_init_from_starts_with_the_theta_and_statistics_of_the_source(
    which: str, reference: Path, tmp_path: Path
) -> None:
    source = reference if which == "run" else checkpoint(reference, 5)
    done = again(tmp_path / "run", f"policy.init_from={source}", "stop.generations=0")
    assert done.status == 0, str(done)
    expected, result = runs.load(runs.find(source)).state, runs.newest(tmp_path / "run").state
    assert result.generation == 0 and result.theta.tobytes() == expected.theta.tobytes()
    for name in ("observation_mean", "observation_std"):
        assert result.shared[name].tobytes() == expected.shared[name].tobytes()


def test_init_from_another_network_is_refused_and_writes_no_files(
    reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = runs.train(3, run, f"policy.init_from={reference}", "policy.hidden_dims=[9]")
    assert done.status == 2 and "Traceback" not in done.stderr, str(done)
    assert done.stderr.count("expected 65 parameters, found 58 in") == 1, done.stderr
    assert runs.files(run) == {}


@pytest.mark.parametrize("init_optimizer", [True, False])
def test_init_optimizer_copies_the_optimizer_state(
    init_optimizer: bool, reference: Path, tmp_path: Path
) -> None:
    started = (
        f"policy.init_from={reference}",
        f"policy.init_optimizer={str(init_optimizer).lower()}",
    )
    done = again(tmp_path / "run", *started, "stop.generations=0")
    assert done.status == 0, str(done)
    expected, result = (
        runs.newest(reference).state.master,
        runs.newest(tmp_path / "run").state.master,
    )
    for name in ("adam_m", "adam_v", "optimizer_steps"):
        assert (result[name].tobytes() == expected[name].tobytes()) is init_optimizer
    assert result["optimizer_steps"] == (8 if init_optimizer else 0)


def test_init_optimizer_refuses_the_state_of_another_optimizer(
    reference: Path, tmp_path: Path
) -> None:
    started = (f"policy.init_from={reference}", "policy.init_optimizer=true")
    done = again(tmp_path / "run", *started, "algorithm.optimizer.kind=sgd")
    assert done.status == 2 and "Traceback" not in done.stderr, str(done)
    assert "policy.init_optimizer: the optimizer of policy.init_from does not match" in done.stderr
    assert (
        "sgd_velocity: expected float32[58], found none; adam_m: expected none, found float32[58]"
        in done.stderr
    )


@pytest.mark.long
def test_run_with_init_from_resumes_without_its_source(reference: Path, tmp_path: Path) -> None:
    source, run = tmp_path / "source", tmp_path / "run"
    shutil.copytree(reference, source)
    assert again(run, f"policy.init_from={source}", "stop.generations=1").status == 0
    shutil.rmtree(source)
    done = again(run, f"policy.init_from={source}", "stop.generations=2")
    assert done.status == 0 and "from generation 1" in done.stdout, str(done)


@pytest.mark.long
def test_evaluations_are_written_between_metrics_of_an_interval(tmp_path: Path) -> None:
    """A run that is stopped, restarted and resumed always has the same file as `whole`."""
    sparse = ("report.metrics_interval=4", "evaluation.interval=3", "checkpoint.interval=0")
    run, whole = tmp_path / "run", tmp_path / "whole"
    for _ in range(2):  # the second time nothing is left to train
        runs.finished(0, run, *sparse, "stop.generations=6")
        assert [row["generation"] for row in runs.rows(run)] == [0, 3, 4, 5]
        assert [row["generation"] for row in runs.table(run)] == ["0", "3", "4", "5"]
    for path, ends in ((run, (7, 11)), (whole, (11,))):
        for end in ends:
            runs.finished(0, path, *sparse, f"stop.generations={end}")
    assert [row["generation"] for row in runs.rows(whole)] == [0, 3, 4, 6, 8, 9, 10]
    assert all(
        row["evaluation_return_mean"] is not None
        for row in runs.rows(whole)
        if row["generation"] in {3, 6, 9}
    )
    assert (runs.rows(run), runs.table(run)) == (runs.rows(whole), runs.table(whole))


@pytest.mark.long
def test_statistics_that_are_not_finite_are_refused_with_the_checkpoint_to_continue_from(
    stopped: Path,
) -> None:
    """Earlier versions added infinite observations to them."""
    for generation in (7, 8):
        saved = load(checkpoint(stopped, generation))
        sums = np.full_like(saved.state.master["observation_sum"], np.inf)
        state = replace(saved.state, master={**saved.state.master, "observation_sum": sums})
        save(checkpoint(stopped, generation), replace(saved, state=state))
    done = again(stopped, *runs.EVERY, "stop.generations=9")
    assert done.status == 2, str(done)
    assert (
        "expected finite observation statistics, found infinity or NaN in observation_sum"
        in done.stderr
    )
    assert (
        f"remove the checkpoints after {checkpoint(stopped, 6).name} to continue from that one"
        in done.stderr
    )
    for generation in (7, 8):
        checkpoint(stopped, generation).unlink()
    assert again(stopped, *runs.EVERY, "stop.generations=9").status == 0
