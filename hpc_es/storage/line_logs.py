"""A file of whole lines that is only ever appended to, and that a resumed run cuts to what its checkpoint knew.

evaluations.csv: every vector that was evaluated, as the objective saw it, with its value, generation and job.

Numbers have as many digits as give the same bits when they are read; a failed evaluation has the value nan, the centre
is job -1. Rank 0 writes a generation's rows in job order at its end. A checkpoint stores `lengths()`, and a resumed run
cuts the file to them, so that it is the same on any ranks and after any restart.


failures.log: the traceback, or what a program wrote, of the first failure of each kind in a run.

An entry begins with a line `=== KIND`. It is there once, however often the run is started again; what would go beyond
MOST_KINDS is left out. It helps to find a mistake and is no result: a disk that is full ends no run from here.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from hpc_es.core.errors import RunError
from hpc_es.core.failures import Failure


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


EVALUATIONS = "evaluations.csv"
FIRST_COLUMNS = ("generation", "job", "value")


class EvaluationsLog:
    """Appends the rows of a generation; `names` are those of the coordinates, none where nothing is to be written.

    A new run calls `cut({})` first, which removes what a run that died before its first checkpoint left behind.
    """

    def __init__(self, run_dir: Path, names: Sequence[str], warn: Callable[[str], object] = warnings.warn) -> None:
        self._file, self._warn, self._is_on = LinesFile(run_dir / EVALUATIONS), warn, bool(names)
        self._header = ",".join([*FIRST_COLUMNS, *map(_quoted, names)]) + "\n"

    def write(self, generation: int, rows: Iterable[tuple[int, float, Sequence[float]]]) -> None:
        """Append (job, value, vector) rows; RunError where the disk is full or not writable."""
        if not self._is_on:
            return
        lines = [",".join([str(generation), str(job), repr(value), *map(repr, x)]) + "\n" for job, value, x in rows]
        if not self._file.path.exists():
            self._file.append(self._header)
        self._file.append("".join(lines))

    def lengths(self) -> dict[str, int]:
        """Return the bytes in the file, all of them on the disk: what a checkpoint stores and `cut` takes."""
        length = self._file.length() if self._is_on else 0
        return {EVALUATIONS: length} if length else {}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Drop what was written after the checkpoint that holds `lengths`, where an absent name is a length of 0.

        A missing file is made anew with a warning, with one blank line to the recorded length, so that the lengths in
        all checkpoints stay right. Raises RunError, before anything is changed, if the file is damaged or of others.
        """
        if not self._is_on:
            return
        path, length = self._file.path, lengths.get(EVALUATIONS, 0)
        if length and path.exists():
            with path.open("rb") as file:
                if file.readline() != self._header.encode():
                    remedy = "restore it, or remove it and the run goes on without the rows so far"
                    raise RunError(f"{path} has other columns than {self._header.strip()}: {remedy}")
        if not self._file.cut(length):
            self._warn(f"{path} is missing: the evaluations before this resume are lost")
            self._file.append(self._header + " " * (length - len(self._header.encode()) - 1) + "\n")

    def close(self) -> None:
        """Close the file; the next `write` opens it again."""
        self._file.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"\n\r') else name


FAILURES = "failures.log"
MOST_KINDS = 64
_MARK = "=== "


class FailuresLog:
    """The file of one run directory; without `keep` that of a run that died before its first checkpoint is removed."""

    def __init__(self, run_dir: Path, keep: bool) -> None:
        self.path = run_dir / FAILURES
        self._kinds: set[str] = set()
        with contextlib.suppress(OSError):
            if not keep:
                self.path.unlink(missing_ok=True)
            elif self.path.exists():
                lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
                self._kinds = {line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)}

    def add(self, line: str, failure: Failure) -> None:
        """Append a failure, unless there is one of its kind; `line` says when and where it was."""
        if failure.kind in self._kinds or len(self._kinds) >= MOST_KINDS:
            return
        self._kinds.add(failure.kind)
        stamp = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        details = "".join(f"    {each}\n" for each in failure.details.splitlines())
        with contextlib.suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            file.write(f"{_MARK}{failure.kind}\n{stamp}  {line}\n{details}\n")
