"""Whole runs with several objectives by the strategies of hpc_es."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es import cli
from hpc_es.core.domination import nondominated
from hpc_es.core.errors import CheckpointError, ConfigError
from hpc_es.core.hypervolume import hypervolume
from tests.helpers.harness import mpiexec, python

COSTS = """
import os, signal

import numpy as np

def two(x):
    return {"objectives": [float(x @ x), float((x - 1) @ (x - 1))], "constraints": [0.7 - float(x[0])]}

def beam(diameter, length, steel, bars):
    density, modulus = {"mild": (7800, 207e9), "aluminium": (2700, 70e9)}[steel]
    mass = bars * density * np.pi / 4 * diameter**2 * length
    return {"mass": mass, "deflection": 1e3 * 64 * 1000 / bars * length**3 / (3 * modulus * np.pi * diameter**4)}

def mixed(**parameters):
    return {"objectives": beam(**parameters)}
"""
TWO = """
task: {kind: function, function: "here:two", dimension: 3, initial: 0.0, constraints: [first], bounds: {low: -1, high: 2},
  objectives: {a: {goal: minimise, reference: 4}, b: {goal: minimise, reference: 4}}}
"""
NSGA2 = TWO + "algorithm: {kind: nsga2, population_size: 16, archive_size: 20}\n"
COMO = TWO + "algorithm: {kind: como_cma_es, kernels: 3, archive_size: 20}\n"
MIXED = """
task:
  kind: function
  function: "here:mixed"
  parameters:
    diameter: {low: 0.01, high: 0.05, scale: log}
    length: {low: 0.2, high: 1.0}
    steel: {choices: [mild, aluminium]}
    bars: {integer: true, low: 1, high: 4}
  objectives: {mass: minimise, deflection: minimise}
algorithm: {kind: %s}
"""
POLICIES = """
task: {kind: episodes, env_id: CartPole-v1, max_episode_steps: 40, objectives: {return: maximise, end: {from: observation.0, goal: maximise}}}
policy: {kind: mlp, hidden_dims: [4]}
algorithm: {kind: %s}
"""


def started(directory: Path, text: str, run: str, *overrides: str, ranks: int = 1) -> Path:
    (directory / "here.py").write_text(COSTS)
    (directory / "c.yaml").write_text(text)
    command = ["-m", "hpc_es.main", str(directory / "c.yaml"), *overrides]
    ended = mpiexec(ranks, [*command, "--output", str(directory / run)])
    assert ended.status == 0, ended.stderr
    return directory / run


def table(run: Path, name: str = "front.csv") -> list[dict[str, str]]:
    with (run / name).open(newline="") as lines:
        return list(csv.DictReader(lines))


def result(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "result.json").read_text())
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "more"),
    [
        (NSGA2, ()),
        (NSGA2, ("algorithm.delay=1",)),
        (COMO, ()),
        (MIXED % "nsga2, population_size: 12", ()),
        (MIXED % "como_cma_es, kernels: 2", ()),
        (POLICIES % "nsga2, population_size: 8", ()),
        (POLICIES % "como_cma_es, kernels: 2, population_size: 6", ()),
    ],
    ids=["nsga2", "delay", "como", "mixed_nsga2", "mixed_como", "policies_nsga2", "policies_como"],
)
def test_front_is_the_same_on_any_ranks_and_after_a_stop(
    text: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    whole = started(tmp_path, text, "whole", *more, "stop.generations=8")
    digests = [result(whole)["state_sha256"]]
    for ranks, before in ((3, 5), (5, 2)):
        run = f"on_{ranks}"
        started(tmp_path, text, run, *more, f"stop.generations={before}", ranks=ranks)
        started(tmp_path, text, run, *more, "stop.generations=8", ranks=before)
        digests.append(result(tmp_path / run)["state_sha256"])
        assert (tmp_path / run / "front.csv").read_bytes() == (whole / "front.csv").read_bytes()
    assert len(set(digests)) == 1


@pytest.mark.long
@pytest.mark.parametrize("text", [NSGA2, COMO], ids=["nsga2", "como"])
def test_front_has_the_feasible_evaluations_that_none_dominates(text: str, tmp_path: Path) -> None:
    """For the squared distances from 0 and 1 with x0 >= 0.7, all that evaluations.csv has."""
    run = started(tmp_path, text, "run", "stop.episodes=333", "algorithm.archive_size=400")
    rows = [row for row in table(run, "evaluations.csv") if float(row["first"]) <= 0]
    costs = np.array([[float(row["a"]), float(row["b"])] for row in rows])
    best = {
        (row["generation"], row["job"])
        for row, is_best in zip(rows, nondominated(costs), strict=True)
        if is_best
    }
    front = table(run)
    assert {(row["generation"], row["job"]) for row in front} == best and len(best) > 10
    points = np.array([[float(row["a"]), float(row["b"])] for row in front])
    found = result(run)
    assert found["front"]["hypervolume"] == pytest.approx(hypervolume(points, np.full(2, 4.0)))
    assert found["answer"]["value"] == found["front"]["hypervolume"]
    assert found["answer"]["evaluations"] == found["members"] == len(front)
    chosen = {row["choice"]: row for row in front if row["choice"]}
    assert chosen.keys() == {"knee", "best a", "best b"}
    assert front[0]["choice"] == "best a" and front[-1]["choice"] == "best b"
    scaled = (points - points.min(axis=0)) / np.ptp(points, axis=0)
    assert front[int(scaled.max(axis=1).argmin())] == chosen["knee"]
    assert found["front"]["knee"]["member"] == chosen["knee"]["member"]
    last = (run / "log.txt").read_text().splitlines()[-1]
    assert f"front of {len(front)} members  hypervolume" in last and "return" not in last


def test_member_is_evaluated_and_exported_with_what_it_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = started(tmp_path, NSGA2, "run", "stop.generations=4")
    knee = next(row for row in table(run) if row["choice"] == "knee")
    objectives = {"a": float(knee["a"]), "b": float(knee["b"])}
    cli.run(["export", str(run), str(tmp_path / "knee.json"), "--member", "knee"])
    exported = json.loads((tmp_path / "knee.json").read_text())
    assert exported["objectives"] == objectives and exported["member"] == knee["member"]
    assert exported["constraints"] == {"first": float(knee["first"])}
    capsys.readouterr()
    cli.run(["eval", str(run), "--member", "knee", "--json"])
    found = json.loads(capsys.readouterr().out)
    for name, value in objectives.items():
        assert found[f"recorded_objective_{name}"] == value
        assert found[f"objective_{name}"] == pytest.approx(value, rel=1e-12)
        assert found[f"standard_error_{name}"] == 0
    assert "value_mean" not in found and "recorded_value" not in found
    cli.run(["inspect", str(run)])
    before, _, _ = capsys.readouterr().out.partition("\narrays\n")
    assert f"knee         member {knee['member']}" in before and "best_evaluation" not in before
    assert "knee_x" in before and "goal" not in before


@pytest.mark.long
def test_limits_of_the_hypervolume(tmp_path: Path) -> None:
    run = started(tmp_path, NSGA2, "reached", "stop.hypervolume=5", "stop.generations=90")
    assert result(run)["success"] and result(run)["front"]["hypervolume"] >= 5
    assert "finished by stop.hypervolume: 5 after" in (run / "log.txt").read_text()
    run = started(
        tmp_path,
        COMO,
        "plateau",
        "stop.patience=300",
        "stop.min_improvement=0.05",
        "stop.episodes=30000",
    )
    assert "finished by stop.patience: 300 after" in (run / "log.txt").read_text()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    per_generation = rows[0]["evaluations_this_generation"]
    stale = -(-300 // per_generation)
    assert rows[-1]["hypervolume"] <= rows[-1 - stale]["hypervolume"] + 0.05
    assert rows[-1]["front_size"] == len(table(run))


@pytest.mark.long
def test_members_of_policies_are_loaded_by_what_speaks_for_them(tmp_path: Path) -> None:
    run = started(tmp_path, POLICIES % "nsga2, population_size: 8", "run", "stop.generations=3")
    by_choice = {
        choice: row["member"]
        for row in table(run)
        for choice in row["choice"].split(", ")
        if choice
    }
    assert by_choice.keys() == {"knee", "best return", "best end"}
    for choice, member in by_choice.items():
        policy = hpc_es.load_policy(run, member=choice)
        assert policy.which == member
        assert np.array_equal(
            policy.source.theta, hpc_es.load_policy(run, member=member).source.theta
        )
    ended = python(
        ["-m", "hpc_es", "eval", str(run), "--member", "best end", "--episodes", "2", "--json"]
    )
    found = json.loads(ended.stdout)
    assert found["which"] == by_choice["best end"], ended.stderr
    (row,) = (row for row in table(run) if row["member"] == found["which"])
    assert found["recorded_objective_end"] == float(row["end"])
    assert found["recorded_objective_return"] == float(row["return"])
    with pytest.raises(
        CheckpointError, match="has a front and no best vector: expected --member knee"
    ):
        hpc_es.load_policy(run)
    shown = python(["-m", "hpc_es", "inspect", str(run)]).stdout
    assert f"member {by_choice['knee']}" in shown and "hypervolume" in shown


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            "stop.target_value=1",
            "stop.target_value: compares one number, but there are several objectives",
        ),
        (
            "task.objectives.a.reference=null stop.hypervolume=1",
            "but a has none: expected one for each",
        ),
        ("task.objectives={a: minimise}", "needs several objectives, but the task has 1"),
        ("task.objectives={a: minimise, b: lower}", "task.objectives.b.goal: expected one of"),
        (
            "task.bounds.keep=penalty",
            "task.bounds.keep: is penalty, but there are several objectives",
        ),
        (
            "task.objectives={knee: minimise, choice: minimise}",
            "has choice, which is also a column of the tables",
        ),
        ("algorithm={kind: snes}", "or algorithm.kind: 'como_cma_es' or 'nsga2'"),
        (
            "algorithm={kind: es} task.objectives=null stop.hypervolume=2",
            "'es' has no front: expected null, or algorithm.kind",
        ),
        (
            "algorithm={kind: como_cma_es, kernels: 1000000, population_size: 4} task.dimension=100",
            "algorithm.kernels",
        ),
    ],
)
def test_mistakes_are_found_before_a_run(more: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text(COSTS)
    (tmp_path / "c.yaml").write_text(NSGA2)
    overrides = [
        part for part in more.replace("} ", "}\n").replace("null ", "null\n").split("\n") if part
    ]
    ended = python(["-m", "hpc_es.main", str(tmp_path / "c.yaml"), "--check", *overrides])
    assert ended.status == 2 and text in ended.stderr, ended.stderr


@pytest.mark.long
def test_vector_of_the_wrong_length_says_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("def two(x):\n    return [1.0, 2.0, 3.0]\n")
    (tmp_path / "c.yaml").write_text(NSGA2.replace("constraints: [first], ", ""))
    ended = mpiexec(
        1, ["-m", "hpc_es.main", str(tmp_path / "c.yaml"), "--output", str(tmp_path / "run")]
    )
    assert (
        ended.status == 1
        and "expected {objectives: 2 numbers (a, b)}, got 3 objectives" in ended.stderr
    )


# From Python.


def two(x: Any) -> tuple[float, float]:
    return float(x @ x), float((x - 1) @ (x - 1))


@pytest.mark.long
def test_minimize_returns_the_front() -> None:
    for algorithm, more in (("nsga2", {}), ("como_cma_es", {"kernels": 4})):
        front = hpc_es.minimize(
            two,
            np.zeros(3),
            algorithm=algorithm,
            bounds=(-1, 2),
            objectives=2,
            reference=[4, 4],
            max_evaluations=1010,
            **more,
        )
        assert front.evaluations == 1010 and front.status == 1 and not front.success
        # sqrt(a) + sqrt(b) = sqrt(3) on the front
        sums = np.sqrt(front.f).sum(axis=1)
        assert (sums >= 3**0.5 - 1e-12).all() and np.median(sums) < 3**0.5 * 1.05
        assert front.f == pytest.approx(np.array([two(x) for x in front.x]))
        assert front.hypervolume == pytest.approx(hypervolume(front.f, np.full(2, 4.0)))
        assert front.knee is not None and abs(front.f[front.knee] - 0.75).max() < 0.2
        assert front.parameters[0]["x1"] == front.x[0, 1] and front.objectives == ["f1", "f2"]


def test_ask_and_tell_with_rows_is_the_same_search() -> None:
    es = hpc_es.Strategy(x0=np.zeros(3), bounds=(-1, 2), objectives=["a", "b"], population_size=10)
    while es.generation < 20:
        es.tell([two(x) for x in es.ask()])
    front = hpc_es.minimize(
        two,
        np.zeros(3),
        bounds=(-1, 2),
        objectives=["a", "b"],
        population_size=10,
        max_evaluations=200,
    )
    assert es.best is None
    assert np.array_equal(es.front.x, front.x) and es.front.names == front.names
    with pytest.raises(ValueError, match=r"expected the objectives \['a', 'b'\], float64\[10, 2\]"):
        es.tell([1.0] * len(es.ask()))
    with pytest.raises(ValueError, match="has one objective"):
        _ = hpc_es.Strategy(x0=np.zeros(3), sigma0=0.1).front


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"objectives": 1}, "objectives: is 1: expected at least 2"),
        ({"objectives": ["a", "a"]}, "has equal names"),
        ({"objectives": {"a": "up", "b": "minimise"}}, "objectives.a.goal: expected one of"),
        ({"objectives": 2, "reference": [1.0]}, "expected 2 numbers, one for each objective"),
        ({"reference": [1.0]}, "reference: is given without objectives"),
        ({"objectives": 2, "target": 1.0}, "target: compares one number"),
        ({"objectives": 2, "algorithm": "es"}, "or algorithm: 'como_cma_es' or 'nsga2'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        hpc_es.minimize(two, np.zeros(3), 0.1, **arguments)


def test_callback_gets_the_front_and_ends_the_search() -> None:
    sizes = []

    def callback(front: Any) -> None:
        sizes.append(len(front))
        if front.generations == 3:
            raise StopIteration

    front = hpc_es.minimize(two, np.zeros(3), 0.3, objectives=2, callback=callback)
    assert front.status == 3 and len(sizes) == 3 and sizes[-1] == len(front)


KILLED = """
import os, signal, time
from pathlib import Path

def two(x):
    mark = Path(__file__).parent / "killed"
    if (os.environ.get("PMI_RANK") == "1" and x[0] > 1.2) and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"objectives": [float(x @ x), float((x - 1) @ (x - 1))], "constraints": [0.7 - float(x[0])]}
"""


@pytest.mark.parametrize("text", [NSGA2, COMO], ids=["nsga2", "como"])
def test_front_is_the_same_after_the_kill_of_a_rank(text: str, tmp_path: Path) -> None:
    whole = started(tmp_path, text, "whole", "stop.generations=6")
    (tmp_path / "here.py").write_text(KILLED)
    command = ["-m", "hpc_es.main", str(tmp_path / "c.yaml"), "stop.generations=6"]
    command += ["checkpoint.interval=2", "--output", str(tmp_path / "run")]
    killed = mpiexec(3, command)
    assert killed.status != 0 and (tmp_path / "killed").exists()
    ended = mpiexec(2, command)
    assert ended.status == 0, ended.stderr
    assert result(tmp_path / "run")["state_sha256"] == result(whole)["state_sha256"]
    assert (tmp_path / "run/front.csv").read_bytes() == (whole / "front.csv").read_bytes()


def test_results_of_several_directories_show_the_hypervolume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a note if it is measured from different points."""
    runs = [
        started(tmp_path, NSGA2, f"run{seed}", "stop.generations=2", f"seed={seed}", more)
        for seed, more in (
            (1, "name=x"),
            (2, "name=x"),
            (3, "task.objectives={a: minimise, b: minimise}"),
        )
    ]
    for chosen, differ in ((runs[:2], False), (runs, True)):
        assert cli.run(["results", *map(str, chosen)]) == 0
        head, *lines, last = capsys.readouterr().out.splitlines()
        assert head.split() == ["directory", "finished", "hypervolume", "evaluations"]
        assert last.startswith("The hypervolumes are measured from different") == differ
        lines += [] if differ else [last]
        for line, path in zip(lines, chosen, strict=True):
            assert line.split()[4] == f"{result(path)['answer']['value']:.6g}"


def test_timesteps_of_policies_are_not_called_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        started(tmp_path, POLICIES % "nsga2", f"run{seed}", "stop.generations=1", f"seed={seed}")
        for seed in (1, 2)
    ]
    assert cli.run(["results", *map(str, runs)]) == 0
    assert capsys.readouterr().out.split()[:4] == [
        *("directory", "finished", "hypervolume", "timesteps")
    ]
