"""Kinds are found by folder."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpc_es.tasks
from hpc_es.config import kinds
from hpc_es.core.errors import ConfigError
from tests.harness import python, script

KIND = """
from hpc_es.config.options import option, options

@options
class Options:
    kind: str = option("kind", "{kind}")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules count among the tasks."""
    before = set(sys.modules)
    monkeypatch.setattr(hpc_es.tasks, "__path__", [*hpc_es.tasks.__path__, str(tmp_path)])
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]
            delattr(hpc_es.tasks, name.rpartition(".")[2])


def test_the_house_has_its_kinds_sorted() -> None:
    packages: tuple[kinds.Package, ...] = ("algorithms", "tasks", "policies")
    for package, kind in zip(packages, ("es", "episodes", "mlp"), strict=True):
        found = kinds.kinds(package)
        assert kind in found
        assert list(found) == sorted(found)
        for name in found:
            fields = dataclasses.fields(kinds.module(package, name).Options)
            assert [field.default for field in fields if field.name == "kind"] == [name]


def test_a_new_file_is_a_new_kind_and_a_helper_is_none(folder: Path) -> None:
    before = kinds.kinds("tasks")
    (folder / "aaa_new.py").write_text(KIND.format(kind="aaa_new"))
    (folder / "borrower.py").write_text("from hpc_es.tasks.episodes import Options")
    (folder / "misnamed.py").write_text(KIND.format(kind="other"))
    (folder / "no_options.py").write_text("Options = 3")
    (folder / "unmarked.py").write_text("class Options:\n    kind = 'unmarked'")
    assert kinds.kinds("tasks") == ("aaa_new", *before)
    assert kinds.module("tasks", "aaa_new").Options().kind == "aaa_new"


@pytest.mark.parametrize("name", ["episode", "no_options", "__init__", "../es", "hpc_es.tasks.episodes", ""])
def test_what_is_no_kind_is_refused_with_the_known_ones(folder: Path, name: str) -> None:
    (folder / "no_options.py").touch()
    with pytest.raises(ConfigError, match=r"expected one of .*'episodes'.* \(the modules of hpc_es/tasks\), found '"):
        kinds.module("tasks", name)


def test_finding_kinds_imports_no_tensorflow_and_one_kind_no_other(folder: Path) -> None:
    program = (
        "import sys; from hpc_es.config import kinds; kinds.module('policies', 'mlp');"
        "print('hpc_es.tasks.episodes' in sys.modules);"
        "[kinds.kinds(p) for p in ('algorithms', 'tasks', 'policies')]; print('tensorflow' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == ["False", "False"]


def test_looking_for_kinds_imports_no_package_that_an_extra_brings() -> None:
    done = python(
        script(
            """
            import sys
            from hpc_es.config import kinds
            for package in ("algorithms", "tasks", "policies"):
                kinds.kinds(package)
            print({"numba", "tensorflow", "optuna", "mujoco"} & set(sys.modules))
            """
        )
    )
    assert done.stdout == "set()\n", str(done)
