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


@pytest.mark.parametrize("name", ["lib", "lib.part"])
def test_lists_of_further_directories_of_a_package_are_not_read(name: str, tmp_path: Path) -> None:
    """As MuJoCo does for mujoco.pkg, whose lines may be any directories."""
    code, library, elsewhere = tmp_path / "code", tmp_path / "library", tmp_path / "elsewhere"
    package = (code if name == "lib.part" else library) / "lib"
    extending = package / "part" if name == "lib.part" else package
    extending.mkdir(parents=True)
    elsewhere.mkdir()
    (package / "__init__.py").write_text("")
    (extending / "__init__.py").write_text(
        "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n"
    )
    code.mkdir(exist_ok=True)
    library.mkdir(exist_ok=True)
    beside = code / "lib" if name == "lib.part" else code
    (beside / f"{name}.pkg").write_text(f"{elsewhere}\n")
    (code / "lib" / "part").mkdir(parents=True, exist_ok=True)
    found = f"import {name}; print([*{name}.__path__] == [{str(extending)!r}])"
    assert printed(code, found, library, "None") == "True\n"


def test_parts_of_a_package_on_the_users_own_path_are_found(tmp_path: Path) -> None:
    code, library, other = (tmp_path / name for name in ("code", "library", "other"))
    for place in (library, other):
        (place / "lib").mkdir(parents=True)
        (place / "lib" / "__init__.py").write_text(
            "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n"
        )
    code.mkdir()
    path = f"import sys; sys.path.append({str(other)!r}); import lib; print(len(lib.__path__))"
    assert printed(code, path, library) == "2\n"
