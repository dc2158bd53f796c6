"""Sources of the user's modules are found and hashed without an import,
wherever Python would import them from.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import itertools
import linecache
import py_compile
import sys
import types
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hpc_es.config import source_code
from hpc_es.config.resolved import changes
from hpc_es.config.source_code import _imported
from hpc_es.core.errors import UserError
from hpc_es.storage.trust import decide
from tests.helpers.deep import LEVELS, deep
from tests.helpers.harness import ROOT
from tests.helpers.time_limit import time_limit

RAISES = "raise SystemExit('a hash must not run the module')\n"
_numbers = itertools.count()


def sha256(content: str | bytes) -> str:
    return hashlib.sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the unique name of a top package,
    which the test may write to the directory `tmp_path`, on the path.
    """
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    yield f"sources_{next(_numbers)}"
    importlib.invalidate_caches()


def write(path: Path, text: str = RAISES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("folders", ["", "a/", "a/b/", "a/b/c/"])
def test_module_in_folders_without_init(root: str, tmp_path: Path, folders: str) -> None:
    path = write(tmp_path / root / folders / "m.py")
    name = f"{root}/{folders}m".replace("/", ".")
    assert source_code.source_hash(f"{name}:cost") == sha256(RAISES)
    assert source_code.source_path(name) == str(path)
    assert root not in sys.modules
    assert source_code.source_hash(f"{root}.a.b.nothing:cost") == ""
    assert source_code.source_hash(f"{root}.a:cost") == ""


def test_folder_in_two_places(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of a namespace package: the second place of the path has the module."""
    write(tmp_path / "first" / root / "a" / "other.py")
    write(tmp_path / "second" / root / "a" / "m.py", "x = 2\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    assert source_code.source_hash(f"{root}.a.m:cost") == sha256("x = 2\n")


def test_package_below_a_folder_is_hashed_as_a_whole(root: str, tmp_path: Path) -> None:
    contents = {"__init__.py": RAISES, "m.py": "x = 1\n"}
    for name, text in contents.items():
        write(tmp_path / root / "a" / "package" / name, text)
    lines = "".join(f"{sha256(text)}  {name}\n" for name, text in contents.items())
    assert source_code.source_hash(f"{root}.a.package.m:cost") == sha256(lines)


def test_package_deeper_than_the_limit_of_recursion_is_hashed(root: str, tmp_path: Path) -> None:
    package = tmp_path / root
    write(package / "__init__.py", "x = 1\n")
    with deep(package, "m.py", "x = 2\n"):
        lowest, first, second = f"{'d/' * LEVELS}m.py", sha256("x = 1\n"), sha256("x = 2\n")
        lines = f"{first}  __init__.py\n{second}  {lowest}\n"
        assert source_code.source_hash(f"{root}:cost") == sha256(lines)


def test_modules_in_a_zip_have_the_hash_of_the_unpacked_ones(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ["one.py", "pack/__init__.py", "pack/inner/m.py", "folder/deep/m.py"]
    with zipfile.ZipFile(tmp_path / "project.zip", "w") as archive:
        for file in files:
            archive.writestr(f"{root}_{file}", RAISES)
            write(tmp_path / f"{root}_{file}")
        archive.writestr(f"{root}_pack/notes.txt", "nothing")
        # before Python 3.13, folders without an entry are not found
        for folder in ("folder", "folder/deep"):
            archive.writestr(f"{root}_{folder}/", "")
    names = ["one", "pack.inner.m", "folder.deep.m"]
    unpacked = [source_code.source_hash(f"{root}_{name}:cost") for name in names]
    assert all(unpacked)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "project.zip")])
    assert [source_code.source_hash(f"{root}_{name}:cost") for name in names] == unpacked
    assert source_code.source_path(f"{root}_one") == str(
        tmp_path / "project.zip" / f"{root}_one.py"
    )


def test_compiled_files_without_a_source(root: str, tmp_path: Path) -> None:
    for name in ("one", "pack/__init__", "pack/m"):
        source = write(tmp_path / f"{root}_{name}.py")
        py_compile.compile(str(source), cfile=str(source.with_suffix(".pyc")))
        source.unlink()
    assert source_code.source_hash(f"{root}_one:cost") == sha256(
        (tmp_path / f"{root}_one.pyc").read_bytes()
    )
    pack = tmp_path / f"{root}_pack"
    lines = "".join(
        f"{sha256((pack / name).read_bytes())}  {name}\n" for name in ("__init__.pyc", "m.pyc")
    )
    assert source_code.source_hash(f"{root}_pack.m:cost") == sha256(lines)


def test_extension_module(root: str, tmp_path: Path) -> None:
    (tmp_path / f"{root}{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_bytes(b"\x7fELF")
    assert source_code.source_hash(f"{root}:cost") == sha256(b"\x7fELF")


class Memory(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """An importer without files; it has the source of one of its modules."""

    def __init__(self, root: str) -> None:
        self.sources = {f"{root}_text": RAISES, f"{root}_code": None}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_known = fullname in self.sources
        return importlib.machinery.ModuleSpec(fullname, self, origin="memory") if is_known else None

    def get_source(self, fullname: str) -> str | None:
        return self.sources[fullname]


def test_importer_without_files(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [Memory(root), *sys.meta_path])
    assert source_code.source_hash(f"{root}_text:cost") == sha256(RAISES)
    assert source_code.source_path(f"{root}_text") == ""
    assert source_code.source_hash(f"{root}_code:cost") == ""


@pytest.mark.parametrize(
    "name", ["math:sin", "os:getcwd", "json.decoder:JSONDecoder", "numpy:sum", "zipimport:x"]
)
def test_modules_of_python_and_of_installed_packages_are_installed(name: str) -> None:
    assert source_code.is_installed(name)


def test_own_module_is_not_installed(root: str, tmp_path: Path) -> None:
    write(tmp_path / root / "a" / "b" / "m.py")
    assert not source_code.is_installed(f"{root}.a.b.m:Env")
    assert not source_code.is_installed(f"{root}_missing:Env")


@pytest.mark.parametrize("name", ["msilib", "winreg", "nt"])
def test_module_of_python_that_is_missing_here_is_not_installed(name: str) -> None:
    assert name in sys.stdlib_module_names and not source_code.is_installed(f"{name}:Env")


# The script or notebook itself.

CELL = "class Env:\n    def step(self):\n        return 1\n\ndef cost(x):\n    return 0\n"


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Replace `__main__` by a notebook with one cell."""
    module = types.ModuleType("__main__")
    name = f"<ipython-input-{next(_numbers)}>"
    monkeypatch.setitem(
        linecache.cache, name, (len(CELL), None, CELL.splitlines(keepends=True), name)
    )
    exec(compile(CELL, name, "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def test_source_of_a_script_is_its_file(main: types.ModuleType, tmp_path: Path) -> None:
    file = write(tmp_path / "script.py", "x = 1\n")
    main.__file__, main.__loader__ = (
        str(file),
        importlib.machinery.SourceFileLoader("__main__", str(file)),
    )
    for name in ("Env", "Env.Inner", "cost", "<lambda>"):
        assert source_code.source_hash(f"__main__:{name}") == sha256("x = 1\n")
    assert source_code.source_hash("__main__:other") == ""


def test_source_in_a_notebook_is_that_of_the_class_or_function(main: types.ModuleType) -> None:
    assert source_code.source_hash("__main__:cost") == sha256("def cost(x):\n    return 0\n")
    assert "def step" in source_code.source_files("__main__:Env")["Env"].decode()
    assert source_code.source_hash("__main__:other") == ""


def test_imported_name_is_not_of_the_script(main: types.ModuleType) -> None:
    """The script `hpc-es` has a function `main`, which is not that of another script."""
    vars(main)["main"] = source_code.source_hash
    assert source_code.source_hash("__main__:main.<locals>.Env") == ""


def check(name: str, recorded: str, trusted: bool = False) -> None:
    data = {"task": {"kind": "function", "function": name}}
    decide(Path(__file__), data, {"sources": {name: recorded}}, trusted)


def test_policy_of_the_same_notebook_is_trusted_until_its_source_changes(
    main: types.ModuleType,
) -> None:
    before = source_code.source_hash("__main__:cost")
    check("__main__:cost", before)
    with pytest.raises(
        UserError,
        match=r"would run '__main__:cost', whose source has SHA-256 \w+, but the policy was",
    ):
        check("__main__:cost", "0" * 64)
    check("__main__:cost", "0" * 64, trusted=True)


def test_class_without_source_needs_trust(main: types.ModuleType) -> None:
    linecache.cache.clear()  # as in a prompt
    with pytest.raises(
        UserError, match=r"whose source is not known, but the checkpoint records none"
    ):
        check("__main__:cost", "")
    check("__main__:cost", "", trusted=True)


@pytest.mark.parametrize("trusted", [False, True])
def test_class_of_another_script_is_refused_with_a_remedy(
    main: types.ModuleType, trusted: bool
) -> None:
    text = r"'__main__:Other' of the script or notebook that trained it.*move it to a module.*my_module:Other"
    with pytest.raises(UserError, match=text):
        check("__main__:Other", "0" * 64, trusted)


def test_source_that_an_earlier_version_did_not_record_has_not_changed() -> None:
    assert changes({"__main__:Env": "", "m:f": "1"}, {"__main__:Env": "2", "m:f": "3"}) == [
        "the source of m:f has changed: SHA-256 1 in the checkpoint, 3 now"
    ]


def test_files_that_would_run_follow_the_import_statements(root: str, tmp_path: Path) -> None:
    """A package's own __init__.py runs too; a module that nothing imports,
    installed ones and libraries do not.
    """
    folder = tmp_path / root
    used = [
        write(folder / "__init__.py", "from .a import f\n"),
        write(folder / "a.py", "import numpy, os\ndef f():\n    from .deep.b import g\n"),
        write(folder / "deep" / "b.py", f"from {root} import c as other\nfrom ..d import *\n"),
        write(folder / "c.py", "import jax\n"),
        write(folder / "d.py", "not Python\n"),
    ]
    write(folder / "unused.py")
    write(tmp_path / "jax" / "__init__.py")
    found = source_code.code_modules([f"{root}.a:f", "numpy:array", "missing:x"])
    assert {Path(one.path): one.digest for one in found.values()} == {
        path: sha256(path.read_text()) for path in used
    }
    assert [name for name, one in found.items() if one.is_package] == [root]


def test_imports_are_those_that_a_parser_finds() -> None:
    """In every file of hpc_es, and in forms that are rare."""
    rare = b"""# -*- coding: latin-1 -*-
'import no1'; import a, b.c as d; x = lambda: 0; from . import e
if x: from .. f import (g,  # comment
    h as i)
from \\
    j import *
def k(): import l; return {m: 'from n import o'}
f'{x:from}'; raise p from q  # \xe9 import r
async def s(): await t; import \xe9u
"""
    assert _imported(rare, "p.q") == [
        *("a", "b.c", "p.q", "p.q.e", "p.f", "p.f.g", "p.f.h"),
        *("j", "j.*", "l", "\xe9u"),
    ]
    files = [path.read_bytes() for path in (ROOT / "hpc_es").rglob("*.py")]
    for content in files:
        nodes = [*ast.walk(ast.parse(content))]
        named = {
            alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
        }
        named |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        assert named <= set(_imported(content, "p")), content[:200]
    assert len(files) > 300


@pytest.mark.parametrize(
    "content",
    [b"f'" + b"{a}" * 300_000 + b"'\n", b"0\n" * 300_000, b"import a\n" * 100_000, b"(" * 900_000],
    ids=["formatted", "statements", "imports", "brackets"],
)
def test_source_that_takes_a_parser_minutes_is_looked_at_in_seconds(content: bytes) -> None:
    """Before anybody has trusted it: f-strings take Python 3.11 two minutes."""
    with time_limit(30):
        assert len(_imported(content, "p")) <= 10_000
