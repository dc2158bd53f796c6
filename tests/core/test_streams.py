"""Standard streams that are missing, closed, full or of another kind never end a program."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpc_es
from hpc_es.core import streams
from hpc_es.core.quiet import quiet_stderr, show_once
from hpc_es.core.streams import say, say_error
from hpc_es.mpi import connect
from hpc_es.report.progress import on_terminal
from tests.helpers.harness import python


class Raising:
    """A stream whose methods raise."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def write(self, *text: str) -> int:
        """Raise the error."""
        raise self._error

    flush = isatty = fileno = write


class Window:
    """A stream of a graphical program: it has no method but write."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        """Keep the text."""
        self.text += text


def closed() -> io.StringIO:
    """A stream after `close()`."""
    stream = io.StringIO()
    stream.close()
    return stream


STREAMS: dict[str, Callable[[], Any]] = {
    "missing": lambda: None,
    "closed": closed,
    "no reader": lambda: Raising(BrokenPipeError()),
    "full disk": lambda: Raising(OSError(errno.ENOSPC, "full")),
    "interrupted": lambda: Raising(RuntimeError("reentrant call")),
    "window": Window,
    "no stream": object,
}


def replaced(kind: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A strange stream, which is now standard output and standard error."""
    strange = STREAMS[kind]()
    monkeypatch.setattr(sys, "stdout", strange)
    monkeypatch.setattr(sys, "stderr", strange)
    return strange


@pytest.mark.parametrize("kind", STREAMS)
def test_messages_are_written_where_possible_and_otherwise_lost(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = replaced(kind, monkeypatch)
    monkeypatch.setenv("TERM", "xterm")
    say("one\n")
    say_error("two\n")
    assert not on_terminal()
    with quiet_stderr():
        pass
    show_once(f"a line of {tmp_path}")
    if isinstance(stream, Window):
        assert stream.text.startswith("one\ntwo\n")


@pytest.mark.parametrize("kind", STREAMS)
def test_search_and_its_failures_need_no_streams(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(kind, monkeypatch)

    def value(x: Any) -> float:
        if x[0] > 0.5:
            raise ValueError("é")
        return float(x @ x)

    assert hpc_es.minimize(value, [0.5, 0.1], 0.3, max_evaluations=40).f < 0.3


@pytest.mark.parametrize("kind", STREAMS)
def test_first_connection_of_a_process_needs_no_streams(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit of MPI_Init writes to standard error."""
    replaced(kind, monkeypatch)
    monkeypatch.setattr(connect, "_worlds", [])
    assert connect.connect().size == 1


def test_characters_that_the_stream_cannot_encode_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(memory, "ascii"))
    say("1 ± 2\n")
    assert memory.getvalue() == b"1 ? 2\n"


def test_names_of_somebody_else_reach_no_terminal_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for write in (say, say_error):
        write("a\x1b[31m\u202e written\nb\n")
    said = capsys.readouterr()
    assert said.out == said.err == "a\\x1b[31m\\u202e written\nb\n"


def test_dropping_stream_keeps_encoding_and_descriptor_and_never_raises() -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        stream = streams.lines_to(full.fileno(), "<stdout>", "latin-1", "replace")
        stream.write("lost ±\n" * 10_000)
        stream.flush()
        assert (
            stream.fileno() == full.fileno()
            and not stream.isatty()
            and stream.encoding == "latin-1"
        )


CLOSED = """
import os, sys
for number in {numbers}:
    os.close(number)
    setattr(sys, ("stdin", "stdout", "stderr")[number], None)
from hpc_es.core import streams
streams.complete()
streams.drop_errors("stdout", "stderr")
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
print("text")
os.write(2, b"of C")
sys.stderr.write("text")
assert sys.stdin.read() == ""
os.write(file, str(file).encode())
"""


@pytest.mark.parametrize("numbers", [(2,), (0, 1, 2)])
def test_file_gets_no_descriptor_of_a_closed_stream(
    numbers: tuple[int, ...], tmp_path: Path
) -> None:
    file = tmp_path / "data"
    done = python(["-c", CLOSED.format(numbers=numbers), str(file)], 30)
    assert done.status == 0, str(done)
    assert int(file.read_text()) > 2


def test_warnings_of_hpc_es_are_lines_without_a_place_in_its_code() -> None:
    code = f"""
import warnings
from hpc_es.core import streams
streams.show_plain_warnings()
for file in ({hpc_es.__file__!r}, "/home/me/task.py"):
    warnings.warn_explicit("a file\\x1b[31m", UserWarning, file, 3)
"""
    done = python(["-c", code], 30)
    ours, *others = done.stderr.splitlines()
    assert ours == r"hpc_es: warning: a file\x1b[31m"
    assert others[0].startswith("/home/me/task.py:3: UserWarning: a file")
