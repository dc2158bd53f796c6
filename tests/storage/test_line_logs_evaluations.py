"""evaluations.csv."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from hpc_es.core.errors import RunError
from hpc_es.storage.line_logs import EVALUATIONS, EvaluationsLog


def rows(generation: int) -> list[tuple[int, float, list[float]]]:
    return [(0, 1 / 3, [0.1, -2e-300]), (1, math.nan, [float(generation), 5e22])]


def test_rows_have_every_bit(tmp_path: Path) -> None:
    log = EvaluationsLog(tmp_path, ["learning_rate", 'a,"b"'])
    log.write(3, rows(3))
    header, first, second = list(csv.reader((tmp_path / EVALUATIONS).open()))
    assert header == ["generation", "job", "value", "learning_rate", 'a,"b"']
    assert first[:2] == ["3", "0"] and [float(cell) for cell in first[2:]] == [1 / 3, 0.1, -2e-300]
    assert second[2:] == ["nan", "3.0", "5e+22"]


def test_a_resumed_log_is_equal_to_one_never_stopped(tmp_path: Path) -> None:
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


def test_a_new_run_clears_what_one_left_that_died_early(tmp_path: Path) -> None:
    EvaluationsLog(tmp_path, ["x0", "x1"]).write(0, rows(0))
    EvaluationsLog(tmp_path, ["x0", "x1"]).cut({})
    assert not (tmp_path / EVALUATIONS).exists()


def test_what_was_damaged_is_refused_before_it_is_cut(tmp_path: Path) -> None:
    log = EvaluationsLog(tmp_path, ["x0", "x1"])
    log.write(0, rows(0))
    lengths = log.lengths()
    for wrong, message in ((1, "bytes, but had"), (-1, "ends no line")):
        with pytest.raises(RunError, match=message):
            log.cut({EVALUATIONS: lengths[EVALUATIONS] + wrong})
    with pytest.raises(RunError, match="other columns"):
        EvaluationsLog(tmp_path, ["x0", "y"]).cut(lengths)
    assert log.lengths() == lengths


def test_a_missing_file_is_made_anew_with_a_warning(tmp_path: Path) -> None:
    log = EvaluationsLog(tmp_path, ["x0", "x1"])
    log.write(0, rows(0))
    lengths = log.lengths()
    (tmp_path / EVALUATIONS).unlink()
    with pytest.warns(match="is missing: the evaluations before this resume are lost"):
        log.cut(lengths)
    assert log.lengths() == lengths and (tmp_path / EVALUATIONS).read_text().startswith("generation,job,value,x0,x1\n")


def test_switched_off_it_writes_nothing(tmp_path: Path) -> None:
    log = EvaluationsLog(tmp_path, [])
    log.cut({EVALUATIONS: 100})
    log.write(0, rows(0))
    assert not (tmp_path / EVALUATIONS).exists() and log.lengths() == {}
