"""TensorBoard event files: a scalar for every number of a row, over generations and over the clock.

Only the record writer of the tensorboard package is used: its EventFileWriter imports TensorFlow where that is
installed (seconds, and 500 MB), and reports a full disk from a thread of its own.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from pathlib import Path
from typing import Any

from hpc_es.errors import RunError, UserError
from hpc_es.report.metrics import Number, Row

GROUPS = ("evaluation", "return", "length", "time", "predict", "episodes", "timesteps", "seconds")


def require() -> None:
    """Raise UserError unless the tensorboard package can be imported."""
    try:
        import tensorboard.compat.proto.event_pb2
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"report.tensorboard is true, but the tensorboard package cannot be imported ({error}): "
            "pip install tensorboard, or set report.tensorboard to false"
        ) from error


class EventWriter:
    """Writes one event file into `run_dir`; TensorBoard reads all files of a directory as one run.

    `first_generation` is the generation of the first row that will come: rows from there on that an earlier session
    wrote, which a resumed run computes again, are dropped by TensorBoard. Raises UserError without the package, and
    RunError where the disk is full or not writable.
    """

    def __init__(self, run_dir: Path, first_generation: int) -> None:
        require()
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = event_pb2.Event
        self._path = _new_path(run_dir)
        try:
            self._file = self._path.open("xb")
        except OSError as error:
            raise self._failure(error) from error
        self._records: Any = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        # TensorBoard drops nothing at the first START it sees, so every session writes one.
        session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(step=first_generation, session_log=session)

    def write(self, row: Row) -> None:
        """Add a generation's numbers; those that were not measured are left out."""
        values = [
            {"tag": tag(key), "simple_value": value}
            for key, value in row.items()
            if key != "generation" and value is not None and math.isfinite(value)
        ]
        self._add(step=_step(row["generation"]), summary={"value": values})

    def close(self) -> None:
        """Close the event file."""
        with contextlib.suppress(OSError):  # what a full disk refused has been reported
            self._file.close()

    def _add(self, **fields: Any) -> None:
        record = self._event(wall_time=time.time(), **fields).SerializeToString()
        try:
            self._records.write(record)
            self._records.flush()
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> RunError:
        return RunError(f"{self._path} could not be written ({error.strerror}): free space there, then resume the run")


def tag(key: str) -> str:
    """A row's key as TensorBoard groups it: return_mean is return/mean, a key of no group stands under train."""
    for group in GROUPS:
        if key.startswith(f"{group}_"):
            return f"{group}/{key.removeprefix(f'{group}_')}"
    return f"train/{key}"


def _new_path(run_dir: Path) -> Path:
    """A name that sorts behind those of earlier sessions: TensorBoard reads a directory's files in order of name."""
    now, host = time.time_ns(), socket.gethostname()
    return run_dir / f"events.out.tfevents.{now // 10**9}.{now % 10**9:09d}.{host}.{os.getpid()}"


def _step(generation: Number) -> int:
    assert generation is not None
    return int(generation)
