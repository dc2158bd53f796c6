"""Configs with `task: {kind: function}` and `task: {kind: command}`: their errors and messages."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.config.resolved import dump_json, parse_resolved, programs, resolved, sources
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys
from hpc_es.training.build import build_task

NAMED = {
    "rate": {"low": 1e-5, "high": 1e-1, "scale": "log", "initial": 1e-3},
    "decay": {"low": 0, "high": 4},
}


MIXED = {
    **NAMED,
    "layers": {"integer": True, "low": 1, "high": 8},
    "batch": {"values": [16, 32]},
    "solver": {"choices": ["cg", 2]},
    "warm": {"boolean": True},
}


@pytest.fixture(autouse=True)
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kinds_model.py").write_text(
        "def cost(x): return 0.0\ndef named(rate, decay): return 0.0\n"
    )
    (tmp_path / "program").write_text("#!/bin/sh\n")
    (tmp_path / "program").chmod(0o755)
    (tmp_path / "plain").write_text("")
    np.save(tmp_path / "start.npy", np.array([0.25, -0.5]))
    (tmp_path / "start.json").write_text("[0.25, -0.5]")
    (tmp_path / "start.txt").write_text("0.25\n-0.5\n")
    (tmp_path / "broken.json").write_text("[0.25,")
    monkeypatch.syspath_prepend(tmp_path)


def config(directory: Path, stop: Any = None, **task: Any) -> Any:
    base = (
        {"kind": "command", "command": ["./program", "{parameters}", "{result}"]}
        if "command" in task
        else {}
    )
    if not base:
        base = {
            "kind": "function",
            "function": "kinds_model:named" if "parameters" in task else "kinds_model:cost",
        }
    size = {} if "parameters" in task else {"dimension": 2}
    data = {
        "directory": str(directory),
        "task": {**base, **size, **task},
        "algorithm": {"kind": "es"},
        "noise": {"kind": "counter"},
    }
    return validate({**data, "stop": stop or {}})


def first(directory: Path, **task: Any) -> Any:
    created, policy, _ = build_task(config(directory, **task))
    assert policy is None
    return created.problem("vectors", None, Keys(0), 16).initial(np.random.default_rng(0))


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({}, [0.0, 0.0]),
        ({"initial": 3}, [3.0, 3.0]),
        ({"initial": [1.0, 2]}, [1.0, 2.0]),
        ({"initial": "start.npy"}, [0.25, -0.5]),
        ({"initial": "start.json"}, [0.25, -0.5]),
        ({"initial": "start.txt"}, [0.25, -0.5]),
        ({"bounds": {"low": [1, None], "high": [5, -1]}}, [3.0, -1.0]),
        ({"parameters": NAMED}, [0.5, 0.5]),
    ],
)
def test_initial_vectors_of_function_tasks(
    task: dict[str, Any], expected: list[float], tmp_path: Path
) -> None:
    assert first(tmp_path, **task) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("task", "key", "text"),
    [
        (
            {"dimension": None},
            "task.dimension",
            "expected dimension, or parameters with names, found neither",
        ),
        ({"parameters": NAMED, "dimension": 2}, "task.dimension", "found both"),
        (
            {"parameters": {"rate": {"low": 0}}},
            "task.parameters.rate.high",
            "but the key is missing",
        ),
        (
            {"parameters": {"rate": {"low": 0, "high": 1, "scal": "log"}}},
            "task.parameters.rate.scal",
            "did you mean",
        ),
        (
            {"parameters": {"rate": {"low": 0, "high": 1, "scale": "log"}}},
            "task.parameters.rate.low",
            "more than 0",
        ),
        (
            {"parameters": {"rate": {"low": 2, "high": 1}}},
            "task.parameters.rate.high",
            "is 1: expected more than low",
        ),
        (
            {"parameters": {"rate": {"low": 0, "high": 1, "initial": 2}}},
            "task.parameters.rate.initial",
            "from 0 to 1",
        ),
        (
            {"parameters": {"n": {"low": 0.5, "high": 9, "integer": True}}},
            "task.parameters.n.low",
            "a whole number",
        ),
        (
            {"parameters": {"n": {"low": 0.2, "high": 0.8, "integer": True}}},
            "task.parameters.n.high",
            "a whole number",
        ),
        (
            {"parameters": {"n": {"low": 0, "high": 9, "integer": True, "scale": "log"}}},
            "task.parameters.n.low",
            "expected at least 1",
        ),
        (
            {"parameters": {"n": {"low": 0, "high": 9, "integer": True, "initial": 1.5}}},
            "task.parameters.n.initial",
            "a whole number",
        ),
        (
            {"parameters": {"n": {"values": [1]}}},
            "task.parameters.n.values",
            "expected at least 2 values, found 1",
        ),
        (
            {"parameters": {"n": {"values": [1, 4, 2]}}},
            "task.parameters.n.values",
            "found 4 before 2",
        ),
        (
            {"parameters": {"n": {"values": [1, 4], "initial": 2}}},
            "task.parameters.n.initial",
            "one of the values",
        ),
        (
            {"parameters": {"n": {"values": [1, 4], "low": 0}}},
            "task.parameters.n.low",
            "values lists all values",
        ),
        (
            {"parameters": {"n": {"choices": []}}},
            "task.parameters.n.choices",
            "expected at least 2 choices, found 0",
        ),
        (
            {"parameters": {"n": {"choices": ["a", "b", "a"]}}},
            "task.parameters.n.choices",
            'has "a" twice',
        ),
        (
            {"parameters": {"n": {"choices": ["a", "b"], "initial": 1}}},
            "task.parameters.n.initial",
            "equally likely",
        ),
        (
            {"parameters": {"n": {"boolean": True, "choices": [1, 2]}}},
            "task.parameters.n.boolean",
            "choices lists all values",
        ),
        (
            {"parameters": {"n": {"boolean": True, "scale": "log"}}},
            "task.parameters.n.scale",
            "remove it",
        ),
        ({"constraints": []}, "task.constraints", "at least one constraint"),
        (
            {"constraints": ["a", "a"]},
            "task.constraints",
            "has a, which is also another constraint",
        ),
        ({"parameters": NAMED, "constraints": ["rate"]}, "task.constraints", "has rate"),
        (
            {"constraints": ["x1"]},
            "task.constraints",
            "has x1, which is also another constraint or a parameter",
        ),
        (
            {"constraints": ["value"]},
            "task.constraints",
            "has value, which is also a column of evaluations.csv",
        ),
        (
            {"parameters": {"job": {"low": 0, "high": 1}}},
            "task.parameters.job",
            "a column of evaluations.csv",
        ),
        (
            {"constraint_handling": "augmented_lagrangian"},
            "task.constraint_handling",
            "but there are no constraints",
        ),
        (
            {
                "parameters": {"n": {"boolean": True}},
                "constraints": 1,
                "constraint_handling": "augmented_lagrangian",
            },
            "task.constraint_handling",
            "discrete parameters",
        ),
        (
            {"parameters": {"n": {}}},
            "task.parameters.n.low",
            "or expected values, choices or boolean",
        ),
        ({"parameters": NAMED, "bounds": {"low": 0}}, "task.bounds.low", "have their own bounds"),
        (
            {"parameters": NAMED, "initial_region": {"low": 0}},
            "task.initial_region.low",
            "have their own bounds",
        ),
        (
            {"initial": 1, "initial_region": {"low": 0}},
            "task.initial_region",
            "is set, but initial is not random",
        ),
        ({"parameters": NAMED, "initial": 1}, "task.initial", "there are named parameters"),
        ({"parameters": NAMED, "batch": 4}, "task.batch", "one vector at a time"),
        (
            {"parameters": NAMED, "arguments": {"rate": 1}},
            "task.arguments",
            "which is also in task.parameters",
        ),
        (
            {"bounds": {"low": [1, 2, 3]}},
            "task.bounds.low",
            "expected 2 numbers, one for each coordinate, found 3",
        ),
        (
            {"bounds": {"low": [0, 3], "high": 2}},
            "task.bounds.high",
            "is 2 in coordinate 1: expected more than low",
        ),
        ({"bounds": {"low": [float("-inf"), 0]}}, "task.bounds.low", "a number must be finite"),
        (
            {"bounds": {"low": -1.7e308, "high": [0, 1.7e308]}},
            "task.bounds.high",
            "is 0 in coordinate 0: expected 1e-300 to 1e+307 more than low, which is -1.7e+308; null is no bound",
        ),
        (
            {"bounds": {"low": [0, 0], "high": [1, 5e-324]}},
            "task.bounds.high",
            "is 4.94066e-324 in coordinate 1",
        ),
        (
            {"parameters": {"n": {"low": -1e308, "high": 1e308}}},
            "task.parameters.n.high",
            "whose difference from low",
        ),
        (
            {"parameters": {"n": {"low": 1e-9, "high": 1e300, "scale": "log"}}},
            "task.parameters.n.high",
            "whose ratio",
        ),
        ({"initial": [1]}, "task.initial", "expected 2 numbers"),
        (
            {"command": ["./program", "{result}"]},
            "task.command",
            "has no {parameters} in its arguments",
        ),
    ],
)
def test_invalid_options_of_function_tasks_are_refused(
    task: dict[str, Any], key: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        config(tmp_path, **task)
    assert [text in said for where, said in error.value.problems if where == key] == [True], (
        error.value.problems
    )


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ({"initial": "nothing.npy"}, "nothing.npy cannot be read: No such file"),
        ({"initial": "broken.json"}, "broken.json cannot be read"),
        ({"initial": "start.csv"}, "expected a number, a list, 'random' or a file"),
        (
            {"initial": "start.npy", "dimension": 3},
            "expected 3 numbers, found an array of the shape [2]",
        ),
        (
            {"initial": 5, "bounds": {"high": [9, 1]}},
            "is 5 in coordinate 1: expected a number from -inf to 1",
        ),
        (
            {"initial": "random", "bounds": {"low": 0}},
            "not every coordinate has a lower and an upper limit",
        ),
        (
            {"initial": "random", "initial_region": {"low": [0]}},
            "expected 2 numbers, one for each coordinate, found 1",
        ),
        (
            {
                "initial": "random",
                "initial_region": {"low": [0, -3]},
                "bounds": {"low": -2, "high": 2},
            },
            "task.initial_region: is -3 to 2 in coordinate 1: expected low <= high, within -2 to 2",
        ),
        (
            {"initial": "random", "initial_region": {"low": 3, "high": 1}},
            "task.initial_region: is 3 to 1 in coordinate 0: expected low <= high, within -inf to inf",
        ),
        ({"function": "kinds_model:nothing"}, "there is no 'nothing' in kinds_model"),
        (
            {"command": ["./missing", "{parameters}", "{result}"]},
            "missing ('./missing' is relative to the config)",
        ),
        ({"command": ["./plain", "{parameters}", "{result}"]}, "is not executable: chmod +x"),
        ({"command": ["no-such-program", "{parameters}", "{result}"]}, "'no-such-program' in PATH"),
    ],
)
def test_check_reports_errors_of_function_tasks(
    task: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        build_task(config(tmp_path, **task))
    assert text in str(error.value)


def test_target_value_needs_an_objective_and_target_return_a_policy(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"stop.target_return: the task .* has no returns of evaluation episodes"
    ):
        build_task(config(tmp_path, {"target_return": 1.0}))
    episodes = {
        "task": {"env_id": "CartPole-v1"},
        "stop": {"target_value": 1.0},
        "algorithm": {"kind": "es"},
    }
    with pytest.raises(ConfigError, match=r"stop.target_value: the task .* has no objective value"):
        build_task(validate(episodes))


def test_named_parameters_are_sent_to_other_ranks(tmp_path: Path) -> None:
    before = config(tmp_path, parameters=NAMED)
    assert parse_resolved(dump_json(before)) == before
    assert list(parse_resolved(dump_json(before)).task.parameters) == ["rate", "decay"]


def test_program_is_searched_in_path(tmp_path: Path) -> None:
    created, *_ = build_task(config(tmp_path, command=["cat", "{parameters}", "{result}"]))
    assert created.name == "cat"
    created.close()


def test_hashes_of_functions_and_programs_of_a_config(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("1")
    words = ["./program", "{config}/script.py", "{config}/none.py", "{parameters}", "{result}"]
    result = sources(resolved(config(tmp_path, command=words)))
    assert result == {
        "./program": hashlib.sha256(b"#!/bin/sh\n").hexdigest(),
        "{config}/script.py": hashlib.sha256(b"1").hexdigest(),
    }
    # the result does not exist yet; a shell gets its files within a text
    shell = ["sh", "-c", "exec {config}/script.py {parameters} {config}/none.json > {result}"]
    section = resolved(config(tmp_path, command=shell))
    assert [*sources(section)] == ["sh", "{config}/script.py"]
    assert programs(section) == ("sh", "{config}/script.py", "{config}/none.json")
    model = hashlib.sha256((tmp_path / "kinds_model.py").read_bytes()).hexdigest()
    assert sources(resolved(config(tmp_path))) == {"kinds_model:cost": model}


def test_check_lists_parameters_and_what_an_evaluation_returns(tmp_path: Path) -> None:
    (tmp_path / "many_model.py").write_text("def cost(**parameters): return 0.0\n")
    more = {"constraints": ["mass"], "measures": {"size": [0, 2.5]}, "metrics": ["cost"]}
    function = {"kind": "function", "function": "many_model:cost"}
    given = {"task": {**function, "parameters": MIXED, **more}, "algorithm": {"kind": "cma_es"}}
    task: Any = build_task(validate(given)).task
    assert list(task.check_lines) == [
        "  rate    number        1e-05 to 0.1, logarithmic",
        "  decay   number        0 to 4",
        "  layers  whole number  1 to 8",
        "  batch   ordered       16, 32",
        '  solver  choice        "cg", 2',
        "  warm    boolean       false, true",
        "an evaluation returns value (minimise); constraints mass (feasible: at most 0); "
        "measures size (0 to 2.5); metrics cost",
    ]
    both = {"f": "minimise", "g": "maximise"}
    vector = {"dimension": 2, "objectives": both, "bounds": {"low": -1, "high": [1, 2]}}
    given = {
        "task": {**function, "function": "math:fsum", **vector},
        "algorithm": {"kind": "nsga2"},
    }
    task = build_task(validate(given)).task
    assert list(task.check_lines) == [
        "numbers with bounds of their own",
        "an evaluation returns f (minimise), g (maximise)",
    ]
