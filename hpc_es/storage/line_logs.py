"""Line logs of a run: evaluations.csv, programs.jsonl and failures.log.

evaluations.csv has every evaluated vector as the objective got it, with value, generation and job;
a failed evaluation has the value nan, the centre is job -1. Numbers are written with enough digits
to be read back exactly. programs.jsonl has every correct program of a search for programs. Rank 0
appends the lines of a generation in job order at its end. A checkpoint stores `lengths()`, and a
resumed run truncates the files to them, so that their content depends neither on the number of
ranks nor on restarts.

failures.log has the traceback, or the output of a program, of the first failure of each kind in a
run. An entry begins with a line `=== KIND`, and each kind has one entry, however often the run is
restarted; kinds beyond MAX_KINDS are omitted. The log is for debugging only: errors of writing it,
such as a full disk, are ignored.
"""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from hpc_es.core.data import JsonObject
from hpc_es.core.errors import Failure, RunError
from hpc_es.core.interfaces import Evaluation
from hpc_es.core.run_files import (
    each_line,
    is_removed,
    open_file,
    parse_json,
    read_text,
    remove,
    truncate,
)
from hpc_es.storage.files import json_text


class LinesFile:
    """An append-only file of lines, created by the first line and written without buffering.

    Its methods raise RunError if the disk is full or not writable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def append(self, text: str) -> None:
        """Append text that ends with a newline."""
        file, rest = self._opened(), text.encode()
        try:
            while rest:  # unbuffered, so that closing the file cannot fail
                rest = rest[file.write(rest) :]
        except OSError as error:
            raise self._failure(error) from error

    def length(self) -> int:
        """Sync the file to the disk and return its length in bytes; 0 if it does not exist."""
        if not self.path.exists():
            return 0
        file = self._opened()
        try:
            os.fsync(file.fileno())
        except OSError as error:
            raise self._failure(error) from error
        return file.seek(0, os.SEEK_END)

    def cut(self, length: int) -> bool:
        """Truncate the file to `length` bytes, or remove it if that is 0.

        Returns:
            False if it should exist but does not.

        Raises:
            RunError: it is shorter, or no line ends there; the file is then unchanged.
        """
        self.close()
        if not self.path.exists():
            return length == 0
        check_cut(
            self.path,
            length,
            "line",
            "restore it, or remove it to continue without the lines so far",
        )
        try:
            if length:
                truncate(self.path, length)
            else:
                remove(self.path)
        except OSError as error:
            raise self._failure(error) from error
        return True

    def is_removed(self) -> bool:
        """Return whether somebody has removed the file since it was opened."""
        return self._file is not None and is_removed(self._file)

    def close(self) -> None:
        """Close the file; the next `append` opens it again."""
        if self._file is not None:
            # of a quota on NFS; what a checkpoint needs was synced
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _opened(self) -> BinaryIO:
        if self._file is None:
            try:
                self._file = open_file(self.path, "ab", buffering=0)
            except OSError as error:
                raise self._failure(error) from error
        return self._file

    def _failure(self, error: OSError) -> RunError:
        return RunError(
            f"{self.path} could not be written ({error.strerror}): free space there, then resume the run"
        )


def check_cut(path: Path, length: int, unit: str, remedy: str) -> None:
    """Raise RunError with the remedy unless a `unit` of the file ends after `length` bytes.

    A unit is a line or a row.
    """
    with open_file(path) as file:
        size = file.seek(0, os.SEEK_END)
        if size < length:
            raise RunError(f"{path} has {size} bytes, but had {length} at the checkpoint: {remedy}")
        file.seek(max(length - 1, 0))
        if length and file.read(1) != b"\n":
            raise RunError(
                f"{path} was changed since the checkpoint: byte {length} is not the end of a {unit}: {remedy}"
            )


EVALUATIONS = "evaluations.csv"
FIRST_COLUMNS = ("generation", "job", "value")


class EvaluationsLog:
    """Writer of evaluations.csv; `names` are the names of the coordinates, () to write nothing.

    A new run calls `cut({})` first, which removes the file of a run that was killed before its
    first checkpoint.
    """

    def __init__(
        self, run_dir: Path, names: Sequence[str], warn: Callable[[str], object] = warnings.warn
    ) -> None:
        self._file, self._warn, self._is_on = LinesFile(run_dir / EVALUATIONS), warn, bool(names)
        self._header = ",".join([*FIRST_COLUMNS, *map(_quoted, names)]) + "\n"

    def write(self, generation: int, rows: Iterable[Evaluation]) -> None:
        """Append (job, value, vector) rows; RunError if the disk is full or not writable."""
        if not self._is_on:
            return
        lines = [f"{generation},{job},{value!r},{_cells(x)}\n" for job, value, x in rows]
        if not self._file.path.exists():
            self._file.append(self._header)
        self._file.append("".join(lines))

    def lengths(self) -> dict[str, int]:
        """Sync the file and return its length in bytes by name, for a checkpoint and `cut`."""
        length = self._file.length() if self._is_on else 0
        if length and self._file.is_removed():
            self._file.close()
            self._recreate(length)
        return {EVALUATIONS: length} if length else {}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Remove the rows after the checkpoint with these lengths; a missing name is a length of 0.

        A missing file is replaced, with a warning, by a header and one blank line of the recorded
        length, so that the lengths in all checkpoints stay valid. Raises RunError, without changing
        the file, if it is damaged.
        """
        if not self._is_on:
            return
        path, length = self._file.path, lengths.get(EVALUATIONS, 0)
        if length and path.exists():
            with open_file(path) as file:
                if file.readline(len(self._header) * 4 + 1) != self._header.encode():
                    raise RunError(
                        f"{path} has other columns than {self._header.strip()}: restore it, or "
                        "remove it to continue without the rows so far"
                    )
        if not self._file.cut(length):
            self._recreate(length)

    def _recreate(self, length: int) -> None:
        self._warn(f"{self._file.path} is missing: the evaluations so far are lost")
        self._file.append(self._header + " " * (length - len(self._header.encode()) - 1) + "\n")

    def close(self) -> None:
        """Close the file; the next `write` opens it again."""
        self._file.close()


def _cells(values: Sequence[bool | int | float | str]) -> str:
    """Return the cells of a vector; many vectors have numbers only, for which this is fast."""
    if set(map(type, values)) == {float}:
        return repr(list(values))[1:-1].replace(", ", ",")
    return ",".join(map(_cell, values))


def _cell(value: bool | int | float | str) -> str:
    if isinstance(value, str):
        return _quoted(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"\n\r') else name


PROGRAMS = "programs.jsonl"
# about 200 MB; a search that continues after success may find correct programs forever
MAX_PROGRAMS = 1_000_000


class ProgramsLog:
    """Writer of programs.jsonl: every correct program of a run, one JSON line per program.

        {"generation": 7, "npe": 763, "reward": 1.0, "length": 20, "program": ">,>,.<."}

    They are in the order of jobs. `npe` is the number of programs executed up to this one. A
    program is listed only once per run; after MAX_PROGRAMS lines, only programs with a new best
    reward are added. A checkpoint stores `lengths()`; a resumed run truncates the file to them with
    `cut` and reads the listed programs, so that the file does not depend on restarts. There is no
    file before the first correct program.

    A new run calls `cut({})` first, which removes programs of a run that died before its first
    checkpoint.
    """

    def __init__(self, run_dir: Path, warn: Callable[[str], object] = warnings.warn) -> None:
        self._file = LinesFile(run_dir / PROGRAMS)
        self._warn = warn
        self._listed: set[str] = set()
        self._best = -math.inf

    def write(self, programs: Sequence[JsonObject]) -> None:
        """Append the programs that are not yet listed.

        Raises:
            RunError: the disk is full or not writable.
        """
        lines = [json_text(program) + "\n" for program in programs if self._is_new(program)]
        if lines:
            self._file.append("".join(lines))

    def _is_new(self, program: JsonObject) -> bool:
        text, reward = str(program["program"]), float(program["reward"])
        if text in self._listed or (len(self._listed) >= MAX_PROGRAMS and reward <= self._best):
            return False
        self._listed.add(text)
        self._best = max(self._best, reward)
        if len(self._listed) == MAX_PROGRAMS:
            self._warn(
                f"{self._file.path} has {MAX_PROGRAMS:,} programs: from now on, only better ones are added"
            )
        return True

    def lengths(self) -> dict[str, int]:
        """Return the length of the file in bytes, after syncing it to disk.

        Checkpoints store it for `cut`.
        """
        length = self._file.length()
        return {PROGRAMS: length} if length else {}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Remove programs that were found after the checkpoint with these lengths.

        A missing name means 0. A missing file is replaced, with a warning, by one blank line of the
        recorded length, so that the lengths in all checkpoints remain valid.

        Raises:
            RunError: the file was damaged; nothing is changed then.
        """
        length = lengths.get(PROGRAMS, 0)
        if not self._file.cut(length):
            self._warn(
                f"{self._file.path} is missing: the correct programs found before this resume are lost"
            )
            self._file.append(" " * (length - 1) + "\n")
        self._listed, self._best = set(), -math.inf
        for program in read_programs(self._file.path.parent):
            self._listed.add(str(program["program"]))
            self._best = max(self._best, float(program["reward"]))

    def close(self) -> None:
        """Close the file; the next `write` opens it again."""
        self._file.close()


def read_programs(run_dir: Path, length: int | None = None) -> Iterator[JsonObject]:
    """Yield the programs of a run in the order of discovery, or those in the first `length` bytes.

    An incomplete last line, left by a killed process, is ignored. Raises RunError for a line that
    is not a program.
    """
    path = run_dir / PROGRAMS
    if not path.exists():
        return
    end = 0
    with open_file(path) as file:
        for number, line in enumerate(each_line(file), 1):
            end += len(line)
            if not line.endswith(b"\n") or (length is not None and end > length):
                return
            if not line.strip():
                continue
            try:
                program = parse_json(line)
                entry = {
                    **program,
                    "program": str(program["program"]),
                    "reward": float(program["reward"]),
                }
            except (ValueError, KeyError, TypeError):
                raise RunError(
                    f"{path}, line {number}: expected a program with its reward as JSON, found "
                    f"{line[:40]!r}; restore the file or remove the line"
                ) from None
            yield entry


FAILURES = "failures.log"
MAX_KINDS = 64
_MARK = "=== "


class FailuresLog:
    """Writer of failures.log; without `keep` an existing file is removed."""

    def __init__(self, run_dir: Path, keep: bool) -> None:
        self.path = run_dir / FAILURES
        self._kinds: set[str] = set()
        with contextlib.suppress(OSError):
            if not keep:
                remove(self.path)
            elif self.path.exists():
                lines = read_text(self.path, errors="replace").splitlines()
                self._kinds = {line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)}

    def add(self, line: str, failure: Failure) -> None:
        """Append a failure if it is the first of its kind.

        `line` says when and where it occurred.
        """
        if failure.kind in self._kinds or len(self._kinds) >= MAX_KINDS:
            return
        self._kinds.add(failure.kind)
        stamp = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        details = "".join(f"    {text}\n" for text in failure.details.splitlines())
        with contextlib.suppress(OSError), open_file(self.path, "ab") as file:
            file.write(f"{_MARK}{failure.kind}\n{stamp}  {line}\n{details}\n".encode())
