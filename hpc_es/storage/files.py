"""Files that are whole or not there, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpc_es.core.errors import RunError


def replace(path: Path, pieces: Iterable[bytes | memoryview], check: Callable[[Path], None] = lambda _: None) -> None:
    """Make `path` a file of these bytes: at any instant it is the old file or the new one, whole.

    `check` is called with the written file before it takes the name, and raises OSError if it is not good. Raises
    RunError if the disk is full or cannot be written; the old file is then untouched.
    """
    temporary = temporary_name(path)
    try:
        with temporary.open("wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        check(temporary)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise run_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):  # the error above is the one to tell
            temporary.unlink(missing_ok=True)


def temporary_name(path: Path) -> Path:
    """Return a hidden name beside `path`, of its suffix, that no other writer has: several tasks may write one file."""
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}.tmp{path.suffix}")


def remove_leftovers(path: Path) -> None:
    """Remove what killed writers left of `path`, whose name may be a glob; only where nobody else writes it now."""
    with writing(path):
        for leftover in path.parent.glob(f".{path.stem}.*.tmp{path.suffix}"):
            leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """A temporary name of the same suffix, for writers that want a path; at the end the file takes the name `path`.

    Raises RunError if the disk is full or cannot be written; an old file is then untouched.
    """
    temporary = temporary_name(path)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise run_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Make `path` a file with this text; raises RunError as `replace` does."""
    replace(path, [text.encode()])


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Make `path` a JSON file; raises RunError as `replace` does."""
    write_text(path, json_text(values, indent=2) + "\n")


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON; NumPy numbers and any mapping are taken too."""
    return json.dumps(value, default=_plain, indent=indent)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"expected numbers, text, lists and mappings, got {type(value).__name__}")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """An OSError in here is a RunError that names `path` and the remedy."""
    try:
        yield
    except OSError as error:
        raise run_error(path, error) from error


def run_error(path: Path, error: Exception) -> RunError:
    """Return the RunError for a file that cannot be written."""
    code = error.errno if isinstance(error, OSError) else None
    remedy = "check the file system"
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = "free space or raise the quota"
    elif code in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = f"make {path.parent} writable, or choose another output"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return RunError(f"{path}: cannot be written: {reason}; {remedy}, then start the same command again")


def sync_directory(directory: Path) -> None:
    """Make a rename last; file systems that cannot sync a directory say EINVAL."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
