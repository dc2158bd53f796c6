"""Members of archives and fronts are evaluated again at the end, if results are noisy."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.core.keys import Keys, Purpose
from tests.helpers.harness import mpiexec, start

SEED, GENERATIONS, EACH = 4, 6, 8
FUNCTIONS = """
import os, time
import numpy as np

def noise(seed):
    return np.random.default_rng(seed).standard_normal(2)

def f(x, seed):
    time.sleep(float(os.environ.get("PAUSE", 0)))
    with open("calls", "a") as file:
        file.write("f")
    first, second = noise(seed)
    return {"value": float(x @ x + 0.5 * first), "measures": [x[0], x[1] + 0.2 * second]}

def exact(x):
    with open("calls", "a") as file:
        file.write("f")
    return {"value": float(x @ x), "measures": [x[0], x[1]]}

def two(x, seed):
    return [float(x[0] ** 2 + 0.3 * n + (i - x[i]) ** 2) for i, n in enumerate(noise(seed))]
"""
ARCHIVE = """
task:
  {kind: function, function: "here:f", dimension: 3, initial: 0.0, measures: {a: [-1, 1], b: [-1, 1]}}
algorithm: {kind: map_elites, population_size: 20, sigma: 0.4, archive: {cells: [6, 6], offset: -9}}
report: {plot_interval_seconds: 0}
evaluation: {interval: 0}
stop: {generations: 6}
seed: 4
"""
FRONT = """
task: {kind: function, function: "here:two", dimension: 2, objectives: {one: minimise, other: minimise}}
algorithm: {kind: nsga2, population_size: 12}
stop: {generations: 5}
seed: 4
"""
POLICY = """
task:
  kind: episodes
  env_id: CartPole-v1
  max_episode_steps: 20
  measures:
    position: {from: observation.0, range: [-2.4, 2.4]}
    angle: {from: observation.2, range: [-0.21, 0.21]}
policy: {kind: mlp, hidden_dims: []}
algorithm: {kind: map_elites, population_size: 10, sigma: 0.3, archive: {cells: [4, 4]}}
report: {plot_interval_seconds: 0}
evaluation: {interval: 0, members: 2}
stop: {generations: 2}
"""


def config(directory: Path, text: str) -> str:
    (directory / "here.py").write_text(FUNCTIONS)
    file = directory / "c.yaml"
    file.write_text(text)
    return str(file)


def trained(ranks: int, file: str, run: Path, *overrides: str) -> dict[str, Any]:
    words = ["-m", "hpc_es.main", file, *overrides, "--output", str(run)]
    ended = mpiexec(ranks, words, cwd=Path(file).parent)
    assert ended.status == 0, ended.stderr
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return result


def table(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def calls(directory: Path) -> int:
    file = directory / "calls"
    count = len(file.read_text()) if file.exists() else 0
    file.unlink(missing_ok=True)
    return count


def noise(number: int) -> np.ndarray[Any, Any]:
    """That of an evaluation of members, after the generation that looked for noise."""
    seed = Keys(SEED).seed31(Purpose.EVALUATION, GENERATIONS + 2, number)
    return np.random.default_rng(seed).standard_normal(2)


@pytest.mark.long
def test_members_of_a_noisy_archive_are_evaluated_again(tmp_path: Path) -> None:
    file = config(tmp_path, ARCHIVE)
    result = trained(1, file, tmp_path / "1")
    rows = table(tmp_path / "1/archive.csv")
    best: dict[tuple[int, int], float] = {}
    for member, row in enumerate(rows):
        noises = np.array([noise(EACH * member + number) for number in range(EACH)])
        x = np.array([float(row[f"x{number}"]) for number in range(3)])
        assert float(row["value_again"]) == pytest.approx(x @ x + 0.5 * noises[:, 0].mean())
        assert float(row["a_again"]) == pytest.approx(x[0])
        assert float(row["b_again"]) == pytest.approx(x[1] + 0.2 * noises[:, 1].mean())
        measures = (float(row["a_again"]), float(row["b_again"]))
        cell = tuple(min(max(int((measure + 1) / 2 * 6), 0), 5) for measure in measures)
        best[cell] = min(best.get(cell, np.inf), float(row["value_again"]))  # type: ignore[index,arg-type]
    again = result["members_again"]
    assert again["evaluations"] == EACH * len(rows) + 1 and again["of_each"] == EACH
    assert again["members"] == len(best) < len(rows)
    assert again["coverage"] == pytest.approx(len(best) / 36)
    assert again["qd_score"] == pytest.approx(sum(9 - value for value in best.values()))
    assert again["qd_score"] < result["qd_score"]
    assert trained(3, file, tmp_path / "3")["members_again"] == again
    tables = [(tmp_path / ranks / "archive.csv").read_bytes() for ranks in ("1", "3")]
    assert tables[0] == tables[1]


@pytest.mark.long
def test_kills_while_members_are_evaluated_change_nothing(tmp_path: Path) -> None:
    file = config(tmp_path, ARCHIVE)
    whole = trained(1, file, tmp_path / "whole")
    words = ["-m", "hpc_es.main", file, "--output", str(tmp_path / "run")]
    for rank in (1, 0):
        with start(2, words, env={"PAUSE": "0.02"}, cwd=tmp_path) as job:
            job.wait_for_output("archive.csv: ", 60)
            job.signal(rank, signal.SIGKILL)
            job.wait()
        assert not (tmp_path / "run/result.json").exists()
    assert trained(2, file, tmp_path / "run")["members_again"] == whole["members_again"]
    tables = [(tmp_path / run / "archive.csv").read_bytes() for run in ("whole", "run")]
    assert tables[0] == tables[1]


@pytest.mark.long
def test_finished_runs_do_not_repeat_it(tmp_path: Path) -> None:
    file, run = config(tmp_path, ARCHIVE), tmp_path / "run"
    first = trained(1, file, run)
    before = (run / "archive.csv").read_bytes()
    assert calls(tmp_path) == 120 + first["members_again"]["evaluations"]
    assert trained(1, file, run)["members_again"] == first["members_again"]
    assert (run / "archive.csv").read_bytes() == before and calls(tmp_path) == 0
    # a run that goes on has other members, which have none of these results
    trained(1, file, run, "stop.generations=20", "evaluation.members=0")
    assert "value_again" not in table(run / "archive.csv")[0]


@pytest.mark.parametrize(
    ("overrides", "further"),
    [([], 1), (["task.deterministic=true"], 0), (["evaluation.members=0"], 0)],
)
def test_one_evaluation_finds_that_there_is_no_noise(
    overrides: list[str], further: int, tmp_path: Path
) -> None:
    file = config(tmp_path, ARCHIVE.replace("here:f", "here:exact"))
    result = trained(1, file, tmp_path / "run", *overrides)
    assert "members_again" not in result
    assert "value_again" not in table(tmp_path / "run/archive.csv")[0]
    assert calls(tmp_path) == 120 + further


def test_members_of_a_noisy_front_are_evaluated_again(tmp_path: Path) -> None:
    file = config(tmp_path, FRONT)
    result = trained(2, file, tmp_path / "run", "evaluation.members=3")
    rows = table(tmp_path / "run/front.csv")
    means = np.array([[float(row[f"{name}_again"]) for name in ("one", "other")] for row in rows])
    beaten = [any((other <= own).all() and (other < own).any() for other in means) for own in means]
    assert result["members_again"] == {
        "evaluations": 3 * len(rows),
        "of_each": 3,
        "members": len(rows) - sum(beaten),
    }
    assert sum(beaten) > 0


@pytest.mark.long
def test_members_of_policies_are_evaluated_again_if_asked(tmp_path: Path) -> None:
    file = config(tmp_path, POLICY)
    again = [
        trained(ranks, file, tmp_path / f"{ranks}")["members_again"]["evaluations"]
        for ranks in (1, 2)
    ]
    one, two = ((tmp_path / f"{ranks}/archive.csv").read_bytes() for ranks in (1, 2))
    rows = table(tmp_path / "1/archive.csv")
    assert one == two and again == [2 * len(rows)] * 2
    assert {"return_again", "position_again", "angle_again"} <= set(rows[0])


@pytest.mark.long
def test_processes_of_one_machine_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = config(tmp_path, ARCHIVE)
    trained(1, file, tmp_path / "whole")
    for _ in hpc_es.train(file, output=tmp_path / "run", workers=2):
        pass
    tables = [(tmp_path / run / "archive.csv").read_bytes() for run in ("whole", "run")]
    assert tables[0] == tables[1]
