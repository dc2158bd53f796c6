"""`task.initial_points`: files of points, their checks, and what a search does with them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es import cli
from hpc_es.config.loading import validate
from hpc_es.config.schema import Config
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.functions.initial_points import InitialPoints, Known, initial_points
from hpc_es.training.build import build_task
from tests.helpers import toys

TYPED = {
    "layers": {"integer": True, "low": 1, "high": 8},
    "grid": {"values": [16, 32, 64]},
    "solver": {"choices": ["cg", 1, True]},
    "rate": {"low": 1e-4, "high": 1.0, "scale": "log"},
}


def config(path: Path, **task: Any) -> Config:
    options = {"dimension": 2} if "parameters" not in task else {}
    function = {"kind": "function", "function": "tests.helpers.toys:ellipsoid", **options, **task}
    data = {
        "task": {**function, "initial_points": str(path)},
        "algorithm": {"kind": "cma_es"},
        "policy": None,
    }
    return validate({**data, "stop": {"generations": 1}})


def points(path: Path, text: str, **task: Any) -> InitialPoints:
    path.write_text(text)
    read = initial_points(config(path, **task).task)
    assert read is not None
    return read


def test_unknown_points_come_first_then_the_best_known_ones(tmp_path: Path) -> None:
    text = "x1,value,x0\n1,5.0,2\n3,,4\n5,-1,6\n7,nan,8\n"
    read = points(tmp_path / "p.csv", text)
    assert read.vectors.tolist() == [[4, 3], [6, 5], [2, 1]] and read.unknown == 1
    assert [known.value for known in read.known.values()] == [-1.0, 5.0]
    # half of the population
    assert len(read.first_candidates(6)) == 3 and len(read.first_candidates(4)) == 2
    assert points(tmp_path / "p.csv", text, goal="maximise").vectors[1].tolist() == [2, 1]


def test_known_value_replaces_the_same_unknown_point(tmp_path: Path) -> None:
    read = points(tmp_path / "p.json", json.dumps([{"x": [1, 2]}, {"x0": 1, "x1": 2, "value": 3}]))
    assert read.unknown == 0 and [known[:3] for known in read.known.values()] == [(3.0, (), 0.0)]


def test_typed_parameters_are_read_from_csv_and_json(tmp_path: Path) -> None:
    expected = [[2, 64, 0, 0.5], [3, 16, 1, 1.0], [8, 32, 2, 0.25]]
    text = "layers,grid,solver,rate\n2,64,cg,0.5\n3,16,1,1.0\n8,32,true,0.25\n"
    assert points(tmp_path / "p.csv", text, parameters=TYPED).vectors.tolist() == [
        pytest.approx(row) for row in expected
    ]
    values = [
        dict(zip(TYPED, row, strict=True))
        for row in ([2, 64, "cg", 0.5], [3, 16, 1, 1.0], [8, 32, True, 0.25])
    ]
    read = points(tmp_path / "p.json", json.dumps(values), parameters=TYPED)
    assert read.vectors.tolist() == [pytest.approx(row) for row in expected]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.csv", "layers,grid,solver\n1,16,cg\n", "without rate"),
        ("p.csv", "layers,grid,solver,rate,x\n", "with x"),
        ("p.csv", "layers,grid,solver,rate,rate\n", "with rate twice"),
        (
            "p.csv",
            "layers,grid,solver,rate\n2.5,16,cg,1\n",
            "layers is 2.5: expected a whole number from 1 to 8",
        ),
        (
            "p.csv",
            "layers,grid,solver,rate\n2,17,cg,1\n",
            r"grid is 17.0: expected one of \[16, 32, 64\]",
        ),
        (
            "p.csv",
            "layers,grid,solver,rate\n2,16,gmres,1\n",
            r'solver is "gmres": expected one of \["cg", 1, true\]',
        ),
        (
            "p.csv",
            "layers,grid,solver,rate\n2,16,cg,2\n",
            "line 2: rate is 2.0: expected a number from 0.0001 to 1",
        ),
        (
            "p.csv",
            "layers,grid,solver,rate,value\n2,16,cg,1,x\n",
            'value is "x": expected a number',
        ),
        ("p.csv", "layers,grid,solver,rate\n2,16,cg\n", "expected 4 cells, found 3"),
        ("p.csv", "layers,grid,solver,rate\n", "expected at least one point"),
        (
            "p.csv",
            "layers,grid,solver,rate\nx,16,cg,1\n",
            'line 2: layers is "x": expected a whole number from 1 to 8',
        ),
        ("p.json", "{}", "expected a list of points"),
        (
            "p.json",
            '[{"layers": 1, "grid": 16, "solver": "cg", "rate": "x"}]',
            'rate is "x": expected a number',
        ),
        (
            "p.json",
            '[{"layers": [1], "grid": 16, "solver": "cg", "rate": 1}]',
            r"layers is \[1\]: expected a whole",
        ),
        (
            "p.json",
            '[{"layers": 1, "layers": 2, "grid": 16, "solver": "cg", "rate": 1}]',
            "'layers' stands twice",
        ),
        ("p.json", "[7]", "point 0: expected an object .* or a list of numbers, found 7"),
        (
            "p.json",
            '[{"layers": true, "grid": 16, "solver": "cg", "rate": 1}]',
            "layers is true: expected a whole",
        ),
        (
            "p.json",
            '[{"layers": 1, "grid": 16, "solver": "1", "rate": 1}]',
            r'solver is "1": expected one of',
        ),
        ("p.txt", "1 2\n", "expected the suffix .csv or .json"),
        ("p.json", "[", "cannot be read"),
    ],
)
def test_wrong_files_are_config_errors(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        points(tmp_path / name, text, parameters=TYPED)


HOSTILE = [
    ("p.csv", f"x0,x1\n1,{'2' * 200_000}\n", "field larger than field limit"),
    ("p.json", "[" * 200_000, "nested too deep"),
    ("p.json", f"[[1{'0' * 400}, 2]]", "expected a number"),
    ("p.json", '[{"x": [1, 2], "value": 1%s}]' % ("0" * 400), "expected a number"),
    ("p.json", json.dumps([["a" * 1_000_000, 1]]), "expected a number"),
    ("p.json", json.dumps([{f"k{number}": 1 for number in range(300_000)}]), "without x0"),
]


@pytest.mark.parametrize(("name", "text", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files_are_config_errors(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        points(tmp_path / name, text)
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("name", ["p.csv", "p.json"])
def test_pipes_and_devices_are_no_files_of_points(name: str, tmp_path: Path) -> None:
    """A link of the user's own may lead to a file."""
    path = tmp_path / name
    for make in (
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path),
    ):
        make(path)
        with pytest.raises(ConfigError, match="expected a regular file"):
            initial_points(config(path).task)
        path.unlink()
    (tmp_path / "own").write_text("[[1, 2]]" if name == "p.json" else "x0,x1\n1,2\n")
    path.symlink_to(tmp_path / "own")
    read = initial_points(config(path).task)
    assert read is not None and read.vectors.tolist() == [[1, 2]]


def test_mark_at_the_start_of_a_table_of_a_spreadsheet(tmp_path: Path) -> None:
    assert points(tmp_path / "p.csv", "\ufeffx0,x1\r\n1,2\r\n").vectors.tolist() == [[1, 2]]


def test_points_may_be_vectors(tmp_path: Path) -> None:
    read = points(tmp_path / "p.json", '[[1, 2], {"x": [3, 4]}]')
    assert read.vectors.tolist() == [[1, 2], [3, 4]]


def test_minimize_evaluates_points_first_and_takes_over_known_values(tmp_path: Path) -> None:
    """The population is 6; two points are evaluated, and the third one has a value."""
    calls: list[list[float]] = []

    def cost(x: Any) -> float:
        calls.append(x.tolist())
        return toys.ellipsoid(x)

    points: Any = [
        np.array([1.0, 2.0]),
        {"x0": np.float64(0.5), "x1": 3},
        {"x": [0.25, 0.25], "value": -1.0},
    ]
    options: dict[str, Any] = {"x0": [0.0, 0.0], "sigma0": 0.3, "max_evaluations": 6, "seed": 1}
    best = hpc_es.minimize(cost, initial_points=points, **options)
    assert calls[:2] == [[1.0, 2.0], [0.5, 3.0]] and len(calls) == 5
    assert best.x.tolist() == [0.25, 0.25] and best.f == -1 and best.evaluations == 6
    (tmp_path / "p.csv").write_text("x0,x1,value\n1,2,\n0.5,3,\n0.25,0.25,-1\n")
    del calls[:]
    same = hpc_es.minimize(cost, initial_points=str(tmp_path / "p.csv"), **options)
    assert calls[:2] == [[1.0, 2.0], [0.5, 3.0]] and np.array_equal(same.x, best.x)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (
            [1.0, 2.0],
            "^initial_points: point 0: expected an object .* or a list of numbers, found 1.0",
        ),
        ([[1.0]], r"^initial_points: point 0: expected 2 numbers as x, found \[1.0\]"),
        ([{"x0": 1.0, "x1": "a"}], '^initial_points: point 0: x1 is "a": expected a number'),
        (
            [{"x0": 1.0, "x1": object()}],
            '^initial_points: point 0: x1 is "<object .*: expected a number',
        ),
        ([], "^initial_points: expected at least one point"),
        ("nowhere.csv", "^initial_points: expected a CSV or JSON file .* No such file"),
        (np.zeros((7, 2)) + np.arange(7)[:, None], "^initial_points: has 7 points without a value"),
    ],
)
def test_minimize_refuses_wrong_points(points: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        hpc_es.minimize(toys.ellipsoid, [0.0, 0.0], 0.3, initial_points=points)


def test_points_outside_of_the_bounds_are_config_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="x1 is 7: expected a number from -5 to 5"):
        points(tmp_path / "p.json", '[{"x": [1, 7]}]', bounds={"low": -5, "high": 5})


def test_known_value_needs_all_constraints(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected 2 numbers \(c0, c1\), or no value"):
        points(tmp_path / "p.json", '[{"x": [1, 2], "value": 1}]', constraints=2)


def built(path: Path, algorithm: dict[str, Any]) -> None:
    changed = validate({**_data(config(path)), "algorithm": algorithm})
    build_task(changed).task.close()


def _data(checked: Config) -> dict[str, Any]:
    task = {"kind": "function", "function": "tests.helpers.toys:ellipsoid", "dimension": 2}
    return {
        "task": {**task, "initial_points": checked.task.initial_points},
        "policy": None,
        "stop": {"generations": 1},
    }


def test_strategies_that_cannot_inject_and_too_many_unknown_points_are_config_errors(
    tmp_path: Path,
) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps([{"x": [1, n]} for n in range(7)]))
    with pytest.raises(
        ConfigError,
        match=r"perturbations of its own: expected .*'cma_es' or .*, or task.initial_points: null",
    ):
        built(path, {"kind": "snes"})
    with pytest.raises(
        ConfigError, match="7 points without a value, but the first generation has 6 candidates"
    ):
        built(path, {"kind": "cma_es"})
    built(path, {"kind": "cma_es", "population_size": 7})
    with pytest.raises(ConfigError, match="the first generation has 5 candidates"):
        built(path, {"kind": "random", "population_size": 5})


def test_values_of_an_earlier_run_are_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run evaluates the unknown points,
    then takes over the three best of the earlier run.
    """
    data = {
        "seed": 1,
        "task": {
            "kind": "function",
            "function": "tests.helpers.toys:ellipsoid",
            "dimension": 3,
            "deterministic": True,
        },
        "algorithm": {"kind": "cma_es"},
        "evaluation": {"interval": 0},
        "stop": {"generations": 4},
        "report": {"plot_interval_seconds": 0},
    }
    list(hpc_es.train(data, tmp_path / "earlier"))
    calls: list[list[float]] = []
    plain = toys.ellipsoid

    def counted(x: Any) -> float:
        calls.append(x.tolist())
        return plain(x)

    monkeypatch.setattr(toys, "ellipsoid", counted)
    earlier = np.genfromtxt(tmp_path / "earlier" / "evaluations.csv", delimiter=",", skip_header=1)
    best = earlier[np.argsort(earlier[:, 2], kind="stable")][:3]
    path = str(tmp_path / "earlier" / "evaluations.csv")
    later = {
        **data,
        "seed": 2,
        "task": {**data["task"], "initial_points": path},
        "stop": {"generations": 1},
    }  # type: ignore[dict-item]
    rows = list(hpc_es.train(later, tmp_path / "later"))
    lines = np.genfromtxt(tmp_path / "later" / "evaluations.csv", delimiter=",", skip_header=1)
    assert len(lines) == 7 and len(calls) == 4  # of a population of 7, three are known
    assert np.array_equal(lines[:3, 2:], best[:, 2:])
    assert rows[-1]["best_value"] == min(best[0, 2], lines[:, 2].min())


def test_points_are_evaluated_and_returned_as_they_are_given() -> None:
    """0.0305 on a logarithmic scale becomes 0.030499999999999996 in the search."""
    ranges = {"low": 0.004, "high": 0.06, "scale": "log"}
    given, seen = [0.0305, 0.0081, 0.0153], []

    def f(flange: float) -> float:
        seen.append(flange)
        return abs(flange - 0.0305)

    points = [{"flange": given[0]}, {"flange": given[1]}, {"flange": given[2], "value": 1.0}]
    best = hpc_es.minimize(
        f, parameters={"flange": ranges}, initial_points=points, max_evaluations=6
    )
    assert seen[:2] == given[:2]
    assert (best.parameters, best.f) == ({"flange": 0.0305}, 0.0)
    known = [{"flange": given[0], "value": -1.0}]
    assert hpc_es.minimize(
        f, parameters={"flange": ranges}, initial_points=known, max_evaluations=6
    ).parameters == {"flange": 0.0305}


@pytest.mark.parametrize(
    ("unknown", "known", "population", "text"),
    [
        (
            0,
            30,
            11,
            "5 of 30 are among the 11 candidates of the first generation: the best 5 of 30 with a value; those",
        ),
        (
            2,
            1,
            6,
            "3 of 3 are among the 6 candidates of the first generation: 2 without a value and the best 1 of 1 with",
        ),
        (4, 0, 6, "4 of 4 are among the 6 candidates of the first generation: 4 without a value"),
    ],
)
def test_text_says_which_points_are_used(
    unknown: int, known: int, population: int, text: str
) -> None:
    vectors = np.arange(unknown + known, dtype=np.float64)[:, np.newaxis]
    results = {vector.tobytes(): Known(0.0) for vector in vectors[unknown:]}
    used = InitialPoints(vectors, vectors, unknown, results, {}).use_text(population)
    assert used.startswith(f"initial points: {text}")
    assert used.endswith("at most half of them") is (unknown + known > 5)


def test_check_says_which_points_are_in_the_first_generation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.csv").write_text("x0,x1\n1,2\n3,4\n")
    (tmp_path / "c.yaml").write_text(
        "task: {kind: function, function: 'tests.helpers.toys:ellipsoid', dimension: 2, "
        "initial_points: p.csv}\nalgorithm: {kind: cma_es, population_size: 6}\n"
    )
    assert cli.run(["check", str(tmp_path / "c.yaml")]) == 0
    expected = "  initial points: 2 of 2 are among the 6 candidates of the first generation: "
    assert f"{expected}2 without a value\n" in capsys.readouterr().out
