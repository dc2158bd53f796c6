"""`python -m benchmarks.searches`: a line per finished run; interrupted searches resume."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_es.storage.checkpoint_directory import Store
from tests.helpers import runs
from tests.helpers.harness import ROOT

TINY = ("task.max_code_length=3", "algorithm.population_size=10", "checkpoint.interval_seconds=0")


def command(out: Path, *words: str) -> list[str]:
    options = ["ga-20M", "--tasks", *words, "--out", str(out), "--set", *TINY]
    return [sys.executable, "-m", "benchmarks.searches", *options]


def lines(out: Path) -> list[dict[str, str]]:
    with (out / "searches.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.long
def test_finished_run_has_a_line_and_is_not_repeated(tmp_path: Path) -> None:
    """`,.` echoes one number, and the task needs more than 3 characters:
    200 programs without success.
    """
    words = ("echo", "reverse", "--seeds", "2", "--npe", "200")
    for _ in range(2):
        subprocess.run(command(tmp_path, *words), cwd=ROOT, check=True, timeout=300)
        result = lines(tmp_path)
        assert [(item["task"], item["seed"]) for item in result] == [
            *(("echo", "1"), ("reverse", "1"), ("echo", "2"), ("reverse", "2"))
        ]
        assert all(item["algorithm"] == "ga-20M" and item["solved"] == "0" for item in result)
        assert all(200 <= int(item["npe"]) < 210 and len(item["program"]) == 3 for item in result)
    assert (tmp_path / "ga-20M/echo/1/out.txt").read_text().count("finished by") == 1
    subprocess.run(
        command(tmp_path, "echo", "--seeds", "1", "--npe", "400"), cwd=ROOT, check=True, timeout=300
    )
    # it resumes with a larger budget
    assert [400 <= int(item["npe"]) < 410 for item in lines(tmp_path)] == [True]


@pytest.mark.long
def test_interrupted_search_resumes(tmp_path: Path) -> None:
    """Its processes end with a checkpoint, and the same command continues from it."""
    words = ("reverse", "--seeds", "1", "--npe", "1_000_000_000")
    job = subprocess.Popen(command(tmp_path, *words), cwd=ROOT)
    run = tmp_path / "ga-20M/reverse/1"
    runs.wait_for(lambda: bool(Store(run / "checkpoints").paths()), 120)
    os.kill(job.pid, signal.SIGTERM)
    assert job.wait(120) == 75
    assert lines(tmp_path) == []
    done = int(runs.newest(run).state.master["executed"])
    words = ("reverse", "--seeds", "1", "--npe", str(done + 100))
    subprocess.run(command(tmp_path, *words), cwd=ROOT, check=True, timeout=300)
    assert [done + 100 <= int(item["npe"]) < done + 200 for item in lines(tmp_path)] == [True]
