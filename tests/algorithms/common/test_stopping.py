"""Criteria that end a search, met and just not met, and the history stored between generations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms.common.stopping import (
    NAMES,
    Options,
    View,
    bit,
    criteria,
    initial_history,
    names,
    update_history,
)

ONES, EYE = np.ones(2), np.eye(2)
VIEW = View(
    theta=np.array([1.0, 2]),
    first_sigma=1.0,
    sigma=1.0,
    deviations=ONES,
    path=0 * ONES,
    population=6,
    age=1,
)
COSTS = np.arange(6.0)
FALLING = np.arange(101.0)[::-1]


def met(
    costs: Any = COSTS,
    observed: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    **view: Any,
) -> set[str]:
    """The criteria that are met in a state that otherwise
    equals that after the first generation.
    """
    arguments = {name: np.array(value) for name, value in (observed or {}).items()}
    result = criteria(
        Options(**(options or {})),
        replace(VIEW, **view),
        np.array(costs),
        {**initial_history(2), "history": FALLING, **arguments},
    )
    return {name for name, is_met in result.items() if is_met}


def axes(short: float, long: float) -> Any:
    return np.array([short, long]), EYE


FLAT = np.zeros(10)
LONG = {"history_best": np.ones(101), "history_median": np.ones(101)}  # one in five generations
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [  # criterion, met, just not met
    (
        "tolfun",
        {"costs": COSTS * 1e-12, "observed": {"history": FLAT + np.arange(10) * 1e-12}},
        {"costs": COSTS * 1e-12, "observed": {"history": FLAT + np.arange(10) * 2e-12}},
    ),
    (
        "tolfun",
        {"costs": COSTS * 1e-12, "observed": {"history": FLAT + np.arange(10) * 1e-12}},
        {"costs": COSTS * 3e-12, "observed": {"history": FLAT + np.arange(10) * 1e-12}},
    ),
    ("tolfunhist", {"observed": {"history": FLAT}}, {"observed": {"history": FLAT[:9]}}),
    (
        "tolfunhist",
        {"observed": {"history": [0.0] * 9 + [9e-13]}},
        {"observed": {"history": [0.0] * 9 + [1.1e-12]}},
    ),
    (  # a tenth of the 60 that the median has come is 6
        "tolfunrel",
        {
            "costs": COSTS * 1.19,
            "observed": {"median_first": 70.0, "median_least": 10.0},
            "options": {"tolfunrel": 0.1},
        },
        {
            "costs": COSTS * 1.21,
            "observed": {"median_first": 70.0, "median_least": 10.0},
            "options": {"tolfunrel": 0.1},
        },
    ),
    ("tolx", {"deviations": ONES * 9e-12}, {"deviations": np.array([9e-12, 1.1e-11])}),
    (
        "tolx",
        {"deviations": ONES * 9e-12},
        {"deviations": ONES * 9e-12, "path": np.array([0, -1.1e-11])},
    ),
    (  # more than 20 and a tenth of 5
        "tolxstagnation",
        {"observed": {"still_generations": 21}, "age": 5},
        {"observed": {"still_generations": 20}, "age": 5},
    ),
    ("tolfacupx", {"deviations": np.array([1, 1001])}, {"deviations": np.array([1, 999])}),
    (
        "tolfacupx",
        {"deviations": np.array([1, 2e9])},
        {"deviations": np.array([1, 2e9]), "ratios": np.array([1, 1e8])},
    ),
    ("tolupsigma", {"sigma": 3e20, "axes": axes(1, 2)}, {"sigma": 1.9e20, "axes": axes(1, 2)}),
    ("tolconditioncov", {"axes": axes(1, 1.1e7)}, {"axes": axes(1, 0.9e7)}),
    (
        "tolflatfitness",
        {"observed": {"flat_generations": 2}},
        {"observed": {"flat_generations": 1}},
    ),
    (
        "tolflatfitness",
        {"observed": {"flat_generations": 9}, "options": {"tolflatfitness": 8}},
        {"observed": {"flat_generations": 8}, "options": {"tolflatfitness": 8}},
    ),
    # a policy's returns may be equal for long
    (
        "tolflatfitness",
        {"observed": {"flat_generations": 9}},
        {"observed": {"flat_generations": 9}, "is_objective": False},
    ),
    (
        "tolfunhist",
        {"observed": {"history": FLAT}},
        {"observed": {"history": FLAT}, "is_objective": False},
    ),
    (
        "tolfun",
        {
            "costs": FLAT,
            "observed": {"history": FLAT},
            "is_objective": False,
            "options": {"tolfun": 0.1},
        },
        {"costs": FLAT, "observed": {"history": FLAT}, "is_objective": False},
    ),
    # 100 + 100 * 2^1.5 / 6 = 147 generations; 101 entries are enough; the last 14 are compared with
    # the 14 before
    (
        "tolstagnation",
        {"observed": LONG, "age": 505},
        {"observed": {**LONG, "history_median": FALLING}, "age": 505},
    ),
    (
        "tolstagnation",
        {"observed": LONG, "age": 505},
        {"observed": {**LONG, "history_best": FALLING}, "age": 505},
    ),
    (
        "tolstagnation",
        {"observed": LONG, "age": 505},
        {"observed": {**LONG, "history_best": np.ones(100)}, "age": 505},
    ),
    (
        "tolstagnation",
        {"observed": LONG, "age": 505},
        {"observed": {**LONG, "least_age": 432}, "age": 505},
    ),
    (
        "tolstagnation",
        {"observed": LONG, "age": 505},
        {"observed": LONG, "age": 505, "options": {"tolstagnation": 0}},
    ),
    (  # 2 (5 + 100 / 6) = 43.3
        "tolstagnation",
        {"observed": {**LONG, "least_age": -100}, "age": 44},
        {"observed": {**LONG, "least_age": -100}, "age": 43},
    ),
    # 100 + 150 * 25 / sqrt 6 = 100 + 1530.9
    ("max_generations", {"age": 1630}, {"age": 1629}),
    (
        "max_generations",
        {"age": 7, "options": {"max_generations": 7}},
        {"age": 6, "options": {"max_generations": 7}},
    ),
    ("max_generations", {"age": 9999}, {"age": 9999, "options": {"max_generations": 0}}),
    # the next numbers above 1e17 and 1e15 are 16 and 0.125 away
    ("noeffectcoord", {"theta": np.array([1, 1e17])}, {"theta": np.array([1, 1e15])}),
    (
        "noeffectcoord",
        {"theta": np.array([1, 1e17])},
        {"theta": np.array([1, 1e17]), "options": {"noeffect": False}},
    ),
    (  # generation 1 tries the second axis, generation 2 the first
        "noeffectaxis",
        {"theta": np.array([1, 1e17]), "axes": axes(1, 2)},
        {"theta": np.array([1, 1e17]), "axes": axes(1, 2), "age": 2},
    ),
]


@pytest.mark.parametrize(("name", "is_met", "is_not"), CASES)
def test_each_criterion_is_met_at_its_limit_and_not_before(
    name: str, is_met: dict[str, Any], is_not: dict[str, Any]
) -> None:
    assert name in met(**is_met)
    assert name not in met(**is_not)


def test_every_criterion_has_a_case_and_an_ordinary_search_meets_none() -> None:
    assert met(axes=axes(1, 1)) == set()
    assert {name for name, _, _ in CASES} == set(NAMES) - {"run_limit"}


@pytest.mark.parametrize("name", [name for name in vars(Options()) if name.startswith("tol")])
def test_tolerance_of_0_is_never_met(name: str) -> None:
    """Except tolflatfitness, a number of generations: 0 allows none."""
    options: Any = {name: 0}
    everything = {"deviations": 0 * ONES, "observed": {**LONG, "history": FLAT}, "costs": FLAT}
    assert name not in met(**everything, options=options, age=505)
    observed: Any = initial_history(2)
    for _ in range(2):
        observed = update_history(Options(**options), VIEW, -COSTS, observed)
    assert int(observed["still_generations"]) == (name != "tolxstagnation")


def test_stored_history_of_two_generations_by_hand() -> None:
    """Costs 3, 1, 8, 2, 2, 4 and a failure: the minimum is 1, the median 2.5."""
    one = update_history(Options(), VIEW, -np.array([3, 1, 8, 2, 2, 4, np.nan]), initial_history(2))
    two = update_history(Options(), replace(VIEW, age=2), -np.array([5.0, 6, 7]), one)
    assert (one["history"].tolist(), two["history"].tolist()) == ([1], [1, 5])
    assert (float(two["median_first"]), float(two["median_least"])) == (2.5, 2.5)
    assert (float(two["least_cost"]), int(two["least_age"])) == (1, 1)
    assert (int(one["flat_generations"]), int(two["stopped"])) == (0, 0)
    assert set(two) == set(initial_history(2)) and all(
        two[name].dtype == a.dtype for name, a in initial_history(2).items()
    )


def test_histories_have_the_length_of_their_criteria() -> None:
    """11 + 30 * 2 / 6 = 21 best costs; every fifth generation for the long histories."""
    observed: Any = initial_history(2)
    for age in range(1, 31):
        observed = update_history(
            Options(), replace(VIEW, age=age), -np.array([age, age + 2.0]), observed
        )
    assert observed["history"].tolist() == list(range(10, 31))
    assert observed["history_best"].tolist() == [5, 10, 15, 20, 25, 30]
    assert observed["history_median"].tolist() == [6, 11, 16, 21, 26, 31]


def test_flat_generations_are_counted_until_one_is_not() -> None:
    """Flat: more than three quarters equal the best.

    Failures do not count, and a single value is not flat.
    """
    observed: Any = initial_history(2)
    counts = []
    for costs in (
        [1.0] * 8,
        [1] * 7 + [9],
        [1] * 6 + [9, 9],
        [1] * 8,
        [np.nan] * 8,
        [2] + [np.nan] * 7,
    ):
        observed = update_history(Options(), VIEW, -np.array(costs), observed)
        counts.append(int(observed["flat_generations"]))
    assert counts == [1, 2, 0, 1, 1, 0]


def test_generations_without_movement_are_counted_until_the_centre_moves() -> None:
    observed: Any = initial_history(2)
    counts = []
    for x in (1.0, 1 + 5e-10, 1 + 9e-10, 1 + 2e-9, 1 + 2e-9):
        observed = update_history(
            Options(), replace(VIEW, theta=np.array([x, 2])), -COSTS, observed
        )
        counts.append(int(observed["still_generations"]))
    assert counts == [0, 1, 2, 0, 1]


def test_plateau_does_not_count_as_a_centre_without_movement() -> None:
    """Without information the mean stays."""
    observed: Any = initial_history(2)
    for costs in (COSTS, FLAT, [np.nan] * 6, COSTS):
        observed = update_history(Options(), VIEW, -np.array(costs), observed)
    assert int(observed["still_generations"]) == 1


def test_generations_of_failures_meet_no_criterion() -> None:
    observed: Any = initial_history(2)
    for age in range(1, 15):
        observed = update_history(Options(), replace(VIEW, age=age), np.full(6, np.nan), observed)
    assert int(observed["stopped"]) == 0 and not len(observed["history"])


def test_first_generation_of_a_plateau_does_not_end_a_search() -> None:
    one = update_history(Options(), VIEW, np.zeros(6), initial_history(2))
    two = update_history(Options(), VIEW, np.zeros(6), one)
    assert names(int(one["stopped"])) == ""
    assert names(int(two["stopped"])) == "tolflatfitness"


def test_criteria_that_are_met_are_named() -> None:
    assert names(bit("tolx") | bit("tolfun")) == "tolfun, tolx"
    assert names(0) == ""
    assert len({bit(name) for name in NAMES}) == len(NAMES)
