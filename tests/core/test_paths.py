"""Paths: ~ and variables are replaced, a variable that is not set is an error,
and the directory may change.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
from pathlib import Path

import pytest

import hpc_es
from hpc_es import cli
from hpc_es.core import arguments, paths
from hpc_es.core.errors import UserError
from hpc_es.core.paths import followed


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    monkeypatch.setenv("DOLLAR", "a$SCRATCH")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("NOT_SET", raising=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("~", "/home/me"),
        ("~/x y", "/home/me/x y"),
        ("$SCRATCH", "/scratch/me"),
        ("${SCRATCH}x/$SCRATCH", "/scratch/mex//scratch/me"),
        ("~/$SCRATCH", "/home/me//scratch/me"),
        ("runs/~", "runs/~"),
        ("./~/x", "./~/x"),
        ("$DOLLAR", "a$SCRATCH"),  # a value is not searched again
        ("$$SCRATCH/5$", "$SCRATCH/5$"),
        ("größe/$5", "größe/$5"),
        ("", ""),
    ],
)
def test_home_and_variables_are_replaced(text: str, expected: str) -> None:
    assert paths.expanded(text) == expected


def test_home_of_a_user_is_replaced() -> None:
    user = pwd.getpwuid(os.getuid())
    assert paths.expanded(f"~{user.pw_name}/x") == str(Path(user.pw_dir, "x"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$NOT_SET/x", r"'\$NOT_SET/x' has the variable \$NOT_SET, which is not set: export it"),
        ("a/${NOT_SET}", r"the variable \$NOT_SET, which is not set"),
        ("$EMPTY/x", r"the variable \$EMPTY, which is empty"),
        (
            "${SCRATCH:-/tmp}",
            r"expected a variable as \$NAME or \$\{NAME\}, found '\$\{SCRATCH:-/tmp\}'",
        ),
        ("${SCRATCH", r"found '\$\{SCRATCH'"),
        ("${}", r"found '\$\{\}'"),
        (
            "~no_such_user/x",
            r"there is no home directory ~no_such_user in .* write './~no_such_user/x'",
        ),
    ],
)
def test_what_cannot_be_replaced_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paths.expanded(text)
    with pytest.raises(UserError, match=f"^output: .*{message}"):
        paths.argument(text, "output")
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        arguments.expanded_path(text)


def test_types_of_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert arguments.expanded_path("~/x") == Path("/home/me/x")
    assert arguments.expanded_path("x") == Path("x")
    assert arguments.written_file("x") == tmp_path / "x"
    assert arguments.config_source("$SCRATCH/c.yaml") == "/scratch/me/c.yaml"
    assert arguments.config_source("env=c(task='$NOT_SET')") == "env=c(task='$NOT_SET')"


def test_path_is_shown_relative_to_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths.absolute("runs/x") == tmp_path / "runs" / "x"
    assert paths.shown(tmp_path / "runs" / "x") == "runs/x"
    assert paths.shown(Path("/elsewhere/x")) == "/elsewhere/x"


def test_kept_directory_is_restored_also_after_it_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    with paths.kept_directory():
        os.chdir("/")
        (tmp_path / "a").rename(tmp_path / "b")
    assert Path.cwd() == tmp_path / "b"


def test_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    (tmp_path / "a").rmdir()
    with pytest.raises(
        UserError, match=r"current directory cannot be used .*change to another one"
    ):
        paths.absolute("x")
    assert paths.absolute("/x") == Path("/x")
    assert paths.shown(Path("/x")) == "/x"


def circle(directory: Path) -> Path:
    """Return a link that leads to itself by way of another one."""
    (directory / "a").symlink_to(directory / "b")
    (directory / "b").symlink_to(directory / "a")
    return directory / "a"


def test_circle_of_links_leads_to_one_of_them(tmp_path: Path) -> None:
    assert followed(circle(tmp_path)).parent == tmp_path
    assert followed(tmp_path / "no" / ".." / "file") == tmp_path / "file"


def test_path_resolve_is_not_used() -> None:
    """It raises RuntimeError for a circle of links, which commands show as a traceback."""
    package = Path(hpc_es.__file__).parent
    assert [file for file in package.rglob("*.py") if ".resolve()" in file.read_text()] == []


def test_commands_refuse_a_circle_of_links(tmp_path: Path) -> None:
    run, picture = str(circle(tmp_path)), str(tmp_path / "x.png")
    config = str(Path(__file__).parents[2] / "configs" / "es_cartpole.yaml")
    for words in (["plot", run, "-o", picture], ["check", config, "--output", run], ["list", run]):
        with pytest.raises(UserError, match=re.escape(run)):
            cli.run(words)
