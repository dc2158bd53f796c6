"""Who may import what: the libraries that cost seconds or need MPI stay where they belong, and imports go one way."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpc_es
from hpc_es.config import dump_json, validate

ROOT = Path(hpc_es.__file__).parent
FILES = {file.relative_to(ROOT).as_posix(): file for file in sorted(ROOT.rglob("*.py"))}
EXAMPLE = {
    "task": {"env_id": "CartPole-v1"},
    "policy": {"hidden_dims": [4]},
    "algorithm": {"population_size": 8},
    "noise": {"table_size": 10_000},
    "evaluation": {"interval": 1, "episodes": 2},
    "stop": {"generations": 2},
    "report": {"plot_interval_seconds": 0},
}


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules named in the import statements of a tree; `from a import b` gives a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            assert node.module
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def anywhere(file: str) -> set[str]:
    """The modules that a file imports, in functions too."""
    return set(imported(ast.parse(FILES[file].read_text())))


def at_the_top(file: str) -> set[str]:
    """The modules imported as soon as the file is: not in functions, nor for type checking only."""
    tree = ast.parse(FILES[file].read_text())
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            node.body = []
    return set(imported(tree))


def libraries(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("file", FILES)
def test_libraries_stay_where_they_belong(file: str) -> None:
    found, top = libraries(anywhere(file)), libraries(at_the_top(file))
    if not file.startswith("mpi/"):
        assert "mpi4py" not in found
    if file != "experiment/checkpoint.py":
        assert "h5py" not in found
    if file != "tuning/study.py":
        assert "optuna" not in found
    if "tensorflow" not in Path(file).name:
        assert not top & {"tensorflow", "keras"}
    assert not top & {"pydantic", "mpi4py", "gym", "shimmy"}


BASE = {"errors", "interfaces", "keys", "options"}
MAY_IMPORT = {
    "errors": set[str](),
    "options": set[str](),
    "keys": set[str](),
    "interfaces": set[str](),
    "kinds": {"errors"},
    "schema": {"errors", "kinds", "options", "schema"},
    "config": {"errors", "kinds", "options", "schema"},
    "slurm": {"errors"},
    "mpi": {*BASE, "mpi", "slurm"},
    "common": {*BASE, "common"},
    "noise": {*BASE, "common", "noise"},
    "policies": {*BASE, "common", "policies"},
    "tasks": {*BASE, "common", "tasks"},
    "algorithms": {*BASE, "common", "noise", "policies", "tasks", "algorithms"},
}
DOORS = {"main", "cli", "__main__", "commands"}


# experiment, report, tuning and what stands beside them may import all of these and each other, but no door


def part(module: str) -> str:
    """The folder or file right below hpc_es, such as tasks."""
    return module.split(".")[1]


@pytest.mark.parametrize("file", FILES)
def test_imports_go_one_way(file: str) -> None:
    here = part(".".join(["hpc_es", *Path(file).with_suffix("").parts]))
    parts = {path.name.removesuffix(".py") for path in ROOT.iterdir()}
    found = {part(module) for module in anywhere(file) if module.startswith("hpc_es.")} & parts
    allowed = parts if here in DOORS else MAY_IMPORT.get(here, parts - DOORS)
    assert found <= allowed, f"{file} imports {sorted(found - allowed)}: see design.md, section 2"


def test_the_rules_know_all_folders() -> None:
    """A folder that is renamed must not escape its rule."""
    folders = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert folders - set(MAY_IMPORT) - DOORS == {"experiment", "report", "tuning"}, "a new folder needs a rule"
    assert folders >= {"common", "noise", "policies", "tasks", "algorithms", "mpi"}


def loaded(program: str, tmp_path: Path) -> set[str]:
    """Top-level modules that a program, which writes to tmp_path, has imported at its end."""
    tail = "\nimport json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", program + tail],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stdout.splitlines()[-1]))


def test_importing_a_session_is_cheap(tmp_path: Path) -> None:
    found = loaded("import hpc_es.main; import hpc_es.experiment.command", tmp_path)
    assert "gymnasium" not in found
    assert not found & {"tensorflow", "keras", "pydantic", "matplotlib", "mpi4py", "scipy", "pandas", "h5py"}


def test_a_tuning_on_a_worker_imports_what_a_session_does(tmp_path: Path) -> None:
    found = loaded("import hpc_es.tuning.run; import hpc_es.commands.tune", tmp_path)
    assert not found & {"pydantic", "optuna", "matplotlib", "h5py", "gymnasium"}


def test_a_run_on_the_cpu_never_imports_tensorflow(tmp_path: Path) -> None:
    program = f"from hpc_es.experiment.library import train\nassert len(list(train({EXAMPLE!r}, 'run'))) == 2"
    found = loaded(program, tmp_path)
    assert {"h5py", "pydantic", "gymnasium"} <= found
    assert not found & {"tensorflow", "keras", "matplotlib", "torch"}


WORKER = """
from hpc_es.config import parse_resolved
from hpc_es.experiment.session import Session
from hpc_es.mpi.guard import Signals
from hpc_es.mpi.world import World

session = Session(World("none"), Signals(), None, parse_resolved({text!r}))
generation, state = session.training._generation, session.training.state
assert len(generation.run(state, 2).results.rows) == 8
"""


def test_a_worker_imports_neither_pydantic_nor_h5py_nor_tensorflow(tmp_path: Path) -> None:
    found = loaded(WORKER.format(text=dump_json(validate(EXAMPLE))), tmp_path)
    assert "gymnasium" in found
    assert not found & {"tensorflow", "keras", "pydantic", "matplotlib", "rich", "torch", "h5py"}
