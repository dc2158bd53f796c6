"""The directory in which a program runs, which nobody else may open.

A run may be in a directory that a group writes to. Somebody there could put a link or a pipe where
a file of the program is to be, so whatever is opened here is opened within the directory itself.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from hpc_es.core.run_files import UnusualFileError, make_directory, own_directory, remove_within

KEPT_FAILURES = 10
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def opened(root: Path) -> Iterator[int]:
    """Yield a descriptor of the directory of scratch directories; `own_directory` says which links
    are not followed.
    """
    with own_directory(root / "any") as place:
        descriptor = os.open(os.curdir, _FLAGS, dir_fd=place)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def remove_old(root: Path, is_old: Callable[[str], bool]) -> None:
    """Remove the directories whose names are those of old ones."""
    if not os.path.lexists(root):
        return
    with opened(root) as place:
        for name in os.listdir(place):  # noqa: PTH208  of an open directory
            if is_old(name):
                with contextlib.suppress(OSError):
                    remove_within(place, name)


class Scratch:
    """A new directory, which is removed at the end of its `with` block unless it is kept.

    Raises:
        OSError: it cannot be made, or another one has taken its place.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._is_kept = path, False
        make_directory(path.parent)
        with opened(path.parent) as place:
            os.mkdir(path.name, 0o700, dir_fd=place)
            self._descriptor = os.open(path.name, _FLAGS, dir_fd=place)
        status = os.fstat(self._descriptor)
        self.identity = status.st_dev, status.st_ino
        with contextlib.suppress(OSError):  # a file system that has no such modes
            os.fchmod(self._descriptor, 0o700)
        if status.st_uid != os.geteuid() or not is_empty(self._descriptor):
            os.close(self._descriptor)
            raise UnusualFileError(path, "another directory has taken its place")

    def write(self, name: str, content: bytes) -> None:
        """Write a new file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o666, dir_fd=self._descriptor)
        with io.BufferedWriter(io.FileIO(descriptor, "wb")) as file:
            file.write(content)

    def open(self, name: str) -> BinaryIO:
        """Open a file that the program has written; OSError if it is none."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=self._descriptor)
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return io.BufferedReader(io.FileIO(descriptor, "rb"))
        os.close(descriptor)
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        text = (
            os.strerror(code) if stat.S_ISDIR(mode) else "expected a file, found a pipe or a device"
        )
        raise OSError(code, text, str(self.path / name))

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        if not self._is_kept:
            with contextlib.suppress(OSError), opened(self.path.parent) as place:
                remove_within(place, self.path.name)

    def keep(self) -> str:
        """Give the directory of a failure a free name, under which others may look at it.

        Returns:
            A text for the log.
        """
        root = self.path.parent
        with contextlib.suppress(OSError), opened(root) as place:
            for number in range(KEPT_FAILURES):
                kept = f"failed_{number}"
                if os.path.lexists(root / kept):
                    continue
                with contextlib.suppress(OSError):  # another rank has just taken the name
                    os.rename(self.path.name, kept, src_dir_fd=place, dst_dir_fd=place)
                    self._is_kept = True
                    with contextlib.suppress(OSError):
                        os.fchmod(self._descriptor, os.fstat(place).st_mode & 0o777)
                    return f"kept in {root / kept}"
        return f"not kept: {root} has {KEPT_FAILURES} already"


def is_empty(directory: int) -> bool:
    """Whether an open directory has no entries."""
    with os.scandir(directory) as entries:
        return next(entries, None) is None
