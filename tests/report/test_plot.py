"""Learning curves and their plots: grouping of runs, averages, memory,
axes of program searches, and errors.
"""

from __future__ import annotations

import csv
import gc
import json
import os
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure

from hpc_es import cli
from hpc_es.commands.report import report_page
from hpc_es.core.errors import RunError, UserError
from hpc_es.report.curves import (
    DRAWN,
    MOST_POINTS,
    Curve,
    average,
    evaluation,
    grouped,
    load,
    of_one_run,
    population,
)
from hpc_es.report.drawn import Style, lines_of, panels_of
from hpc_es.report.plot import _group_label, _repetitions, figure, plot
from hpc_es.report.statistics import Summary
from hpc_es.report.ticks import ShortNumbers
from hpc_es.storage.metrics_log import MetricsLog, Number
from tests.helpers import runs
from tests.helpers.time_limit import time_limit


def make(
    path: Path,
    returns: Sequence[float | None],
    evaluate_every: int = 0,
    steps: int = 10,
    **config: Any,
) -> Path:
    """A run of `steps` timesteps and one second a generation."""
    path.mkdir(parents=True)
    resolved = {"name": "demo", "seed": 0, "algorithm": {"kind": "es", "sigma": 0.1}, **config}
    (path / "config.yaml").write_text(yaml.safe_dump(resolved))
    log = MetricsLog(path)
    for generation, value in enumerate(returns):
        evaluated = bool(evaluate_every) and (generation + 1) % evaluate_every == 0
        row: dict[str, Number] = {
            "generation": generation,
            "return_mean": value,
            "return_std": 1.0,
            "evaluation_return_mean": value * 2 if evaluated and value is not None else None,
            "timesteps_total": steps * (generation + 1),
            "seconds_total": generation + 1.0,
        }
        log.write(row)
    log.close()
    return path


def arrays(*values: list[float]) -> tuple[np.ndarray[Any, np.dtype[np.float64]], ...]:
    return tuple(np.array(value, dtype=np.float64) for value in values)


def labels(*runs: Path) -> list[str]:
    return [group.label for group in grouped([load(run) for run in runs])]


# N29: rows beyond the shortest run are all dropped
def test_average_of_runs_of_different_lengths() -> None:
    first_x, first_y = arrays([10, 20], [0, 4])
    second_x, second_y = arrays([10, 20, 30, 40], [2, 8, 100, 100])
    curve = average([(first_x, first_y), (second_x, second_y)])
    assert curve.x.tolist() == [10, 20]
    assert curve.y.tolist() == [1, 6]
    # Standard deviations with n - 1 of (0, 2) and (4, 8): sqrt(2) and sqrt(8). N30: mean over the
    # runs.
    of_std = average([(first_x, first_y), (second_x, second_y)], Summary("mean", "std"))
    np.testing.assert_allclose(of_std.high - of_std.y, [2**0.5, 8**0.5])
    np.testing.assert_allclose(of_std.y - of_std.low, [2**0.5, 8**0.5])


def test_average_interpolates_between_measurements() -> None:
    first_x, first_y = arrays([0, 10, 20], [0, 10, 20])
    second_x, second_y = arrays([5, 25], [0, 40])  # the line 2 x - 10
    curve = average([(first_x, first_y), (second_x, second_y)])
    assert curve.x.tolist() == [5, 10, 20]  # from the last start to the first end
    assert curve.y.tolist() == [2.5, 10, 25]  # of (5, 0), (10, 10), (20, 30)


def test_average_of_single_rows() -> None:
    first_x, first_y = arrays([10], [1])
    second_x, second_y = arrays([20, 30], [3, 5])
    curve = average([(first_x, first_y), (second_x, second_y)])
    assert (curve.x.tolist(), curve.y.tolist()) == ([15], [2])


def test_runs_that_differ_in_seed_name_and_output_are_one_curve(tmp_path: Path) -> None:
    first = make(tmp_path / "a", [1], name="walker_s1", seed=1, output="a")
    second = make(tmp_path / "b", [2], name="walker_s2", seed=2, output="b")
    assert labels(first, second) == ["walker"]


def test_runs_with_different_init_from_are_one_curve(tmp_path: Path) -> None:
    first = make(tmp_path / "a", [1], seed=1, policy={"kind": "mlp", "init_from": "runs/first-1"})
    second = make(tmp_path / "b", [2], seed=2, policy={"kind": "mlp", "init_from": "runs/first-2"})
    fresh = make(tmp_path / "c", [2], seed=3, policy={"kind": "mlp", "init_from": None})
    assert labels(first, second) == ["demo"]
    assert labels(first, second, fresh) == [
        "init_from true",
        "init_from false",
    ]


def test_different_configs_are_different_curves(tmp_path: Path) -> None:
    first = make(tmp_path / "a", [1], algorithm={"kind": "es", "sigma": 0.1})
    second = make(tmp_path / "b", [2], algorithm={"kind": "es", "sigma": 0.2})
    third = make(tmp_path / "c", [2], name="third", algorithm={"kind": "ga"})
    assert labels(first, second, third) == [
        "demo, sigma 0.1",
        "demo, sigma 0.2",
        "third",
    ]


def test_curve_without_a_name_is_labelled_by_its_directory(tmp_path: Path) -> None:
    assert labels(make(tmp_path / "folder", [1], name=None)) == ["folder"]


def test_single_run_is_plotted_without_interpolation(tmp_path: Path) -> None:
    (group,) = grouped([load(make(tmp_path / "a", [1, None, 3], evaluate_every=3))])
    curve = population(group, "timesteps")
    assert (curve.x.tolist(), curve.y.tolist()) == ([10, 30], [1, 3])
    assert (curve.low.tolist(), curve.high.tolist()) == ([0, 2], [2, 4])
    theta = evaluation(group, "seconds")  # N31: x and y of the same rows
    assert theta is not None
    assert (theta.x.tolist(), theta.y.tolist()) == ([3], [6])


def test_legend_names_the_number_of_seeds_and_the_bands(tmp_path: Path) -> None:
    runs = [
        make(tmp_path / str(seed), [1, 2], seed=seed, evaluate_every=2 * (seed != 3))
        for seed in (1, 2, 3)
    ]
    key = ["evaluation of theta, mean over runs", "population mean", "95 % bootstrap interval"]
    key.append("single runs")
    assert legend(runs) == [*key, "demo (3 seeds, 2 with evaluations)"]
    copy = make(tmp_path / "copy", [1, 2], seed=1)
    assert legend([tmp_path / "1", copy])[-1] == "demo (2 runs, 1 seed, 1 with evaluations)"


def test_finished_objective_shows_its_best_parameters(tmp_path: Path) -> None:
    run = make(tmp_path / "run", [-2.0])
    row = json.loads((run / "metrics.jsonl").read_text())
    (run / "metrics.jsonl").write_text(json.dumps({**row, "best_value": 2.5}) + "\n")
    best = {"value": 2.5, "x": {"layers": 3, "rate": 0.1234567891, "solver": "cg", "fast": True}}
    (run / "result.json").write_text(json.dumps({"best": best}))
    assert (
        _group_label(grouped([load(run)])[0])
        == "demo: layers = 3, rate = 0.123457, solver = cg, fast = true"
    )
    # before the run was continued
    (run / "result.json").write_text(json.dumps({"best": {**best, "value": 3.0}}))
    assert _group_label(grouped([load(run)])[0]) == "demo"


@pytest.mark.parametrize("kind", ["evaluation", "mean", "running"])
def test_best_values_are_drawn_unless_noise_was_measured_on_the_task(
    kind: str, tmp_path: Path
) -> None:
    """Then all runs on the task are drawn by the mean of the population, also before the end."""
    kinds = ("cma_es", "snes")
    runs = [make(tmp_path / name, [-2.0], algorithm={"kind": name}) for name in kinds]
    for run in runs:
        row = json.loads((run / "metrics.jsonl").read_text())
        values = {"best_value": -9.5, "value_mean": 2.0, "value_std": 0.5, "centre_value_mean": 1.5}
        (run / "metrics.jsonl").write_text(json.dumps({**row, **values}) + "\n")
    answer = {"kind": kind, "value": 1.25, "x": [1.0], "standard_error": 0.1, "evaluations": 9}
    status: dict[str, object] = {"status": "finished", "final_value_mean": 1.25}
    if kind == "running":
        status = {"status": "running", "noise_measured": True}
    else:
        (runs[0] / "result.json").write_text(json.dumps({"goal": "minimise", "answer": answer}))
    (runs[0] / "status.json").write_text(json.dumps(status))
    groups = grouped([load(run) for run in runs])
    assert len(groups) == 2
    drawn = {
        (line.role, tuple(line.curve.y)) for line in lines_of("main", groups, "seconds", Style())
    }
    expected = {
        "evaluation": {("centre", (-9.5,))},
        "mean": {("population", (2.0,)), ("final", (1.25,))},
        "running": {("population", (2.0,))},
    }
    assert drawn == expected[kind]
    texts = {"evaluation": "best value so far", "mean": "final evaluation"}
    texts["running"] = "population mean"
    assert texts[kind] in legend(runs)


def test_values_of_a_task_without_a_best_one_are_drawn(tmp_path: Path) -> None:
    run = make(tmp_path / "run", [-2.0])
    row = json.loads((run / "metrics.jsonl").read_text())
    values = {"value_mean": 2.0, "value_std": 0.5}
    (run / "metrics.jsonl").write_text(json.dumps({**row, **values}) + "\n")
    group = grouped([load(run)])[0]
    assert panels_of([group], Style(panels=("value", "population"))) == ("value", "population")
    assert panels_of([group], Style()) == ("main",)
    (line,) = lines_of("main", [group], "seconds", Style())
    assert (line.column, line.curve.y.tolist()) == ("value_mean", [2.0])
    plot([run], tmp_path / "curve.png")


def test_directory_of_repetitions_loads_those_with_metrics(tmp_path: Path) -> None:
    """Repetitions have different random numbers, although their config has one seed."""
    for number in range(3):
        make(
            tmp_path / "reps" / f"repetition_{number:04d}",
            [1, 2] if number < 2 else [],
            repetitions=3,
        )
    result = _repetitions(tmp_path / "reps")
    assert [run.name for run in result] == ["repetition_0000", "repetition_0001"]
    assert legend(result)[-1] == "demo (2 seeds)"
    plot([tmp_path / "reps"], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 0


def legend(runs: list[Path]) -> list[str]:
    drawn = figure(grouped([load(run) for run in runs]), ("timesteps",), None)
    return [text.get_text() for legend in drawn.legends for text in legend.get_texts()]


def test_axes_have_labels_and_units(tmp_path: Path) -> None:
    run = make(
        tmp_path / "a", [1, 2], steps=2_000_000, task={"kind": "episodes", "env_id": "Ant-v5"}
    )
    drawn = figure(grouped([load(run)]), ("timesteps", "seconds"), None)
    assert [ax.get_xlabel() for ax in drawn.axes] == ["timesteps (million)", "wall time (seconds)"]
    assert drawn.axes[0].get_ylabel() == "return per episode"
    assert drawn.legends[0].get_title().get_text() == "Ant-v5"
    drawn.draw_without_rendering()
    ticks = [label.get_text() for label in drawn.axes[0].get_xticklabels()]
    assert {"0", "1", "2", "3", "4"} <= set(ticks)


@pytest.mark.parametrize("x", [None, "timesteps", "seconds"])
def test_png_is_1200_by_500(tmp_path: Path, x: Any) -> None:
    output = tmp_path / "new" / "curve.png"
    plot([make(tmp_path / "a", [1, 2, 3], evaluate_every=2)], output, x)
    head = output.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:]) == (1200, 500)
    assert [path.name for path in output.parent.iterdir()] == ["curve.png"]


@pytest.mark.parametrize(
    ("suffix", "magic"), [(".pdf", b"%PDF"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")]
)
def test_suffix_selects_the_format_and_files_are_reproducible(
    tmp_path: Path, suffix: str, magic: bytes
) -> None:
    # no formula, and not to be read as one
    run = make(tmp_path / "a", [1, 2], name=r"cost $\frac$")
    once, again = tmp_path / f"once{suffix}", tmp_path / f"again{suffix}"
    plot([run], once)
    plot([run], again)
    assert once.read_bytes().startswith(magic)
    assert once.read_bytes() == again.read_bytes()
    assert b"CreationDate" not in once.read_bytes()


def test_ticks_are_round_in_their_unit(tmp_path: Path) -> None:
    drawn = figure(grouped([load(make(tmp_path / "a", [1.0] * 300))]), ("seconds",), None)
    drawn.draw_without_rendering()
    assert drawn.axes[0].get_xlabel() == "wall time (minutes)"
    assert {"0", "1", "2", "3", "4", "5"} == {
        label.get_text() for label in drawn.axes[0].get_xticklabels()
    } - {
        "6",
        "-1",
    }


def test_single_row_is_plotted(tmp_path: Path) -> None:
    runs = [make(tmp_path / str(seed), [1], seed=seed, evaluate_every=1) for seed in (1, 2)]
    plot(runs[:1], tmp_path / "one.png")
    plot(runs, tmp_path / "two.png")
    assert (tmp_path / "two.png").stat().st_size > 0


def test_duplicate_runs_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path / "a", [1, 2])
    monkeypatch.chdir(tmp_path)
    plot([run, Path("a"), Path("a/../a")], tmp_path / "twice.svg")
    plot([run], tmp_path / "once.svg")
    assert (tmp_path / "twice.svg").read_bytes() == (tmp_path / "once.svg").read_bytes()


def test_invalid_plot_arguments_are_refused(tmp_path: Path) -> None:
    run = make(tmp_path / "run", [1])
    with pytest.raises(
        UserError, match=r"the suffix is '\.gif', expected one of \.png, \.pdf, \.svg"
    ):
        plot([run], tmp_path / "x.gif")
    with pytest.raises(UserError, match="give at least one"):
        plot([], tmp_path / "x.png")
    with pytest.raises(UserError, match=r"nothing is not a run directory: it has no config\.yaml"):
        plot([tmp_path / "nothing"], tmp_path / "x.png")
    with pytest.raises(UserError, match=r"new/metrics\.jsonl has no metrics yet"):
        plot([make(tmp_path / "new", [])], tmp_path / "x.png")
    said = r"failed/metrics\.jsonl has 2 rows, but no return per episode: no episode has ended yet, or all jobs have"
    with pytest.raises(UserError, match=said):
        plot([make(tmp_path / "failed", [None, None])], tmp_path / "x.png")
    (run / "config.yaml").write_text("a: [")
    with pytest.raises(UserError, match="cannot be read as YAML"):
        plot([run], tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


def test_failed_write_leaves_the_old_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "plots" / "curve.png"
    output.parent.mkdir()
    output.write_bytes(b"old")

    def full(self: object, path: Path, **_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(RunError, match=r"curve\.png: cannot be written: No space left"):
        plot([make(tmp_path / "a", [1])], output)
    assert output.read_bytes() == b"old"
    assert [path.name for path in output.parent.iterdir()] == ["curve.png"]


@pytest.mark.long
def test_plotting_uses_neither_pyplot_nor_a_display(tmp_path: Path) -> None:
    run = make(tmp_path / "a", [1, 2])
    program = (
        "import sys; from pathlib import Path; from hpc_es.report.plot import plot\n"
        f"plot([Path({str(run)!r})], Path({str(tmp_path / 'x.png')!r}))\n"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_matplotlib_settings_of_the_user_are_unchanged(tmp_path: Path) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 33.0}):
        plot([make(tmp_path / "a", [1, 2])], tmp_path / "x.png")
        assert mpl.rcParams["font.size"] == 33.0


ROWS, COLUMNS = 3000, 40


def test_loading_a_run_keeps_only_the_plotted_columns(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: demo\n")
    others = {f"column_{number}": number / 7 for number in range(COLUMNS)}
    steps = (
        {"timesteps_total": n, "seconds_total": n / 3, "return_mean": n / 9, **others}
        for n in range(ROWS)
    )
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    tracemalloc.start()
    run = load(tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert run.columns["return_mean"].tolist() == [n / 9 for n in range(ROWS)]
    assert most < 3 * len(DRAWN) * 8 * ROWS, "the rows themselves are some forty times the columns"


def test_long_curve_keeps_its_ends_its_lowest_and_its_highest_points() -> None:
    x = np.arange(100_001.0)
    mean = np.sin(x / 1000)
    mean[[5, 70_000]] = [9, -9]
    curve = Curve(x, mean, mean / 2, 2 * mean).thinned()
    assert 0.9 * MOST_POINTS < len(curve.x) <= MOST_POINTS
    assert {0.0, 5.0, 70_000.0, 100_000.0} <= set(curve.x.tolist())
    assert (np.diff(curve.x) > 0).all()
    assert (curve.y == mean[curve.x.astype(int)]).all()
    assert (curve.low == curve.y / 2).all() and (curve.high == 2 * curve.y).all()


def test_short_curve_keeps_all_points() -> None:
    curve = of_one_run(np.arange(2000.0), np.zeros(2000))
    assert curve.thinned() is curve


@pytest.mark.long
def test_repeated_plots_do_not_increase_memory(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        runs.here(runs.tiny(tmp_path), tmp_path / "run", ["report.plot_interval_seconds=0.0001"])
        # some are weak, and gone
        left = sum(issubclass(type(item), Figure) for item in gc.get_objects())
    finally:
        gc.enable()
    assert (tmp_path / "run" / "curve.png").exists()
    assert left == 0


def search(
    path: Path,
    rewards: Sequence[float],
    solved: bool = False,
    measured: Sequence[dict[str, float]] = (),
    **config: Any,
) -> Path:
    """A run of 50 programs, 1,000 characters and one second a generation."""
    path.mkdir(parents=True)
    task = {"kind": "programs", "name": "reverse", "cycle": None, **config.pop("task", {})}
    resolved = {
        "name": "demo",
        "seed": 0,
        "algorithm": {"kind": "ga", "stop_on_success": True},
        **config,
        "task": task,
    }
    (path / "config.yaml").write_text(yaml.safe_dump(resolved))
    log = MetricsLog(path)
    for number, reward in enumerate(rewards, 1):
        last = solved and number == len(rewards)
        totals = {
            "episodes_total": 50 * number,
            "timesteps_total": 1000 * number,
            "seconds_total": float(number),
        }
        more = measured[number - 1] if measured else {}
        row = {
            "generation": number - 1,
            "return_mean": None,
            "best_reward": reward,
            "solved": float(last),
        }
        log.write({**row, **totals, **more})
    log.close()
    return path


def test_program_search_is_plotted_as_best_reward_over_programs(tmp_path: Path) -> None:
    (group,) = grouped([load(search(tmp_path / "a", [0.25, 0.5, 0.5]))])
    curve = population(group, "programs")
    assert (curve.x.tolist(), curve.y.tolist()) == ([50, 100, 150], [0.25, 0.5, 0.5])
    assert not curve.has_interval
    drawn = figure([group], group.measure.panels, None)
    assert [ax.get_xlabel() for ax in drawn.axes] == ["programs executed", "wall time (seconds)"]
    assert drawn.axes[0].get_ylabel() == "best reward"
    texts = [text.get_text() for legend in drawn.legends for text in legend.get_texts()]
    assert texts == ["best so far", "demo"]
    assert drawn.legends[0].get_title().get_text() == "reverse"


def test_entropy_is_plotted_below_the_reward(tmp_path: Path) -> None:
    pg_topk = {"kind": "policy_gradient"}
    measured = [{"token_entropy": 2.0 / n, "distinct_programs": 64.0 / n} for n in (1, 2, 4)]
    (group,) = grouped(
        [load(search(tmp_path / "a", [0.25, 0.5, 0.5], measured=measured, algorithm=pg_topk))]
    )
    drawn = figure([group], ("programs",), None)
    (entropy,) = drawn.axes[1].get_lines()
    assert np.asarray(entropy.get_xydata()).tolist() == pytest.approx(
        np.array([[50, 2], [100, 1], [150, 0.5]])
    )
    assert drawn.axes[1].get_ylabel() == "entropy per token"
    chosen = figure([group], ("programs",), None, Style(panels=("distinct_programs",)))
    (distinct,) = chosen.axes[0].get_lines()
    assert np.asarray(distinct.get_ydata()).tolist() == pytest.approx([64, 32, 16])


def test_finished_searches_keep_their_best_reward_in_the_average(tmp_path: Path) -> None:
    """The first ends at 100 with 1, the second at 200: means of (0, 0), (1, 0), (1, 0.5),
    (1, 0.5).
    """
    runs = [
        search(tmp_path / "a", [0, 1], solved=True, seed=1),
        search(tmp_path / "b", [0, 0, 0.5, 0.5], seed=2),
    ]
    (group,) = grouped([load(run) for run in runs])
    curve = population(group, "programs")
    assert (curve.x.tolist(), curve.y.tolist(), curve.runs) == (
        [50, 100, 150, 200],
        [0, 0.5, 0.75, 0.75],
        2,
    )
    texts = [
        text.get_text()
        for legend in figure([group], ("programs",), None).legends
        for text in legend.get_texts()
    ]
    assert texts == ["best so far, mean over runs", "single runs", "demo (2 seeds)"]


def test_unfinished_search_is_not_extended(tmp_path: Path) -> None:
    on = {"algorithm": {"kind": "ga", "stop_on_success": False}}
    runs = [
        search(tmp_path / "a", [0, 1], solved=True, seed=1, **on),
        search(tmp_path / "b", [0, 0, 1], seed=2, **on),
    ]
    (group,) = grouped([load(run) for run in runs])
    assert population(group, "programs").x.tolist() == [50, 100]


def test_repetitions_with_a_cycle_are_one_curve_per_task(tmp_path: Path) -> None:
    cycle = {"name": None, "cycle": ["add", "echo"]}
    runs = [search(tmp_path / f"repetition_{number:04d}", [0.5], task=cycle) for number in range(3)]
    groups = grouped([load(run) for run in runs])
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("add", 2),
        ("echo", 1),
    ]


def test_incompatible_runs_are_refused_in_one_plot(tmp_path: Path) -> None:
    result, played = search(tmp_path / "a", [0.5]), make(tmp_path / "b", [1.0])
    with pytest.raises(
        UserError,
        match=r"a has a best reward, .*b has a return per episode, which one picture cannot",
    ):
        plot([result, played], tmp_path / "out.png")
    with pytest.raises(
        UserError,
        match="--x is timesteps: expected programs, seconds or generation for the best reward",
    ):
        cli.run(["plot", str(result), "-o", str(tmp_path / "out.png"), "--x", "timesteps"])
    assert cli.run(["plot", str(result), "-o", str(tmp_path / "out.png"), "--x", "programs"]) == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


# Copies and tasks.


def test_copies_of_a_run_count_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy may be shorter, as of a run that has not finished;
    another seed or other metrics are another run.
    """
    run = make(tmp_path / "run", [1, 2, 3], seed=1)
    copies = [make(tmp_path / "copy", [1, 2, 3], seed=1), make(tmp_path / "short", [1, 2], seed=1)]
    others = [
        make(tmp_path / "seed", [1, 2, 3], seed=2),
        make(tmp_path / "metrics", [1, 5, 3], seed=1),
    ]
    for order in ([run, *copies, *others], [*reversed(copies), *others, run]):
        (group,) = grouped([load(path) for path in order])
        assert len(group.runs) == 3 and len(group.copies) == 2
        assert [single.rows for single in group.copies] != [3, 3], "the longest run is kept"
    assert legend([run, *copies])[-1] == "demo (2 copies are left out)"
    assert legend([run, *copies, others[0]])[-1] == "demo (2 seeds, 2 copies are left out)"
    output = tmp_path / "curve.svg"
    assert cli.run(["plot", str(run), *map(str, copies), "-o", str(output)]) == 0
    assert f"left out: {copies[0]}, a copy of another run" in capsys.readouterr().err


def test_repetitions_of_equal_metrics_are_no_copies(tmp_path: Path) -> None:
    """As those of a problem that is solved at once."""
    paths = [
        make(tmp_path / f"repetition_{number:04d}", [1, 1], repetitions=2) for number in range(2)
    ]
    (group,) = grouped([load(path) for path in paths])
    assert len(group.runs) == 2 and not group.copies


def test_repetition_is_known_after_its_directory_was_renamed(tmp_path: Path) -> None:
    path = make(tmp_path / "repetition_0001", [1, 2])
    (path / "result.json").write_text('{"repetition": 1}')
    copy = Path(path.rename(tmp_path / "renamed"))
    assert load(copy).repetition == 1


def test_each_task_has_its_own_chart(tmp_path: Path) -> None:
    tasks: dict[str, Any] = {
        "cartpole": {"kind": "episodes", "env_id": "CartPole-v1"},
        "long": {"kind": "episodes", "env_id": "CartPole-v1", "max_episode_steps": 1000},
        "pendulum": {"kind": "episodes", "env_id": "Pendulum-v1"},
    }
    paths = [make(tmp_path / name, [1, 2], task=task, name=name) for name, task in tasks.items()]
    same = make(
        tmp_path / "again", [3, 4], task=tasks["cartpole"], name="again", algorithm={"kind": "ars"}
    )
    drawn = figure(grouped([load(path) for path in [*paths, same]]), ("timesteps",), None)
    drawn.draw_without_rendering()
    assert [len(ax.get_lines()) for ax in drawn.axes] == [2, 1, 1]
    titles = [chart.legends[0].get_title().get_text() for chart in drawn.subfigs]
    assert titles == ["CartPole-v1", 'CartPole-v1 {"max_episode_steps": 1000}', "Pendulum-v1"]
    plot([*paths, same], tmp_path / "curve.png")
    assert struct.unpack(">II", (tmp_path / "curve.png").read_bytes()[16:24]) == (1200, 1500)


def test_final_evaluation_is_the_last_point_of_the_curve(tmp_path: Path) -> None:
    run = make(tmp_path / "run", [1, 2, 3], evaluate_every=2)
    (run / "status.json").write_text(
        '{"status": "finished", "generation": 3, "final_return_mean": 7.0}'
    )
    curve = evaluation(grouped([load(run)])[0], "timesteps")
    assert curve is not None and (curve.x.tolist(), curve.y.tolist()) == ([20, 30], [4, 7])
    (run / "status.json").write_text(
        '{"status": "interrupted", "generation": 3, "final_return_mean": 7.0}'
    )
    curve = evaluation(grouped([load(run)])[0], "timesteps")
    assert curve is not None and curve.y.tolist() == [4]


# Statistics, panels, labels and sizes for a paper.


def strategies(folder: Path, **more: Any) -> list[Path]:
    """Three seeds of `es` and of `pgpe`, which have the same name."""
    return [
        make(
            folder / f"{kind}{seed}",
            [seed, 2 * seed + level, 10 * seed],
            seed=seed,
            evaluate_every=1,
            algorithm={"kind": kind, f"option_of_{kind}": 1},
            **more,
        )
        for level, kind in enumerate(("es", "pgpe"))
        for seed in (1, 2, 6)
    ]


def test_runs_of_one_name_are_labelled_by_their_strategy(tmp_path: Path) -> None:
    paths = strategies(tmp_path)
    assert labels(*paths) == ["es", "pgpe"]
    wide = make(tmp_path / "wide", [1], policy={"kind": "mlp"}, algorithm={"kind": "es"})
    deep = make(tmp_path / "deep", [1], policy={"kind": "lstm"}, algorithm={"kind": "es"})
    assert labels(wide, deep, paths[3]) == ["es, mlp", "es, lstm", "pgpe"]
    named = make(tmp_path / "named", [1], name="ours", algorithm={"kind": "es", "sigma": 3})
    assert labels(named, make(tmp_path / "other", [1], name="theirs")) == ["ours", "theirs"]


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        ({"repeats": {"at_least": 4}}, ["repeats.at_least 4", "repeats.at_least 1"]),
        ({"env_kwargs": {"g": 5}}, ["g 5", "g 1"]),
    ],
)
def test_options_that_say_nothing_alone_have_the_name_of_their_section(
    task: dict[str, dict[str, int]], labels: list[str], tmp_path: Path
) -> None:
    other = {name: dict.fromkeys(values, 1) for name, values in task.items()}
    paths = [make(tmp_path / name, [1], task=own) for name, own in (("a", task), ("b", other))]
    assert [group.label for group in grouped([load(path) for path in paths])] == labels


def test_runs_that_no_option_tells_apart_are_labelled_by_their_directories(tmp_path: Path) -> None:
    one = make(tmp_path / "one", [1], only_of_one=1)
    two = make(tmp_path / "two", [1], only_of_two=1)
    assert labels(one, two) == ["one", "two"]


def test_centre_and_interval_are_drawn_and_written_as_csv(tmp_path: Path) -> None:
    """Evaluations of three seeds: 2, 4, 12 after 10 timesteps, 20, 40, 120 after 30."""
    paths = strategies(tmp_path / "runs")
    output = [tmp_path / "picture.pdf", tmp_path / "numbers.csv"]
    command = ["plot", *map(str, paths), *(f"-o={file}" for file in output)]
    command += ["--panels=return", "--x=timesteps", "--centre=median", "--interval=range"]
    assert cli.run(command) == 0
    assert output[0].read_bytes().startswith(b"%PDF")
    rows = list(csv.DictReader(output[1].read_text().splitlines()))
    centre = [row for row in rows if (row["label"], row["line"]) == ("es", "centre")]
    numbers = [tuple(float(row[key]) for key in ("x", "y", "low", "high")) for row in centre]
    assert numbers == [(10, 4, 2, 12), (20, 8, 4, 24), (30, 40, 20, 120)]
    seeds = [row["run"] for row in rows if (row["label"], row["line"]) == ("pgpe", "seed")]
    assert list(dict.fromkeys(seeds)) == [str(path) for path in paths[3:]]
    assert cli.run([*command, "--no-seeds"]) == 0
    assert "seed" not in {row["line"] for row in csv.DictReader(output[1].open())}


def test_final_evaluation_is_a_point_of_all_seeds(tmp_path: Path) -> None:
    """Also of those that go on longer than others, where the curve has ended."""
    runs = [make(tmp_path / str(seed), [1] * seed, seed=seed) for seed in (1, 2, 3)]
    for seed, run in enumerate(runs, 1):
        final = {"status": "finished", "generation": seed, "final_return_mean": 6.0 * seed}
        (run / "status.json").write_text(json.dumps(final))
    groups = grouped([load(run) for run in runs])
    (point,) = [
        line.curve
        for line in lines_of("main", groups, "timesteps", Style(Summary("mean", "range")))
        if line.role == "final"
    ]
    assert (point.x, point.y, point.low, point.high) == (20, 12, 6, 18)
    assert "final evaluation" in legend(runs)


@pytest.mark.parametrize("width", [2.5, 3.25, 7.0])
def test_legends_are_inside_the_picture_at_any_width(tmp_path: Path, width: float) -> None:
    long = "a name that is longer than the column of a journal is wide, as names of runs may be"
    paths = strategies(tmp_path, task={"kind": "episodes", "env_id": "A" * 60})
    paths.append(make(tmp_path / "long", [1, 2], name=long))
    drawn = figure(
        grouped([load(path) for path in paths]), ("timesteps",), "T" * 80, Style(width=width)
    )
    drawn.draw_without_rendering()
    assert drawn.get_size_inches()[0] == width
    for chart in drawn.subfigs or [drawn]:
        for box in [one.get_window_extent() for one in chart.legends]:
            assert 0 <= box.x0 < box.x1 <= drawn.bbox.x1 and 0 <= box.y0 < box.y1 <= drawn.bbox.y1


def test_panels_are_chosen_by_name(tmp_path: Path) -> None:
    paths = strategies(tmp_path)
    groups = grouped([load(path) for path in paths])
    drawn = figure(groups, ("timesteps",), None, Style(panels=("population", "return")))
    assert len(drawn.axes) == 2
    measured = [{"token_entropy": 2.0 / n} for n in (1, 2, 4)]
    own = {"kind": "policy_gradient"}
    searches = [
        search(tmp_path / "a", [0.2, 0.5, 0.5], measured=measured, algorithm=own),
        search(tmp_path / "b", [0.2, 0.5, 0.5]),
    ]
    mixed = grouped([load(path) for path in searches])
    lines = list(lines_of("token_entropy", mixed, "programs", Style()))
    assert [(line.group, line.curve.y.tolist()) for line in lines] == [(0, [2, 1, 0.5])]
    with pytest.raises(UserError, match=r"--panels retrun: expected return, population; did you"):
        figure(groups, ("timesteps",), None, Style(panels=("retrun",)))


@pytest.mark.parametrize("info", [["docked"], {"docked": "mean"}])
def test_infos_are_panels_and_charts(info: object, tmp_path: Path) -> None:
    run = make(tmp_path / "run", [1, 2, 4], report={"info": info})
    file = run / "metrics.jsonl"
    rows = [json.loads(row) for row in file.read_text().splitlines()]
    for row in rows:
        row |= {"info_docked": row["return_mean"] / 4, "evaluation_info_docked": None}
    rows[-1]["evaluation_info_docked"] = 1.0
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    groups = grouped([load(run)])
    style = Style(panels=("info_docked", "evaluation_info_docked"))
    shares, last = (list(lines_of(name, groups, "timesteps", style)) for name in style.panels)
    assert shares[0].curve.y.tolist() == [0.25, 0.5, 1] and last[0].curve.y.tolist() == [1]
    constant = "".join(json.dumps({**row, "info_docked": 0}) + "\n" for row in rows)
    never = make(tmp_path / "never", [1, 2, 4], report={"info": info}, algorithm={"kind": "snes"})
    (never / "metrics.jsonl").write_text(constant)
    both = grouped([load(run), load(never)])
    assert [line.group for line in lines_of("info_docked", both, "timesteps", Style())] == [0, 1]
    text = "docked" if isinstance(info, list) else "docked (mean)"
    labels = [axes.get_ylabel() for axes in figure(groups, ("timesteps",), None, style).axes]
    assert labels == [f"{text}, population", f"{text}, unperturbed parameters"]
    page = report_page([run])
    assert "Metrics from infos" in page and all(label.capitalize() in page for label in labels)
    assert "Diagnostics of the search" not in page


def test_numbers_have_paths_below_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are handed on with the figure."""
    monkeypatch.chdir(tmp_path)
    paths = [
        make(tmp_path / "runs" / f"repetition_000{seed}", [1, 2], seed=seed) for seed in (0, 1)
    ]
    assert cli.run(["plot", *map(str, paths), "-o=numbers.csv"]) == 0
    runs_of = {row["run"] for row in csv.DictReader((tmp_path / "numbers.csv").open())}
    assert runs_of == {"", "runs/repetition_0000", "runs/repetition_0001"}


def test_axes_of_generations_and_of_episodes(tmp_path: Path) -> None:
    run = make(tmp_path / "run", [1, 2, 4])
    numbers = tmp_path / "numbers.csv"
    assert cli.run(["plot", str(run), "-o", str(numbers), "--x", "generation"]) == 0
    rows = list(csv.DictReader(numbers.read_text().splitlines()))
    assert [float(row["x"]) for row in rows] == [1, 2, 3], "as in progress lines"
    assert {row["x_axis"] for row in rows} == {"generation"}


def test_ticks_have_four_digits_or_as_many_as_tell_them_apart() -> None:
    ticks = ShortNumbers()
    assert ticks.format_ticks([-34, -28.5, 0]) == ["\N{MINUS SIGN}34", "\N{MINUS SIGN}28.5", "0"]
    assert ticks.format_ticks([0.30000000000000004, 12345.0]) == ["0.3", "12,345"]
    assert ticks.format_ticks([1.00001, 1.00002]) == ["1.00001", "1.00002"]
    assert ticks.format_ticks([1e-7, 2.5e9]) == ["1e\N{MINUS SIGN}07", "2.5e+09"]


def test_private_run_is_not_drawn_through_a_link_of_a_stranger(tmp_path: Path) -> None:
    """In a directory of a group, which can read the picture."""
    if os.geteuid() != 0:
        pytest.skip("only root can give links away")
    mine, shared = tmp_path / "mine", tmp_path / "shared"
    for run in (mine, shared / "repetition_0000"):
        runs.here(runs.tiny(tmp_path), run, ["stop.generations=2"])
    (shared / "repetition_0001").symlink_to(mine)
    plot([shared], shared / "curve.png")  # of the user's own link
    os.lchown(shared / "repetition_0001", 12001, 12001)
    os.chown(mine, 12002, 12002)
    with pytest.raises(UserError, match="link of user 12001"):
        plot([shared], shared / "curve.png")


def test_many_runs_of_one_seed_are_compared_in_seconds(tmp_path: Path) -> None:
    """Each was compared with each: 1,500 small runs took two minutes."""
    one = load(make(tmp_path / "run", [1, 2], seed=1))
    many = []
    for number in range(3000):
        columns = {**one.columns, "return_mean": one.columns["return_mean"] + number}
        many.append(replace(one, path=tmp_path / str(number), columns=columns))
    with time_limit(60):
        (group,) = grouped([*many, one])
    assert len(group.runs) == 3000 and [run.path for run in group.copies] == [one.path]


def test_run_of_the_same_config_with_another_measure_is_another_group(tmp_path: Path) -> None:
    """Such as one that has found nothing feasible yet; an average over none was an IndexError."""
    runs = [load(make(tmp_path / str(seed), [1, 2], seed=seed)) for seed in (1, 2)]
    columns = {**runs[1].columns, "best_value": np.array([1.0, 2.0])}
    groups = grouped([runs[0], replace(runs[1], columns=columns)])
    assert [len(group.runs) for group in groups] == [1, 1]
    assert groups[0].measure is not groups[1].measure


@pytest.mark.parametrize("large", [1.7e308, -1.7e308])
def test_answer_that_no_picture_can_show_is_none(large: float, tmp_path: Path) -> None:
    """The difference of two such numbers is infinite."""
    paths = [make(tmp_path / str(seed), [1, 2], seed=seed) for seed in (1, 2, 3)]
    for path, value in zip(paths, (large, 1.0, 2.0), strict=True):
        (path / "status.json").write_text('{"status": "finished"}')
        answer = {"value": value, "kind": "centre"}
        (path / "result.json").write_text(json.dumps({"answer": answer, "best_evaluation": answer}))
    output = tmp_path / "out.html"
    assert cli.run(["report", *map(str, paths), "-o", str(output)]) == 0
    assert "unreadable" not in output.read_text()
    assert cli.run(["plot", *map(str, paths), "--methods", "-o", str(tmp_path / "out.png")]) == 0
