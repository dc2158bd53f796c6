"""What libraries write to standard error by themselves: dropped, reduced, or shown once as one plain line."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator

_shown: set[str] = set()


@contextlib.contextmanager
def quiet_stderr(quiet: bool = True, but: Callable[[str], bool] | None = None) -> Iterator[None]:
    """Drop what is written to the process's standard error in here, from Python or C; exceptions pass as ever.

    Lines for which `but` is true are written at the end.
    """
    if not quiet:
        yield
        return
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # there is none to be quiet on
        yield
        return
    with open(os.devnull, "w+b") if but is None else tempfile.TemporaryFile() as file:  # noqa: PTH123
        try:
            os.dup2(file.fileno(), 2)
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            if but is not None:
                file.seek(0)
                lines = file.read().decode(errors="replace").splitlines(keepends=True)
                sys.stderr.write("".join(filter(but, lines)))


def is_first(kind: str) -> bool:
    """Return whether this process asks for the first time."""
    before = len(_shown)
    _shown.add(kind)
    return len(_shown) > before


def show_once(line: str, kind: str = "") -> None:
    """Write a line to standard error, unless this process has shown it, or another one of its kind."""
    if is_first(kind or line):
        sys.stderr.write(line + "\n")  # at once, so that ranks do not mix their lines


def take_mujoco_warnings() -> None:
    """Show each kind of MuJoCo's warnings once, where it is imported, and those of deprecated attributes never.

    By itself it also appends them to MUJOCO_LOG.TXT in the working directory, on every rank.
    """
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_show_mujoco_warning)


def _show_mujoco_warning(text: str) -> None:
    if "deprecated" not in text:
        show_once(f"MuJoCo: {text.strip()}", re.sub(r"[\d.]+", "", text))  # degrees of freedom and times differ
