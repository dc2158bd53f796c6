"""Directories within each other, deeper than Python's limit of recursion."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

LEVELS = 1500  # more than the limit of recursion, 1,000; paths are shorter than 4,096 letters


@contextlib.contextmanager
def deep(top: Path, file: str = "", text: str = "") -> Iterator[None]:
    """Create directories below one, with a file in the last one; pytest cannot remove them."""
    lowest = os.path.join(top, *["d"] * LEVELS)  # noqa: PTH118  pathlib calls itself
    for start in range(0, LEVELS, 500):  # os.makedirs calls itself for each level
        os.makedirs(os.path.join(top, *["d"] * min(start + 500, LEVELS)), exist_ok=True)  # noqa: PTH103, PTH118
    try:
        if file:
            Path(lowest, file).write_text(text)
        yield
    finally:
        inner, other = top / "d", top.with_name(f"{top.name}_rest")
        while inner.exists():  # one level at a time
            below = inner / "d"
            if below.exists():
                below.rename(other)
            shutil.rmtree(inner)
            if other.exists():
                other.rename(inner)
