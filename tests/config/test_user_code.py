"""Directories of the user's code: what the user imports by himself is never limited by a run."""

from __future__ import annotations

import hashlib
import os
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
