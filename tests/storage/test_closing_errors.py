"""A quota on a network file system may make `close` fail:
that hides no other error and ends no clean-up.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from hpc_es.storage.line_logs import LinesFile
from hpc_es.storage.metrics_log import MetricsLog
from hpc_es.storage.run_lock import RunLock


class Full:
    """A file whose `close` fails."""

    def close(self) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")


def test_logs_and_locks_are_closed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: Any = LinesFile(tmp_path / "x.csv")
    lines._file = Full()
    lines.close()
    metrics: Any = MetricsLog(tmp_path)
    metrics._files = {"metrics.jsonl": Full()}
    metrics.close()
    assert lines._file is None and metrics._files == {}
    lock = RunLock(tmp_path).acquire()
    with monkeypatch.context() as patch:
        patch.setattr("hpc_es.storage.run_lock.os.close", lambda descriptor: Full().close())
        lock.release()
    RunLock(tmp_path).acquire().release()
