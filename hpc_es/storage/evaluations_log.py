"""evaluations.csv: every vector that was evaluated, as the objective saw it, with its value, generation and job.

Numbers have as many digits as give the same bits when they are read; a failed evaluation has the value nan, the centre
is job -1. Rank 0 writes a generation's rows in job order at its end. A checkpoint stores `lengths()`, and a resumed run
cuts the file to them, so that it is the same on any ranks and after any restart.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from hpc_es.core.errors import RunError
from hpc_es.storage.lines_file import LinesFile

NAME = "evaluations.csv"
FIRST_COLUMNS = ("generation", "job", "value")


class EvaluationsLog:
    """Appends the rows of a generation; `names` are those of the coordinates, none where nothing is to be written.

    A new run calls `cut({})` first, which removes what a run that died before its first checkpoint left behind.
    """

    def __init__(self, run_dir: Path, names: Sequence[str], warn: Callable[[str], object] = warnings.warn) -> None:
        self._file, self._warn, self._is_on = LinesFile(run_dir / NAME), warn, bool(names)
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
        return {NAME: length} if length else {}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Drop what was written after the checkpoint that holds `lengths`, where an absent name is a length of 0.

        A missing file is made anew with a warning, with one blank line to the recorded length, so that the lengths in
        all checkpoints stay right. Raises RunError, before anything is changed, if the file is damaged or of others.
        """
        if not self._is_on:
            return
        path, length = self._file.path, lengths.get(NAME, 0)
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
