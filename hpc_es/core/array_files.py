"""Reads .npy and .npz files of NumPy that hold what they say.

There is no pickle in them, and no more bytes than the file can hold.
"""

from __future__ import annotations

import contextlib
import math
import sys
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Arrays
from hpc_es.core.run_files import open_file, size_on_disk

MOST_COMPRESSION = 20  # weights are hardly compressible; deflate makes zeros 1,032 times smaller
FREE_BYTES = 1 << 28  # that a file may have whatever its own size is
SLACK_BYTES = 1 << 16


def most_expanded(size: int) -> int:
    """Return the bytes to which a file of this many may expand."""
    return max(MOST_COMPRESSION * size, FREE_BYTES)


def load_array(path: Path) -> Array:
    """Return the array of a .npy file; OSError or ValueError if it is none."""
    with open_file(path) as file, _damage_as_value_error():
        stream: Any = file
        shape, _, dtype = _header(stream)
        _require_size(path.name, shape, dtype, size_on_disk(path, file) - file.tell())
        file.seek(0)
        return _read(stream)


def load_arrays(
    path: Path, leave_out: Collection[str] = (), may_be_compressed: bool = True
) -> Arrays:
    """Return the arrays of a .npz file by name, except some; OSError or ValueError if it is
    none.

    Files of runs are not compressed, so that they take no more memory than they have bytes.
    """
    # opened once: what is checked is what is read
    with open_file(path) as file, _damage_as_value_error(), zipfile.ZipFile(file) as archive:
        size_on_disk(path, file)
        require_plain_archive(archive)
        found = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if not may_be_compressed and member.file_size > member.compress_size:
                raise ValueError(f"{member.filename} is compressed")
            if name not in leave_out:
                found[name] = _array(archive, member)
        return found


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """Return an array of an archive; ValueError if its header names another size than that of its
    bytes.
    """
    with archive.open(member) as file:
        stream: Any = file
        shape, _, dtype = _header(stream)
        _require_size(member.filename, shape, dtype, member.file_size - file.tell())
    with archive.open(member) as file:
        return _read(file)


def _read(stream: Any) -> Array:
    """Return the array of a .npy file; ValueError for texts that are none.

    NumPy makes any four bytes a character, and raises SystemError when it is looked at.
    """
    array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        codes = np.ascontiguousarray(array).reshape(-1).view(array.dtype.str[0] + "u4")
        if codes.max() > sys.maxunicode:
            raise ValueError(f"has a character of code {codes.max():,}")
    return array


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
    """Raise ValueError if an archive expands to many times its bytes, or if members share bytes."""
    end, left = 0, most_expanded(sum(member.compress_size for member in archive.infolist()))
    for member in sorted(archive.infolist(), key=lambda item: item.header_offset):
        if member.header_offset < end:
            raise ValueError(f"{member.filename} overlaps another member")
        end = member.header_offset + member.compress_size
        left -= member.file_size
        if left < 0:
            raise ValueError(
                f"{member.filename} has {member.file_size:,} bytes, from {member.compress_size:,}: "
                "save it without compression if you need it"
            )


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and dtype of an array of a .npy file."""
    major, _ = np.lib.format.read_magic(file)
    read_header = (
        np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    )
    shape, order, dtype = read_header(file)
    return shape, order, dtype


def _require_size(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], held: int) -> None:
    """Raise ValueError if an array is not as large as its bytes,
    which are none for elements without any, or if it has objects.
    """
    count = math.prod(map(int, shape))
    if dtype.hasobject or dtype.names or (dtype.itemsize == 0 and count):
        raise ValueError(f"{name} has elements of type {dtype}, expected numbers or texts")
    if (said := count * dtype.itemsize) != held:
        raise ValueError(f"{name} has an array of {said:,} bytes, and holds {held:,}")
