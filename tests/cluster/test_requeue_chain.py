"""Chains of jobs: which jobs are behind one, when they are cancelled, and what their script asks for.

That they carry on is tested on a real SLURM: tests/slurm/test_chain.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpc_es.cluster.requeue import behind, end_chain, over
from hpc_es.storage.shard import Shard
from tests.cluster.test_sbatch import asked, toy, written
from tests.helpers.harness import python

__all__ = ["toy"]
HERE = {"job": "7", "restarts": 0}
PENDING = """9 afterany:8(unfulfilled)
8 afterany:7(unfulfilled)
12 afterany:11(unfulfilled)
13 (null)
14 afterok:7(unfulfilled)
"""


def test_the_jobs_behind_one() -> None:
    assert behind("7", PENDING) == ["8", "9"] and behind("8", PENDING) == ["9"] and behind("13", PENDING) == []


@pytest.mark.parametrize(
    ("status", "exit_status", "reason"),
    [
        ({"status": "finished", "job": "7"}, 0, "the run is finished"),
        ({"status": "failed", "reason": "the disk is full", "job": "7"}, 1, "the run has failed (the disk is full)"),
        ({"status": "interrupted", "job": "7"}, 75, None),
        ({"status": "running", "job": "7"}, 137, None),
        ({"status": "failed", "reason": "an earlier job's", "job": "6"}, 137, None),
        ({"status": "running", "job": "6"}, 2, "a mistake in the command or config"),
    ],
)
def test_a_chain_is_over_where_nothing_is_left(
    status: dict[str, str], exit_status: int, reason: str | None, tmp_path: Path
) -> None:
    (tmp_path / "status.json").write_text(json.dumps(status))
    assert over(tmp_path, exit_status, HERE) == reason


def test_the_rest_is_cancelled_unless_tasks_of_an_array_go_on(tmp_path: Path, monkeypatch: Any) -> None:
    called: list[tuple[str, ...]] = []

    def ask(*command: str) -> str:
        called.append(command)
        return PENDING

    monkeypatch.setattr("hpc_es.core.slurm.call", ask)
    assert "begins when all tasks" in end_chain(tmp_path, Shard(0, 2), 0, "7", HERE) and called == []
    assert "the next job of the chain carries on" in end_chain(tmp_path, None, 75, "7", HERE) and called == []
    assert end_chain(tmp_path, None, 0, "7", HERE) == "the run is finished; cancelled 8, 9"
    assert called[-1] == ("scancel", "8", "9")


def test_a_chain_is_submitted_job_behind_job(toy: Path, tmp_path: Path, capsys: Any) -> None:
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
    calls = [line.split()[1:-1] for line in Path(f"{fake}.calls").read_text().splitlines()]
    assert calls == [[], ["--dependency=afterany:1"], ["--dependency=afterany:2"]]
