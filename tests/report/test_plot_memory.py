"""A run that draws itself again and again: what a picture of many rows takes, and that nothing of it stays."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hpc_es.report.curves import DRAWN, MOST_POINTS, Curve, load
from tests.helpers import runs

ROWS, COLUMNS = 3000, 40


def test_rows_take_the_columns_that_are_drawn_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: demo\n")
    others = {f"column_{number}": number / 7 for number in range(COLUMNS)}
    steps = ({"timesteps_total": n, "seconds_total": n / 3, "return_mean": n / 9, **others} for n in range(ROWS))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    tracemalloc.start()
    run = load(tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert run.columns["return_mean"].tolist() == [n / 9 for n in range(ROWS)]
    assert most < 3 * len(DRAWN) * 8 * ROWS, "the rows themselves are some forty times the columns"


def test_a_long_curve_keeps_its_ends_its_lowest_and_its_highest_points() -> None:
    x = np.arange(100_001.0)
    mean = np.sin(x / 1000)
    mean[[5, 70_000]] = [9, -9]
    curve = Curve(x, mean, mean / 2, runs=1).thinned()
    assert 0.9 * MOST_POINTS < len(curve.x) <= MOST_POINTS
    assert {0.0, 5.0, 70_000.0, 100_000.0} <= set(curve.x.tolist())
    assert (np.diff(curve.x) > 0).all()
    assert (curve.mean == mean[curve.x.astype(int)]).all() and (curve.spread == curve.mean / 2).all()


def test_a_short_curve_is_drawn_as_it_is() -> None:
    curve = Curve(np.arange(2000.0), np.zeros(2000), np.zeros(2000), runs=1)
    assert curve.thinned() is curve


def test_no_picture_of_a_run_in_progress_stays_in_memory(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        runs.here(runs.tiny(tmp_path), tmp_path / "run", ["report.plot_interval_seconds=0.0001"])
        left = sum(issubclass(type(each), Figure) for each in gc.get_objects())  # some are weak, and gone
    finally:
        gc.enable()
    assert (tmp_path / "run" / "curve.png").exists()
    assert left == 0
