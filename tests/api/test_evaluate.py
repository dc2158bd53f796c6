"""`hpc-es eval`: all snapshots of a run on any number of ranks, and sampled actions."""

from __future__ import annotations

import csv
import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es import cli
from hpc_es.api.evaluate import (
    EvaluationRequest,
    over_repetitions,
    play,
    seeds,
    value_statistics,
)
from hpc_es.config.loading import validate
from hpc_es.core.errors import UserError
from hpc_es.tasks.problems import Episodic
from hpc_es.trained.policy import Actions, LoadedPolicy, load_policy
from hpc_es.trained.stored import StoredPolicy, single_episodes
from tests.helpers import runs
from tests.helpers.harness import ROOT, mpiexec, python

EPISODES = ["--episodes", "5", "--seed", "4"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six generations with a checkpoint of each."""
    run = tmp_path_factory.mktemp("evaluation") / "run"
    runs.finished(0, run, *runs.EVERY)
    return run


@pytest.mark.long
def test_evaluate_all_snapshots_gives_the_same_table_on_any_ranks(
    run: Path, tmp_path: Path
) -> None:
    command = ["-m", "hpc_es", "eval", str(run), "--all", *EPISODES]
    alone = python(command, cwd=ROOT)
    assert alone.status == 0, str(alone)
    rows = list(csv.DictReader(alone.stdout.splitlines()))
    assert [row["snapshot"] for row in rows] == [
        *(f"checkpoint_{n:010d}.h5" for n in range(7)),
        "best.h5",
    ]
    assert [row["generation"] for row in rows[:-1]] == list("0123456") and len(
        {row["return_mean"] for row in rows}
    ) > 5
    for which, row in (("last", rows[-2]), ("best", rows[-1])):
        one = json.loads(
            python([*command[:4], "--json", "--which", which, *EPISODES], cwd=ROOT).stdout
        )
        assert {name: str(value) for name, value in one.items()} == {
            n: v for n, v in row.items() if n != "snapshot"
        }
        assert row["which"] == which
    done = mpiexec(3, [*command, "--output", str(tmp_path / "all.csv")], cwd=ROOT)
    assert done.status == 0 and done.stdout == "", str(done)
    assert (tmp_path / "all.csv").read_text() == alone.stdout


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--actions", "sampled"], "policies trained by es are deterministic"),
        (["--all", "--actions", "sampled"], "policies trained by es are deterministic"),
        (
            ["--all", "--which", "best"],
            "--all writes a table of all checkpoints: leave --which or --member out",
        ),
        (["--output", "x.csv"], "--output is the table of --all, --members all and repetitions"),
    ],
)
def test_invalid_combinations_of_eval_options_are_refused(
    arguments: list[str], said: str, run: Path
) -> None:
    done = python(["-m", "hpc_es", "eval", str(run), *arguments], cwd=ROOT)
    assert (
        done.status == 2
        and done.stdout == ""
        and said in done.stderr
        and "Traceback" not in done.stderr
    ), str(done)


def test_directory_without_snapshots_is_reported_once(tmp_path: Path) -> None:
    done = mpiexec(2, ["-m", "hpc_es", "eval", str(tmp_path), "--all"], cwd=ROOT)
    assert (
        done.status == 2 and done.stderr.count("expected a run directory with checkpoints") == 1
    ), str(done)


def indifferent() -> tuple[StoredPolicy, Episodic]:
    """A policy with equal logits, and its task:
    100 pulls of arms that pay 0.1 and 0.9 of the time.
    """
    task = {"kind": "bandits", "distribution": "easy"}
    config = validate({"task": task, "algorithm": {"kind": "actor_critic"}})
    source = StoredPolicy(Path(), config, "last", 0, {"theta": np.zeros(10_176 + 98, np.float32)})
    return source, single_episodes(config)


def returns(actions: Actions, seed: int = 0) -> list[float]:
    """The returns of 20 episodes; the logits of the policy are equal."""
    rows: list[float] = play(*indifferent(), EvaluationRequest(20, seed, actions))[
        "return_"
    ].tolist()
    return rows


def test_eval_samples_actions_only_if_requested() -> None:
    """Sampled: half of the pulls pay 0.9, half 0.1, 50 +- 5 in total.

    Greedy: always arm 0, 10 or 90 +- 3.
    """
    assert all(30 < item < 70 for item in returns("sampled"))
    assert not any(30 < item < 70 for item in returns("greedy"))
    assert returns("sampled") == returns("sampled") != returns("sampled", seed=1)


def drawn(rows: int, seed: int | None) -> list[int]:
    """Arms pulled by a loaded policy with equal logits for two arms, in 300 steps."""
    rng = None if seed is None else np.random.default_rng(seed)
    policy = LoadedPolicy(*indifferent(), rng=rng)
    pulls = [
        np.ravel(policy(np.zeros((rows, policy.spaces.observations.size)))) for _ in range(300)
    ]
    return [int(pull) for step in pulls for pull in step]


def test_loaded_policy_samples_with_its_generator_or_is_greedy() -> None:
    """Of 600 fair pulls 300 +- 12 are the second arm;
    both rows of a batch are sampled independently.
    """
    assert set(drawn(2, None)) == {0}
    pulls = drawn(2, seed=1)
    assert 240 < sum(pulls) < 360
    assert pulls == drawn(2, seed=1) != drawn(2, seed=2)
    assert 100 < sum(a != b for a, b in zip(pulls[::2], pulls[1::2], strict=True)) < 200
    assert drawn(0, seed=1) == []


def test_sampling_a_deterministic_policy_is_refused(run: Path) -> None:
    with pytest.raises(UserError, match="policies trained by es are deterministic"):
        load_policy(run, actions="sampled")
    with pytest.raises(ValueError, match="actions is 'drawn', expected 'greedy', 'sampled'"):
        load_policy(run, actions="drawn")  # type: ignore[arg-type]


SUMS = """
import numpy as np
from hpc_es.extend import *

class Sums(VectorProblemDefaults):
    dtype = np.dtype(np.float32)

    def __init__(self, policy):
        self.policy, self.layout = policy, policy.layout

    def initial(self, rng):
        return np.full(self.size, 0.5, np.float32)

    def evaluate(self, population, jobs, carried, poll):
        rows = np.zeros(len(jobs), row_dtype())
        rows["length"] = 1
        rows["return_"] = population.stacked().sum(axis=1) + 10 * np.array(jobs.numbers)
        return Outcome(rows)

class Task:
    OFFERS = Offers(problems=("vectors",), policy=True)
    name = "sums"
    spaces = Spaces(flat_observations(2), Discrete(2))

    @options
    class Options:
        kind: str = option("this class", "sums:Task")

    @classmethod
    def build(cls, options, repetition=0):
        return cls()

    def problem(self, searched, policy, keys, unit):
        return Sums(policy)

    def close(self):
        pass
"""
SUMS_CONFIG = {
    "task": {"kind": "sums:Task"},
    "policy": {"hidden_dims": []},
    "algorithm": {"population_size": 4},
    "noise": {"kind": "counter"},
    "evaluation": {"interval": 0},
    "stop": {"generations": 1},
    "report": {"plot_interval_seconds": 0},
}


def test_run_of_a_custom_task_is_evaluated_by_its_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Episode i returns the sum of theta and 10 i: of 20 episodes, in two chunks,
    the mean is the sum plus 95.
    """
    (tmp_path / "sums.py").write_text(SUMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "sums", raising=False)
    with hpc_es.train(SUMS_CONFIG, tmp_path / "run") as run:
        list(run)
        theta = run.theta
    capsys.readouterr()
    assert cli.run(["eval", "run", "--episodes", "20", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (
        result["return_mean"] == pytest.approx(float(theta.sum()) + 95, rel=1e-6)
        and result["failed"] == 0
    )
    monkeypatch.delattr(sys.modules["sums"].Sums, "evaluate")
    with pytest.raises(
        UserError, match=r"task sums:Task: expected evaluate.* in the task, or a problem on vectors"
    ):
        cli.run(["eval", "run"])


# Vectors of objectives, and repetitions.

NOISY = """
import random

def noisy(x, seed):
    noise = random.Random(seed).gauss(0, 1)
    if seed % 3 == 0:
        raise ValueError("diverged")
    return {"value": x[0] ** 2 + noise, "constraints": [x[0] - 5]}

def mixed(steel, bars, length):
    return {"mild": 1.5, "cast": 1.25}[steel] * bars * length

def always(x):
    raise ValueError("never")
"""
TASKS = {
    "noisy": """{kind: function, function: "here:noisy", dimension: 2, initial: 1.0, constraints: [load]}""",
    "mixed": """{kind: function, function: "here:mixed", parameters: {steel: {choices: [mild, cast]},
        bars: {integer: true, low: 2, high: 9}, length: {low: 0.1, high: 0.9, scale: log}}}""",
}


def trained(directory: Path, task: str, *more: str) -> Path:
    """A run of six generations on one of TASKS."""
    (directory / "here.py").write_text(NOISY)
    (directory / "my.yaml").write_text(f"task: {TASKS[task]}\nalgorithm: {{kind: cma_es}}\n")
    run = directory / "run"
    command = ["-m", "hpc_es.main", "my.yaml", "--output", str(run), "stop.generations=6", *more]
    done = python(command, cwd=directory)
    assert done.status == 0, str(done)
    return run


def evaluated(run: Path, *arguments: str, status: int = 0, ranks: int = 0) -> Any:
    """What `hpc-es eval --json` says."""
    command = ["-m", "hpc_es", "eval", str(run), "--json", *arguments]
    done = mpiexec(ranks, command, cwd=ROOT) if ranks else python(command, cwd=ROOT)
    assert done.status == status, str(done)
    return json.loads(done.stdout)


def test_statistics_of_values_leave_failed_evaluations_out() -> None:
    # of 1, 2 and 6: mean 3, squares 4 + 1 + 9 = 14, variance 7
    found = value_statistics(np.array([1.0, np.nan, 2.0, 6.0]))
    assert found == {
        "value_mean": 3.0,
        "standard_error": pytest.approx((7 / 3) ** 0.5),
        "value_std": pytest.approx(7**0.5),
        "value_min": 1.0,
        "value_max": 6.0,
        "failed": 1,
    }
    one = value_statistics(np.array([2.0]))
    assert (one["value_mean"], one["value_std"], one["standard_error"]) == (2.0, None, None)
    assert value_statistics(np.array([np.nan]))["value_mean"] is None


def test_means_over_repetitions_leave_out_those_without_a_number() -> None:
    rows = [
        {"repetition": name, "return_mean": value, "return_max": 9.0, "objective_mass": 2.0}
        for name, value in (("a", 4.0), ("b", None), ("c", 6.0))
    ]
    assert over_repetitions(rows) == {
        "return_mean": {"mean": 5.0, "low": None, "high": None, "repetitions": 2},
        "objective_mass": {"mean": 2.0, "low": 2.0, "high": 2.0, "repetitions": 3},
    }


@pytest.mark.long
def test_the_answer_of_a_function_is_evaluated_with_new_seeds(tmp_path: Path) -> None:
    run = trained(tmp_path, "noisy")
    found = evaluated(run, "--evaluations", "12", "--seed", "4")
    result = json.loads((run / "result.json").read_text())
    x = result["best_evaluation"]["x"][0]
    drawn = seeds(4, range(12))
    values = [x**2 + random.Random(seed).gauss(0, 1) for seed in drawn if seed % 3]
    assert found["value_mean"] == pytest.approx(np.mean(values), rel=1e-12)
    assert found["failed"] == 12 - len(values) > 0 and found["evaluations"] == 12
    assert found["constraint_load"] == pytest.approx(x - 5) and found["feasible_share"] == 1.0
    assert found["recorded_value"] == result["best_evaluation"]["value"]
    assert evaluated(run, "--evaluations", "12", "--seed", "4") == found
    assert evaluated(run)["evaluations"] == 10
    last = evaluated(run, "--which", "last", "--evaluations", "12", "--seed", "4")
    assert last["which"] == "last" and last["value_mean"] != found["value_mean"]
    changed = ("task.function=here:always", "--trust", "--evaluations", "2")
    assert evaluated(run, *changed, status=1)["failed"] == 2


@pytest.mark.long
def test_a_vector_of_typed_parameters_is_evaluated_exactly(tmp_path: Path) -> None:
    found = evaluated(trained(tmp_path, "mixed"), "--evaluations", "3")
    assert found["value_min"] == found["value_max"] == found["recorded_value"]
    assert found["standard_error"] == 0.0


@pytest.mark.long
def test_all_repetitions_are_evaluated(tmp_path: Path, capsys: Any) -> None:
    directory = trained(tmp_path, "noisy", "repetitions=3")
    found = evaluated(directory, "--output", str(tmp_path / "all.csv"))
    names = [f"repetition_000{number}" for number in range(3)]
    for name, row in zip(names, found["repetitions"], strict=True):
        assert row == {"repetition": name, **evaluated(directory / name)}
    values = [row["value_mean"] for row in found["repetitions"]]
    summary = found["over_repetitions"]["value_mean"]
    assert summary["mean"] == pytest.approx(sum(values) / 3)
    # 7.4 % of the samples of three are three times the same one
    assert summary["low"] == pytest.approx(min(values))
    assert summary["high"] == pytest.approx(max(values))
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert [row["repetition"] for row in rows] == names
    with pytest.raises(SystemExit):
        cli.main(["eval", str(directory), "--video", "a.gif"])
    assert "holds repetitions: name one of them" in capsys.readouterr().err


@pytest.mark.long
def test_repetitions_of_a_policy_are_equal_on_any_ranks(tmp_path: Path) -> None:
    runs.finished(0, tmp_path / "run", "repetitions=3")
    shutil.rmtree(tmp_path / "run" / "repetition_0001" / "checkpoints")
    done = python(["-m", "hpc_es", "eval", str(tmp_path / "run"), *EPISODES], cwd=ROOT)
    assert done.status == 0, str(done)
    assert "left out" in done.stderr and "repetition_0001" in done.stderr
    assert "over 2 repetitions\n" in done.stdout
    alone = evaluated(tmp_path / "run", *EPISODES)
    assert [row["repetition"][-1] for row in alone["repetitions"]] == ["0", "2"]
    assert evaluated(tmp_path / "run", *EPISODES, ranks=3) == alone
