"""The decision to requeue a job, and chains of jobs: their ids, cancellation and scripts.

On a real SLURM: tests/slurm/test_scripts.py and tests/slurm/test_chain.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpc_es import cli
from hpc_es.cluster.requeue import Restarts, behind, decide, decide_in, end_chain, over
from hpc_es.core import slurm
from hpc_es.core.errors import UserError
from hpc_es.storage.results import Shard
from tests.cluster.test_sbatch import asked, toy, written
from tests.helpers.harness import python

INTERRUPTED = {"status": "interrupted", "generation": 7, "exit_status": 75, "reason": "a signal"}


@pytest.mark.parametrize("exit_status", [75, 137, 143])  # of srun: the highest of any task's
def test_interrupted_run_is_requeued_for_any_status_of_srun(exit_status: int) -> None:
    decision = decide(INTERRUPTED, exit_status, None)
    assert decision.requeue and decision.restarts == Restarts(7, 0)
    assert decision.reason == "interrupted after 7 generations: requeued"


@pytest.mark.parametrize(
    ("status", "exit_status", "reason"),
    [
        (None, 143, "training never started, and srun ended with status 143"),
        (
            {"status": "finished", "generation": 9, "reason": "stop.generations: 9"},
            137,
            "stop.generations: 9",
        ),
        (
            {"status": "failed", "generation": 9, "reason": "the disk is full"},
            75,
            "has failed (the disk is full)",
        ),
        (
            {"status": "running", "generation": 9},
            137,
            "srun ended with status 137; see the messages above",
        ),
        # no rank was interrupted
        (INTERRUPTED, 2, "srun ended with status 2; see the messages above"),
        ({"generation": "?"}, 75, "srun ended with status 75"),
    ],
)
def test_runs_that_were_not_interrupted_are_not_requeued(
    status: Any, exit_status: int, reason: str
) -> None:
    decision = decide(status, exit_status, None)
    assert not decision.requeue and reason in decision.reason
    assert decision.restarts is None


def ask(run: Path, generation: int, restarts: int = 1, shard: Shard | None = None) -> bool:
    """The decision at the end of a run that was interrupted after this number of generations."""
    name = "status.json" if shard is None else f"status_{shard.index}_of_{shard.count}.json"
    here = slurm.this_run(
        {"SLURM_JOB_ID": "8", **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {})}
    )
    (run / name).write_text(json.dumps({**INTERRUPTED, "generation": generation, **here}))
    return decide_in(run, shard, 75, here).requeue


def test_three_restarts_without_progress_end_requeueing(tmp_path: Path) -> None:
    assert [ask(tmp_path, 5, restarts) for restarts in range(5)] == [True, True, True, False, False]
    decision = decide_in(tmp_path, None, 75, {"job": "8", "restarts": 4})
    assert (
        "not requeued: 5 restarts in a row have finished no generation after generation 5"
        in decision.reason
    )


def test_restart_that_fails_before_it_writes_counts_as_without_progress(tmp_path: Path) -> None:
    assert ask(tmp_path, 5, restarts=0)
    decisions = [
        decide_in(tmp_path, None, 143, {"job": "8", "restarts": restarts}) for restarts in (1, 2, 3)
    ]
    assert [decision.requeue for decision in decisions] == [True, True, False]


def test_record_of_another_job_is_ignored(tmp_path: Path) -> None:
    assert ask(tmp_path, 5)
    decision = decide_in(tmp_path, None, 143, {"job": "9", "restarts": 0})
    assert not decision.requeue and "training never started" in decision.reason


def test_new_generation_resets_the_count_of_restarts(tmp_path: Path) -> None:
    generations = [0, 0, 0, 1, 1, 1, 1]
    assert [ask(tmp_path, generation) for generation in generations] == [True] * 6 + [False]


def test_new_submission_resets_the_count_of_restarts(tmp_path: Path) -> None:
    assert [ask(tmp_path, 0) for _ in range(4)] == [True, True, True, False]
    assert ask(tmp_path, 0, restarts=0)
    assert [ask(tmp_path, 0) for _ in range(3)] == [True, True, False]


def test_restarts_of_array_tasks_are_counted_separately(tmp_path: Path) -> None:
    first, second = Shard(0, 2), Shard(1, 2)
    assert [ask(tmp_path, 0, shard=first) for _ in range(4)] == [True, True, True, False]
    assert ask(tmp_path, 0, shard=second)
    assert json.loads((tmp_path / "restarts_0_of_2.json").read_text()) == {
        "generation": 0,
        "idle": 3,
    }


@pytest.mark.parametrize(("restarts", "requeued"), [(2, True), (1, False)])
def test_interrupted_repetition_requeues_the_job(
    restarts: int, requeued: bool, tmp_path: Path
) -> None:
    now = {"job": "8", "restarts": 2}
    (tmp_path / "status.json").write_text(json.dumps({"status": "running", "generation": 0, **now}))
    for number, status in enumerate(["finished", "interrupted"]):
        (tmp_path / f"repetition_{number:04d}").mkdir()
        said = {"status": status, "generation": 20 + number, "job": "8", "restarts": restarts}
        (tmp_path / f"repetition_{number:04d}" / "status.json").write_text(json.dumps(said))
    decision = decide_in(tmp_path, None, 137, now)
    assert decision.requeue == requeued
    assert decision.restarts == (Restarts(41, 0) if requeued else None)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"generation": 0}'])
def test_damaged_record_counts_from_zero(text: str, tmp_path: Path) -> None:
    (tmp_path / "restarts.json").write_text(text)
    assert [ask(tmp_path, 0) for _ in range(4)] == [True, True, True, False]


def test_array_task_is_requeued_by_its_own_id() -> None:
    # seen on 22.05: the last task
    task = {"SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "1"}
    assert slurm.job_id(task) == "8_1"
    assert slurm.job_id({"SLURM_JOB_ID": "8"}) == "8"


def test_requeue_outside_of_a_job_does_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(
        UserError, match="expected to run in a SLURM job, but SLURM_JOB_ID is not set"
    ):
        cli.run(["requeue", str(tmp_path), "--status", "75"])


@pytest.mark.parametrize(("status", "exit_status"), [("interrupted", 0), ("finished", 1)])
def test_decision_without_slurm_is_an_exit_status(
    status: str, exit_status: int, tmp_path: Path, monkeypatch: Any
) -> None:
    """As in a container, or in PBS: the script requeues or submits the job itself."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("PBS_JOBID", "7.head")
    (tmp_path / "status.json").write_text(
        json.dumps({"status": status, "generation": 3, "job": "7.head"})
    )
    assert cli.run(["requeue", str(tmp_path), "--status", "75", "--decide"]) == exit_status


__all__ = ["toy"]
HERE = {"job": "7", "restarts": 0}
PENDING = """9 afterany:8(unfulfilled)
8 afterany:7(unfulfilled)
12 afterany:11(unfulfilled)
13 (null)
14 afterok:7(unfulfilled)
"""


def test_later_jobs_of_a_chain_are_listed() -> None:
    assert (
        behind("7", PENDING) == ["8", "9"]
        and behind("8", PENDING) == ["9"]
        and behind("13", PENDING) == []
    )


@pytest.mark.parametrize(
    ("status", "exit_status", "reason"),
    [
        ({"status": "finished", "job": "7"}, 0, "the run is finished"),
        (
            {"status": "failed", "reason": "the disk is full", "job": "7"},
            1,
            "the run has failed (the disk is full)",
        ),
        ({"status": "interrupted", "job": "7"}, 75, None),
        ({"status": "running", "job": "7"}, 137, None),
        ({"status": "running", "job": "7"}, 0, None),  # os._exit(0) in the user's code
        ({"status": "running", "job": "6"}, 0, "the run is finished"),  # by an earlier job
        ({"status": "failed", "reason": "an earlier job's", "job": "6"}, 137, None),
        ({"status": "running", "job": "6"}, 2, "an error in the command or config"),
    ],
)
def test_chain_ends_if_all_runs_are_finished(
    status: dict[str, str], exit_status: int, reason: str | None, tmp_path: Path
) -> None:
    (tmp_path / "status.json").write_text(json.dumps(status))
    assert over(tmp_path, exit_status, HERE) == reason


def test_remaining_jobs_are_cancelled_unless_array_tasks_are_active(
    tmp_path: Path, monkeypatch: Any
) -> None:
    called: list[tuple[str, ...]] = []

    def ask(*command: str) -> str:
        called.append(command)
        return PENDING

    monkeypatch.setattr("hpc_es.core.slurm.call", ask)
    assert (
        "starts when all tasks" in end_chain(tmp_path, Shard(0, 2), 0, "7", HERE) and called == []
    )
    assert (
        "the next job of the chain resumes the run" in end_chain(tmp_path, None, 75, "7", HERE)
        and called == []
    )
    assert end_chain(tmp_path, None, 0, "7", HERE) == "the run is finished; cancelled 8, 9"
    assert called[-1] == ("scancel", "8", "9")


def test_chain_is_submitted_with_dependencies(toy: Path, tmp_path: Path, capsys: Any) -> None:
    script = written(capsys, toy, "--chain", "3")
    assert "--no-requeue" in asked(script) and "--requeue" not in asked(script)
    assert script.splitlines()[-2].endswith('requeue "$run" --status "$status" --chain')
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "sbatch"
    fake.write_text('#!/bin/sh\necho "$@" >> "$0.calls"\nwc -l < "$0.calls"\n')
    fake.chmod(0o755)
    path = f"{fake.parent}:{os.environ['PATH']}"
    done = python(["-m", "hpc_es", "sbatch", str(toy), "--chain", "3"], env={"PATH": path})
    assert done.stdout.split() == ["1", "2", "3"], str(done)
    calls = [line.split()[1:] for line in Path(f"{fake}.calls").read_text().splitlines()]
    assert calls == [[], ["--dependency=afterany:1"], ["--dependency=afterany:2"]]
