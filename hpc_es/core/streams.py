"""Standard streams that never end a program.

They may be missing, closed, on a full disk or without a reader. A program of hpc_es calls
`complete()` first, and `drop_errors()` if it must not end because its output is lost. Everything
that hpc_es writes in the program of a user goes through `write()`.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from pathlib import Path
from typing import IO, TextIO, cast

from hpc_es.core.errors import message_lines, visible_lines

NAMES = ("stdin", "stdout", "stderr")
PACKAGE = Path(__file__).parents[1]


class DroppingWriter(io.RawIOBase):
    """Writes bytes to a file descriptor, and drops them if that fails."""

    mode = "wb"

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor, self.name = descriptor, name

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        return write_bytes(self._descriptor, data)


def write_bytes(descriptor: int, data: bytes | memoryview) -> int:
    """Write all bytes and return their number; errors such as a full disk are ignored."""
    rest = memoryview(data).cast("B")
    size = len(rest)
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    return size


def lines_to(
    descriptor: int, name: str, encoding: str = "utf-8", errors: str = "backslashreplace"
) -> io.TextIOWrapper:
    """Return a text stream that writes each line to a descriptor when it ends.

    It never raises OSError.
    """
    writer = cast("io.BufferedWriter", DroppingWriter(descriptor, name))
    return io.TextIOWrapper(writer, encoding=encoding, errors=errors, line_buffering=True)


def complete() -> None:
    """Open /dev/null in place of missing standard streams.

    With a closed descriptor 2, the next file that is opened would get the number 2, and with it the
    text of C code.
    """
    for number, name in enumerate(NAMES):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def drop_errors(*names: str) -> None:
    """Make streams of the program, "stdout" or "stderr", drop what cannot be written.

    They raise nothing then.
    """
    for name in names:
        number, stream = NAMES.index(name), cast("TextIO", getattr(sys, name))
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stream.fileno() == number:
                errors = "replace" if stream.errors == "strict" else str(stream.errors)
                flush(stream)
                setattr(sys, name, lines_to(number, f"<{name}>", stream.encoding, errors))


def show_plain_warnings() -> None:
    """Show warnings of hpc_es as lines of a program, without the place in its code."""
    before = warnings.formatwarning

    def formatted(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if PACKAGE in Path(filename).parents:
            return message_lines(f"hpc_es: warning: {message}") + "\n"
        return before(message, category, filename, lineno, line)

    warnings.formatwarning = formatted


def write(stream: TextIO | None, text: str) -> None:
    """Write a text and flush, whatever the stream is; a text that cannot be written is lost."""
    if stream is None:
        return
    with contextlib.suppress(Exception):  # of a closed stream, a full disk, a notebook, a window
        try:
            stream.write(text)
        except UnicodeEncodeError:
            stream.write(text.encode("ascii", "replace").decode())
        stream.flush()


def say(text: str) -> None:
    """Write a message of hpc_es to standard output; never raises, whatever the stream is.

    Control characters, such as those in the name of a file of somebody else, are escaped.
    """
    write(sys.stdout, visible_lines(text))


def say_error(text: str) -> None:
    """Write a message of hpc_es to standard error, as `say` does."""
    write(sys.stderr, message_lines(text))


def announce(text: str) -> None:
    """Say what is being done before a wait, on rank 0."""
    say(f"{text} ...\n")


def flush(*streams: IO[str] | None) -> None:
    """Flush streams; those that cannot be flushed are left alone."""
    for stream in streams:
        with contextlib.suppress(Exception):
            if stream is not None:
                stream.flush()


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether a stream is a terminal; streams of notebooks and windows may lack the method."""
    try:
        return stream is not None and bool(stream.isatty())
    except Exception:  # of a closed stream, or of a class of the user
        return False
