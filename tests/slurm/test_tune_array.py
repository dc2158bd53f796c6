"""A tuning submitted as a job array has the results of the same tuning by mpiexec."""

from __future__ import annotations

import json
from pathlib import Path

from hpc_es.tuning.report import read_report
from tests.helpers import runs
from tests.jobs.test_tuning import outcome, tune
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import Batch
from tests.slurm.test_sbatch import sbatch

GRID = "space: {algorithm.sigma: [0.1, 0.2, 0.3], stop.generations: [4]}"
OPTUNA = """search: optuna
trials: 4
space: {algorithm.sigma: {log_uniform: [0.01, 1]}, stop.generations: [4]}"""
TASKS = 2


def tuned(cluster: Cluster, shared: Path, tuning: str) -> Path:
    """The directory of a tuning by this number of array tasks with two ranks, one per node."""
    runs.tiny(shared)
    config = shared / "tune.yaml"
    config.write_text(f"base: tiny.yaml\n{tuning}\n")
    array = sbatch(cluster, config, f"--array={TASKS}", "--nodes=2", "--ntasks-per-node=1")
    for task in range(TASKS):
        log = shared / f"tune-{array.number}_{task}.log"
        Batch(cluster, f"{array.number}_{task}", log).ends("COMPLETED")
    output = shared / "runs" / "tune"
    for task in range(TASKS):
        assert (
            json.loads((output / f"status_{task}_of_{TASKS}.json").read_text())["status"]
            == "finished"
        )
    return output


def test_grid_in_a_job_array_equals_mpiexec(cluster: Cluster, shared: Path, tmp_path: Path) -> None:
    result = outcome(tuned(cluster, shared, GRID))
    tune(2, tmp_path / "grid", GRID)
    assert result == outcome(tmp_path / "grid")
    assert len({digest for _, _, digest in result.values()}) == 3


def test_trials_of_a_study_in_a_job_array_equal_runs_of_their_configs(
    cluster: Cluster, shared: Path, tmp_path: Path
) -> None:
    """The trials of a study depend on the order in which they end, so they are not compared."""
    output = tuned(cluster, shared, OPTUNA)
    result, rows = outcome(output), read_report(output).rows
    assert len(rows) == 4 and {row["state"] for row in rows} <= {"complete", "pruned"}
    complete = [row for row in rows if row["state"] == "complete"]
    assert complete
    for row in complete:
        run = tmp_path / f"trial_{row['trial']}"
        runs.finished(2, run, *(f"{key}={value}" for key, value in row["hyperparameters"].items()))
        alone = json.loads((run / "result.json").read_text())["theta_sha256"]
        assert result[row["trial"]] == ("complete", runs.status(run)["final_return_mean"], alone)
