"""What compiled code has to say only once: MuJoCo prints its warnings for every environment of every rank."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_stderr(quiet: bool = True) -> Iterator[None]:
    """Drop what is written to the process's standard error in here, from Python or C; exceptions pass as ever."""
    if not quiet:
        yield
        return
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # there is none to be quiet on
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
