"""Where modules of the user's own are looked for: the current directory and the config's, after Python's own places.

Appended to sys.path, never put first, so that no file there stands in for a library; and never a run directory of ours,
which may have come from elsewhere. Rank 0 tells the others, and the checkpoint remembers the places for `hpc-es eval`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

RUN_MARKS = ("checkpoints/*.h5", "checkpoint_*.h5", "trials.json", "repetition_*/config.yaml")
_used: list[str] = []


def use(*directories: Path | str) -> None:
    """Make the modules in the current directory and in these importable; those used before are so still."""
    wanted = [Path.cwd(), *(Path(directory).absolute() for directory in directories)]
    fit = [directory for directory in wanted if directory.is_dir() and not is_of_a_run(directory)]
    _used[:] = dict.fromkeys(map(str, fit))
    there = {str(Path(entry).absolute()) for entry in sys.path}  # "" is the current directory
    sys.path += [directory for directory in _used if directory not in there]


def used() -> tuple[str, ...]:
    """Return the directories of the last `use`."""
    return tuple(_used)


def is_of_a_run(directory: Path) -> bool:
    """Return whether it is the output of a run or tuning, or directly within one."""
    return any(any(place.glob(mark)) for place in (directory, directory.parent) for mark in RUN_MARKS)


def described(directories: Iterable[str] | None = None) -> str:
    """Return the places in words, for an error."""
    return ", ".join(used() if directories is None else directories) + " and the Python path"
