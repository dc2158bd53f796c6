"""Examples import only `hpc_es.extend`, and all of it is documented."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from hpc_es import extend
from tests.helpers.harness import ROOT
from tests.test_imports import imported

OWN = sorted(ROOT.glob("examples/own_*/**/*.py"))
API = ROOT / "docs" / "reference" / "api.md"
PARTS = sorted(path.stem for path in Path(extend.__file__).parent.glob("[a-z]*.py"))


def others(text: str) -> set[str]:
    """Modules of hpc_es, except `hpc_es.extend`, that a program imports."""
    names = set(imported(ast.parse(text)))
    return {
        name
        for name in names
        if name.startswith("hpc_es") and not f"{name}.".startswith("hpc_es.extend.")
    }


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_examples_import_only_hpc_es_extend(file: Path) -> None:
    assert others(file.read_text(encoding="utf-8")) == set()


def test_other_imports_are_detected() -> None:
    assert others("from hpc_es.extend import State") == set()
    assert others("from hpc_es.core.data import State") == {
        "hpc_es.core.data",
        "hpc_es.core.data.State",
    }
    assert others("from hpc_es.extended import State") == {
        "hpc_es.extended",
        "hpc_es.extended.State",
    }


def test_every_import_is_public() -> None:
    tree = ast.parse(Path(extend.__file__).read_text(encoding="utf-8"))
    names = [
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    ]
    assert sorted(names) == sorted(extend.__all__)
    assert len(set(names)) == len(names)


def test_every_name_is_on_the_api_page_once() -> None:
    output = re.findall(
        r"^::: hpc_es\.extend\.(\w+)$", API.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(output) == sorted(extend.__all__)


@pytest.mark.parametrize("part", PARTS)
def test_every_name_of_a_part_is_on_the_api_page_once(part: str) -> None:
    """Parts are files, so that importing `hpc_es.extend` imports none of their libraries."""
    tree = ast.parse((Path(extend.__file__).parent / f"{part}.py").read_text(encoding="utf-8"))
    listed = next(node for node in tree.body if isinstance(node, ast.Assign))
    names = ast.literal_eval(listed.value)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    imported_names = {
        alias.asname or alias.name
        for node in imports
        for alias in node.names
        if node.module != "__future__"
    }
    assert set(names) == imported_names
    page = API.read_text(encoding="utf-8")
    output = re.findall(rf"^::: hpc_es\.extend\.{part}\.(\w+)$", page, re.MULTILINE)
    assert sorted(output) == sorted(names)


@pytest.mark.parametrize("name", extend.__all__)
def test_every_class_and_function_has_a_docstring(name: str) -> None:
    """Also methods and properties, in the class or in the contract that it implements."""
    value = getattr(extend, name)
    if not inspect.isclass(value) and not inspect.isfunction(value):
        return  # a type or a constant
    assert value.__doc__ and not value.__doc__.startswith(f"{value.__name__}("), name
    members = vars(value) if inspect.isclass(value) else {}
    ours = {key: member for key, member in members.items() if not key.startswith("_")}
    for key, member in ours.items():
        if inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod):
            assert member.__doc__ or key in _methods_of_contracts(), f"{name}.{key}"


def _methods_of_contracts() -> set[str]:
    """Documented methods of the protocols that extend exports."""
    protocols = [
        value
        for name in extend.__all__
        if getattr(value := getattr(extend, name), "_is_protocol", False)
    ]
    return {
        key for protocol in protocols for key, member in vars(protocol).items() if member.__doc__
    }


def field_comments(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/hooks/field_comments.py, which extends Griffe: tests do without it."""
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object))
    spec = importlib.util.spec_from_file_location(
        "field_comments", ROOT / "docs" / "hooks" / "field_comments.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_api_page_has_the_comments_of_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    comment_of = field_comments(monkeypatch).comment_of
    lines = [
        "    size: int  # of it",
        "    name: str = '#'",
        "",
        "    # Two",
        "    # lines.",
        "    one: int = 1",
    ]
    assert comment_of(lines, 1, 1) == "Of it."
    assert comment_of(lines, 2, 2) == ""
    assert comment_of(lines, 6, 6) == "Two lines."
    assert comment_of(["LONG = (", "    1", ")  # of a wrapped line"], 1, 3) == "Of a wrapped line."
    assert comment_of(["x = 1  # type: ignore[misc]"], 1, 1) == ""
    assert comment_of(["x: Float64  # float64[size], the mean"], 1, 1) == "float64[size], the mean."
    assert comment_of(["x: Rows  # row_dtype[jobs]"], 1, 1) == "row_dtype[jobs]."
