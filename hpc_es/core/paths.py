"""Places: the run directory, and the config's, which relative paths in it belong to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunContext:
    """Where a run is, as each of its ranks is told before the first generation."""

    directory: Path  # of the run
    rank: int
    ranks: int
    call_on_rank_0: Callable[[Callable[[], str]], str]  # what rank 0 alone makes, on every rank; all ranks call it


_config: list[Path] = []


def set_config_directory(directory: str | Path | None) -> None:
    """Remember the config's directory; None: the current one."""
    _config[:] = [Path(directory or ".").resolve()]


def config_directory() -> Path:
    """Return the directory that paths in the config are relative to."""
    return _config[0] if _config else Path.cwd()
