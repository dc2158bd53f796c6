"""The benchmark on noisy functions: budgets, noise-free values, ranks and resuming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.functions import noisy
from benchmarks.functions.noisy import (
    Budget,
    Trial,
    by_instance,
    cauchy_member,
    interval,
    mean_ranks,
    noise_free,
)

cocoex = pytest.importorskip("cocoex")  # with hpc_es[oracles]


def test_mean_is_recorded_when_a_budget_is_used_up() -> None:
    f = Budget(lambda x: 0.0, 2, (2, 3))
    with pytest.raises(StopIteration):
        for number in range(20):
            f.mean = np.full(2, float(number))
            f(f.mean)
    assert f.evaluations == 6 and [mean[0] for mean in f.means] == [4, 6]


def test_search_that_ends_early_has_its_last_mean_at_all_budgets() -> None:
    f = Budget(lambda x: 0.0, 2, (2, 3))
    f.mean = np.ones(2)
    f.end()
    assert [mean.tolist() for mean in f.means] == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("function", "plain"), [(101, 1), (105, 8), (108, 1), (123, 17), (130, 21)]
)
def test_noise_free_value_is_that_of_the_function_of_bbob(function: int, plain: int) -> None:
    def problem(suite: str, number: int) -> noisy.Function:
        which = f"dimensions:5 function_indices:{number}"
        found: noisy.Function = cocoex.Suite(suite, "instances:3", which).next_problem()
        return found

    x, member = np.linspace(-2, 2, 5), cauchy_member(function)
    value = noise_free(problem("bbob-noisy", member - 100), function)(x)
    assert value == pytest.approx(problem("bbob", plain)(x), rel=1e-6)


def test_cauchy_members_are_every_third_function() -> None:
    assert [cauchy_member(f) for f in (101, 102, 103, 104, 130)] == [103, 103, 103, 106, 130]


def test_equal_values_share_their_mean_rank() -> None:
    cells = [(101, 1), (101, 2)]
    values = {
        "a": dict(zip(cells, (1.0, 5.0), strict=True)),
        "b": dict(zip(cells, (2.0, 5.0), strict=True)),
        "c": dict(zip(cells, (3.0, 4.0), strict=True)),
    }
    assert mean_ranks(values, ("a", "b", "c")).tolist() == [[1, 2, 3], [2.5, 2.5, 1]]


def test_searches_at_the_optimum_share_their_mean_rank() -> None:
    values = {"a": {(101, 1): 79.48000001}, "b": {(101, 1): 79.4800000101}, "c": {(101, 1): 79.49}}
    assert mean_ranks(values, ("a", "b", "c")).tolist() == [[1.5, 1.5, 3]]


def test_interval_of_equal_differences_is_a_point() -> None:
    assert interval(np.full((30, 2), -0.5)) == (-0.5, -0.5)


def test_interval_is_wider_if_instances_differ_than_if_problems_do() -> None:
    """Of two instances with -1 and 1 a quarter of the samples has the same one twice."""
    cells = [(function, instance) for function in range(101, 121) for instance in (1, 2)]
    signs = np.array([-1.0, 1.0] * 20)
    assert interval(by_instance(cells, signs)) == (-1, 1)
    low, high = interval(signs[:, np.newaxis])
    assert -0.5 < low < 0 < high < 0.5


def test_missing_problems_do_not_count() -> None:
    table = by_instance([(101, 1), (101, 2), (102, 1)], np.array([0.5, 1.0, 1.5]))
    assert np.array_equal(table, [[0.5, 1.0], [1.5, np.nan]], equal_nan=True)


def test_known_trials_are_not_run_again(tmp_path: Path) -> None:
    path, trial = tmp_path / "trials.jsonl", Trial("RB-PEM", 101, 10, 16)
    path.write_text("".join(noisy.json.dumps(row) + "\n" for row in trial.rows()) + '{"cut')
    assert noisy.run([trial], path, 1) == 0
    assert [row["budget"] for row in noisy.read(path)] == [200, 500]
    (tmp_path / "trials.csv").write_text(noisy.csv_text(noisy.read(path)))
    assert noisy.read(tmp_path / "trials.csv") == noisy.read(path)


def test_every_trial_has_a_seed_of_its_own() -> None:
    trials = noisy.plan(tuple(noisy.CONTENDERS), noisy.FUNCTIONS, (10, 40), (1, 2))
    assert len({trial.seed for trial in trials}) == len(trials)
    assert all(0 <= trial.seed < 2**31 for trial in trials)


def test_rows_with_another_seed_do_not_count(tmp_path: Path) -> None:
    path, trial = tmp_path / "trials.jsonl", Trial("RB-PEM", 101, 10, 16)
    rows = trial.rows()
    assert all(noisy.has_own_seed(row) for row in rows)
    old = [{**row, "seed": 16} for row in rows]
    assert not any(noisy.has_own_seed(row) for row in old)
    path.write_text("".join(noisy.json.dumps(row) + "\n" for row in old))
    assert noisy.run([trial], path, 1) == 0
    assert [row["seed"] for row in noisy.read(path)] == [16, 16, trial.seed, trial.seed]
