"""metrics.csv and metrics.jsonl: their columns; a resumed run neither loses nor repeats a row."""

from __future__ import annotations

import csv
import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from hpc_es.core.errors import RunError
from hpc_es.core.vocabulary import COUNTED, SIGNED, UNSIGNED
from hpc_es.storage import metrics_log
from hpc_es.storage.metrics_log import CSV, JSONL, NAMES, MetricsLog, read_metrics

# Facts 3.6: the 21 columns of the notebook's log.csv, in this order, under this house's names
# (T55).
NOTEBOOK = {
    "Generation": "generation",
    "GenRewMean": "return_mean",
    "GenRewStd": "return_std",
    "GenLenMean": "length_mean",
    "EvalGenRewardMean": "evaluation_return_mean",
    "EvalGenRewardStd": "evaluation_return_std",
    "EvalGenLengthMean": "evaluation_length_mean",
    "EvalGenCount": "evaluation_episodes",
    "EpisodesThisGen": "episodes_this_generation",
    "EpisodesSoFar": "episodes_total",
    "TimestepsThisGen": "timesteps_this_generation",
    "TimestepsSoFar": "timesteps_total",
    "UniqueWorkers": "ranks",
    "ResultsSkippedFrac": "failed_fraction",
    "ObCount": "observation_count",
    "TimeElapsedThisGen": "seconds_this_generation",
    "TimeElapsed": "seconds_total",
    "TimePredictMin": "predict_microseconds_min",
    "TimePredictMax": "predict_microseconds_max",
    "TimePredictMean": "predict_microseconds_mean",
    "TimePredictCount": "predict_microseconds_count",
}


def row(generation: int) -> dict[str, float | int | None]:
    return {"generation": generation, "return_mean": generation + 0.5, "return_std": None}


def test_columns_are_in_the_documented_order() -> None:
    assert len(NOTEBOOK) == 21
    assert list(NAMES) == [*NOTEBOOK.values(), "gradient_norm", "update_ratio", "theta_norm"]
    assert list(NAMES.values()) == [*NOTEBOOK, "GradNorm", "UpdateRatio", "Norm"]


def test_classical_columns_have_the_values_of_the_standard_ones(tmp_path: Path) -> None:
    """Norms are sums of squares, workers are evaluating ranks, observations per generation,
    times in seconds.
    """
    times = {
        f"predict_microseconds_{name}": value
        for name, value in (("min", 2.0), ("max", 4.0), ("mean", 3.0))
    }
    numbers = {
        "return_mean": 0.5,
        "ranks": 17,
        "evaluating_ranks": 16,
        "gradient_norm": 3.0,
        "theta_norm": 2.0,
    }
    log = MetricsLog(tmp_path, columns="classical")
    observed = {"observation_count": 700.01, "observations_this_generation": 200.0}
    log.write(
        {
            **row(4),
            **numbers,
            **times,
            **observed,
            "failed_episodes": 1,
            "episodes_this_generation": 4,
        }
    )
    (cells,) = csv.DictReader((tmp_path / CSV).open())
    message = {
        "GenRewMean": "0.5",
        "UniqueWorkers": "16",
        "ResultsSkippedFrac": "0.25",
        "GradNorm": "9.0",
        "Norm": "4.0",
    }
    message |= {
        "ObCount": "200.0",
        "TimePredictMin": "2e-06",
        "TimePredictMax": "4e-06",
        "TimePredictMean": "3e-06",
    }
    assert {name: cells[name] for name in message} == message and list(cells) == list(
        NAMES.values()
    )
    with pytest.raises(RunError, match="other columns than this run writes"):
        MetricsLog(tmp_path).cut(log.lengths())


def test_documentation_lists_both_names_of_a_column() -> None:
    text = (Path(__file__).parents[2] / "docs" / "log_columns.md").read_text()
    columns, _, of_values = text.partition("## Functions")
    lines = [line for line in columns.splitlines() if line.startswith("| `")]
    assert [line.split("`")[1::2][:2] for line in lines] == [
        [plain, classical] for plain, classical in NAMES.items()
    ]
    # the other names of functions, programs and models
    listed = set(of_values.split("`")[1::2])
    assert listed >= {*COUNTED, *COUNTED.values()}
    for name, other in {**SIGNED, **UNSIGNED}.items():
        assert listed >= {name, other.format("value"), other.format("score")}


def test_rows_are_written_to_both_files(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.write(
        {
            "generation": np.int64(0),
            "return_mean": 0.1,
            "return_std": math.nan,
            "failed_episodes": 3,
            "episodes_this_generation": 12,
            "theta_norm": math.inf,
            "ranks": np.float32(2.5),
            "time_idle_worst": 7.0,
        }
    )
    header, line = (tmp_path / CSV).read_text().splitlines()
    cells = dict(zip(header.split(","), line.split(","), strict=True))
    assert tuple(cells) == tuple(NAMES)
    assert (cells["generation"], cells["return_mean"], cells["failed_fraction"]) == (
        "0",
        "0.1",
        "0.25",
    )
    assert cells["return_std"] == cells["theta_norm"] == cells["gradient_norm"] == "nan"
    stored = json.loads(
        (tmp_path / JSONL).read_text(),
        parse_constant=lambda name: pytest.fail(f"{name} is no JSON"),
    )
    assert stored["return_std"] is None
    assert stored["theta_norm"] is None
    assert (stored["ranks"], stored["time_idle_worst"]) == (2.5, 7.0)


def test_header_is_written_once(tmp_path: Path) -> None:
    for generation in range(2):
        log = MetricsLog(tmp_path)
        log.write(row(generation))
        log.close()
    assert [line.split(",")[0] for line in (tmp_path / CSV).read_text().splitlines()] == [
        "generation",
        "0",
        "1",
    ]


def test_rows_are_visible_at_once(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.write(row(0))
    assert read_metrics(tmp_path) == [row(0)]
    assert (tmp_path / CSV).read_text().count("\n") == 2


def test_truncation_neither_loses_nor_repeats_rows(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for run in (whole, stopped):
        run.mkdir()
    log = MetricsLog(whole)
    for generation in range(5):
        log.write(row(generation))
    first = MetricsLog(stopped)
    lengths = {}
    for generation in range(4):
        first.write(row(generation))
        if generation == 1:
            lengths = first.lengths()
    (stopped / JSONL).open("a").write('{"generation": 4, "ret')  # killed while writing
    second = MetricsLog(stopped)
    second.cut(lengths)
    for generation in range(2, 5):
        second.write(row(generation))
    for name in (JSONL, CSV):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()


def test_new_run_starts_with_empty_files(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.write(row(0))
    log.cut({})
    assert log.lengths() == {JSONL: 0, CSV: 0}
    log.write(row(7))
    assert read_metrics(tmp_path) == [row(7)]
    assert (tmp_path / CSV).read_text().startswith("generation,")


@pytest.mark.parametrize("name", [JSONL, CSV])
def test_file_with_missing_rows_is_refused_unchanged(tmp_path: Path, name: str) -> None:
    log = MetricsLog(tmp_path)
    log.write(row(0))
    lengths = log.lengths()
    log.write(row(1))
    os.truncate(tmp_path / name, lengths[name] - 1)
    sizes = {path: path.stat().st_size for path in tmp_path.iterdir()}
    with pytest.raises(
        RunError, match=f"{name} has {lengths[name] - 1} bytes, but had {lengths[name]}"
    ):
        MetricsLog(tmp_path).cut(lengths)
    assert {path: path.stat().st_size for path in tmp_path.iterdir()} == sizes


@pytest.mark.parametrize("name", [JSONL, CSV])
def test_changed_file_is_refused(tmp_path: Path, name: str) -> None:
    log = MetricsLog(tmp_path)
    log.write(row(0))
    lengths = log.lengths()
    (tmp_path / name).write_bytes(b"x" * (lengths[name] + 5))
    with pytest.raises(RunError, match=f"{name} was changed since the checkpoint"):
        log.cut(lengths)


# N32: a truncated header passed there
def test_file_with_other_columns_is_refused(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.write(row(0))
    lengths = log.lengths()
    text = (tmp_path / CSV).read_text()
    (tmp_path / CSV).write_text(text.replace(",theta_norm\n", "\n") + "x" * 10 + "\n")
    short = (tmp_path / CSV).stat().st_size
    with pytest.raises(RunError, match=r"log\.csv has other columns"):
        log.cut({**lengths, CSV: short})


def test_missing_csv_file_is_written_again(tmp_path: Path) -> None:
    warnings: list[str] = []
    log = MetricsLog(tmp_path, warnings.append)
    log.write({**row(0), "theta_norm": math.inf})
    lengths, text = log.lengths(), (tmp_path / CSV).read_bytes()
    log.write(row(1))
    (tmp_path / CSV).unlink()
    log.cut(lengths)
    assert (tmp_path / CSV).read_bytes() == text
    assert len(warnings) == 1
    assert "log.csv is missing" in warnings[0]


def test_missing_jsonl_warns_and_keeps_all_checkpoints_usable(tmp_path: Path) -> None:
    warnings: list[str] = []
    log = MetricsLog(tmp_path, warnings.append)
    log.write(row(0))
    lengths = log.lengths()
    (tmp_path / JSONL).unlink()
    log.cut(lengths)
    assert "metrics.jsonl is missing" in warnings[0]
    log.write(row(1))
    assert read_metrics(tmp_path) == [row(1)]
    log.cut(lengths)  # killed before the next checkpoint, resumed from the same one
    assert read_metrics(tmp_path) == []
    assert log.lengths() == lengths


@pytest.mark.parametrize("tail", ['{"generation": 1', '{"generation": 1, "x": 12', "\0\0\0", "17"])
def test_incomplete_last_line_is_ignored(tmp_path: Path, tail: str) -> None:
    MetricsLog(tmp_path).write(row(0))
    (tmp_path / JSONL).open("a").write(tail)
    assert read_metrics(tmp_path) == [row(0)]


def test_damage_before_the_last_line_is_reported(tmp_path: Path) -> None:
    (tmp_path / JSONL).write_text('{"generation": 0}\n{"gener\n{"generation": 2}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 2: expected a JSON object"):
        read_metrics(tmp_path)


def test_missing_metrics_file_has_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize("name", [JSONL, CSV])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_full_disk_names_the_file(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(path: Path, mode: str, buffering: int) -> BinaryIO:
        file: Any = (Path("/dev/full") if path.name == name else path).open(
            mode, buffering=buffering
        )
        opened: BinaryIO = file
        return opened

    monkeypatch.setattr(metrics_log, "open_file", opened)
    with pytest.raises(RunError, match=f"{name} could not be written.*No space left"):
        MetricsLog(tmp_path).write(row(0))


def test_missing_directory_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nowhere/metrics\.jsonl could not be written"):
        MetricsLog(tmp_path / "nowhere").write(row(0))


def test_file_that_is_removed_during_a_run_is_said_and_replaced(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for generation in (0, 1):
        log.write(row(generation))
    lengths = log.lengths()
    (tmp_path / JSONL).unlink()
    log.write(row(2))
    with pytest.warns(match=r"metrics\.jsonl is missing: the rows so far are lost"):
        later = log.lengths()
    assert later[JSONL] > lengths[JSONL] and (tmp_path / JSONL).stat().st_size == later[JSONL]
    log.write(row(3))
    log.close()
    assert [read["generation"] for read in read_metrics(tmp_path)] == [3]
    MetricsLog(tmp_path).cut(later)
    assert read_metrics(tmp_path) == []
