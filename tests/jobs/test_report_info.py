"""report.info in whole jobs: its metrics on any ranks; all other results are unchanged."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import hpc_es
from hpc_es import cli
from hpc_es.report.loggers import metrics
from hpc_es.storage.checkpoint_directory import Store
from hpc_es.training.generation import MetricsRow
from tests.helpers import runs
from tests.helpers.harness import python

INFO = "report.info={step: final}"
BANDITS = {
    "noise": {"table_size": 20_000},
    "evaluation": {"interval": 0},
    "stop": {"generations": 2},
}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("without") / "run"
    runs.finished(0, run, *runs.EVERY)
    return run


@pytest.mark.parametrize("ranks", [1, 3])
def test_report_info_adds_metrics_and_changes_nothing_else(
    ranks: int, without: Path, tmp_path: Path
) -> None:
    """The last step of an episode is its length."""
    runs.finished(ranks, tmp_path / "run", *runs.EVERY, INFO)
    assert runs.digests(tmp_path / "run") == runs.digests(without)
    rows, expected = runs.rows(tmp_path / "run"), runs.rows(without)
    assert [row.pop("info_step") for row in rows] == [row["length_mean"] for row in expected]
    evaluated = [row.pop("evaluation_info_step") for row in rows]
    assert evaluated == [row["evaluation_length_mean"] for row in expected] and evaluated[1] is None
    assert rows == expected


def test_evaluation_prints_the_means_of_the_infos(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last step of an episode is its length."""
    runs.finished(0, tmp_path / "run", *runs.EVERY, INFO)
    words = ("eval", str(tmp_path / "run"), "--episodes", "5")
    assert cli.run([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["info_step"] == result["length_mean"]
    done = python(["-m", "hpc_es", *words, "--all"])  # it ends its process
    rows = [*csv.DictReader(done.stdout.splitlines())]
    assert [row["info_step"] for row in rows] == [row["length_mean"] for row in rows] != []
    assert cli.run([*words, "--json", "report.info=[]"]) == 0
    assert "info_step" not in json.loads(capsys.readouterr().out)


def test_evaluation_of_a_function_refuses_infos(tmp_path: Path) -> None:
    config = {
        "task": {"kind": "function", "function": "numpy:sum", "dimension": 2},
        "algorithm": {"kind": "cma_es", "sigma": 0.5},
        "stop": {"generations": 1},
    }
    hpc_es.train(config, tmp_path / "run")
    with pytest.raises(
        hpc_es.core.errors.ConfigError, match="has keys, but the task 'function' has no infos"
    ):
        cli.run(["eval", str(tmp_path / "run"), "report.info=[x]"])


def test_loggers_group_the_info_metrics() -> None:
    row: MetricsRow = {
        "generation": 3,
        "info_step": 1.5,
        "evaluation_info_step": 2.0,
        "info_speed": None,
    }
    assert metrics(row) == {"info/step": 1.5, "evaluation/info_step": 2.0}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("first", "then"), [((INFO,), ()), ((), (INFO,))])
def test_report_info_may_change_at_a_restart_between_full_checkpoints(
    first: tuple[str, ...], then: tuple[str, ...], tmp_path: Path
) -> None:
    between = (*runs.EVERY, "checkpoint.full_interval=4", "policy.hidden_dims=[64, 64]")
    runs.finished(0, tmp_path / "run", *between, *first)
    whole = runs.digests(tmp_path / "run")[6]
    for path in Store(tmp_path / "run" / "checkpoints").paths()[4:]:
        path.unlink()
    done = runs.finished(2, tmp_path / "run", *between, *then)
    assert "recomputing 3 updates" in done.stdout
    assert runs.digests(tmp_path / "run")[6] == whole
    assert ("info_step" in runs.rows(tmp_path / "run")[-1]) == bool(then)


def test_report_info_needs_a_task_with_infos(tmp_path: Path) -> None:
    config = {
        "task": {"kind": "programs", "name": "reverse"},
        "algorithm": {"kind": "ga"},
        "report": {"info": ["x"]},
    }
    with pytest.raises(
        hpc_es.core.errors.ConfigError,
        match=r"report.info: has keys, but the task 'programs' has no infos",
    ):
        hpc_es.train(config, tmp_path)


# Regret of bandits.


def trained(
    tmp_path: Path, task: dict[str, object], info: object = None, **more: object
) -> list[MetricsRow]:
    algorithm = {"kind": "es", "population_size": 6}
    report = {"info": info or {"regret": "sum"}, "plot_interval_seconds": 0}
    return list(
        hpc_es.train(
            {"task": task, "algorithm": algorithm, "report": report, **BANDITS, **more}, tmp_path
        )
    )


def test_regret_info_equals_the_regret_of_the_bandit(tmp_path: Path) -> None:
    """As a task it is minus the return used for training;
    as an environment it is the sum of the infos.
    """
    options = {"distribution": "medium", "num_trials": 10}
    task = {"kind": "bandits", **options, "episodes_per_job": 2}
    rows = trained(tmp_path / "a", {**task, "training_return": "negative_regret"})
    assert [row["info_regret"] for row in rows] == [
        pytest.approx(-float(row["return_mean"] or 0)) for row in rows
    ]
    rows = trained(tmp_path / "b", {"kind": "bandits", **options})
    environment = {"env_id": "hpc_es.tasks.bandits:hpc_es/Bandit-v0", "env_kwargs": options}
    assert [row["info_regret"] for row in trained(tmp_path / "c", environment)] == [
        row["info_regret"] for row in rows
    ]
    means = trained(tmp_path / "d", {"kind": "bandits", **options}, {"regret": "mean"})
    assert [row["info_regret"] for row in means] == pytest.approx(
        [float(row["info_regret"] or 0) / 10 for row in rows]
    )
    with pytest.raises(
        hpc_es.core.errors.ConfigError,
        match=r"report.info: .* 'regrets' .*; did you mean 'regret'\?",
    ):
        trained(tmp_path / "e", task, ["regrets"])


def test_regret_info_of_actor_critic_equals_the_missing_rewards(tmp_path: Path) -> None:
    """Arms that always pay: 10 trials with the better arm, which pays 1, minus the rewards."""
    pytest.importorskip("tensorflow")
    task = {"kind": "bandits", "distribution": "deterministic", "num_trials": 10}
    algorithm = {"kind": "actor_critic", "batch_size": 4}
    policy = {"kind": "lstm", "hidden_dims": [4]}
    rows = trained(
        tmp_path,
        task,
        algorithm=algorithm,
        policy=policy,
        evaluation={"interval": 1, "episodes": 3},
    )
    assert [row["info_regret"] for row in rows] == [
        pytest.approx(10 - float(row["return_mean"] or 0)) for row in rows
    ]
    measured = [(row["evaluation_info_regret"], row["evaluation_return_mean"]) for row in rows]
    assert [regret for regret, _ in measured] == [
        pytest.approx(10 - float(mean or 0)) for _, mean in measured
    ]
