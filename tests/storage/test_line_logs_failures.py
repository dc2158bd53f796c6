"""failures.log: each kind once, over restarts too, and not without end."""

from __future__ import annotations

from pathlib import Path

from hpc_es.core.failures import MAX_DETAILS, Failure
from hpc_es.storage.line_logs import MOST_KINDS, FailuresLog


def test_each_kind_has_one_entry_over_restarts_too(tmp_path: Path) -> None:
    log = FailuresLog(tmp_path, keep=False)
    for number in range(3):
        log.add(f"generation {number}", Failure("E: x", "E at f.py:1 in g", "Traceback\n  line"))
    FailuresLog(tmp_path, keep=True).add("later", Failure("E: y", "E at f.py:1 in g"))
    FailuresLog(tmp_path, keep=True).add("later", Failure("E: y", "E at f.py:2 in g", "Traceback"))
    text = (tmp_path / "failures.log").read_text()
    assert text.count("=== ") == 2 and text.count("later") == 1
    first = text.splitlines()
    assert first[0] == "=== E at f.py:1 in g" and first[1].endswith("  generation 0")
    assert first[2:5] == ["    Traceback", "      line", ""]


def test_what_a_run_without_a_checkpoint_left_is_removed(tmp_path: Path) -> None:
    FailuresLog(tmp_path, keep=False).add("before", Failure("x", "x"))
    FailuresLog(tmp_path, keep=False)
    assert not (tmp_path / "failures.log").exists()


def test_its_size_has_a_limit(tmp_path: Path) -> None:
    log = FailuresLog(tmp_path, keep=False)
    for number in range(MOST_KINDS + 10):
        log.add("", Failure("x", f"kind {number}", "y" * MAX_DETAILS))
    text = (tmp_path / "failures.log").read_text()
    assert text.count("=== ") == MOST_KINDS and len(text) < 1.01 * MOST_KINDS * MAX_DETAILS


def test_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "failures.log").mkdir()
    FailuresLog(tmp_path, keep=True).add("", Failure("x", "x"))
