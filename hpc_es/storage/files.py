"""Atomic file replacement, JSON, and errors of writing."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hpc_es.core.data import JsonObject
from hpc_es.core.errors import RunError
from hpc_es.core.run_files import UnusualFileError, own_directory, remove

COPIED_BYTES = 1 << 20  # at a time
# errors of a file system without hard links
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def replace(
    path: Path,
    pieces: Iterable[bytes | memoryview],
    check: Callable[[BinaryIO], None] | None = None,
) -> None:
    """Replace the file atomically: at any time `path` is the complete old or new file.

    `check` reads the written file, opened again, before it is renamed, and raises OSError to reject
    it.

    Raises:
        RunError: the disk is full or not writable; the old file is then unchanged.
    """

    def write(file: BinaryIO) -> None:
        for piece in pieces:
            file.write(piece)

    replace_by(path, write, check)


def replace_by(
    path: Path,
    write: Callable[[BinaryIO], object],
    check: Callable[[BinaryIO], None] | None = None,
) -> None:
    """Replace the file atomically by what `write` writes into an empty one; see `replace`."""
    _write_new(path, write, lambda temporary, place: _replace(temporary, path.name, place), check)


def _write_new(
    path: Path,
    write: Callable[[BinaryIO], object],
    name_it: Callable[[str, int], None],
    check: Callable[[BinaryIO], None] | None = None,
) -> None:
    """Write a file under a temporary name, sync it, and let `name_it` give it its own.

    `name_it` gets the temporary name and the open directory.
    """
    try:
        with own_directory(path) as place:
            _write_in(place, path, write, name_it, check)
    except OSError as error:
        raise run_error(path, error) from error


def _write_in(
    place: int,
    path: Path,
    write: Callable[[BinaryIO], object],
    name_it: Callable[[str, int], None],
    check: Callable[[BinaryIO], None] | None = None,
) -> None:
    """Do so in an open directory."""
    temporary = temporary_name(path).name
    with _removed(temporary, place):
        with _created(temporary, place) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            if check is not None:
                with _again(file, temporary, place) as same:
                    check(same)
        name_it(temporary, place)
        _sync(place)


def _again(file: BinaryIO, name: str, place: int) -> BinaryIO:
    """Return a file of an open directory, opened again to read; OSError if another one has taken
    its place, such as a pipe of somebody who may write there.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    same = open(os.open(name, flags, dir_fd=place), "rb")  # noqa: PTH123, SIM115  by the caller
    if not os.path.samestat(os.fstat(same.fileno()), os.fstat(file.fileno())):
        same.close()
        raise OSError(errno.EIO, "another file has taken its place")
    return same


def _replace(temporary: str, name: str, place: int) -> None:
    os.replace(temporary, name, src_dir_fd=place, dst_dir_fd=place)


def _created(name: str, place: int) -> BinaryIO:
    """Return a new file in an open directory."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return io.BufferedRandom(io.FileIO(os.open(name, flags, 0o666, dir_fd=place), "w+"))


@contextlib.contextmanager
def _removed(name: str, place: int) -> Iterator[None]:
    """Remove a file of an open directory at the end, if it is still there."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # another error is the one to report
            os.unlink(name, dir_fd=place)


def temporary_name(path: Path) -> Path:
    """Return a unique hidden name in the same directory, with the same suffix.

    Several tasks may write one file.
    """
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}.tmp{path.suffix}")


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of killed writers of `path`, which may be a pattern.

    No other process may write it.
    """
    with writing(path):
        for leftover in path.parent.glob(f".{path.stem}.*.tmp{path.suffix}"):
            remove(leftover)


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """Yield a path in a directory that nobody else may open, and at the end copy the file to `path`
    atomically.

    It has the same name, for writers that need a path. Libraries may open it several times, and
    start programs with it. Where others may write they could put a link in its place.

    Raises:
        RunError: the disk is full or not writable; an old file is then unchanged.
    """
    private: str | None = None
    try:
        with (
            own_directory(path) as place,
            tempfile.TemporaryDirectory(prefix="hpc_es_", ignore_cleanup_errors=True) as private,
        ):
            temporary = Path(private) / path.name
            yield temporary
            with temporary.open("rb") as source:
                _write_in(
                    place,
                    path,
                    lambda file: shutil.copyfileobj(source, file, COPIED_BYTES),
                    lambda name, place: _replace(name, path.name, place),
                )
    except OSError as error:
        is_private = private is not None and str(error.filename).startswith(private)
        raise run_error(Path(error.filename) if is_private else path, error) from error


def create_text(path: Path, text: str) -> None:
    """Create a text file atomically; nothing if there is one.

    Several tasks may do so at once: all find the file of the first one. Raises RunError as
    `replace` does.
    """
    _write_new(
        path,
        lambda file: file.write(text.encode()),
        lambda temporary, place: _link(temporary, path.name, place),
    )


def _link(temporary: str, name: str, place: int) -> None:
    """Give a file of an open directory this name, too; nothing if the name is taken."""
    try:
        os.link(temporary, name, src_dir_fd=place, dst_dir_fd=place)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # without hard links, simultaneous tasks write the same text
        if not _has(name, place):
            _replace(temporary, name, place)


def _has(name: str, place: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        os.stat(name, dir_fd=place, follow_symlinks=False)
        return True
    return False


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically; raises RunError as `replace` does."""
    replace(path, [text.encode()])


def write_json(path: Path, values: JsonObject) -> None:
    """Replace a JSON file atomically; raises RunError as `replace` does."""
    write_text(path, json_text(values, indent=2) + "\n")


def json_text(value: object, indent: int | None = None) -> str:
    """Return JSON; NumPy numbers and any mapping are accepted too."""
    return json.dumps(value, default=_plain, indent=indent)


def finite(value: object) -> Any:
    """Return plain data with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"expected numbers, text, lists and mappings, got {type(value).__name__}")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise an OSError of this context as a RunError with `path` and a remedy."""
    try:
        yield
    except OSError as error:
        raise run_error(path, error) from error


def run_error(path: Path, error: Exception) -> RunError:
    """Return the RunError for a file that cannot be written."""
    code = error.errno if isinstance(error, OSError) else None
    remedy = "check the file system"
    if isinstance(error, UnusualFileError):
        remedy = "name the directory itself"
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = "free space or raise the quota"
    elif code in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = f"make {path.parent} writable, or choose another output"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return RunError(
        f"{path}: cannot be written: {reason}; {remedy}, then start the same command again"
    )


def sync_directory(directory: Path) -> None:
    """Make a rename durable.

    File systems that cannot sync directories return EINVAL, which is ignored.
    """
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync(place)
    finally:
        os.close(place)


def _sync(place: int) -> None:
    descriptor = os.open(os.curdir, os.O_RDONLY | os.O_CLOEXEC, dir_fd=place)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
