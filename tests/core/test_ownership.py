"""Files that another user may have written are told from the user's own."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest

from hpc_es.core import ownership
from hpc_es.core.ownership import stranger


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a" / "b" / "code.py"
    path.parent.mkdir(parents=True)
    path.touch()
    for item in (path, path.parent, path.parents[1]):
        item.chmod(0o755)
    return path


def test_own_file(file: Path) -> None:
    assert stranger(file) == ""


@pytest.mark.parametrize("level", ["code.py", "b", "a"])
@pytest.mark.parametrize(
    ("bits", "text"), [(0o757, "all users may write"), (0o777, "all users may write")]
)
def test_file_or_directory_above_that_all_may_write(
    file: Path, level: str, bits: int, text: str
) -> None:
    item = next(path for path in (file, *file.parents) if path.name == level)
    item.chmod(bits)
    assert stranger(file) == f"{text} {item}"


def test_sticky_directory_lets_only_owners_replace_files(file: Path) -> None:
    file.parent.chmod(0o1777)
    assert stranger(file) == ""


def test_own_group_is_private_and_another_is_not(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.chmod(0o664)
    monkeypatch.setattr("hpc_es.core.ownership._is_private", lambda group, path: True)
    assert stranger(file) == ""
    monkeypatch.undo()
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(file, 0, 12001)
    assert stranger(file) == f"a group may write {file}"
    os.chown(file, 0, 0)  # root's own group has his name
    assert stranger(file) == ""


def test_group_that_another_user_has_as_first_group(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = pwd.getpwuid(os.geteuid())
    if stranger_of_group(file) != "" or user.pw_gid != file.stat().st_gid:
        pytest.skip("this user has no group of his own")
    other = pwd.struct_passwd(("operator", "x", 12346, user.pw_gid, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [user, other])
    ownership._users_with.cache_clear()
    assert stranger_of_group(file) == f"a group may write {file}"
    monkeypatch.undo()
    ownership._users_with.cache_clear()


@pytest.mark.parametrize("kind", ["member", "other first group", "access list"])
def test_group_with_the_name_of_the_user_that_is_not_private(
    kind: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = pwd.getpwuid(os.geteuid())
    if stranger_of_group(file) != "" or user.pw_gid != file.stat().st_gid:
        pytest.skip("this user has no group of his own")
    members = [user.pw_name, "other"] if kind == "member" else []
    entry = grp.struct_group((user.pw_name, "x", user.pw_gid, members))
    monkeypatch.setattr(grp, "getgrgid", lambda _: entry)
    if kind == "other first group":
        fields = [*user]
        fields[3] = user.pw_gid + 1
        monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(fields))
    if kind == "access list":
        monkeypatch.setattr(os, "listxattr", lambda _: [ownership.ACCESS_LIST])
    assert stranger_of_group(file) == f"a group may write {file}"


def test_sticky_bit_of_a_file_protects_nothing(file: Path) -> None:
    file.chmod(0o1646)
    assert stranger(file) == f"all users may write {file}"


def test_way_through_the_directory_above(file: Path, tmp_path: Path) -> None:
    assert stranger(file.parent / ".." / "b" / "code.py") == ""
    (tmp_path / "link").symlink_to("a/b/../b/code.py")
    assert stranger(tmp_path / "link") == ""


def stranger_of_group(file: Path) -> str:
    file.chmod(0o664)
    return stranger(file)


def test_link_of_a_stranger(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    assert stranger(link) == ""
    file.parent.chmod(0o757)
    assert stranger(link) == f"all users may write {file.parent}"
    file.parent.chmod(0o755)
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.lchown(link, 12001, 12001)
    assert stranger(link) == f"{link} belongs to user 12001"


def test_missing_file(tmp_path: Path) -> None:
    assert "No such file" in stranger(tmp_path / "missing")
