"""Messages that libraries write to standard error: drop them, or show each once."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import IO

from hpc_es.core import streams

_printed: set[str] = set()


@contextlib.contextmanager
def quiet_stderr(quiet: bool = True, keep: Callable[[str], bool] | None = None) -> Iterator[None]:
    """Drop what Python or C code writes to standard error within this context.

    Args:
        quiet: if false, nothing is dropped.
        keep: lines for which it is true are written at the end, also after an exception.
    """
    # a process that was started without standard error may have given descriptor 2 to another file
    if not quiet or sys.__stderr__ is None:
        yield
        return
    streams.flush(sys.stderr)
    with contextlib.ExitStack() as stack:
        # without redirection where standard error was closed since, where no further file may be
        # opened, and on a full disk
        with contextlib.suppress(OSError):
            original = os.dup(2)
            stack.callback(os.close, original)
            # closed after what the exit of this context writes
            file = stack.enter_context(
                open(os.devnull, "w+b") if keep is None else _temporary_file()  # noqa: PTH123, SIM115
            )
            os.dup2(file.fileno(), 2)
            stack.callback(_write_kept, file, keep)
            stack.callback(_restore, original)
        yield


def _restore(original: int) -> None:
    streams.flush(sys.stderr)
    os.dup2(original, 2)


def _write_kept(file: IO[bytes], keep: Callable[[str], bool] | None) -> None:
    if keep is not None:
        file.seek(0)
        lines = file.read().decode(errors="replace").splitlines(keepends=True)
        streams.write(sys.stderr, "".join(filter(keep, lines)))


def _temporary_file() -> IO[bytes]:
    import tempfile  # most ranks drop everything, and need no such file

    return tempfile.TemporaryFile()


def is_first(kind: str) -> bool:
    """Return whether this is the first call with this argument in the process."""
    if kind in _printed:
        return False
    _printed.add(kind)
    return True


def show_once(line: str, kind: str = "") -> None:
    """Write a line to standard error, unless this process has written one of its kind before."""
    if is_first(kind or line):
        # one call, so that lines of several ranks do not mix
        streams.write(sys.stderr, line + "\n")


def take_mujoco_warnings() -> None:
    """Show each kind of MuJoCo warning once, and none about deprecated attributes.

    Before MuJoCo is imported this does nothing. By default MuJoCo also appends warnings to
    MUJOCO_LOG.TXT in the working directory, on every rank.
    """
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_show_mujoco_warning)


def _show_mujoco_warning(text: str) -> None:
    if "deprecated" not in text:
        # warnings that differ only in numbers, such as a time or a joint, are of one kind
        kind = re.sub(r"[\d.]+", "", text)
        show_once(f"MuJoCo: {text.strip()}", kind)
