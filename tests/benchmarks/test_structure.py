"""`python -m benchmarks.structure`: what its rows count, on a small package; the profiled run of this checkout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import structure
from benchmarks.structure import Measure, Module, table
from tests.helpers.harness import ROOT

FILES = {
    "hpc_es/__init__.py": '"""Package."""\n\nfrom hpc_es.loop import run\n',
    "hpc_es/core/__init__.py": '"""Contracts."""\n',
    "hpc_es/core/contracts.py": (
        "from typing import Any, Protocol\n\n\nclass Task(Protocol):\n    options: Any\n\n\nclass Data:\n    x: Any\n"
    ),
    "hpc_es/es.py": (
        "from typing import Literal\n\nfrom hpc_es.core.contracts import Data\n\n\nclass Options:\n"
        '    kind: Literal["es"] = "es"\n\n\n'
        "def double(x):\n"
        '    """Return 2 x."""\n'
        "    return 2 * x\n\n\n"
        "def shift(given):\n"
        "    found = double(given)\n"
        "    return found + 1\n"
    ),
    "hpc_es/loop.py": (
        "def run(task):\n    from . import es, plots\n\n    from .core import contracts\n\n"
        "    return es.shift(task), es.shift, contracts, plots\n"
    ),
    "hpc_es/plots.py": '"""Plots."""\n',
}


@pytest.fixture
def package(tmp_path: Path) -> list[Module]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return structure.modules(tmp_path, "hpc_es")


def test_importers_are_files_with_absolute_relative_or_local_imports(package: list[Module]) -> None:
    assert structure.importers(package) == {
        "hpc_es/core/contracts.py": {"hpc_es/es.py", "hpc_es/loop.py"},
        "hpc_es/es.py": {"hpc_es/loop.py"},
        "hpc_es/loop.py": {"hpc_es/__init__.py"},
        "hpc_es/plots.py": {"hpc_es/loop.py"},
    }


def test_reasons_to_stand_alone_are_kinds_public_names_and_deferred_imports(package: list[Module]) -> None:
    reasons = structure.reasons_to_stand_alone(package)
    assert "hpc_es/core/contracts.py" not in reasons  # es.py imports it at the top
    assert (reasons["hpc_es/es.py"], reasons["hpc_es/loop.py"]) == ("kind", "public")
    assert reasons["hpc_es/plots.py"] == "deferred import"
    assert structure.reasons_to_stand_alone(package, "::: hpc_es.plots.draw")["hpc_es/plots.py"] == "public"


def test_program_may_stand_alone(package: list[Module]) -> None:
    contracts = next(module for module in package if module.path == "hpc_es/core/contracts.py")
    program = replace(contracts, text=f'{contracts.text}\n\nif __name__ == "__main__":\n    main()\n')
    modules = [program if module is contracts else module for module in package]
    assert structure.reasons_to_stand_alone(modules)["hpc_es/core/contracts.py"] == "program"


def test_kind_declares_a_literal_field_kind(package: list[Module]) -> None:
    assert [module.path for module in package if structure.is_kind(module)] == ["hpc_es/es.py"]


def test_helpers_have_one_statement_and_one_use(package: list[Module]) -> None:
    used_once, called_once = structure.one_statement_helpers(package)
    assert used_once == ["hpc_es/es.py:10 double"]  # run has three statements, shift two
    assert called_once == used_once


def test_fillers_are_counted_as_arguments_and_variables(package: list[Module]) -> None:
    names = [item.split()[-1] for item in structure.filler_names(package)]
    assert sorted(names) == ["found", "found", "given", "given"]


def test_any_in_contracts_counts_protocols_only(package: list[Module]) -> None:
    assert structure.any_in_contracts(package) == ["hpc_es/core/contracts.py:5 Task"]


def test_assertions_are_statements_raises_and_numpy_testing(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(
        "def test_x():\n    assert 1\n    with pytest.raises(KeyError):\n        pass\n"
        "    np.testing.assert_allclose(1, 1)\n    assert_array_equal(1, 1)\n    print(assert_this)\n"
    )
    assert structure.assertions(structure.modules(tmp_path, "tests")) == 4


def test_table_has_a_column_per_checkout() -> None:
    columns = {"old": [Measure("files", "at most 2", "3")], "new": [Measure("files", "at most 2", "1")]}
    assert table(columns).splitlines()[2] == "| files | 3 | 1 | at most 2 |"


def test_generations_of_this_checkout_are_profiled() -> None:
    generations = structure.profiled(ROOT)
    first, later = (set(generations[name][0]) for name in ("first", "later"))
    assert "main.py" in first
    assert any(name.endswith("/es.py") for name in first & later)
    assert len(later) < len(first)
    assert not [name for name in first | later if name.endswith("__init__.py")]
    assert 0 < len(generations["later"][1]) < generations["later"][2]


def test_profiled_run_that_fails_shows_its_error(tmp_path: Path) -> None:
    """A package that cannot be imported: the profiler writes a result nevertheless."""
    (tmp_path / "hpc_es").mkdir()
    (tmp_path / "hpc_es" / "__init__.py").write_text("raise ImportError('no such library')\n")
    with pytest.raises(SystemExit, match=r"the profiled run of .* failed with status 1:\n[^$]*no such library"):
        structure.profiled(tmp_path)
