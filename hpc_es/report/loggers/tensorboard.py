"""TensorBoard event files: one scalar per metric, against generations and wall time.

Only the record writer of the tensorboard package is used. Its EventFileWriter imports TensorFlow if that is installed,
which takes seconds and 500 MB, and raises the error of a full disk in a separate thread.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any, BinaryIO

from hpc_es.config.schema import Report
from hpc_es.report.loggers import LoggedRun, Started, Status, metrics, step
from hpc_es.storage.metrics_log import Row


def make(report: Report) -> TensorBoard:
    """Return the logger; it has no options."""
    del report
    return TensorBoard()


class TensorBoard:
    """Writes one event file per session into the run directory; TensorBoard reads all files of a directory as one run.

    TensorBoard itself drops the rows of earlier sessions from `first` on.
    """

    _event: Any
    _records: Any
    _file: BinaryIO

    def start(self, run: LoggedRun, run_id: str | None, first: int) -> Started:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event = event_pb2.Event
        has_rows = any(run.directory.glob("events.out.tfevents.*"))
        self._file = _new_path(run.directory).open("xb")
        self._records = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        # TensorBoard drops nothing at the first START that it reads, so every session writes one.
        session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(step=first, session_log=session)
        return Started(run_id, first if has_rows else 0)

    def write(self, row: Row) -> None:
        values = [{"tag": name, "simple_value": value} for name, value in metrics(row).items()]
        self._add(step=step(row), summary={"value": values})

    def close(self, status: Status) -> None:
        del status  # event files cannot record it
        with contextlib.suppress(OSError):  # a full disk was reported by `write`
            self._file.close()

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()


def _new_path(run_dir: Path) -> Path:
    """Return a name that sorts after those of earlier sessions, since TensorBoard reads files in the order of names."""
    now, host = time.time_ns(), socket.gethostname()
    return run_dir / f"events.out.tfevents.{now // 10**9}.{now % 10**9:09d}.{host}.{os.getpid()}"
