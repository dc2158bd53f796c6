"""Search spaces, and the trials of grid and random searches."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hpc_es.storage.results import Shard
from hpc_es.tuning.space import (
    all_trials,
    grid_size,
    grid_trial,
    mixed_base_digits,
    parse_space,
    random_trial,
    require_in_space,
)

PG = {"lr": [1e-5, 1e-4, 1e-3], "entropy_beta": [0.005, 0.01, 0.05, 0.10]}
GA = {
    "population_size": [10, 25, 50, 100, 500],
    "crossover_rate": [0.2, 0.5, 0.7, 0.9, 0.95],
    "mutation_rate": [0.01, 0.03, 0.05, 0.1, 0.15],
}


def space(data: dict[str, Any], search: str = "grid") -> Any:
    result, problems = parse_space(data, search)
    assert problems == []
    return result


def test_mixed_radix_digits_start_with_the_least_significant() -> None:
    assert mixed_base_digits(11, [4, 3]) == [3, 2]
    assert mixed_base_digits(25, [5, 5, 5]) == [0, 0, 1]
    assert mixed_base_digits(0, []) == []


@pytest.mark.parametrize(
    ("number", "entropy_beta", "lr"),
    [(0, 0.005, 1e-5), (1, 0.01, 1e-5), (4, 0.005, 1e-4), (11, 0.10, 1e-3)],
)
def test_first_key_of_a_grid_in_alphabetical_order_varies_fastest(
    number: int, entropy_beta: float, lr: float
) -> None:
    assert grid_size(space(PG)) == 12
    assert grid_trial(space(PG), number) == {"entropy_beta": entropy_beta, "lr": lr}


def test_keys_of_a_grid_are_sorted() -> None:
    assert grid_size(space(GA)) == 125
    assert grid_trial(space(GA), 25) == {
        "crossover_rate": 0.2,
        "mutation_rate": 0.01,
        "population_size": 25,
    }


def test_grid_has_every_combination_once() -> None:
    trials = all_trials("grid", space(PG), 12, 0)
    assert len({tuple(sorted(trial.items())) for trial in trials}) == 12


@pytest.mark.parametrize(("size", "tasks"), [(12, 5), (60, 7), (3, 8), (48, 1)])
def test_every_trial_belongs_to_one_shard(size: int, tasks: int) -> None:
    shares = [Shard(task, tasks).share(size) for task in range(tasks)]
    assert [number for share in shares for number in share] == list(range(size))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


RANGES = {
    "a": {"log_uniform": [1e-4, 1e-1]},
    "b": {"uniform": [-2, 3]},
    "c": {"integer": [1, 3]},
    "d": {"choice": ["x", [1, 2], None]},
    "e": [True, 1],
}


def test_random_trials_are_a_function_of_seed_and_number() -> None:
    result = space(RANGES, "random")
    few, many = all_trials("random", result, 3, seed=7), all_trials("random", result, 40, seed=7)
    assert few == many[:3]
    assert random_trial(result, 2, seed=7) == few[2]
    assert all_trials("random", result, 40, seed=8) != many


def test_random_values_are_in_their_ranges() -> None:
    trials = all_trials("random", space(RANGES, "random"), 4000, seed=1)
    logs = [math.log10(trial["a"]) for trial in trials]
    assert all(-4 <= log <= -1 for log in logs)
    # 5 standard errors
    assert sum(logs) / 4000 == pytest.approx(-2.5, abs=5 * 3 / math.sqrt(12 * 4000))
    assert sum(trial["b"] for trial in trials) / 4000 == pytest.approx(
        0.5, abs=5 * 5 / math.sqrt(12 * 4000)
    )
    assert {trial["c"] for trial in trials} == {1, 2, 3}
    for key, values in (("c", [1, 2, 3]), ("d", ["x", [1, 2], None]), ("e", [True, 1])):
        counts = [sum(repr(trial[key]) == repr(value) for trial in trials) for value in values]
        share = 1 / len(values)
        assert sum(counts) == 4000
        assert all(
            abs(n - 4000 * share) < 5 * math.sqrt(4000 * share * (1 - share)) for n in counts
        )


MISTAKES: list[tuple[str, Any, str]] = [
    ("grid", [], "found []"),
    ("grid", 0.1, "expected a list of values, such as [0.1, 0.2], found 0.1"),
    ("grid", {"uniform": [0, 1]}, "for ranges take search: random or optuna"),
    ("grid", [1, 2, 1], "the value 1 occurs twice"),
    ("random", {"choice": []}, "found []"),
    ("random", {"lin": [0, 1]}, "expected one of uniform, log_uniform, integer, choice"),
    ("random", {"log_unifrom": [0.1, 1]}, "did you mean 'log_uniform'?"),
    ("random", {"uniform": [0, 1], "choice": [1]}, "found a mapping"),
    ("random", {"uniform": [1]}, "with two numbers, found [1]"),
    ("random", {"uniform": [True, 3]}, "with two numbers"),
    ("random", {"uniform": [1, 1]}, "with low < high, found [1, 1]"),
    ("random", {"uniform": [0, math.inf]}, "with low < high"),
    ("random", {"log_uniform": [0, 1]}, "with low > 0, found [0, 1]"),
    ("optuna", {"integer": [1, 2.5]}, "with two whole numbers, found [1, 2.5]"),
    ("optuna", None, "found null"),
]


@pytest.mark.parametrize(("search", "entry", "text"), MISTAKES)
def test_invalid_entries_of_a_space_are_refused(search: str, entry: Any, text: str) -> None:
    result, problems = parse_space({"good": [1], "bad": entry}, search)
    assert list(result) == ["good"]
    assert [key for key, _ in problems] == ["space.bad"]
    assert text in problems[0][1]


def test_keys_that_a_tuning_cannot_vary_are_refused() -> None:
    result, problems = parse_space(
        {"a.b": [1], "a": [1], "x..y": [1], "repetitions": [1], "name": ["n"]}, "grid"
    )
    assert list(result) == ["a"]
    assert [key for key, _ in problems] == [
        "space.a.b",
        "space.name",
        "space.repetitions",
        "space.x..y",
    ]
    assert "a part of 'a'" in problems[0][1]


def test_values_of_a_space() -> None:
    lists = space({"a": [1, True, None, [8], "x"]})["a"]
    assert all(map(lists.has, [1, True, None, [8], "x"]))
    assert not any(map(lists.has, [1.0, False, 2, [8, 8], "X", {}]))
    ranges = space({"a": {"uniform": [0, 2]}, "b": {"integer": [0, 2]}}, "random")
    assert all(map(ranges["a"].has, [0, 2, 1.5])) and all(map(ranges["b"].has, [0, 1, 2]))
    assert not any(map(ranges["a"].has, [-1, 2.1, math.nan, True, "1", None]))
    assert not any(map(ranges["b"].has, [3, 1.0, 1.5, True]))
    # exp(log(low)) may be the next number below low, as samplers compute it
    logs = space({"a": {"log_uniform": [1e-5, 0.003]}}, "random")["a"]
    assert all(map(logs.has, [math.exp(math.log(1e-5)), 0.003])) and not logs.has(0.99e-5)


@pytest.mark.parametrize("wrong", [{}, {"a": 1, "b": 2}, {"a": 3}, {"task": {"kind": "x"}}])
def test_trials_outside_of_a_space(wrong: dict[str, Any]) -> None:
    require_in_space(space({"a": [1, 2]}), {"a": 1})
    with pytest.raises(ValueError, match="expected"):
        require_in_space(space({"a": [1, 2]}), wrong)


def test_space_that_could_not_be_read_again_is_refused_before_a_tuning_begins() -> None:
    _, problems = parse_space({"algorithm.sigma": list(range(100_000))}, "grid")
    assert any("characters of 'algorithm.sigma'" in text for _, text in problems)
