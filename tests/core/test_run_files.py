"""Only regular files of a run are opened."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_es.core.run_files import (
    UnusualFileError,
    copy_named,
    count_lines,
    each_line,
    keep_place,
    make_directory,
    named_by_user,
    open_file,
    open_text,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    release_place,
    remove,
    remove_directory,
    sha256_of,
    truncate,
)
from hpc_es.storage.results import find_runs
from tests.helpers.time_limit import time_limit

MAKERS: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to("other"),
    "a directory": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("mode", ["rb", "ab", "r+b"])
@pytest.mark.parametrize("kind", MAKERS)
def test_other_files_are_refused_and_left_alone(kind: str, mode: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("content")
    MAKERS[kind](tmp_path / "file")
    with pytest.raises(OSError, match=r"expected a regular file|Is a directory"):
        open_file(tmp_path / "file", mode)
    assert (tmp_path / "other").read_text() == "content"


def test_regular_files_are_read_appended_and_changed(tmp_path: Path) -> None:
    with open_file(tmp_path / "file", "ab") as file:
        file.write("ä\r\n".encode())
    with open_file(tmp_path / "file", "r+b") as file:
        file.seek(2)
        file.write(b"!")
    assert read_text(tmp_path / "file") == "ä!\n"


def test_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.truncate(tmp_path / "file", 1 << 40)
    with pytest.raises(UnusualFileError, match="has 1,099,511,627,776 bytes, more than"):
        read_bytes(tmp_path / "file")
    with open_file(tmp_path / "file") as file, pytest.raises(ValueError, match="has a line of"):
        next(each_line(file))


def test_text_with_a_hole_is_not_read(tmp_path: Path) -> None:
    """Hundreds of them, of 256 MiB each and no bytes on the disk, took minutes."""
    file = tmp_path / "trial.json"
    file.write_text("[]")
    os.truncate(file, 65 << 20)
    with pytest.raises(UnusualFileError, match="has 68,157,440 bytes, with a hole at byte 4,096"):
        read_bytes(file)
    for read in (count_lines, open_text):  # a log, a table
        with pytest.raises(UnusualFileError):
            read(file)
    os.truncate(file, 1 << 40)
    with pytest.raises(UnusualFileError):
        sha256_of(file)  # a program, which may have holes
    file.write_bytes(b"1" * (65 << 20))
    assert len(read_bytes(file)) == 65 << 20 and count_lines(file) == 0 and sha256_of(file)


def test_file_of_holes_is_not_copied(tmp_path: Path) -> None:
    """A file of terabytes takes no place on the disk of its owner, but on that of its copy."""
    for name, size, content in [
        ("small", 1, b"x"),
        ("large", 1 << 40, b"x"),
        ("dense", 0, b"x" * 5),
    ]:
        with (tmp_path / name).open("wb") as file:
            file.write(content)
            if size:
                file.truncate(size)
    assert copy_named(tmp_path / "dense", tmp_path / "copy") == 5
    assert (tmp_path / "copy").read_bytes() == b"xxxxx"
    assert copy_named(tmp_path / "small", tmp_path / "copy") == 1
    with pytest.raises(UnusualFileError, match="has 1,099,511,627,776 bytes, of which the disk"):
        copy_named(tmp_path / "large", tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_size == 0


def test_deep_json_and_texts_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deep"):
        read_json(tmp_path / "file")
    (tmp_path / "file").write_text('{"a": ["\\ud800", 1]}')
    assert read_json(tmp_path / "file") == {"a": ["\\ud800", 1]}


@pytest.mark.parametrize("item", ["[]", "{}", '"ab"'])
def test_json_that_takes_many_times_its_bytes_is_refused(item: str) -> None:
    since = time.process_time()
    with pytest.raises(ValueError, match=r"has \d\d,\d{3},\d{3} (lists|values), more than"):
        parse_json("[" + f"{item}," * 21_000_000 + "1]")
    assert time.process_time() - since < 5


def test_json_of_many_keys_is_refused() -> None:
    """A dict takes 25 times the bytes of its text."""
    text = json.dumps({str(number): 1 for number in range(1_000_001)})
    with pytest.raises(ValueError, match="has 1,000,001 keys, more than 1,000,000"):
        parse_json(text)


def test_vector_of_ten_million_numbers_is_no_bomb() -> None:
    assert len(parse_json("[" + "1," * (10**7 - 1) + "1]")) == 10**7


def test_code_may_be_reached_by_links(tmp_path: Path) -> None:
    """The SHA-256 of nothing."""
    (tmp_path / "other").touch()
    (tmp_path / "file").symlink_to("other")
    assert (
        sha256_of(tmp_path / "file")
        == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )
    assert sha256_of(tmp_path / "missing") == ""


def test_file_that_the_user_names_may_be_reached_by_links_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "points").write_text("1")
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "link" / "latest").symlink_to("points")
    assert read_text(named_by_user(tmp_path / "link" / "latest")) == "1"
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(UnusualFileError, match="expected a regular file, found a link"):
        read_text(named_by_user(tmp_path / "circle"))
    if os.geteuid() == 0:
        for link in (tmp_path / "data" / "latest", tmp_path / "link"):
            os.lchown(link, 12001, 12001)
            with pytest.raises(UnusualFileError, match=f"{link.name} is a link of user 12001"):
                named_by_user(tmp_path / "link" / "latest")
            os.lchown(link, 0, 0)
        os.lchown(tmp_path / "data" / "latest", 12001, 12001)
        os.chown(tmp_path / "data" / "points", 12001, 12001)
        assert read_text(named_by_user(tmp_path / "link" / "latest")) == "1"


def test_links_of_others_lead_to_no_files_of_the_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give links away")
    (tmp_path / "private" / "checkpoints").mkdir(parents=True)
    (tmp_path / "private" / "checkpoints" / "x").write_text("secret")
    run = tmp_path / "run"
    run.mkdir()
    for name, target in (("checkpoints", "checkpoints"), ("repetition_0000", ".")):
        (run / name).symlink_to(tmp_path / "private" / target)
    inside = (run / "checkpoints" / "x", run / "repetition_0000" / "checkpoints" / "x")
    assert [read_text(path) for path in inside] == ["secret", "secret"]  # links of one's own
    for link in run.iterdir():
        os.lchown(link, 12001, 12001)
    for path in inside:
        with pytest.raises(UnusualFileError, match="a link of user 12001 to a directory of others"):
            read_text(path)
    os.chown(tmp_path / "private" / "checkpoints", 12001, 12001)  # a link to a run of the same user
    assert read_text(inside[0]) == "secret"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The run of another user, with a link of that user beside it to what is private."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files to others")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "status.json").write_text("secret")
    (tmp_path / "share" / "run").mkdir(parents=True)
    (tmp_path / "share" / "run" / "status.json").write_text("good")
    (tmp_path / "share" / "link").symlink_to(tmp_path / "private")
    for path in [tmp_path / "share", *(tmp_path / "share").rglob("*")]:
        os.lchown(path, 12345, 12345)
    return tmp_path / "share"


@pytest.mark.long
def test_directory_that_is_exchanged_for_a_link_is_not_entered(theirs: Path) -> None:
    done = threading.Event()

    def exchange() -> None:
        while not done.is_set():
            for old, new in (("run", "away"), ("link", "run"), ("run", "link"), ("away", "run")):
                (theirs / old).rename(theirs / new)

    thread = threading.Thread(target=exchange)
    thread.start()
    read = []
    try:
        for _ in range(20_000):
            with contextlib.suppress(OSError):
                read.append(read_text(theirs / "run" / "status.json"))
    finally:
        done.set()
        thread.join()
    assert {*read} == {"good"}


def test_run_that_was_found_deep_below_is_not_read_through_a_link(theirs: Path) -> None:
    """Its directory, or one above it, may be exchanged for a link after it was found."""
    deep = Path("a", "b", "c", "deep", "status.json")
    for place, text in ((theirs / "run", "good"), (theirs.parent / "private", "secret")):
        (place / deep).parent.mkdir(parents=True)
        (place / deep).write_text(text)
    for path in (theirs / "run").rglob("*"):
        os.lchown(path, 12345, 12345)
    (found,) = [path for path in find_runs(theirs) if path.name == deep.parent.name]
    assert read_text(found / "status.json") == "good"
    (theirs / "run").rename(theirs / "away")
    (theirs / "link").rename(theirs / "run")
    with pytest.raises(UnusualFileError, match="a link of user 12345 to a directory of others"):
        read_text(found / "status.json")


def test_links_of_another_user_to_own_directories(theirs: Path) -> None:
    with pytest.raises(UnusualFileError, match="a link of user 12345 to a directory of others"):
        read_text(theirs / "link" / "status.json")
    (theirs / "latest").symlink_to("run")
    os.lchown(theirs / "latest", 12345, 12345)
    assert read_text(theirs / "latest" / "status.json") == "good"
    mine = theirs.parent / "mine"
    mine.symlink_to(theirs / "latest")
    assert read_text(mine / "status.json") == "good"


@pytest.mark.parametrize("mode", ["rb", "ab", "r+b"])
def test_hard_link_of_another_user_is_refused(theirs: Path, mode: str) -> None:
    os.link(theirs.parent / "private" / "status.json", theirs / "run" / "lock")
    with pytest.raises(UnusualFileError, match="found a hard link"):
        open_file(theirs / "run" / "lock", mode)
    os.link(theirs / "run" / "status.json", theirs / "run" / "copy")  # of their own
    open_file(theirs / "run" / "copy", mode).close()


def test_nothing_is_cut_or_removed_through_a_link_of_somebody_else(tmp_path: Path) -> None:
    """Such as a link in the place of the checkpoints of a run, to those of another run."""
    if os.geteuid() != 0:
        pytest.skip("only root can give links away")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "log.csv").write_text("1\n2\n")
    (tmp_path / "link").symlink_to("mine")
    os.lchown(tmp_path / "link", 12001, 12001)
    with pytest.raises(UnusualFileError):
        remove(tmp_path / "link" / "log.csv")
    with pytest.raises(UnusualFileError):
        truncate(tmp_path / "link" / "log.csv", 2)
    (tmp_path / "mine" / "wandb").mkdir()
    with pytest.raises(UnusualFileError):
        remove_directory(tmp_path / "link" / "wandb")
    with pytest.raises(UnusualFileError):
        make_directory(tmp_path / "link" / "new" / "newer")
    remove_directory(tmp_path / "mine" / "wandb")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["log.csv"]
    assert (tmp_path / "mine" / "log.csv").read_text() == "1\n2\n"
    truncate(tmp_path / "mine" / "log.csv", 2)
    assert (tmp_path / "mine" / "log.csv").read_text() == "1\n"
    remove(tmp_path / "mine" / "log.csv")
    remove(tmp_path / "mine" / "log.csv")
    assert list((tmp_path / "mine").iterdir()) == []


def test_directories_are_made_with_those_above_them(tmp_path: Path) -> None:
    (tmp_path / "own").symlink_to(tmp_path)
    for _ in range(2):
        make_directory(tmp_path / "own" / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(FileNotFoundError):
        make_directory(tmp_path / "c" / "d", parents=False)
    (tmp_path / "file").write_text("kept")
    (tmp_path / "nowhere").symlink_to("nothing")
    for name in ("file", "file/d", "nowhere"):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            make_directory(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "file", "nowhere", "own"]


def test_directory_of_a_run_that_was_renamed_is_there(tmp_path: Path) -> None:
    """The descriptor of the run leads to it, its path no longer does."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    keep_place(run)
    try:
        run.rename(tmp_path / "elsewhere")
        make_directory(run / "checkpoints", parents=False)
    finally:
        release_place(run)
    assert not run.exists()


@pytest.mark.parametrize("other", ["pipe", "link", "file"])
def test_what_takes_the_place_of_a_directory_that_is_removed_is_not_followed(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the names of a directory and the removal of each."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    exchanged = tmp_path / "old" / "within"
    exchanged.mkdir(parents=True)
    listed = os.listdir

    def exchanging(directory: int) -> list[str]:
        names = listed(directory)
        if exchanged.is_dir() and "within" in names:
            exchanged.rmdir()
            if other == "link":
                exchanged.symlink_to(tmp_path / "kept")
            elif other == "pipe":
                os.mkfifo(exchanged)
            else:
                exchanged.touch()
        return names

    monkeypatch.setattr(os, "listdir", exchanging)
    with time_limit(30):
        remove_directory(tmp_path / "old")
    assert listed(tmp_path) == ["kept"] and listed(tmp_path / "kept") == ["file"]


def test_what_can_be_removed_is_removed_before_the_error(tmp_path: Path) -> None:
    for name in ("1", "2", "3"):
        (tmp_path / "old" / name / "within").mkdir(parents=True)
    kept = os.open(tmp_path / "old" / "2", os.O_RDONLY)
    real = os.rmdir

    def refusing(name: str, *, dir_fd: int) -> None:
        if name == "within" and os.fstat(dir_fd).st_ino == os.fstat(kept).st_ino:
            raise PermissionError(errno.EPERM, "not permitted")
        real(name, dir_fd=dir_fd)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "rmdir", refusing)
        with pytest.raises(PermissionError):
            remove_directory(tmp_path / "old")
    os.close(kept)
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["2"]
    remove_directory(tmp_path / "old")


def test_directories_within_each_other_are_removed_to_a_depth(tmp_path: Path) -> None:
    deep = tmp_path / "old"
    for _ in range(190):
        deep /= "a"
    deep.mkdir(parents=True)
    remove_directory(tmp_path / "old")
    (tmp_path / "old" / "beside").mkdir(parents=True)
    inner = os.open(tmp_path / "old", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("a", dir_fd=inner)
        below = os.open("a", os.O_RDONLY, dir_fd=inner)
        os.close(inner)
        inner = below
    os.close(inner)
    with pytest.raises(OSError, match="nested too deep"):
        remove_directory(tmp_path / "old")
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["a"]
    subprocess.run(["rm", "-r", str(tmp_path / "old")], check=True)
