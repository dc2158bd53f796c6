"""metrics.jsonl, with one row per generation, and log.csv, a table computed from it.

log.csv has the 21 columns of the evolution-strategies notebook in the same order, then three of
OpenAI's starter. Their names are those of metrics.jsonl ("plain") or of the original systems
("classical"); docs/log_columns.md lists both. A column is the entry of its plain name in a row of
metrics.jsonl, except for those in COMPUTED. Rows have the vocabulary of their task
(`core/vocabulary.py`), and so have plain columns; classical ones are those of the original systems.

A checkpoint stores `lengths()`; a resumed run truncates the files to them with `cut`, so that no
row is lost or repeated.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import BinaryIO, Literal

from hpc_es.core.errors import RunError
from hpc_es.core.run_files import (
    each_line,
    exists,
    is_removed,
    open_file,
    parse_json,
    truncate,
)
from hpc_es.core.vocabulary import RETURNS, Vocabulary, counted
from hpc_es.storage.line_logs import check_cut

Number = float | int | None
Row = Mapping[str, Number]
Columns = Literal["plain", "classical"]

NAMES = {  # plain: classical
    "generation": "Generation",
    "return_mean": "GenRewMean",
    "return_std": "GenRewStd",
    "length_mean": "GenLenMean",
    "evaluation_return_mean": "EvalGenRewardMean",
    "evaluation_return_std": "EvalGenRewardStd",
    "evaluation_length_mean": "EvalGenLengthMean",
    "evaluation_episodes": "EvalGenCount",
    "episodes_this_generation": "EpisodesThisGen",
    "episodes_total": "EpisodesSoFar",
    "timesteps_this_generation": "TimestepsThisGen",
    "timesteps_total": "TimestepsSoFar",
    "ranks": "UniqueWorkers",
    "failed_fraction": "ResultsSkippedFrac",
    "observation_count": "ObCount",
    "seconds_this_generation": "TimeElapsedThisGen",
    "seconds_total": "TimeElapsed",
    "predict_microseconds_min": "TimePredictMin",
    "predict_microseconds_max": "TimePredictMax",
    "predict_microseconds_mean": "TimePredictMean",
    "predict_microseconds_count": "TimePredictCount",
    "gradient_norm": "GradNorm",
    "update_ratio": "UpdateRatio",
    "theta_norm": "Norm",
}


PREDICTIONS = ("predict_microseconds_min", "predict_microseconds_max", "predict_microseconds_mean")


def header(columns: Columns, vocabulary: Vocabulary = RETURNS) -> str:
    """Return the first line of log.csv."""
    names = map(vocabulary.name, NAMES) if columns == "plain" else NAMES.values()
    return ",".join(names) + "\n"


def line(row: Row, columns: Columns, vocabulary: Vocabulary = RETURNS) -> str:
    """Return the line of a row in log.csv; missing entries are nan."""
    computed, inside = COMPUTED[columns], vocabulary.internal(row)
    if columns == "plain":
        shown = vocabulary.public(inside)
        entries = {name: shown.get(vocabulary.name(name)) for name in NAMES}
    else:
        entries = {name: inside.get(name) for name in NAMES}
    cells = [computed[name](inside) if name in computed else entries[name] for name in NAMES]
    return ",".join("nan" if cell is None else repr(cell) for cell in cells) + "\n"


def _failed_fraction(row: Row) -> Number:
    failed, episodes = row.get("failed_episodes"), row.get("episodes_this_generation")
    return failed / episodes if failed is not None and episodes else None


def _square(name: str) -> Callable[[Row], Number]:
    def square(row: Row) -> Number:
        norm = row.get(name)
        return None if norm is None else norm * norm

    return square


def _seconds(name: str) -> Callable[[Row], Number]:
    def seconds(row: Row) -> Number:
        microseconds = row.get(name)
        return None if microseconds is None else microseconds * 1e-6

    return seconds


def _count(name: str) -> Callable[[Row], Number]:
    return lambda row: counted(row, name)


COMPUTED: dict[Columns, dict[str, Callable[[Row], Number]]] = {
    "plain": {"failed_fraction": _failed_fraction},
    "classical": {
        "failed_fraction": _failed_fraction,
        # The original counts evaluating workers, and the observations of one batch.
        "ranks": lambda row: row.get("evaluating_ranks"),
        # of a model, whose rows have no timesteps
        **{name: _count(name) for name in ("timesteps_this_generation", "timesteps_total")},
        "observation_count": lambda row: row.get("observations_this_generation"),
        **{name: _seconds(name) for name in PREDICTIONS},
        # The starter logs sums of squares.
        "gradient_norm": _square("gradient_norm"),
        "theta_norm": _square("theta_norm"),
    },
}


JSONL = "metrics.jsonl"
CSV = "log.csv"
LONGEST_ROW = 1 << 16  # bytes of a line of metrics.jsonl


class MetricsLog:
    """Writer of metrics.jsonl and log.csv, without buffering.

    A new run calls `cut({})` first, which clears the files of a run that was killed before its
    first checkpoint.
    """

    def __init__(
        self,
        run_dir: Path,
        warn: Callable[[str], object] = warnings.warn,
        columns: Columns = "plain",
        vocabulary: Vocabulary = RETURNS,
    ) -> None:
        self._columns, self._vocabulary = columns, vocabulary
        self._paths = {name: run_dir / name for name in (JSONL, CSV)}
        self._files: dict[str, BinaryIO] = {}
        self._warn = warn

    def write(self, row: Row) -> None:
        """Append a generation's row to both files.

        Raises:
            RunError: the disk is full or not writable.
        """
        numbers = {key: _number(value) for key, value in row.items()}
        self._append(JSONL, json.dumps(numbers, allow_nan=False) + "\n")
        self._append(CSV, self._line(numbers))

    def _header(self) -> str:
        return header(self._columns, self._vocabulary)

    def _line(self, row: Row) -> str:
        return line(row, self._columns, self._vocabulary)

    def lengths(self) -> dict[str, int]:
        """Sync the files and return the length of each in bytes, for a checkpoint and `cut`.

        A file that was removed since it was opened is replaced with a warning, as `cut` does.
        """
        for name, path in self._paths.items():
            file = self._open(name)
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise _failure(path, error) from error
            if is_removed(file):
                length = file.seek(0, os.SEEK_END)
                self._files.pop(name).close()
                self._recreate(name, length)
        return {name: self._open(name).seek(0, os.SEEK_END) for name in self._paths}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Remove the rows after the checkpoint with these lengths; a missing name is a length of 0.

        A missing file is replaced with a warning: log.csv from metrics.jsonl, and metrics.jsonl by
        one blank line of the recorded length, so that the lengths in all checkpoints stay valid.
        Raises RunError, without changing the files, if one is shorter than recorded or no row ends
        there.
        """
        self.close()
        existing = {name: path for name, path in self._paths.items() if path.exists()}
        for name, path in existing.items():
            _check(path, lengths.get(name, 0), self._header())
        for name, path in existing.items():
            try:
                truncate(path, lengths.get(name, 0))
            except OSError as error:
                raise _failure(path, error) from error
        for name in self._paths:
            if name not in existing and lengths.get(name, 0):
                self._recreate(name, lengths[name])

    def close(self) -> None:
        """Close the files; the next `write` opens them again."""
        while self._files:
            # of a quota on NFS; what a checkpoint needs was synced
            with contextlib.suppress(OSError):
                self._files.popitem()[1].close()

    def _recreate(self, name: str, length: int) -> None:
        path = self._paths[name]
        if name == JSONL:
            self._warn(f"{path} is missing: the rows so far are lost")
            self._append(JSONL, " " * (length - 1) + "\n")
            return
        self._warn(f"{path} is missing: it is written again from {JSONL}")
        for row in read_metrics(path.parent):
            self._append(CSV, self._line(row))

    def _append(self, name: str, text: str) -> None:
        file = self._open(name)
        if name == CSV and file.seek(0, os.SEEK_END) == 0:
            text = self._header() + text
        rest = text.encode()
        try:
            while rest:  # unbuffered, so that closing the files cannot fail
                rest = rest[file.write(rest) :]
        except OSError as error:
            raise _failure(self._paths[name], error) from error

    def _open(self, name: str) -> BinaryIO:
        if name not in self._files:
            path = self._paths[name]
            try:
                self._files[name] = open_file(path, "ab", buffering=0)
            except OSError as error:
                raise _failure(path, error) from error
        return self._files[name]


def read_metrics(run_dir: Path) -> list[dict[str, Number]]:
    """Return the rows of metrics.jsonl, about 3 kB each in memory."""
    return list(each_row(run_dir))


def each_row(run_dir: Path) -> Iterator[dict[str, Number]]:
    """Yield the rows of metrics.jsonl, without an incomplete last line.

    A missing file has no rows.

    Raises:
        RunError: another line is not a JSON object.
    """
    path = run_dir / JSONL
    if not exists(path):
        return
    with open_file(path) as file:
        for index, line in enumerate(each_line(file), 1):
            try:
                row = _parse(line, f"{path}, line {index}") if line.strip() else None
            except RunError:
                if line.endswith(b"\n"):
                    raise
                return
            if row is not None:
                yield row


def last_row(run_dir: Path) -> dict[str, Number]:
    """Return the last complete row of metrics.jsonl, without reading the others; {} if none."""
    try:
        with open_file(run_dir / JSONL) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - LONGEST_ROW, 0))
            lines = [line for line in file.read().split(b"\n")[:-1] if line.strip()]
        row = parse_json(lines[-1])
        return {name: _number(value) for name, value in row.items()}
    except (OSError, ValueError, IndexError):
        return {}
    except (AttributeError, TypeError, OverflowError):  # no row of numbers
        return {}


def _parse(line: bytes, where: str) -> dict[str, Number]:
    try:
        row = parse_json(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise RunError(
            f"{where}: expected a JSON object, found {line[:40]!r}; restore the file or remove the line"
        )
    return row


def _number(value: Number) -> Number:
    """Return a finite Python number or None, because JSON has no NaN, infinity or NumPy types."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def _check(path: Path, length: int, header: str) -> None:
    outcome = (
        f"have it written again from {JSONL}"
        if path.name == CSV
        else "continue without the rows so far"
    )
    remedy = f"restore it, or remove it to {outcome}"
    check_cut(path, length, "row", remedy)
    with open_file(path) as file:
        if length and path.name == CSV and file.readline(LONGEST_ROW) != header.encode():
            raise RunError(
                f"{path} has other columns than this run writes (report.columns?): {remedy}"
            )


def _failure(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path} could not be written ({error.strerror}): free space there, then resume the run"
    )
