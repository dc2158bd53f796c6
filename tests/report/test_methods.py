"""Comparison of methods; expected numbers by hand."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from hpc_es.core.errors import UserError
from hpc_es.report.curves import RunCurves, RunGroup
from hpc_es.report.methods import (
    Method,
    expected_running_time,
    methods_of,
    methods_text,
    performance_profile,
    reached_by,
)
from hpc_es.report.methods_plot import _picture, plot_methods
from hpc_es.storage.answers import Answer, Found

INF = math.inf
FOUR = np.array([4.0, 2.0, 2.0, -INF])  # one run without a usable answer


def test_profile_is_the_share_of_runs_beyond_each_score() -> None:
    step = performance_profile(FOUR)
    assert step.x.tolist() == [2.0, 4.0]
    assert step.shares.tolist() == [0.25, 0.0]
    # minimised: one of 1, 3, 3 and a failed run is at most 1, three are at most 3
    step = performance_profile(np.array([3.0, 1.0, 3.0, INF]), -1.0)
    assert step.shares.tolist() == [0.25, 0.75]


def test_share_that_reached_a_target_takes_censored_runs_into_account() -> None:
    """Five runs: reached at 2, 4 and 4; ended without it at 3 and 5.

    At 2, one of five at risk: 1 - 4/5. At 4, two of the three left: 1 - 4/5 * 1/3.
    """
    times = np.array([2.0, 3.0, 4.0, 4.0, 5.0])
    reached = np.array([True, False, True, True, False])
    step = reached_by(times, reached)
    assert step.x.tolist() == [2.0, 4.0]
    np.testing.assert_allclose(step.shares, [0.2, 1 - 4 / 15])
    # a run that ends at the time of an event was at risk
    tied = reached_by(np.array([2.0, 2.0]), np.array([True, False]))
    assert tied.shares.tolist() == [0.5]
    assert expected_running_time(times, reached) == 18 / 3
    assert expected_running_time(times, np.zeros(5, np.bool_)) == INF


def test_probability_of_improvement_has_the_direction_of_the_goal() -> None:
    # of the four pairs, 1 < 2, 1 < 4 and 3 < 4 are better, 3 < 2 is not
    low, high = np.array([1.0, 3.0]), np.array([2.0, 4.0])
    assert Method("b", low, -1.0).better_than(Method("a", high, -1.0)) == (0.75, None)
    assert Method("b", low, 1.0).better_than(Method("a", high, 1.0)) == (0.25, None)


def curves(values: list[float], answer: float | None, kind: str, name: str = "here:f") -> RunCurves:
    """A run that minimises a function, with a best value after each ten evaluations."""
    columns = {
        "best_value": np.array(values),
        "evaluations_total": 10.0 * np.arange(1, len(values) + 1),
        "generation": np.arange(1.0, len(values) + 1),
    }
    for missing in ("best_reward", "hypervolume", "front_size", "value_mean"):
        columns[missing] = np.full(len(values), np.nan)
    columns["timesteps_total"] = columns["episodes_total"] = columns["evaluations_total"]
    config = {"task": {"kind": "function", "function": name}, "algorithm": {"kind": kind}}
    return RunCurves(Path(kind), config, columns, Found("minimise", Answer("evaluation", answer)))


def test_methods_of_runs(tmp_path: Path) -> None:
    first = RunGroup("a", [curves([5, 3, 1], 1.0, "a"), curves([6, 5, 4], 4.0, "a")])
    second = RunGroup("b", [curves([2, 2], 2.0, "b"), curves([9, 9], None, "b")])
    methods = methods_of([first, second], "evaluations", 3.0)
    assert [method.scores.tolist() for method in methods] == [[1.0, 4.0], [2.0, INF]]
    times, reached = methods[0].times, methods[0].reached
    assert times is not None and reached is not None
    assert (times.tolist(), reached.tolist()) == ([20.0, 30.0], [True, False])
    assert [line.split() for line in methods_text(methods, "evaluations", 3.0).splitlines()][
        1:
    ] == [
        ["a", "2", "-", "1", "of", "2", "50"],
        ["b", "2", "0.25", "1", "of", "2", "30"],
    ]
    files = [tmp_path / "m.csv", tmp_path / "m.png"]
    plot_methods(methods, files, x="evaluations", target=3.0)
    rows = list(csv.reader(files[0].read_text().splitlines()))
    assert ["better", "b", "a", "0.25", "", ""] in rows
    assert ["target", "a", "20.0", "0.5", "", ""] in rows
    assert files[1].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("target", [3.0, None])
def test_axes_of_methods_name_what_is_measured_and_have_round_numbers(target: float | None) -> None:
    groups = [RunGroup(name, [curves([5, 3, 1] * 1000, 1.0, name)]) for name in ("a", "b")]
    methods = methods_of(groups, "evaluations", target)
    axes = _picture(methods, "evaluations", target, width=3.25, title=None).axes
    assert axes[0].get_xlabel() == "threshold: best value"
    if target is not None:
        assert axes[-1].get_xlabel() == "evaluations"
        axes[-1].set_xlim(0, 30_000)
        axes[-1].figure.draw_without_rendering()
        assert "30,000" in [tick.get_text() for tick in axes[-1].get_xticklabels()]


def test_names_of_methods_are_no_formulas_in_the_csv(tmp_path: Path) -> None:
    groups = [RunGroup(name, [curves([1.0], 1.0, "a")]) for name in ("=a", "b")]
    plot_methods(
        methods_of(groups, "evaluations", None), [tmp_path / "m.csv"], x="evaluations", target=None
    )
    names = {row["method"] for row in csv.DictReader((tmp_path / "m.csv").read_text().splitlines())}
    assert names == {"'=a", "b"}


def test_methods_on_several_tasks_are_refused() -> None:
    groups = [RunGroup(n, [curves([1.0], 1.0, n, f"here:{n}")]) for n in "ab"]
    with pytest.raises(UserError, match="expected methods on one task"):
        methods_of(groups, "evaluations", None)
