"""Small files that are whole or not there."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpc_es.errors import RunError


def write_text(path: Path, text: str) -> None:
    """Replace `path` by a file with this text, synced to disk; RunError where that fails."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunError(
            f"{path} cannot be written: {error.strerror}; free some space or choose another output"
        ) from error


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace `path` by a JSON file."""
    write_text(path, json.dumps(values, indent=2) + "\n")
