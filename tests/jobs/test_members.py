"""Runs with several objectives, measures and members, by the algorithms of the examples."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.core.errors import CheckpointError, ConfigError
from tests.helpers.harness import ROOT, mpiexec, python

EXAMPLES = ROOT / "examples"
# Mass in kg and deflection in mm of the ends of the front and of two beams between (Deb 2001,
# section 9.1.1).
PUBLISHED = ((0.44, 2.04), (0.58, 1.18), (1.43, 0.19), (3.06, 0.04))


def trained(ranks: int, run: Path, config: str, *overrides: str) -> Path:
    ended = mpiexec(
        ranks, ["-m", "hpc_es.main", str(EXAMPLES / config), *overrides, "--output", str(run)]
    )
    assert ended.status == 0, ended.stderr
    return run


def table(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.long
def test_front_reaches_published_beams_on_any_ranks(tmp_path: Path) -> None:
    fronts = [trained(ranks, tmp_path / str(ranks), "own_front/beam.yaml") for ranks in (1, 3)]
    assert (fronts[0] / "front.csv").read_bytes() == (fronts[1] / "front.csv").read_bytes()
    beams = table(fronts[0] / "front.csv")
    assert list(beams[0])[:5] == ["member", "generation", "job", "diameter", "length"]
    points = np.array([[float(beam["mass"]), float(beam["deflection"])] for beam in beams])
    for published in PUBLISHED:
        distances = np.abs(points / published - 1).max(axis=1)
        assert distances.min() < 0.2, (published, points[distances.argmin()])
    evaluated = {
        (row["generation"], row["job"]): row for row in table(fronts[0] / "evaluations.csv")
    }
    for beam in beams:  # a name leads to the evaluation
        assert evaluated[beam["generation"], beam["job"]]["deflection"] == beam["deflection"]
    assert json.loads((fronts[0] / "result.json").read_text())["members"] == len(beams)
    assert f"front.csv: {len(beams)} members\n" in (fronts[0] / "log.txt").read_text()
    member = beams[3]["member"]
    ended = python(
        ["-m", "hpc_es", "export", str(fronts[0]), str(tmp_path / "one.json"), "--member", member]
    )
    assert ended.status == 0, ended.stderr
    exported = json.loads((tmp_path / "one.json").read_text())
    assert exported["x"] == {name: float(beams[3][name]) for name in ("diameter", "length")}
    with np.load(fronts[0] / "front.npz") as arrays:
        assert arrays["member"].tolist() == [beam["member"] for beam in beams]
        assert arrays["vectors"][3].tolist() == list(exported["x"].values())


@pytest.mark.long
def test_archive_of_policies_is_killed_resumed_and_loaded(tmp_path: Path) -> None:
    config = str(EXAMPLES / "own_archive/cartpole.yaml")
    whole = trained(1, tmp_path / "whole", "own_archive/cartpole.yaml", "stop.generations=6")
    part = trained(3, tmp_path / "part", "own_archive/cartpole.yaml", "stop.generations=3")
    assert (part / "archive.csv").read_bytes() != (whole / "archive.csv").read_bytes()
    ended = mpiexec(2, ["-m", "hpc_es.main", config, "stop.generations=6", "--output", str(part)])
    assert ended.status == 0, ended.stderr
    assert (part / "archive.csv").read_bytes() == (whole / "archive.csv").read_bytes()
    members = table(whole / "archive.csv")
    policies = [hpc_es.load_policy(whole, member=row["member"]) for row in members[:2]]
    assert [policy.which for policy in policies] == [row["member"] for row in members[:2]]
    ended = python(
        [
            "-m",
            "hpc_es",
            "eval",
            str(whole),
            "--member",
            members[0]["member"],
            "--episodes",
            "2",
            "--json",
        ]
    )
    found = json.loads(ended.stdout)
    assert found["which"] == members[0]["member"], ended.stderr
    assert found["recorded_return"] == float(members[0]["return"])
    assert not np.array_equal(policies[0].source.theta, policies[1].source.theta)
    observation = np.array([0.0, 0.1, 0.02, 0.0], np.float32)
    assert policies[0](observation) in (0, 1)
    with pytest.raises(CheckpointError, match="there is no member g99j0"):
        hpc_es.load_policy(whole, member="g99j0")
    with pytest.raises(ValueError, match="expected one of them"):
        hpc_es.load_policy(whole, "best", member="g0j0")
    checkpoint = next(iter(sorted((whole / "checkpoints").glob("*.h5"))))
    with pytest.raises(CheckpointError, match="expected the directory of a run"):
        hpc_es.load_policy(checkpoint, member=members[0]["member"])
    (whole / "archive.npz").write_bytes((whole / "archive.npz").read_bytes()[:200])
    with pytest.raises(CheckpointError, match="is damaged"):
        hpc_es.load_policy(whole, member=members[0]["member"])


MIX = """
def mix(x):
    distance = float(x[0] ** 2 + x[1] ** 2)
    return {"value": distance + float(x[2] ** 2), "constraints": [0.3 - x[2]], "measures": x[:2]}


def two(x):
    return {"objectives": [float((x**2).sum()), float(((x - 1) ** 2).sum())]}
"""
OF_MIX = """
task: {kind: function, function: "here:mix", dimension: 3, initial: 0.0, constraints: [c],
  measures: {a: [-2, 2], b: [-2, 2]}, bounds: {low: -2, high: 2, keep: clip}}
algorithm: {kind: "my_archive:MapElites", population_size: 8, sigma: 0.3, cells: [8, 8]}
noise: {kind: counter}
stop: {generations: 60}
"""
OF_TWO = """
task: {kind: function, function: "here:two", dimension: 3, initial: 0.0, objectives: {a: minimise, b: minimise}}
algorithm: {kind: "my_front:NSGA2", population_size: 12}
noise: {kind: counter}
stop: {generations: 20}
"""


def in_directory(directory: Path, text: str) -> Path:
    """The run of a config beside copies of the examples' algorithms."""
    for name in ("own_archive/my_archive.py", "own_front/my_front.py"):
        (directory / Path(name).name).write_text((EXAMPLES / name).read_text())
    (directory / "here.py").write_text(MIX)
    (directory / "c.yaml").write_text(text)
    ended = mpiexec(
        1, ["-m", "hpc_es.main", str(directory / "c.yaml"), "--output", str(directory / "run")]
    )
    assert ended.status == 0, ended.stderr
    return directory / "run"


@pytest.mark.long
def test_archive_keeps_feasible_members_over_those_of_other_generations(tmp_path: Path) -> None:
    """The fitness of infeasible jobs depends on their generation, so it cannot compare members."""
    run = in_directory(tmp_path, OF_MIX)
    best: dict[tuple[int, int], tuple[float, float]] = {}  # violation and value by cell
    for row in table(run / "evaluations.csv"):
        a, b = (min(max(int((float(row[name]) + 2) * 2), 0), 7) for name in ("a", "b"))
        merit = max(float(row["c"]), 0.0), float(row["value"])
        if int(row["job"]) >= 0:
            best[a, b] = min(best.get((a, b), merit), merit)
    members = {
        tuple(map(int, row["cell"].split())): float(row["value"])
        for row in table(run / "archive.csv")
    }
    assert members == pytest.approx({cell: value for cell, (_, value) in best.items()})
    assert sum(violation == 0 for violation, _ in best.values()) > 5 < len(best)


@pytest.mark.long
def test_front_without_constraints_is_the_line_between_the_optima(tmp_path: Path) -> None:
    """For squared distances from 0 and from 1 it is sqrt(a) + sqrt(b) = sqrt(3)."""
    front = table(in_directory(tmp_path, OF_TWO) / "front.csv")
    sums = [float(row["a"]) ** 0.5 + float(row["b"]) ** 0.5 for row in front]
    assert (
        len(front) == 12 and min(sums) >= 3**0.5 - 1e-12 and float(np.median(sums)) < 3**0.5 * 1.1
    )


FUNCTION = "task: {kind: function, function: 'here:f', dimension: 3, initial: 0.5%s}\n"
EPISODES = "task: {kind: episodes, env_id: CartPole-v1, max_episode_steps: 30%s}\npolicy: {kind: mlp, hidden_dims: []}\n"
NOVELTY = "algorithm: {kind: novelty, population_size: 8, mode: nsr}\nstop: {generations: 4}\nnoise: {kind: counter}\n"
OF_PARAMETERS = ", ".join(
    f"m{index}: {{from: parameter.x{index}, range: [-1, 1]}}" for index in range(3)
)
OF_OBSERVATION = (
    "p: {from: observation.0, range: [-3, 3]}, q: {from: observation.2, range: [-1, 1]}"
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "older", "newer"),
    [
        (FUNCTION, ", vector_behaviour: true", f", measures: {{{OF_PARAMETERS}}}"),
        (EPISODES, ", behaviour: {final_observation: [0, 2]}", f", measures: {{{OF_OBSERVATION}}}"),
    ],
    ids=["function", "episodes"],
)
def test_behaviours_are_the_older_spelling_of_measures(
    task: str, older: str, newer: str, tmp_path: Path
) -> None:
    (tmp_path / "here.py").write_text("def f(x):\n    return float((x**2).sum())\n")
    results = []
    for name, more in (("older", older), ("newer", newer)):
        config = tmp_path / f"{name}.yaml"
        config.write_text(task % more + NOVELTY)
        ended = mpiexec(1, ["-m", "hpc_es.main", str(config), "--output", str(tmp_path / name)])
        assert ended.status == 0, ended.stderr
        results.append(json.loads((tmp_path / name / "result.json").read_text())["state_sha256"])
    assert results[0] == results[1]


@pytest.mark.long
def test_eval_has_the_quantities_of_episodes(tmp_path: Path) -> None:
    limit = (
        ", objectives: {length: maximise}, constraints: {position: observation.0, limit: length}"
    )
    (tmp_path / "c.yaml").write_text(
        EPISODES % limit + "algorithm: {population_size: 8}\nstop: {generations: 2}\n"
    )
    run = tmp_path / "run"
    ended = mpiexec(1, ["-m", "hpc_es.main", str(tmp_path / "c.yaml"), "--output", str(run)])
    assert ended.status == 0, ended.stderr
    ended = python(["-m", "hpc_es", "eval", str(run), "--episodes", "8", "--json"])
    result = json.loads(ended.stdout)
    assert result["objective_length"] == result["constraint_limit"] == result["length_mean"]
    assert result["feasible_share"] == 0.0 and abs(result["constraint_position"]) < 3


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            "task.objectives={a: minimise, b: minimise}",
            "task.objectives: has 2 objectives, but 'es' ranks by one",
        ),
        ("task.objectives={a: minimise, a b: up}", "task.objectives.a b.goal: expected one of"),
        ("task.objectives={x0: minimise}", "task.objectives: has x0, which is also another"),
        ("task.measures={x: [0, 1, 2]}", "task.measures.x.range"),
        (
            "task.measures={x: {from: info.x, range: [0, 1]}}",
            "or parameter.NAME with one of x0, x1",
        ),
        ("algorithm.kind=my_archive:MapElites", "which needs measures, but the task has none"),
        ("algorithm.kind=my_front:NSGA2", "which needs several objectives, but the task has none"),
    ],
)
def test_mistakes_are_found_before_a_run(more: str, text: str, tmp_path: Path) -> None:
    for name in ("own_archive/my_archive.py", "own_front/my_front.py"):
        (tmp_path / Path(name).name).write_text((EXAMPLES / name).read_text())
    (tmp_path / "here.py").write_text("def f(x):\n    return float((x**2).sum())\n")
    config = tmp_path / "c.yaml"
    config.write_text(FUNCTION % "" + "algorithm: {kind: es}\nnoise: {kind: counter}\n")
    ended = python(["-m", "hpc_es.main", str(config), "--check", more])
    assert ended.status == 2 and text in ended.stderr, ended.stderr


def test_ask_and_tell_takes_measures_and_objectives() -> None:
    es = hpc_es.Strategy(
        "novelty",
        x0=np.zeros(2),
        sigma0=0.1,
        seed=1,
        measures={"x": (0, 1), "y": (0, 1)},
        population_size=8,
        noise="counter",
    )
    while es.generation < 3:
        x = es.ask()
        es.tell((x**2).sum(axis=1), measures=np.abs(x))
    x = es.ask()
    with pytest.raises(ValueError, match=r"expected the measures \['x', 'y'\] of"):
        es.tell((x**2).sum(axis=1))
    with pytest.raises(ConfigError, match="ranks by one number"):
        goals = {"a": "minimise", "b": "maximise"}
        hpc_es.Strategy(x0=np.zeros(2), sigma0=0.1, algorithm="cma_es", objectives=goals)
    one: Any = hpc_es.Strategy(
        x0=np.zeros(2), sigma0=0.1, objectives={"a": "maximise"}, max_evaluations=60
    )
    while not one.stop():
        one.tell(-((one.ask() - 1) ** 2).sum(axis=1, keepdims=True))
    assert one.best.f > -0.3
