"""`python -m benchmarks.learning`: averages in its plot, recorded lines, and run directories."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning import (
    Result,
    Run,
    Trial,
    compared,
    comparison,
    final_returns,
    merged,
    read,
    table,
    write,
)
from benchmarks.learning_plot import draw, draw_returns, means, median
from tests.helpers.trained import run

pytest.importorskip("matplotlib")


def test_evaluations_between_two_points_are_averaged_and_gaps_interpolated() -> None:
    """(0, 2] has 10 and 20; (2, 4] none, so 20 + 30 * 2 / 3
    at 4; (4, 6] has 50; 70 at 7 is outside.
    """
    x, y = np.array([1.0, 2.0, 5.0, 7.0]), np.array([10.0, 20.0, 50.0, 70.0])
    np.testing.assert_allclose(means(x, y, np.array([0.0, 2.0, 4.0, 6.0])), [15, 40, 50])


@pytest.mark.long
def test_plot_shows_the_median_of_the_seeds(tmp_path: Path) -> None:
    paths = [run(f"seed={seed}") for seed in (1, 2, 3)]
    curves = [curve for item in ([path] for path in paths) if (curve := median(item)) is not None]
    together, without = median(paths), run("evaluation.interval=0")
    assert together is not None
    ends = [y[x >= together[0][-1]][0] for x, y in curves]
    assert together[1][-1] == sorted(ends)[1]
    assert len({y[-1] for _, y in curves}) == 3
    assert median([without]) is None
    draw({"Survival": {"es": paths}, "nothing": {"es": [without]}}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_csv_keeps_lines_of_removed_runs_and_replaces_those_of_new_ones(tmp_path: Path) -> None:
    trial = Trial.of_config("ars_cartpole")
    lines = (
        "trial,seed,timesteps,minutes,return_mean,return_std",
        "ars_cartpole,1,50000,0.5,480.00,1.25",
        "ars_cartpole,3,50200,0.6,490.00,1.00",
        "compare/CartPole-v1/es,1,200000,0.1,470.00,2.00",
    )
    path = tmp_path / "learning.csv"
    path.write_text("\n".join(lines) + "\n")
    runs = [Run(trial, seed, tmp_path / str(seed)) for seed in (1, 2, 3)]
    for run_, mean in zip(runs[:2], (500, 400), strict=True):
        run_.directory.mkdir()
        (run_.directory / "eval.json").write_text(
            json.dumps(
                {"return_mean": mean, "return_std": 0.004, "timesteps": 50_100, "seconds": 66}
            )
        )
    results = merged(read(path), runs)
    write(path, results)
    new = ("ars_cartpole,1,50100,1.1,500.00,0.00", "ars_cartpole,2,50100,1.1,400.00,0.00")
    assert path.read_text().splitlines() == [lines[0], *new, *lines[2:]]
    assert read(path) == sorted(results, key=lambda result: (result.trial, result.seed))
    assert table([trial], read(path))[2:] == [
        "| ars_cartpole | 3 | 490 (500, 400, 490) | 500 | 0.05 M | 0.9 |"
    ]
    assert "| es | 470 (470 to 470) |  |  |  |  |  |" in comparison(list(compared()), read(path))
    assert read(tmp_path / "none.csv") == read(None) == []


def test_plot_of_final_returns_has_every_seed_of_the_csv(tmp_path: Path) -> None:
    trials = [trial for trial in compared() if trial.task == "CartPole-v1"]
    name = "compare/CartPole-v1/es"
    returns = final_returns(
        trials, [Result(name, seed, 200_000, 0.1, 400 + seed, 1) for seed in (1, 2, 3)]
    )
    assert returns == {"CartPole-v1": {"es": [401, 402, 403]}}
    draw_returns(returns, tmp_path / "returns.png")
    assert (tmp_path / "returns.png").stat().st_size > 5_000


def test_overrides_are_part_of_the_name_directory_and_table(tmp_path: Path) -> None:
    name = "compare/Pendulum-v1/es,algorithm.population_size=16"
    trial = next(item for item in compared() if item.name == "compare/Pendulum-v1/es")
    changed = trial.changed(["algorithm.population_size=16"])
    assert changed.name == name
    assert changed.overrides == (*trial.overrides, "algorithm.population_size=16")
    lines = [
        Result("compare/Pendulum-v1/es", 1, 2_000_000, 0.1, -900, 1),
        Result(name, 1, 2_000_000, 0.1, -800, 1),
    ]
    write(tmp_path / "learning.csv", lines)  # the name has a comma
    assert read(tmp_path / "learning.csv") == lines
    assert comparison([changed], lines)[2:] == ["| es |  |  | -800 (-800 to -800) |  |  |  |"]
