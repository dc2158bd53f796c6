"""The directory of the config, to which relative paths in it refer."""

from __future__ import annotations

from pathlib import Path

_config_directory: list[Path] = []


def set_config_directory(directory: str | Path | None) -> None:
    """Set the directory of the config; None: the current one."""
    _config_directory[:] = [Path(directory or ".").resolve()]


def config_directory() -> Path:
    """Return the directory of the config, or the current one if none was set."""
    return _config_directory[0] if _config_directory else Path.cwd()
