"""IPOP and BIPOP schedules by hand (Auger & Hansen 2005; Hansen 2009)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpc_es.algorithms.common.distribution import RestartPolicy, Search
from hpc_es.core.keys import Keys, Purpose

KEYS = Keys(5)
FIRST = Search(0, 10)


def after(plan: RestartPolicy, run: Search, evaluations: int, ended_by: int = 1) -> Search:
    """The search after one that has used so many evaluations."""
    found = plan.next_search(KEYS, replace(run, evaluations=evaluations), ended_by)
    assert found is not None
    return found


def small(restart: int, largest: int) -> tuple[int, float]:
    """10 (largest / 20)^(U^2) and 10^(-2 U') of a restart."""
    u, v = KEYS.generator(Purpose.RESTARTS, restart).random(2)
    return int(10 * (largest / 20) ** (u * u)), float(10 ** (-2 * v))


def test_none_ends_with_the_first_search() -> None:
    assert RestartPolicy("none", 10, 2.0, 9).next_search(KEYS, FIRST, 1) is None


def test_ipop_doubles_the_population_nine_times() -> None:
    run, populations = FIRST, list[int]()
    for restart in range(1, 10):
        run = after(RestartPolicy("ipop", 10, 2.0, 9), run, 100 * restart)
        assert (run.restart, run.evaluations, run.limit, run.sigma_factor) == (restart, 0, 0, 1.0)
        populations.append(run.population)
    assert populations == [20, 40, 80, 160, 320, 640, 1280, 2560, 5120]
    assert RestartPolicy("ipop", 10, 2.0, 9).next_search(KEYS, run, 1) is None


def test_ipop_by_another_factor_and_limit() -> None:
    """6 * 1.5 = 9, 6 * 2.25 = 13.5."""
    plan = RestartPolicy("ipop", 6, 1.5, 2)
    one = after(plan, Search(0, 6), 100)
    two = after(plan, one, 100)
    assert [one.population, two.population] == [9, 13]
    assert plan.next_search(KEYS, two, 1) is None
    assert RestartPolicy("ipop", 6, 1.5, 0).next_search(KEYS, Search(0, 6), 1) is None


def test_bipop_goes_on_with_the_regime_that_has_used_less() -> None:
    plan = RestartPolicy("bipop", 10, 2.0, 9)
    one = after(plan, FIRST, 1000)  # the first search counts as a small one: 1000 to 0
    assert (one.population, one.large, one.limit, one.sigma_factor) == (20, True, 0, 1.0)
    two = after(plan, one, 3001)  # 1000 to 3001
    assert (two.population, two.sigma_factor) == pytest.approx(small(2, 20))
    assert (two.population, two.large, two.limit) == (10, False, 1500)
    three = after(plan, two, 1500)  # 2500 to 3001: small again, and no longer than half of the last large one
    assert (three.large, three.limit) == (False, 1500)
    assert three.sigma_factor == pytest.approx(small(3, 20)[1]) and three.sigma_factor != two.sigma_factor
    four = after(plan, three, 600)  # 3100 to 3001
    assert (four.population, four.large, four.limit, four.sigma_factor) == (40, True, 0, 1.0)
    five = after(plan, four, 9000)  # 3100 to 12001
    assert (five.population, five.sigma_factor) == pytest.approx(small(5, 40))
    assert (five.large, five.limit, five.of_small, five.of_large) == (False, 4500, 3100, 12001)


def test_small_populations_are_between_the_first_and_half_of_the_largest() -> None:
    plan = RestartPolicy("bipop", 10, 2.0, 9)
    large = replace(FIRST, large=True, growths=4, population=160, of_small=1)
    runs = [after(plan, replace(large, restart=restart), 5000) for restart in range(200)]
    populations, steps = [run.population for run in runs], [run.sigma_factor for run in runs]
    assert min(populations) == 10 and 75 < max(populations) <= 80
    assert 0.01 <= min(steps) < 0.011 and 0.95 < max(steps) <= 1


def test_bipop_ends_where_a_large_search_is_due_and_the_population_may_not_grow() -> None:
    plan = RestartPolicy("bipop", 10, 2.0, 1)
    two = after(plan, after(plan, FIRST, 1000), 3000)
    assert not two.large
    assert plan.next_search(KEYS, replace(two, evaluations=2500), 1) is None


def test_a_restart_keeps_why_the_search_before_has_ended() -> None:
    assert after(RestartPolicy("ipop", 10, 2.0, 9), FIRST, 100, ended_by=6).ended_by == 6


def test_a_run_is_a_part_of_the_state() -> None:
    run = Search(3, 80, True, 0.5, 2, 700, 16, 1000, 3000, 2)
    arrays = run.arrays()
    assert Search.from_arrays(arrays) == run
    assert {array.shape for array in arrays.values()} == {()}
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
    assert {name: a.dtype for name, a in arrays.items()} == {name: a.dtype for name, a in FIRST.arrays().items()}
