"""TensorBoard event files: a scalar for every number of a row, over generations and over the clock.

Only the record writer of the tensorboard package is used: its EventFileWriter imports TensorFlow where that is
installed (seconds, and 500 MB), and reports a full disk from a thread of its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any, BinaryIO

from hpc_es.config.schema import Report
from hpc_es.report.loggers.loggers import LoggedRun, Started, Status, metrics, step
from hpc_es.storage.metrics_log import Row


def make(report: Report) -> TensorBoard:
    """Return the logger; it has no options."""
    del report
    return TensorBoard()


class TensorBoard:
    """Writes one event file into the run directory; TensorBoard reads all files of a directory as one run.

    Rows from `first` on that an earlier session wrote, which a resumed run computes again, are dropped by TensorBoard.
    """

    _event: Any
    _records: Any
    _file: BinaryIO

    def start(self, run: LoggedRun, run_id: str | None, first: int) -> Started:
        """Open a new event file."""
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event = event_pb2.Event
        has_rows = any(run.directory.glob("events.out.tfevents.*"))
        self._file = _new_path(run.directory).open("xb")
        self._records = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        # TensorBoard drops nothing at the first START it sees, so every session writes one.
        session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(step=first, session_log=session)
        return Started(run_id, first if has_rows else 0)

    def write(self, row: Row) -> None:
        """Add a generation's numbers."""
        values = [{"tag": name, "simple_value": value} for name, value in metrics(row).items()]
        self._add(step=step(row), summary={"value": values})

    def close(self, status: Status) -> None:
        """Close the event file; how the run has ended has no place in it."""
        del status
        with contextlib.suppress(OSError):  # what a full disk refused has been reported
            self._file.close()

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()


def _new_path(run_dir: Path) -> Path:
    """A name that sorts behind those of earlier sessions: TensorBoard reads a directory's files in order of name."""
    now, host = time.time_ns(), socket.gethostname()
    return run_dir / f"events.out.tfevents.{now // 10**9}.{now % 10**9:09d}.{host}.{os.getpid()}"
