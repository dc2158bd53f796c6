"""Files of settings in a directory that others may write are read by no library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hpc_es.core.settings_files import use_private_numba_cache

MODULE = """
import sys
if "{file}" in {{entry.name for entry in __import__("pathlib").Path(".").iterdir()}}:
    sys.stdout.write("read")
_config_fname = "{file}"
"""
# a directory that others may write, one of a stranger's below it, and one of one's own
OPEN, STICKY, OWN = 0o777, 0o1777, 0o755


def output(directory: Path, library: Path, code: str) -> tuple[str, str]:
    """Return what a program prints in a directory: standard output and error."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(library)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("mode", [OPEN, STICKY, OWN])
@pytest.mark.parametrize(
    ("module", "file"),
    [("matplotlib", "matplotlibrc"), ("numba.core.config", ".numba_config.yaml")],
)
def test_a_library_reads_settings_of_the_current_directory_only_if_no_other_may_write_it(
    tmp_path: Path, module: str, file: str, mode: int
) -> None:
    library = tmp_path / "library"
    folder = library.joinpath(*module.split("."))
    folder.mkdir(parents=True)
    for parent in [folder, *folder.parents][: module.count(".") + 1]:
        (parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text(MODULE.format(file=file))
    here = tmp_path / "here"
    here.mkdir()
    here.chmod(mode)
    (here / file).write_text("")
    code = f"import os, hpc_es, {module} as m; assert os.getcwd() == {str(here)!r}; print(m._config_fname)"
    said, warned = output(here, library, code)
    assert said.startswith("read") == (mode == OWN)
    assert (f"{file} of the current directory is not read" in warned) == (mode != OWN)
    # Numba looks for it again whenever it compiles
    assert (file in said) == (mode == OWN or module == "matplotlib")


def test_matplotlib_does_not_wait_for_a_pipe_of_somebody_else(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    os.mkfifo(tmp_path / "matplotlibrc")
    said, warned = output(tmp_path, tmp_path, "import hpc_es, matplotlib; print('imported')")
    assert said == "imported\n"
    assert "matplotlibrc" in warned


def test_mpi_reads_no_settings_of_somebody_else(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    tmp_path.chmod(0o1777)
    (tmp_path / "ucx.conf").write_text(f"UCX_LOG_FILE={tmp_path}/written\nUCX_LOG_LEVEL=info\n")
    code = "from hpc_es.mpi.connect import connect; connect()"
    _, warned = output(tmp_path, tmp_path, code)
    assert not (tmp_path / "written").exists()
    assert "ucx.conf of the current directory is not read (all users may write" in warned


def test_files_of_a_directory_that_is_gone_are_nobodys(tmp_path: Path) -> None:
    code = f"import os; os.rmdir({str(tmp_path / 'gone')!r}); import hpc_es, matplotlib; print(1)"
    (tmp_path / "gone").mkdir()
    assert output(tmp_path / "gone", tmp_path, code)[0] == "1\n"


@pytest.mark.parametrize("home", ["", "/nonexistent"])
def test_keras_reads_no_settings_below_tmp_where_the_home_cannot_be_written(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERAS_HOME", raising=False)
    monkeypatch.setenv("HOME", home or str(tmp_path))
    code = "import hpc_es, os; print(os.environ.get('KERAS_HOME'))"
    expected = f"{home}/.keras\n" if home else "None\n"
    assert output(tmp_path, tmp_path, code)[0] == expected


def test_numba_cache_is_private_also_without_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    (tmp_path / "file").write_text("")
    config = ModuleType("numba.core.config")
    monkeypatch.setitem(sys.modules, config.__name__, config)
    use_private_numba_cache()
    folder = Path(os.environ["NUMBA_CACHE_DIR"])
    assert vars(config)["CACHE_DIR"] == str(folder)  # imported before, it does not look again
    assert folder.is_dir() and folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("NUMBA_CACHE_DIR", "mine")
    use_private_numba_cache()
    assert os.environ["NUMBA_CACHE_DIR"] == "mine"


def test_python_that_a_library_starts_does_not_begin_in_the_current_directory(
    tmp_path: Path,
) -> None:
    """glfw, which MuJoCo imports, does: `python -c` looks there before the standard library."""
    pytest.importorskip("glfw")
    (tmp_path / "ctypes.py").write_text("import pathlib; pathlib.Path('executed').touch()")
    code = "import hpc_es, os; before = os.getcwd(); import glfw; print(os.getcwd() == before)"
    assert output(tmp_path, tmp_path / "none", code)[0] == "True\n"
    assert not (tmp_path / "executed").exists()
