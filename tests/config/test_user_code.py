"""Directories of the user's code: what the user imports by himself is never limited by a run."""

from __future__ import annotations

import hashlib
import importlib
import os
import py_compile
import sys
import zipfile
from pathlib import Path

import pytest

from hpc_es.config import registry, user_code
from tests.helpers.harness import python

PROGRAM = """
import sys
from hpc_es.config import user_code
from hpc_es.core.errors import UserError
sys.path[0] = {first!r}
user_code.import_from(user_code.importable({other!r}))
user_code.import_only(user_code.Limits({allowed!r}))
for name in ("mine", "theirs"):
    try:
        __import__(name)
        print(name, "runs")
    except UserError:
        print(name, "is refused")
    except ModuleNotFoundError:
        print(name, "is not found")
"""


@pytest.mark.parametrize(("first", "mine"), [("", "runs"), ("HERE", "runs"), ("/", "")])
@pytest.mark.parametrize("allowed", [True, False])
def test_limits_are_for_directories_that_a_run_has_added(
    first: str, mine: str, allowed: bool, tmp_path: Path
) -> None:
    """An interactive Python has "" in its path, a script its directory, and hpc-es neither.

    Where no file may run, an optional import of a library finds none.
    """
    here, other = tmp_path / "here", tmp_path / "other"
    for directory, name in ((here, "mine"), (other, "theirs")):
        directory.mkdir()
        (directory / f"{name}.py").write_text(f"name = {name!r}\n")
    digest = hashlib.sha256(b"name = 'theirs'\n").hexdigest()
    digests = frozenset([user_code.file_key("theirs.py", digest)] if allowed else ())
    values = {"first": first.replace("HERE", str(here)), "other": str(other), "allowed": digests}
    (tmp_path / "program.py").write_text(PROGRAM.format(**values))
    done = python([str(tmp_path / "program.py")], cwd=here)
    theirs, mine = (
        "runs" if allowed else "is not found",
        mine or ("is refused" if allowed else "is not found"),
    )
    assert done.stdout.splitlines() == [f"mine {mine}", f"theirs {theirs}"], str(done)


def test_directories_that_a_run_names_may_be_missing_private_or_no_names(tmp_path: Path) -> None:
    """They are left out, as one that is missing is; `Path.is_dir` raises errors for them."""
    (tmp_path / "circle").symlink_to("circle")
    private = tmp_path / "private"
    (private / "code").mkdir(parents=True)
    private.chmod(0o700)
    named = [tmp_path / "circle", tmp_path / ("x" * 5000), private / "code"]
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        if before != 0:
            private.chmod(0)
        assert user_code.importable(*named) == [str(Path.cwd())]
        for directory in named:
            with registry.within_config_directory(directory):
                assert registry.config_path("a").name == "a"
    finally:
        os.seteuid(before)
        private.chmod(0o700)


ARCHIVES = """
import sys, zipfile
from pathlib import Path
from hpc_es.config import user_code
here = Path(sys.argv[1])
user_code.import_from([str(here), str(here / "place")])
user_code.import_only({limits})
sys.path.append(str(here / "mine.zip"))
import folder
for name in ("place", "folder"):
    (here / name).rename(here / (name + "_before"))
    with zipfile.ZipFile(here / name, "w") as archive:
        archive.writestr("theirs.py", "value = 'of an archive'")
for name in ("mine", "theirs", "folder.theirs", "package.part"):
    try:
        print(name, __import__(name, fromlist=["value"]).value)
    except ImportError:
        print(name, "is not found")
"""


@pytest.mark.parametrize("limits", ["None", "user_code.Limits(own=True)"])
def test_archive_gives_modules_only_where_the_user_has_put_it(limits: str, tmp_path: Path) -> None:
    """One that takes the place of a directory of code gives none, and one in the place of a folder
    only where all files may run. A folder is no archive: what lies compiled there does not run.
    """
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        archive.writestr("mine.py", "value = 'of an archive'\n")
    for name in ("place", "folder", "package", "empty"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    part = tmp_path / "package" / "part.py"
    part.write_text("value = 'compiled'\n")
    py_compile.compile(
        str(part), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, doraise=True
    )
    part.write_text("value = 'of the source'\n")
    done = python(["-c", ARCHIVES.format(limits=limits), str(tmp_path)], cwd=tmp_path / "empty")
    in_folder = "of an archive" if limits == "None" else "is not found"
    assert done.stdout.splitlines() == [
        "mine of an archive",
        "theirs is not found",
        f"folder.theirs {in_folder}",
        "package.part of the source",
    ], str(done)


def test_checked_modules_are_those_of_their_directory_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other sources beside a checked file do not take its place; an own module elsewhere is none
    of a run.
    """
    for name in ("run", "own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "checked_or_own.py").write_text(f"where = {name!r}\n")
    file = tmp_path / "run" / "checked_or_own.py"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setattr(user_code, "_checked", {})
    user_code.import_as_checked({file.stem: user_code.ModuleFile(str(file), digest, False)})
    (tmp_path / "run" / file.stem).mkdir()  # a package, which Python prefers
    (tmp_path / "run" / file.stem / "__init__.py").write_text("where = 'hostile'\n")
    for name in ("run", "own"):
        monkeypatch.syspath_prepend(str(tmp_path / name))
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
        assert importlib.import_module(file.stem).where == name
    monkeypatch.delitem(sys.modules, file.stem)


def test_mark_of_a_run_in_a_directory_for_everybody_hides_no_code(tmp_path: Path) -> None:
    """Anybody may write trials.json into /tmp."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    code = tmp_path / "shared" / "code"
    code.mkdir(parents=True)
    assert str(code) in user_code.importable(code)
    mark = tmp_path / "shared" / "trials.json"
    mark.write_text("{}")
    assert str(code) not in user_code.importable(code)
    os.chown(mark, 12001, 12001)
    assert str(code) in user_code.importable(code)
    os.chown(code, 12001, 12001)
    assert str(code) not in user_code.importable(code)
