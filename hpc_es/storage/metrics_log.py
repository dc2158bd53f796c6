"""One row a generation: metrics.jsonl, which is the truth, and log.csv, a table computed from it.

The columns of log.csv are those of log_columns.py.

A checkpoint stores `lengths()`; a resumed run starts with `cut` to them, so no row is lost and none is there twice.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import BinaryIO

from hpc_es.core.errors import RunError
from hpc_es.storage.lines_file import check_cut
from hpc_es.storage.log_columns import Columns, Number, Row, header, line

__all__ = ["CSV", "JSONL", "MetricsLog", "Number", "Row", "each_row", "read_metrics"]

JSONL = "metrics.jsonl"
CSV = "log.csv"


class MetricsLog:
    """Appends rows to the two files of a run directory; every row is with the operating system when `write` returns.

    A new run calls `cut({})` first, which clears what a run that died before its first checkpoint left behind.
    """

    def __init__(
        self, run_dir: Path, warn: Callable[[str], object] = warnings.warn, columns: Columns = "plain"
    ) -> None:
        self._columns = columns
        self._paths = {name: run_dir / name for name in (JSONL, CSV)}
        self._files: dict[str, BinaryIO] = {}
        self._warn = warn

    def write(self, row: Row) -> None:
        """Append a generation's row to both files; raises RunError where the disk is full or not writable."""
        numbers = {key: _number(value) for key, value in row.items()}
        self._append(JSONL, json.dumps(numbers, allow_nan=False) + "\n")
        self._append(CSV, line(numbers, self._columns))

    def lengths(self) -> dict[str, int]:
        """Bytes in each file, all of them on the disk: what a checkpoint stores and `cut` takes."""
        for name, path in self._paths.items():
            file = self._open(name)
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise _failure(path, error) from error
        return {name: self._open(name).seek(0, os.SEEK_END) for name in self._paths}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Drop what was written after the checkpoint that holds `lengths`; an absent name is a length of 0.

        A missing file is made anew with a warning: log.csv from metrics.jsonl, and metrics.jsonl as one blank line of
        the recorded length, so that the lengths in all checkpoints stay right. Raises RunError, before anything is
        changed, if a file is shorter than recorded or not made of whole rows up to there.
        """
        self.close()
        found = {name: path for name, path in self._paths.items() if path.exists()}
        for name, path in found.items():
            _check(path, lengths.get(name, 0), header(self._columns))
        for name, path in found.items():
            _truncate(path, lengths.get(name, 0))
        for name in self._paths:
            if name not in found and lengths.get(name, 0):
                self._recreate(name, lengths[name])

    def close(self) -> None:
        """Close the files; the next `write` opens them again."""
        while self._files:
            self._files.popitem()[1].close()

    def _recreate(self, name: str, length: int) -> None:
        path = self._paths[name]
        if name == JSONL:
            self._warn(f"{path} is missing: the rows before this resume are lost")
            self._append(JSONL, " " * (length - 1) + "\n")
            return
        self._warn(f"{path} is missing: it is written anew from {JSONL}")
        for row in read_metrics(path.parent):
            self._append(CSV, line(row, self._columns))

    def _append(self, name: str, text: str) -> None:
        file = self._open(name)
        if name == CSV and file.seek(0, os.SEEK_END) == 0:
            text = header(self._columns) + text
        rest = text.encode()
        try:
            while rest:  # unbuffered: what fails, fails here, and not again when the file is closed
                rest = rest[file.write(rest) :]
        except OSError as error:
            raise _failure(self._paths[name], error) from error

    def _open(self, name: str) -> BinaryIO:
        if name not in self._files:
            path = self._paths[name]
            try:
                self._files[name] = path.open("ab", buffering=0)
            except OSError as error:
                raise _failure(path, error) from error
        return self._files[name]


def read_metrics(run_dir: Path) -> list[dict[str, Number]]:
    """The rows of metrics.jsonl, as `each_row` yields them; some 3 kB each."""
    return list(each_row(run_dir))


def each_row(run_dir: Path) -> Iterator[dict[str, Number]]:
    """Yield the rows of metrics.jsonl, none if there is no file; a last line that a kill left half-written is not one.

    Raises RunError for any other line that is not a JSON object.
    """
    path = run_dir / JSONL
    if not path.exists():
        return
    with path.open("rb") as file:
        for index, line in enumerate(file, 1):
            try:
                row = _parse(line, f"{path}, line {index}") if line.strip() else None
            except RunError:
                if line.endswith(b"\n"):
                    raise
                return
            if row is not None:
                yield row


def _parse(line: bytes, where: str) -> dict[str, Number]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise RunError(f"{where}: expected a JSON object, found {line[:40]!r}; restore the file or remove the line")
    return row


def _number(value: Number) -> Number:
    """Return a finite Python number, or None: JSON has neither NaN nor infinity, nor NumPy's types."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def _check(path: Path, length: int, header: str) -> None:
    then = f"it is written anew from {JSONL}" if path.name == CSV else "the run goes on without the rows so far"
    remedy = f"restore it, or remove it and {then}"
    check_cut(path, length, "row", remedy)
    with path.open("rb") as file:
        if length and path.name == CSV and file.readline() != header.encode():
            raise RunError(f"{path} has other columns than this run writes (report.columns?): {remedy}")


def _truncate(path: Path, length: int) -> None:
    try:
        os.truncate(path, length)
    except OSError as error:
        raise _failure(path, error) from error


def _failure(path: Path, error: OSError) -> RunError:
    return RunError(f"{path} could not be written ({error.strerror}): free space there, then resume the run")
