"""Paths in a config: checked at the start, kept as they are written,
and replaced on the rank that uses them.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.config import user_code
from hpc_es.config.loading import load, table, validate
from hpc_es.config.options import build_kind, with_paths
from hpc_es.config.resolved import dump, dump_json, identity, parse_resolved
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.functions import command
from hpc_es.tasks.functions.initial_points import initial_points
from hpc_es.tasks.functions.initial_vector import initial_vector
from hpc_es.training.init_from import load_source

FUNCTION: dict[str, Any] = {"kind": "function", "function": "math:fsum", "dimension": 2}
EPISODES: dict[str, Any] = {"task": {"env_id": "CartPole-v1"}, "algorithm": {}}
OWN = """
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from hpc_es.extend import option, options

@options
class Inner:
    file: Path | None = option("a file", None)

@options
class Options:
    kind: str = option("which", "")
    table: Path = option("a file", Path("~/default"))
    either: Path | int = option("a file or a number", 3)
    several: tuple[Path, ...] = option("files", ())
    named: Mapping[str, Path] = option("files by name", default_factory=dict)
    inner: Inner = option("more", default_factory=Inner)
    text: str = option("no path", "$NOT_SET")

def build(options, *rest):
    return options
"""
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("NODE", "/node/1")
    monkeypatch.delenv("NOT_SET", raising=False)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    name = f"own_paths_{next(_numbers)}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "kind.py").write_text(OWN)
    return f"{name}.kind"


def wrong(**data: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        validate({"task": FUNCTION, "algorithm": {"kind": "cma_es"}, **data})
    return dict(error.value.problems)


def test_output_and_directory_are_replaced_at_the_start(tmp_path: Path) -> None:
    config = validate({"task": FUNCTION, "output": "~/x", "directory": "$NODE/y"})
    assert (config.output, config.directory) == ("/home/me/x", "/node/1/y")
    assert validate({"task": FUNCTION, "directory": "y"}).directory == str(tmp_path / "y")


@pytest.mark.parametrize(
    "data",
    [
        {"output": "$NOT_SET/x"},
        {"directory": "$NOT_SET/x"},
        {"task": {**FUNCTION, "initial": "$NOT_SET/x.npy"}},
        {"task": {**FUNCTION, "initial_points": "$NOT_SET/x.csv"}},
        {"report": {"mlflow": {"directory": "$NOT_SET"}}},
        {"report": {"wandb": {"directory": "${NOT_SET}"}}},
        {**EPISODES, "policy": {"init_from": "$NOT_SET/x"}},
        {**EPISODES, "policy": {"init_optimizer": "$NOT_SET/x"}},
        {
            **EPISODES,
            "policy": {"kind": "network", "network": "$NOT_SET.keras"},
        },
    ],
)
def test_variable_that_is_not_set_is_an_error_of_its_key(data: dict[str, Any]) -> None:
    ((key, text),) = wrong(**data).items()
    expected = json.dumps(data)
    assert "$NOT_SET, which is not set" in text
    assert all(f'"{part}"' in expected for part in key.split("."))


def test_config_keeps_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"task": {**FUNCTION, "initial": "$NODE/x.npy"}, "algorithm": {"kind": "cma_es"}}
    config = validate(data)
    before = identity(config)
    monkeypatch.setenv("NODE", "/node/2")
    assert identity(validate(data)) == before
    assert "$NODE/x.npy" in dump(config)
    assert parse_resolved(dump_json(config)) == config


def test_files_of_a_function_are_those_of_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {**FUNCTION, "initial": "$NODE/x.npy", "initial_points": "$NODE/points.json"}
    options = validate({"task": data, "algorithm": {"kind": "cma_es"}}).task
    for number in (1, 2):
        monkeypatch.setenv("NODE", str(tmp_path / str(number)))
        (tmp_path / str(number)).mkdir()
        np.save(tmp_path / str(number) / "x.npy", np.full(2, number))
        (tmp_path / str(number) / "points.json").write_text(f"[[{number}, 0]]")
        initial, points = initial_vector(options), initial_points(options)
        assert isinstance(initial, np.ndarray)
        assert points is not None
        assert initial.tolist() == [number, number]
        assert points.vectors.tolist() == [[number, 0]]
    monkeypatch.delenv("NODE")
    for use in (initial_vector, initial_points):
        with pytest.raises(ConfigError, match=r"task.initial.*\$NODE, which is not set"):
            use(options)


def test_program_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "solve"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("NODE", str(tmp_path))
    section = {
        "kind": "command",
        "command": ["$NODE/solve", "{parameters}", "{result}", "$1"],
        "dimension": 2,
    }
    options = validate({"task": section, "algorithm": {"kind": "cma_es"}}).task
    built = command.build(options)
    assert built._evaluator._command.words == (str(program), "{parameters}", "{result}", "$1")  # type: ignore[attr-defined]
    hashes = command.sources(section, tmp_path)
    assert list(hashes) == ["$NODE/solve"]
    assert hashes["$NODE/solve"]
    monkeypatch.delenv("NODE")
    assert command.sources(section, tmp_path) == {"$NODE/solve": ""}
    with pytest.raises(ConfigError, match=r"task.command: .*\$NODE, which is not set"):
        command.build(options)


def test_init_from_is_relative_to_the_directory_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for text, path in (("a", "start/a"), ("~/a", "a"), ("/nowhere", "/nowhere")):
        options = validate(
            {"task": {"env_id": "CartPole-v1"}, "policy": {"init_from": text}}
        ).policy
        with pytest.raises(ConfigError, match=f"policy.init_from: {path}: "):
            load_source(options, None, tmp_path / "start")


# Kinds of the user.


def test_options_of_type_path(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    section = {
        "kind": own,
        "either": "$NODE/e",
        "several": ["~/a", "b"],
        "named": {"x": "$NODE/x"},
        "inner": {"file": "$NODE/f"},
    }
    config = validate({"task": {"env_id": "CartPole-v1"}, "policy": section})
    again = parse_resolved(dump_json(config))
    assert again.policy == config.policy
    assert parse_resolved(dump(config)).policy == config.policy
    assert type(again.policy.either) is type(config.policy.table)
    for node in ("/node/1", "/node/2"):
        monkeypatch.setenv("NODE", node)
        built = build_kind("policies", again.policy)
        assert built.table == Path("/home/me/default")
        assert built.either == Path(f"{node}/e")
        assert built.several == (Path("/home/me/a"), Path("b"))
        assert built.named == {"x": Path(f"{node}/x")}
        assert built.inner.file == Path(f"{node}/f")
        assert built.text == "$NOT_SET"
    monkeypatch.delenv("NODE")
    with pytest.raises(ConfigError, match=r"policy.either: .*\$NODE"):
        build_kind("policies", again.policy)


def test_mistakes_in_options_of_type_path(own: str, tmp_path: Path) -> None:
    named = {"a": "x", "b": "$NOT_SET/y"}
    problems = wrong(
        task={"env_id": "CartPole-v1"},
        algorithm={},
        policy={
            "kind": own,
            "table": 3,
            "several": ["$NOT_SET"],
            "named": named,
            "inner": {"file": "$NOT_SET"},
        },
    )
    assert problems["policy.table"] == "expected a path, found 3"
    for key in ("policy.several[0]", "policy.named.b", "policy.inner.file"):
        assert "$NOT_SET, which is not set" in problems[key]
    (tmp_path / "c.yaml").write_text(f"task: {{env_id: CartPole-v1}}\npolicy: {{kind: {own}}}\n")
    assert "| `policy.table` | a path | `~/default` | a file |" in table(tmp_path / "c.yaml")
    assert load(tmp_path / "c.yaml").policy.table == Path("~/default")


def test_options_without_paths_are_not_copied() -> None:
    options = validate({"task": {"env_id": "CartPole-v1"}}).policy
    assert with_paths(options, "policy") is options


def test_entries_of_the_path_that_follow_the_current_directory_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module is still found after a simulator has changed the directory."""
    monkeypatch.setattr(sys, "path", ["", ".", *sys.path])
    monkeypatch.setattr(user_code, "_current", [])
    user_code.make_importable()
    assert str(tmp_path) in sys.path
    user_code.make_importable()
    assert sys.path.count(str(tmp_path)) == 1
