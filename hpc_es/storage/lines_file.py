"""A file of whole lines that is only ever appended to, and that a resumed run cuts to what its checkpoint knew."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from hpc_es.core.errors import RunError


class LinesFile:
    """Appends lines to a file, which is made by the first of them; each is with the operating system when it is told.

    Raises RunError where the disk is full or not writable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def append(self, text: str) -> None:
        """Write text that ends with a newline."""
        file, rest = self._opened(), text.encode()
        try:
            while rest:  # unbuffered: what fails, fails here, and not again when the file is closed
                rest = rest[file.write(rest) :]
        except OSError as error:
            raise self._failure(error) from error

    def length(self) -> int:
        """Return the bytes in the file, all of them on the disk; 0 where there is none."""
        if not self.path.exists():
            return 0
        file = self._opened()
        try:
            os.fsync(file.fileno())
        except OSError as error:
            raise self._failure(error) from error
        return file.seek(0, os.SEEK_END)

    def cut(self, length: int) -> bool:
        """Drop what is behind `length` bytes, the file itself at 0; return False where a file of lines is missing.

        Raises RunError, before anything is changed, if the file is shorter or a line does not end there.
        """
        self.close()
        if not self.path.exists():
            return length == 0
        self._check(length)
        try:
            if length:
                os.truncate(self.path, length)
            else:
                self.path.unlink()
        except OSError as error:
            raise self._failure(error) from error
        return True

    def _check(self, length: int) -> None:
        remedy = "restore it, or remove it and the run goes on without the lines so far"
        check_cut(self.path, length, "line", remedy)

    def close(self) -> None:
        """Close the file; the next `append` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> BinaryIO:
        if self._file is None:
            try:
                self._file = self.path.open("ab", buffering=0)
            except OSError as error:
                raise self._failure(error) from error
        return self._file

    def _failure(self, error: OSError) -> RunError:
        return RunError(f"{self.path} could not be written ({error.strerror}): free space there, then resume the run")


def check_cut(path: Path, length: int, unit: str, remedy: str) -> None:
    """Raise RunError, with the remedy, unless the file has `length` bytes that end a `unit`: a line or a row."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < length:
            raise RunError(f"{path} has {size} bytes, but had {length} at the checkpoint: {remedy}")
        file.seek(max(length - 1, 0))
        if length and file.read(1) != b"\n":
            raise RunError(f"{path} was changed since the checkpoint: byte {length} ends no {unit}; {remedy}")
