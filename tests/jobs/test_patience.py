"""`stop.patience` ends runs in the same generation on any number of ranks, and after kills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import runs
from tests.helpers.harness import ROOT, mpiexec, python

FLAT = """
task:
  kind: function
  function: "tests.helpers.toys:ellipsoid"
  dimension: 2
algorithm: {kind: cma_es, population_size: 6}
evaluation: {interval: 3}
checkpoint: {interval: 1, keep_last: 1000}
stop: {generations: 200, patience: 40, min_improvement: 0.01}
report: {plot_interval_seconds: 0}
"""


def expected_end(rows: list[dict[str, Any]], patience: int, tolerance: float) -> int:
    """The first generation after the plateau,
    from the best values and evaluations of an unlimited run.
    """
    reference, stale = float("inf"), 0
    for row in rows:
        stale += row["evaluations_this_generation"]
        if row["best_value"] < reference - tolerance:
            reference, stale = row["best_value"], 0
        if stale >= patience:
            return int(row["generation"]) + 1
    raise AssertionError("there is no plateau")


@pytest.mark.long
def test_plateau_of_an_objective_ends_the_run_on_any_ranks_and_after_a_restart(
    tmp_path: Path,
) -> None:
    (tmp_path / "flat.yaml").write_text(FLAT)

    def run(name: str, ranks: int, *overrides: str) -> Path:
        arguments = [
            "-m",
            "hpc_es.main",
            str(tmp_path / "flat.yaml"),
            "--output",
            str(tmp_path / name),
            *overrides,
        ]
        done = mpiexec(ranks, arguments, cwd=ROOT) if ranks else python(arguments, cwd=ROOT)
        assert done.status == 0, str(done)
        finished.append(done.stdout)
        return tmp_path / name

    finished: list[str] = []
    unlimited = run("unlimited", 0, "stop.patience=null", "stop.generations=60")
    end = expected_end(runs.rows(unlimited), 40, 0.01)
    assert 10 < end < 60
    for ranks in (1, 3):
        directory = run(f"on {ranks}", ranks)
        assert f"finished by stop.patience: 40 after {end} generations" in finished[-1]
        assert runs.newest(directory).generation == end
        runs.assert_same(directory, unlimited)
    resumed = run("resumed", 0, f"stop.generations={end - 3}")
    assert "finished by stop.generations" in finished[-1]
    run("resumed", 3)
    assert f"finished by stop.patience: 40 after {end} generations" in finished[-1]
    runs.assert_same(resumed, unlimited)
    assert (
        json.loads((resumed / "status.json").read_text())["evaluations_without_improvement"] >= 40
    )


PATIENT = (
    "stop.generations=40",
    "evaluation.interval=1",
    "checkpoint.interval=1",
    "checkpoint.keep_last=1000",
)


@pytest.mark.long
def test_plateau_of_a_policy_ends_the_run_on_any_ranks_and_after_a_kill(tmp_path: Path) -> None:
    """Three evaluations that are not better than the last improvement by more than 0.1."""
    tolerance = ("stop.patience=3", "stop.min_improvement=0.1")
    done = runs.finished(1, tmp_path / "one", *PATIENT, *tolerance)
    returns = [row["evaluation_return_mean"] for row in runs.rows(tmp_path / "one")]
    assert "finished by stop.patience: 3" in done.stdout and len(returns) < 40
    last = 0
    for number, value in enumerate(returns):
        last = number if value > returns[last] + 0.1 else last
    assert len(returns) == last + 1 + 3
    killed = tmp_path / "killed"
    with runs.begin(2, killed, *PATIENT, *tolerance) as job:
        runs.wait_for(lambda: runs.generation(killed) > last)
        job.kill()
    runs.finished(3, killed, *PATIENT, *tolerance)
    assert len(runs.rows(killed)) == len(returns)
    runs.assert_same(killed, tmp_path / "one")
