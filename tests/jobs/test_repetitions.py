"""Repetitions under real mpiexec: the same rows with any number of ranks,
groups and array tasks, and after kills.
"""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from hpc_es import cli
from hpc_es.core.errors import CheckpointError
from hpc_es.storage import results
from tests.helpers import runs
from tests.helpers.harness import python

FIVE = ("repetitions=5", "checkpoint.interval=1")
CLOCK = ("seconds",)


def results_of(run: Path) -> list[dict[str, Any]]:
    """The results without the columns of time."""
    return [
        {name: value for name, value in row.items() if name not in CLOCK}
        for row in results.read_results(run)
    ]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five repetitions on one rank, one after the other."""
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.finished(0, run, *FIVE)
    return run


def test_repetitions_differ_and_are_complete(reference: Path) -> None:
    rows = results_of(reference)
    assert [row["repetition"] for row in rows] == [0, 1, 2, 3, 4]
    assert len({row["theta_sha256"] for row in rows}) == 5
    assert results.summary(results.read_results(reference))["missing"] == []


@pytest.mark.long
def test_first_repetition_is_the_run_without_repetitions(reference: Path, tmp_path: Path) -> None:
    runs.finished(2, tmp_path / "run")
    runs.assert_same(tmp_path / "run", reference / "repetition_0000")


@pytest.mark.parametrize(
    ("ranks", "groups"),
    [
        (3, 1),
        pytest.param(3, 2, marks=pytest.mark.long),
        pytest.param(4, 3, marks=pytest.mark.long),
    ],
)
def test_repetitions_are_identical_on_any_ranks_and_groups(
    reference: Path, tmp_path: Path, ranks: int, groups: int
) -> None:
    done = runs.finished(ranks, tmp_path / "run", *FIVE, f"repetition_groups={groups}")
    assert results_of(tmp_path / "run") == results_of(reference)
    assert len(list((tmp_path / "run" / "results").iterdir())) == groups
    assert "5 of 5 repetitions finished" in done.stdout


@pytest.mark.long
def test_array_tasks_share_the_directory(reference: Path, tmp_path: Path) -> None:
    for task in (1, 0):
        environ = {
            f"SLURM_ARRAY_TASK_{n}": str(v)
            for n, v in {"ID": task, "MIN": 0, "MAX": 1, "COUNT": 2}.items()
        }
        done = runs.train(2, tmp_path / "run", *FIVE, env=environ)
        assert done.status == 0, str(done)
        first = [3, 4] if task else [0, 1, 2, 3, 4]
        assert [row["repetition"] for row in results_of(tmp_path / "run")] == first
    assert results_of(tmp_path / "run") == results_of(reference)
    assert json.loads((tmp_path / "run" / "status_0_of_2.json").read_text())["status"] == "finished"


def test_shard_runs_its_repetitions_only(tmp_path: Path) -> None:
    runs.finished(0, tmp_path / "run", *FIVE, "--shard", "1/3")
    assert [row["repetition"] for row in results_of(tmp_path / "run")] == [2, 3]


@pytest.mark.long
@pytest.mark.parametrize("groups", [1, 2])
def test_killed_repetitions_are_resumed(reference: Path, tmp_path: Path, groups: int) -> None:
    run, pause = tmp_path / "run", tmp_path / "slow"
    # some 0.5 s per repetition
    slowly = f"task.env_kwargs={{pause_file: {pause}, pause_seconds: 0.002}}"
    arguments = (*FIVE, f"repetition_groups={groups}", slowly)
    with runs.begin(3, run, *arguments) as job:
        runs.wait_for(lambda: len(results.read_results(run)) >= 1)
        pause.touch()
        job.signal(1, signal.SIGKILL)
        assert job.wait().status != 0
    before = len(results.read_results(run))
    assert before < 5
    pause.unlink()
    done = runs.train(2, run, *arguments)
    assert done.status == 0, str(done)
    digest = [row["theta_sha256"] for row in results.read_results(run)]
    plain = tmp_path / "plain"
    runs.finished(0, plain, *FIVE)
    assert digest == [row["theta_sha256"] for row in results.read_results(plain)]


def test_lost_line_is_written_again_without_training(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.finished(0, run, *FIVE)
    before, path = results_of(run), run / "results" / "0-of-1.jsonl"
    path.write_bytes(b"\n".join(path.read_bytes().split(b"\n")[:3]) + b'\n{"repe')
    done = runs.finished(2, run, *FIVE)
    assert results_of(run) == before
    assert "generation 1 of 6" not in done.stdout


@pytest.mark.long
def test_finished_repetitions_are_not_run_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.finished(0, run, *FIVE)
    before = {path: path.stat().st_mtime_ns for path in run.glob("repetition_*/checkpoints/*")}
    assert runs.finished(3, run, *FIVE, "repetition_groups=3").seconds < 30
    assert {
        path: path.stat().st_mtime_ns for path in run.glob("repetition_*/checkpoints/*")
    } == before


@pytest.mark.long
def test_signal_stops_all_groups_with_status_75_and_the_command_resumes(
    reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    arguments = ("repetitions=3", "repetition_groups=2", "stop.generations=40")
    with runs.begin(3, run, *arguments, "task.env_kwargs.pause_seconds=0.001") as job:
        runs.wait_for(lambda: runs.generation(run / "repetition_0000") >= 1)
        job.process.send_signal(signal.SIGTERM)
        done = job.wait()
    assert done.status == 75, str(done)
    assert runs.status(run)["status"] == "interrupted"
    assert done.stdout.splitlines()[-1].endswith("a signal); the same command resumes the run"), (
        str(done)
    )
    runs.finished(2, run, *arguments, "task.env_kwargs.pause_seconds=0.001")
    runs.finished(0, tmp_path / "plain", *arguments[:1], arguments[2])
    assert results_of(run) == results_of(tmp_path / "plain")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("stop.generations=7",),
            r"stop: is .*\"generations\": 7.* finished repetitions .*\"generations\": 6",
        ),
        (("repetitions=6",), "repetitions: is 6, but finished repetitions of .* have 5"),
        (("algorithm.sigma=0.2",), r"algorithm.sigma: 0.1 in the directory, 0.2 in the config"),
        (("--resume", "never"), "already holds repetitions"),
        (("repetition_groups=2",), "repetition_groups: is 2, but the job has 1 ranks"),
    ],
)
def test_invalid_command_is_refused_and_changes_no_file(
    reference: Path, arguments: tuple[str, ...], text: str
) -> None:
    before = {path: path.read_bytes() for path in reference.rglob("*") if path.is_file()}
    done = runs.train(0, reference, *FIVE, *arguments)
    assert done.status == 2
    assert re.search(text, done.stderr), done.stderr
    assert {path: path.read_bytes() for path in reference.rglob("*") if path.is_file()} == before


@pytest.mark.long
def test_directory_holds_one_run_or_several(reference: Path, tmp_path: Path) -> None:
    runs.finished(0, tmp_path / "run")
    done = runs.train(0, tmp_path / "run", *FIVE)
    assert done.status == 2
    assert "holds a single run" in done.stderr
    done = runs.train(0, reference)
    assert done.status == 2
    assert "holds repetitions" in done.stderr


@pytest.mark.long
def test_results_command_prints_the_summary(reference: Path, tmp_path: Path) -> None:
    done = python(["-m", "hpc_es", "results", str(reference), "--json"])
    assert json.loads(done.stdout)["finished"] == 5
    lines = python(["-m", "hpc_es", "results", str(reference), "--csv"]).stdout.splitlines()
    assert len(lines) == 6
    assert lines[1].split(",")[3] == "0"
    runs.finished(0, tmp_path / "single")
    assert (
        "1 of 1 repetitions finished"
        in python(["-m", "hpc_es", "results", str(tmp_path / "single")]).stdout
    )
    assert python(["-m", "hpc_es", "results", str(tmp_path)]).status == 2


@pytest.mark.long
def test_failed_repetition_does_not_affect_the_others(tmp_path: Path) -> None:
    """Repetition 1 cannot read its checkpoints."""
    run = tmp_path / "run"
    runs.finished(0, run, "repetitions=3")
    (run / "results" / "0-of-1.jsonl").unlink()
    damaged = run / "repetition_0001" / "checkpoints"
    for path in damaged.glob("*.h5"):
        path.write_bytes(b"no checkpoint")
    done = runs.train(3, run, "repetitions=3")
    assert done.status == 2, str(done)
    assert "repetition 1:" in done.stderr
    assert [row["repetition"] for row in results_of(run)] == [0, 2]


def test_inspect_and_eval_list_the_repetitions(tmp_path: Path, capsys: Any) -> None:
    message = {
        0: {"status": "finished", "generation": 6, "best_return": 7.25},
        2: {"status": "running", "generation": 3},
    }
    for number, status in message.items():
        (tmp_path / f"repetition_{number:04d}").mkdir()
        (tmp_path / f"repetition_{number:04d}" / "status.json").write_text(json.dumps(status))
    lines = (
        f"{tmp_path} holds repetitions, 2 started:\n"
        "  repetition_0000  finished  generations 6  best return 7.25\n"
        "  repetition_0002  killed  generations 3\n"
    )
    assert cli.run(["inspect", str(tmp_path)]) == 0 and capsys.readouterr().out == lines
    assert cli.run(["inspect", str(tmp_path), "--json"]) == 0
    assert [run["generation"] for run in json.loads(capsys.readouterr().out)["repetitions"]] == [
        6,
        3,
    ]
    done = python(["-m", "hpc_es", "eval", str(tmp_path)])  # it ends its process
    said = done.stderr
    assert (
        done.status == 2
        and "expected a repetition with a checkpoint, found none" in said
        and lines.strip() in said
    )
    with pytest.raises(
        CheckpointError, match=r"name a repetition, such as .*/repetition_0000"
    ) as no:
        cli.run(["export", str(tmp_path), "out.keras"])
    assert lines.strip() in str(no.value)
