"""`hpc-es eval`: all snapshots of a run on any number of ranks, and sampled actions."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import hpc_es
from hpc_es import cli
from hpc_es.api.evaluate import EvaluationRequest, play
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--actions", "sampled"], "policies trained by es are deterministic"),
        (["--all", "--actions", "sampled"], "policies trained by es are deterministic"),
        (
            ["--all", "--which", "best"],
            "--all writes a table of all checkpoints: leave --which or --member out",
        ),
        (["--output", "x.csv"], "--output is the table of --all and --members all: leave it out"),
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
