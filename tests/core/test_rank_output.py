"""The log of a rank has everything that its code writes, and never makes it fail."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path

import pytest

from hpc_es.core import rank_output
from hpc_es.core.rank_output import RankLog
from tests.helpers.harness import python, script

EVERYTHING = """
    import ctypes, logging, os, subprocess, sys
    from pathlib import Path

    early = sys.stdout  # as kept by code that was imported before
    ctypes.CDLL(None).puts(b"C before")
    from hpc_es.core import rank_output

    log = rank_output.RankLog.open(Path(sys.argv[1]), 3, "=== title")
    print("python")
    print("error", file=sys.stderr)
    ctypes.CDLL(None).puts(b"C")
    os.system("echo child; echo child error >&2")
    early.write("early\\n")
    os.write(1, b"descriptor\\n")
    print("message", file=rank_output.terminal_output())
    print("warning", file=rank_output.terminal_errors())
    print("end without a newline", end="", flush=True)
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), 9)
    log.close()
    print("after")
    ctypes.CDLL(None).puts(b"C after")
"""
LINES = [
    "=== title",
    "python",
    "error",
    "C",
    "child",
    "child error",
    "early",
    "descriptor",
    "end without a newline",
]


@pytest.mark.parametrize("end", ["close", "kill"])
def test_log_has_the_output_of_python_and_c_code_and_of_child_processes(
    end: str, tmp_path: Path
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank_0003.txt").write_text("earlier\n")
    # which C's stdout follows
    done = python([*script(EVERYTHING), str(tmp_path), end], env={"PYTHONUNBUFFERED": ""})
    assert (tmp_path / "logs" / "rank_0003.txt").read_text().splitlines() == ["earlier", *LINES]
    # Python's stdout is a file again, with a block buffer
    after = ["C after", "after"] if end == "close" else []
    assert done.stdout.splitlines() == ["C before", "message", *after]
    assert done.stderr == "warning\n"
    assert done.status == (0 if end == "close" else -signal.SIGKILL)


FULL = """
    import ctypes, os, sys
    from pathlib import Path
    from hpc_es.core import rank_output
    from hpc_es.core.rank_output import RankLog, terminal_output

    rank_output.open_descriptor = lambda path, flags: os.open("/dev/full", os.O_WRONLY)
    log = RankLog.open(Path(sys.argv[1]), 0, "title")
    print("x" * 100_000)
    sys.stderr.write("y\\n")
    ctypes.CDLL(None).puts(b"z")
    sys.stdout.buffer.write(b"bytes")
    assert (sys.stdout.name, sys.stderr.name) == ("<stdout>", "<stderr>") and not sys.stdout.isatty()
    print("nothing fails", file=terminal_output())
    log.close()
"""


def test_full_disk_drops_output_without_an_error(tmp_path: Path) -> None:
    done = python([*script(FULL), str(tmp_path)])
    assert (done.status, done.stdout, done.stderr) == (0, "nothing fails\n", "")


def opened(directory: Path) -> RankLog:
    """The log, opened in the test itself: pytest sets the descriptors again after each fixture."""
    log = RankLog.open(directory, 0, "title")
    assert log is not None
    return log


def test_children_write_to_the_null_device_while_the_disk_has_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, free = os.statvfs(tmp_path), [0]
    monkeypatch.setattr(rank_output, "CHECK_SECONDS", 0.0)
    changed = os.statvfs_result((*disk[:4], 0, *disk[5:]))
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: disk if free[0] else changed)
    log = opened(tmp_path)
    try:
        for free[0] in (1, 0, 0, 1):
            log.check_space()
            os.system("echo child")
    finally:
        log.close()
    assert disk.f_bavail * disk.f_frsize > rank_output.FREE_BYTES, (
        "the test needs a disk with space"
    )
    expected = ["title", "child", "[less than 64 MiB are free: output is missing here]", "child"]
    assert (tmp_path / "logs" / "rank_0000.txt").read_text().splitlines() == expected


def test_log_that_cannot_be_written_leaves_the_output_where_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").write_text("a file")
    assert RankLog.open(tmp_path, 5, "title") is None and not rank_output.is_open()
    os.write(1, b"terminal\n")
    out, err = capfd.readouterr()
    assert (
        out == "terminal\n"
        and err.startswith("WARNING: rank 5 prints here: ")
        and "rank_0005.txt" in err
    )


def test_second_log_of_a_process_is_refused(tmp_path: Path) -> None:
    log = opened(tmp_path)
    try:
        assert RankLog.open(tmp_path, 1, "title") is None
    finally:
        log.close()
    assert (
        "another run of this process has a log" in (tmp_path / "logs" / "rank_0000.txt").read_text()
    )
    assert not (tmp_path / "logs" / "rank_0001.txt").exists()


def test_messages_stay_in_a_notebook_whose_streams_are_not_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = io.StringIO()
    monkeypatch.setattr(sys, "stdout", cell)
    log = opened(tmp_path)
    try:
        assert rank_output.terminal_output() is cell
    finally:
        log.close()
    assert sys.stdout is cell


def test_content_of_files_is_appended_with_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("one\ntwo")
    (tmp_path / "err").write_text("")
    log = opened(tmp_path)
    try:
        rank_output.add_files([tmp_path / "out", tmp_path / "err", tmp_path / "missing"])
        print("three")
    finally:
        log.close()
    rank_output.add_files([tmp_path / "out"])  # no log is open
    assert (tmp_path / "logs" / "rank_0000.txt").read_text() == "title\none\ntwo\nthree\n"


def test_announcement_that_cannot_be_written_is_dropped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_output.announce("filling")
    assert capsys.readouterr().out == "filling ...\n"
    monkeypatch.setattr(sys, "stdout", Full())
    rank_output.announce("filling")


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError("no space left on device")
