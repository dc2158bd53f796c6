"""Files are replaced completely, also with several writers of one name."""

import contextlib
import errno
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from hpc_es.core.errors import RunError
from hpc_es.storage import files


def test_two_writers_of_one_file_use_different_temporary_files(tmp_path: Path) -> None:
    """As tasks of a job array that start in the same second and write the same config.yaml."""
    path = tmp_path / "config.yaml"

    def meanwhile(_: object) -> None:
        files.replace(path, [b"other"])
        assert path.read_bytes() == b"other"

    files.replace(path, [b"mine"], meanwhile)
    assert path.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [path]


def test_only_temporary_files_of_one_file_are_removed(tmp_path: Path) -> None:
    kept = {
        "status.json",
        ".status.json",
        ".other.12.tmp.json",
        "status.12.tmp.json",
        ".status.12.tmp",
    }
    for name in (*kept, files.temporary_name(tmp_path / "status.json").name):
        (tmp_path / name).touch()
    files.remove_leftovers(tmp_path / "status.json")
    assert {path.name for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize("who", ["stranger", "user"])
def test_nothing_is_written_through_a_link_of_a_stranger_to_a_directory_of_the_user(
    who: str, tmp_path: Path
) -> None:
    """In a shared directory it could stand where a picture or a run is to be written."""
    if os.geteuid() != 0:
        pytest.skip("only root can give links away")
    home, shared = tmp_path / "home", tmp_path / "shared"
    home.mkdir()
    shared.mkdir()
    (home / "report.html").write_text("mine")
    (shared / "out").symlink_to(home)
    os.chown(home, 12002, 12002)
    os.lchown(shared / "out", 12001 if who == "stranger" else 0, 0)
    file = shared / "out" / "report.html"

    def write() -> None:
        with files.written(file) as temporary:
            temporary.write_text("new")

    for call in (write, lambda: files.write_text(file, "new")):
        if who == "user":
            call()
            continue
        with pytest.raises(RunError, match=r"is below out, a link of user 12001 .* name the"):
            call()
    assert (home / "report.html").read_text() == ("new" if who == "user" else "mine")
    assert not [*home.glob(".*")]


def test_nothing_is_written_to_what_takes_the_place_of_a_directory(tmp_path: Path) -> None:
    """The owner of a shared directory could exchange it between the check and the write."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for directory in (mine, theirs):
        directory.mkdir()
        (directory / "best.yaml").write_text(directory.name)

    def exchanged(*_: object) -> None:
        theirs.rename(tmp_path / "moved")
        theirs.symlink_to(mine)

    def put_back() -> None:
        theirs.unlink()
        (tmp_path / "moved").rename(theirs)

    with contextlib.suppress(RunError):
        files.replace(theirs / "best.yaml", [b"new"], exchanged)
    put_back()
    with files.written(theirs / "best.yaml") as temporary:
        exchanged()
        temporary.write_text("new")
    put_back()
    assert (theirs / "best.yaml").read_text() == "new"
    assert (mine / "best.yaml").read_text() == "mine"
    assert [path.name for path in mine.iterdir()] == ["best.yaml"]
    assert [path.name for path in theirs.iterdir()] == ["best.yaml"]


def test_a_new_file_is_not_created_in_what_takes_the_place_of_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    link = os.link

    def exchange_and_link(*names: str, **places: int) -> None:
        theirs.rename(tmp_path / "moved")
        theirs.symlink_to(mine)
        link(*names, **places)

    monkeypatch.setattr(os, "link", exchange_and_link)
    files.create_text(theirs / "trials.json", "new")
    assert list(mine.iterdir()) == []
    assert [path.name for path in (tmp_path / "moved").iterdir()] == ["trials.json"]


def test_a_file_is_created_once(tmp_path: Path) -> None:
    files.create_text(tmp_path / "trials.json", "first")
    files.create_text(tmp_path / "trials.json", "second")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["first"]


def test_libraries_write_where_nobody_else_may(tmp_path: Path) -> None:
    """ffmpeg opens its output again by a name that every user can read on its command line."""
    with files.written(tmp_path / "gait.mp4") as temporary:
        assert temporary.name == "gait.mp4" and temporary.parent.stat().st_mode & 0o777 == 0o700
        assert not temporary.is_relative_to(tmp_path)
        temporary.write_text("new")
    assert (tmp_path / "gait.mp4").read_text() == "new" and not temporary.parent.exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "gait.mp4"]


def test_full_directory_of_temporary_files_is_named(tmp_path: Path) -> None:
    file = tmp_path / "gait.mp4"
    with pytest.raises(RunError, match=r"hpc_es_\w+/gait.mp4: .*raise the quota"), files.written(file) as temporary:  # fmt: skip
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(temporary))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["pipe", "link", "other"])
def test_what_takes_the_place_of_a_new_file_is_not_read(kind: str, tmp_path: Path) -> None:
    """In a directory that others may write to, before the file has its name."""
    path, secret, read = tmp_path / "checkpoint.h5", tmp_path / "secret", list[bytes]()
    secret.write_text("secret")

    def write(file: BinaryIO) -> None:
        file.write(b"new")
        file.flush()
        (temporary,) = tmp_path.glob(".checkpoint.*.tmp.h5")
        if kind == "pipe":
            os.mkfifo(tmp_path / "pipe")
            (tmp_path / "pipe").rename(temporary)
        else:
            temporary.unlink()
            temporary.symlink_to(secret) if kind == "link" else temporary.write_text("theirs")

    with pytest.raises(RunError):
        files.replace_by(path, write, lambda file: read.append(file.read()))
    assert not read and not path.exists()
