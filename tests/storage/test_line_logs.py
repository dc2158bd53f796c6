"""evaluations.csv and failures.log: rows and failures are neither
lost nor repeated when a run is resumed.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_es.core.errors import MAX_DETAILS, Failure, RunError
from hpc_es.storage.line_logs import EVALUATIONS, MAX_KINDS, EvaluationsLog, FailuresLog


def rows(generation: int) -> list[tuple[int, float, list[float]]]:
    return [(0, 1 / 3, [0.1, -2e-300]), (1, math.nan, [float(generation), 5e22])]


def test_evaluations_csv_has_every_bit(tmp_path: Path) -> None:
    log = EvaluationsLog(tmp_path, ["learning_rate", 'a,"b"'])
    log.write(3, rows(3))
    header, first, second = list(csv.reader((tmp_path / EVALUATIONS).open()))
    assert header == ["generation", "job", "value", "learning_rate", 'a,"b"']
    assert first[:2] == ["3", "0"] and [float(cell) for cell in first[2:]] == [1 / 3, 0.1, -2e-300]
    assert second[2:] == ["nan", "3.0", "5e+22"]


def test_evaluations_csv_of_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    straight, cut = tmp_path / "straight", tmp_path / "cut"
    for folder, generations in ((straight, (0, 1, 2)), (cut, (0, 1))):
        folder.mkdir()
        log = EvaluationsLog(folder, ["x0", "x1"])
        log.cut({})
        lengths = []
        for generation in generations:
            log.write(generation, rows(generation))
            lengths.append(log.lengths())
    resumed = EvaluationsLog(cut, ["x0", "x1"])
    resumed.cut(lengths[0])
    for generation in (1, 2):
        resumed.write(generation, rows(generation))
    assert (cut / EVALUATIONS).read_bytes() == (straight / EVALUATIONS).read_bytes()


def test_new_run_clears_the_log_of_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    EvaluationsLog(tmp_path, ["x0", "x1"]).write(0, rows(0))
    EvaluationsLog(tmp_path, ["x0", "x1"]).cut({})
    assert not (tmp_path / EVALUATIONS).exists()


def test_damaged_evaluations_csv_is_refused_before_it_is_cut(tmp_path: Path) -> None:
    log = EvaluationsLog(tmp_path, ["x0", "x1"])
    log.write(0, rows(0))
    lengths = log.lengths()
    for wrong, message in ((1, "bytes, but had"), (-1, "is not the end of a line")):
        with pytest.raises(RunError, match=message):
            log.cut({EVALUATIONS: lengths[EVALUATIONS] + wrong})
    with pytest.raises(RunError, match="other columns"):
        EvaluationsLog(tmp_path, ["x0", "y"]).cut(lengths)
    assert log.lengths() == lengths


def test_missing_evaluations_csv_is_created_with_a_warning(tmp_path: Path) -> None:
    log = EvaluationsLog(tmp_path, ["x0", "x1"])
    log.write(0, rows(0))
    lengths = log.lengths()
    (tmp_path / EVALUATIONS).unlink()
    with pytest.warns(match="is missing: the evaluations so far are lost"):
        log.cut(lengths)
    assert log.lengths() == lengths and (tmp_path / EVALUATIONS).read_text().startswith(
        "generation,job,value,x0,x1\n"
    )


def test_disabled_evaluations_log_writes_nothing(tmp_path: Path) -> None:
    log = EvaluationsLog(tmp_path, [])
    log.cut({EVALUATIONS: 100})
    log.write(0, rows(0))
    assert not (tmp_path / EVALUATIONS).exists() and log.lengths() == {}


def test_failures_log_has_one_entry_per_kind_over_restarts(tmp_path: Path) -> None:
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


def test_new_run_removes_the_failures_log_of_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    FailuresLog(tmp_path, keep=False).add("before", Failure("x", "x"))
    FailuresLog(tmp_path, keep=False)
    assert not (tmp_path / "failures.log").exists()


def test_failures_log_has_a_size_limit(tmp_path: Path) -> None:
    log = FailuresLog(tmp_path, keep=False)
    for number in range(MAX_KINDS + 10):
        log.add("", Failure("x", f"kind {number}", "y" * MAX_DETAILS))
    text = (tmp_path / "failures.log").read_text()
    assert text.count("=== ") == MAX_KINDS and len(text) < 1.01 * MAX_KINDS * MAX_DETAILS


def test_full_disk_does_not_end_a_run_that_logs_failures(tmp_path: Path) -> None:
    (tmp_path / "failures.log").mkdir()
    FailuresLog(tmp_path, keep=True).add("", Failure("x", "x"))


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/null")])
def test_file_that_is_none_is_a_message_at_a_resume(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    make(tmp_path / EVALUATIONS)
    log = EvaluationsLog(tmp_path, ["x0"])
    with pytest.raises(RunError, match=rf"{EVALUATIONS}: expected a regular file"):
        log.cut({EVALUATIONS: 10})
