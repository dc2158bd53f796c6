"""Output of user code by rank: logs/rank_0003.txt in the run directory has what code on rank 3 has
printed.

While a log is open, the file descriptors 1 and 2 are the log, which therefore gets the output of
Python and C code and of child processes. Messages of hpc_es go to `terminal_output()` and
`terminal_errors()`, the previous streams.

Lines are written when they end, so that a killed rank loses no complete line. No result depends on
a log: if the disk is full, output is dropped and nothing fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from hpc_es.core import streams
from hpc_es.core.run_files import open_descriptor, open_file

if TYPE_CHECKING:
    import io

LOGS = "logs"
LINE_BUFFERED = 1  # _IOLBF of glibc and musl
PIECE_BYTES = 1 << 20
# with less space on the disk, output is dropped, and the space is left for checkpoints
FREE_BYTES = 64 << 20
CHECK_SECONDS = 1.0  # between two looks at the free space

C_BUFFER_BYTES = 1 << 13

_open: list[RankLog] = []  # the log of this process, if there is one
_c_buffers: list[int] = []  # address of the buffer of C's stdout


def is_open() -> bool:
    """Return whether the output of this rank goes to a log."""
    return bool(_open)


def terminal_output() -> TextIO | None:
    """Return the stream for messages of hpc_es: standard output, also while a log is open.

    It may be missing.
    """
    return _open[0].terminal[0] if _open else sys.stdout


def announce(text: str) -> None:
    """Say what is being done before a wait, on rank 0."""
    say(f"{text} ...\n")


def terminal_errors() -> TextIO | None:
    """Return the stream for error messages of hpc_es: standard error, also while a log is open.

    It may be missing.
    """
    return _open[0].terminal[1] if _open else sys.stderr


def say(text: str) -> None:
    """Write a message of hpc_es to standard output; never raises, whatever the stream is."""
    streams.write(terminal_output(), text)


def say_error(text: str) -> None:
    """Write a message of hpc_es to standard error; never raises, whatever the stream is."""
    streams.write(terminal_errors(), text)


def add_files(paths: Sequence[Path]) -> None:
    """Append the content of files, the output of a program, to the log if one is open;
    never raises OSError.
    """
    if not _open:
        return
    for path in paths:
        with contextlib.suppress(OSError), open_file(path) as file:
            end = b""
            while piece := file.read(PIECE_BYTES):
                end = piece[-1:]
                streams.write_bytes(1, piece)
            if end not in (b"", b"\n"):
                streams.write_bytes(1, b"\n")


class RankLog:
    """The log of one rank, from `open` to `close`."""

    def __init__(self, path: Path, title: str) -> None:
        """Redirect the output of this process to the file; OSError if it cannot be opened."""
        self.path = path
        if sys.__stdout__ is None or sys.__stderr__ is None:  # other files have these descriptors
            raise OSError(errno.EBADF, "standard output or standard error is closed")
        path.parent.mkdir(exist_ok=True)
        self._file = open_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            self._saved = os.dup(1), os.dup(2)
        except OSError:  # standard output or standard error is closed
            os.close(self._file)
            raise
        self._streams = sys.stdout, sys.stderr
        descriptors = zip(self._streams, (1, 2), self._saved, strict=True)
        self.terminal = [_terminal(stream, number, saved) for stream, number, saved in descriptors]
        self._is_dropping, self._checked = False, time.monotonic()
        _flush(*self._streams)
        self._redirect(self._file)
        streams.write_bytes(1, f"{title}\n".encode())
        self._line_buffering = [_set_line_buffering(stream, True) for stream in self._streams]
        _set_c_line_buffering()
        sys.stdout, sys.stderr = (
            streams.lines_to(number, f"<{streams.NAMES[number]}>") for number in (1, 2)
        )
        if faulthandler.is_enabled():
            faulthandler.enable(self._saved[1])

    @staticmethod
    def open(directory: Path, rank: int, title: str) -> RankLog | None:
        """Redirect the output of this process to the log of a rank, after a line with the title.

        If the file cannot be written, warn on standard error and return None.
        """
        path = directory / LOGS / f"rank_{rank:04d}.txt"
        try:
            if _open:
                raise OSError(errno.EBUSY, "another run of this process has a log")
            log = RankLog(path, title)
        except OSError as error:
            streams.write(
                sys.stderr,
                f"WARNING: rank {rank} prints here: {path} cannot be written: {error.strerror}\n",
            )
            return None
        _open.append(log)
        return log

    def check_space(self) -> None:
        """Drop the output while the disk has little space, which checkpoints need; child processes
        may fail without it.

        Called before each chunk of evaluations. Python and C code of this process never fail
        because of a full disk.
        """
        now = time.monotonic()
        if now - self._checked < CHECK_SECONDS:
            return
        self._checked = now
        with contextlib.suppress(OSError):
            disk = os.fstatvfs(self._file)
            is_full = disk.f_blocks > 0 and disk.f_bavail * disk.f_frsize < FREE_BYTES
            if is_full == self._is_dropping:
                return
            _flush(sys.stdout, sys.stderr)
            if is_full:
                streams.write_bytes(
                    1, b"[less than %d MiB are free: output is missing here]\n" % (FREE_BYTES >> 20)
                )
                null = os.open(os.devnull, os.O_WRONLY)
                self._redirect(null)
                os.close(null)
            else:
                self._redirect(self._file)
            self._is_dropping = is_full

    @staticmethod
    def _redirect(target: int) -> None:
        for number in (1, 2):
            os.dup2(target, number)

    def close(self) -> None:
        """Restore standard output and standard error; further calls do nothing."""
        if self not in _open:
            return
        _flush(sys.stdout, sys.stderr, *self._streams, *self.terminal)
        _open.remove(self)
        sys.stdout, sys.stderr = self._streams
        for stream, before in zip(self._streams, self._line_buffering, strict=True):
            _set_line_buffering(stream, before)
        for number, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, number)
        if faulthandler.is_enabled():
            faulthandler.enable(2)
        for number in (*self._saved, self._file):
            os.close(number)


def _terminal(stream: TextIO | None, number: int, saved: int) -> TextIO | None:
    """Return a stream that continues to write where `stream` has written;
    `saved` is a copy of its descriptor.
    """
    with contextlib.suppress(Exception):  # of a class of the user
        if stream is not None and stream.fileno() == number:
            return streams.lines_to(saved, f"<{streams.NAMES[number]}>", stream.encoding)
    return stream  # such as that of a notebook


def _set_line_buffering(stream: TextIO | None, value: bool) -> bool:
    """Set whether a stream writes each line when it ends; return the previous value."""
    before = value
    # of a closed stream, or of a class without these attributes
    with contextlib.suppress(Exception):
        before = bool(cast("io.TextIOWrapper", stream).line_buffering)
        cast("io.TextIOWrapper", stream).reconfigure(line_buffering=value)
    return before


def _set_c_line_buffering() -> None:
    """Make C's stdout write each line when it ends; files and pipes have a block buffer.

    Without a new buffer, glibc would only do so after the next flush. It is never freed: C writes
    the rest of it when the process exits, after Python has ended.
    """
    if _c_buffers:
        return
    with contextlib.suppress(AttributeError, ValueError, OSError):
        c, size = ctypes.CDLL(None), ctypes.c_size_t(C_BUFFER_BYTES)
        c.malloc.restype = ctypes.c_void_p
        buffer = c.malloc(size)
        c.fflush(None)
        c.setvbuf(ctypes.c_void_p.in_dll(c, "stdout"), ctypes.c_void_p(buffer), LINE_BUFFERED, size)
        _c_buffers.append(buffer)


def _flush(*of_python: TextIO | None) -> None:
    streams.flush(*of_python)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).fflush(None)  # C's streams
