"""Reads .npy and .npz files of NumPy that hold what they say.

There is no pickle in them, and no more bytes than the file can hold.
"""

from __future__ import annotations

import contextlib
import math
import stat
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Arrays
from hpc_es.core.run_files import UnusualFileError

MOST_COMPRESSION = 1100  # deflate makes data at most 1,032 times smaller
SLACK_BYTES = 1 << 16


def load_array(path: Path) -> Array:
    """Return the array of a .npy file; OSError or ValueError if it is none."""
    _require_file(path)
    with _damage_as_value_error():
        # a map is not longer than its file
        return np.array(np.load(path, mmap_mode="r", allow_pickle=False))


def load_arrays(path: Path, leave_out: Collection[str] = ()) -> Arrays:
    """Return the arrays of a .npz file by name, except some; OSError or ValueError if it is
    none.
    """
    _require_file(path)
    with _damage_as_value_error():
        with zipfile.ZipFile(path) as archive:
            require_plain_archive(archive)
            for member in archive.infolist():
                _require_shape(archive, member)
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files if name not in leave_out}


@contextlib.contextmanager
def _damage_as_value_error() -> Iterator[None]:
    """Raise ValueError for whatever the libraries raise that parse headers and archives:
    there is no list of it.
    """
    try:
        yield
    except (OSError, ValueError):
        raise
    except Exception as error:
        raise ValueError(f"is damaged: {type(error).__name__}: {error}") from error


def require_plain_archive(archive: zipfile.ZipFile) -> None:
    """Raise ValueError if a member of an archive expands to more than its bytes can be."""
    for member in archive.infolist():
        if member.file_size > MOST_COMPRESSION * member.compress_size + SLACK_BYTES:
            raise ValueError(
                f"{member.filename} has {member.file_size:,} bytes, from {member.compress_size:,}"
            )


def _require_file(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
        raise UnusualFileError(path, "expected a regular file")


def _require_shape(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raise ValueError if the header of an array names another size than that of its bytes."""
    with archive.open(member) as file:
        stream: Any = file
        major, _ = np.lib.format.read_magic(stream)
        read_header = (
            np.lib.format.read_array_header_1_0
            if major == 1
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read_header(stream)
        said, held = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
        if said != held:
            raise ValueError(
                f"{member.filename} has an array of {said:,} bytes, and holds {held:,}"
            )
