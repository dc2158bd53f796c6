"""Libraries look for modules only in the directories with code of the user."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpc_es.core import search_path
from tests.helpers.harness import python

# what a library does: the package of metadata, and TensorFlow, which loads compiled files there
POINTS = """
from {package} import entry_points
print([point.name for point in entry_points(group="mujoco.plugins")])
"""
LOADS = """
import sys, {package}
print({package}.seen, {code!r} in sys.path, "/added/by/it" in sys.path)
"""
PROGRAM = """
import hpc_es
from hpc_es.config import user_code
user_code.import_from([{code!r}])
user_code.import_only({limits})
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A directory that a run of somebody else names, with an entry point."""
    folder = tmp_path / "site-packages" / "theirs-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[mujoco.plugins]\ntheirs = cProfile:main\n")
    return folder.parent


def printed(code: Path, program: str, library: Path, limits: str = "user_code.NOTHING") -> str:
    text = PROGRAM.format(code=str(code), limits=limits) + program
    done = python(["-c", text], cwd=library, env={"PYTHONPATH": str(library)})
    assert done.status == 0, str(done)
    return done.stdout


@pytest.mark.parametrize("limits", ["None", "user_code.NOTHING", "user_code.Limits(own=True)"])
def test_entry_points_beside_code_of_a_run_are_not_found(
    code: Path, tmp_path: Path, limits: str
) -> None:
    """An entry point may name any function of any library: cProfile:main executes a file."""
    text = POINTS.format(package="importlib.metadata")
    assert printed(code, text, tmp_path, limits) == "[]\n"


def test_entry_points_of_a_directory_that_the_user_has_put_on_the_path_are_found(
    code: Path, tmp_path: Path
) -> None:
    assert printed(tmp_path, POINTS.format(package="importlib.metadata"), code) == "['theirs']\n"


def test_entry_points_are_not_found_by_the_package_importlib_metadata(
    code: Path, tmp_path: Path
) -> None:
    """It is a copy of the module of Python."""
    import importlib.metadata

    package = tmp_path / "library" / "importlib_metadata"
    package.mkdir(parents=True)
    for file in Path(importlib.metadata.__file__).parent.glob("*.py"):
        (package / file.name).write_bytes(file.read_bytes())
    found = printed(code, POINTS.format(package="importlib_metadata"), package.parent)
    assert found == "[]\n"


@pytest.mark.parametrize("package", ["tensorflow", "torch"])
def test_library_that_looks_through_the_search_path_does_not_see_code_of_a_run(
    code: Path, tmp_path: Path, package: str
) -> None:
    """TensorFlow loads `tensorflow-plugins` in all directories with site-packages in their name."""
    library = tmp_path / "library"
    library.mkdir()
    text = f"import sys\nseen = {str(code)!r} in sys.path\nsys.path.append('/added/by/it')\n"
    (library / f"{package}.py").write_text(text)
    text = LOADS.format(package=package, code=str(code))
    assert printed(code, text, library) == "False True True\n"


def test_path_is_restored_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/a", "/added", "/b", "/c"])
    monkeypatch.setattr(search_path, "added", {"/added"})
    with search_path.only_others():
        assert sys.path == ["/a", "/b", "/c"]
        sys.path.remove("/b")
        sys.path.append("/new")
    assert sys.path == ["/a", "/added", "/c", "/new"]
