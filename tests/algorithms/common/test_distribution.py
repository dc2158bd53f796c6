"""Updates and restarts of distribution strategies;
IPOP and BIPOP by hand (Auger & Hansen 2005; Hansen 2009).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms.common.distribution import RestartPolicy, Search
from hpc_es.config.loading import validate
from hpc_es.config.options import warnings_of
from hpc_es.core.data import Array, State
from hpc_es.core.keys import Keys, Purpose
from tests.helpers.stepping import after, following, generation, sphere, strategy

KINDS = ("cma_es", "sep_cma_es", "snes", "xnes")
every = pytest.mark.parametrize("kind", KINDS)
STARTS: dict[str, Any] = {"population_size": 6, "restarts": "ipop", "stops": {"max_generations": 3}}


def next_state(created: Any, state: State) -> tuple[State, dict[str, float], list[str]]:
    """The next state, its metrics and its messages."""
    results = generation(created, state)
    later, metrics = created.tell(state, results)
    return later, metrics, list(created.notices(state, results, later))


def anywhere(kind: str, **options: Any) -> Any:
    """A strategy on a sphere that starts from a random vector."""
    created = strategy(kind, sphere, np.ones(3), **options)
    created.problem.initial = lambda rng: rng.uniform(-1, 1, 3)
    return created


@every
@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (lambda x: 3.0, "all evaluations are equal: no update"),
        (lambda x: np.nan, "0 of 6 evaluations did not fail, 3 are needed: no update"),
    ],
)
def test_skipped_update_is_reported_and_keeps_the_distribution(
    kind: str, cost: Any, said: str
) -> None:
    """Also in the middle of a search, with nonzero paths and covariance."""
    created = strategy(kind, sphere, np.ones(3), population_size=6)
    state, _, notices = next_state(created, after(created, 4))
    assert notices == []
    created.problem._cost = cost
    later, metrics, notices = next_state(created, state)
    assert notices == [said] and metrics["skipped_update"] == 1
    assert all(
        later.shared[name].tobytes() == array.tobytes() for name, array in state.shared.items()
    )
    own = set(created.initial_distribution(1.0, np.ones(3))[1])
    assert all(later.master[name].tobytes() == state.master[name].tobytes() for name in own)
    assert (later.generation, int(later.master["age"])) == (6, 6)


@every
def test_restart_resets_the_state_with_a_larger_population(kind: str) -> None:
    created = anywhere(kind, **STARTS)
    first = created.initial()
    state, metrics, notices = next_state(created, after(created, 2))
    assert notices == ["restart 1 with a population of 12, after max_generations"]
    assert (metrics["population_size"], metrics["restarts"]) == (6, 0), (
        "the generation was the old search's"
    )
    assert state.generation == 3 and created.population(state) == 12
    fresh = {**first.shared, **first.master}
    changed = {
        name
        for name, a in {**state.shared, **state.master}.items()
        if a.tobytes() != fresh[name].tobytes()
    }
    assert changed == {
        "theta",
        "population",
        "run_restart",
        "run_population",
        "run_large",
        "run_growths",
    } | {*("run_of_small", "run_ended_by")}
    assert int(state.master["run_of_small"]) == 18
    assert state.theta.tobytes() == created.first_theta(1).tobytes()
    assert created.finished(state) is None
    assert next_state(created, state)[1]["restarts"] == 1


@every
def test_restart_from_a_fixed_initial_vector_draws_other_samples(kind: str) -> None:
    created = strategy(kind, sphere, np.ones(3), **STARTS)
    restarted = after(created, 3)
    assert restarted.theta.tolist() == [1, 1, 1]
    before = np.concatenate(created.problem.evaluated)
    created.problem.evaluated.clear()
    generation(created, restarted)
    again = np.concatenate(created.problem.evaluated)
    assert (len(before), len(again)) == (18, 12) and not np.isin(again, before).any()


@every
def test_end_of_the_last_search_names_its_criterion(kind: str) -> None:
    created = strategy(kind, sphere, np.ones(3), **{**STARTS, "max_restarts": 1})
    state = after(created, 5)
    assert created.finished(state) is None
    state = following(created, state)
    assert created.finished(state) == "max_generations"
    assert int(state.master["run_restart"]) == 1


def test_small_bipop_search_ends_at_its_evaluation_budget() -> None:
    """18 small ones, then 3 * 12 = 36 large ones: the next has at most 18,
    three generations of 6.
    """
    created = strategy("snes", sphere, np.ones(3), **{**STARTS, "restarts": "bipop"})
    state = after(created, 6)
    assert [int(state.master[f"run_{name}"]) for name in ("restart", "limit", "population")] == [
        2,
        18,
        6,
    ]
    assert state.shared["deviations"] == pytest.approx(0.3 * state.master["run_sigma_factor"])
    assert state.master["run_sigma_factor"] < 1
    patient = strategy("snes", sphere, np.ones(3), population_size=6, restarts="bipop")
    for _ in range(2):
        state = following(patient, state)
        assert int(state.master["run_restart"]) == 2
    state, _, notices = next_state(patient, state)
    assert int(state.master["run_restart"]) == 3 and "after run_limit" in notices[0]


def test_growth_of_a_deviation_is_relative_to_its_initial_one() -> None:
    """Ranges of 1 and 1e8: the large range of the second coordinate is not a growth of 1e3."""
    created = strategy("sep_cma_es", lambda x: float(x[0] ** 2 + (x[1] * 1e-8) ** 2), np.ones(2))
    created.problem.spread = np.array([1.0, 1e8])
    assert created.finished(after(created, 5)) is None


@every
def test_initial_deviations_are_those_of_the_problem(kind: str) -> None:
    """Deviations 1 and 16 of the problem, 0.5 and 0.5 of the config."""

    def spread(**options: Any) -> Array:
        created = strategy(kind, sphere, np.zeros(2), population_size=2000, **options)
        created.problem.spread = np.array([1.0, 16.0])
        generation(created, created.initial())
        return np.concatenate(created.problem.evaluated).std(axis=0)

    assert spread() == pytest.approx([1, 16], rel=0.1)
    assert spread(sigma=0.5) == pytest.approx([0.5, 0.5], rel=0.1)


def test_restart_options_without_restarts_are_warned_about() -> None:
    task = {"kind": "function", "function": "tests.helpers.toys:noisy_bowl", "dimension": 3}
    arguments = {"kind": "cma_es", "max_restarts": 3, "population_factor": 3.0}
    others = {"task": task, "policy": None, "stop": {"generations": 1}}
    said = warnings_of(validate({**others, "algorithm": arguments}))
    assert [line.partition(":")[0] for line in said] == [
        "algorithm.max_restarts",
        "algorithm.population_factor",
    ]
    assert all("does nothing: restarts is none" in line for line in said)
    assert not warnings_of(validate({**others, "algorithm": {**arguments, "restarts": "ipop"}}))


KEYS = Keys(5)
FIRST = Search(0, 10)


def next_search(plan: RestartPolicy, run: Search, evaluations: int, ended_by: int = 1) -> Search:
    """The search that follows one with this number of evaluations."""
    result = plan.next_search(KEYS, replace(run, evaluations=evaluations), ended_by)
    assert result is not None
    return result


def small(restart: int, largest: int) -> tuple[int, float]:
    """10 (largest / 20)^(U^2) and 10^(-2 U') of a restart."""
    u, v = KEYS.generator(Purpose.RESTARTS, restart).random(2)
    return int(10 * (largest / 20) ** (u * u)), float(10 ** (-2 * v))


def test_restarts_none_ends_with_the_first_search() -> None:
    assert RestartPolicy("none", 10, 2.0, 9).next_search(KEYS, FIRST, 1) is None


def test_ipop_doubles_the_population_nine_times() -> None:
    run, populations = FIRST, list[int]()
    for restart in range(1, 10):
        run = next_search(RestartPolicy("ipop", 10, 2.0, 9), run, 100 * restart)
        assert (run.restart, run.evaluations, run.limit, run.sigma_factor) == (restart, 0, 0, 1.0)
        populations.append(run.population)
    assert populations == [20, 40, 80, 160, 320, 640, 1280, 2560, 5120]
    assert RestartPolicy("ipop", 10, 2.0, 9).next_search(KEYS, run, 1) is None


def test_ipop_by_another_factor_and_limit() -> None:
    """6 * 1.5 = 9, 6 * 2.25 = 13.5."""
    plan = RestartPolicy("ipop", 6, 1.5, 2)
    one = next_search(plan, Search(0, 6), 100)
    two = next_search(plan, one, 100)
    assert [one.population, two.population] == [9, 13]
    assert plan.next_search(KEYS, two, 1) is None
    assert RestartPolicy("ipop", 6, 1.5, 0).next_search(KEYS, Search(0, 6), 1) is None


def test_bipop_continues_with_the_regime_that_used_fewer_evaluations() -> None:
    plan = RestartPolicy("bipop", 10, 2.0, 9)
    one = next_search(plan, FIRST, 1000)  # the first search counts as a small one: 1000 to 0
    assert (one.population, one.large, one.limit, one.sigma_factor) == (20, True, 0, 1.0)
    two = next_search(plan, one, 3001)  # 1000 to 3001
    assert (two.population, two.sigma_factor) == pytest.approx(small(2, 20))
    assert (two.population, two.large, two.limit) == (10, False, 1500)
    # 2500 to 3001: small again, and no longer than half of the last large one
    three = next_search(plan, two, 1500)
    assert (three.large, three.limit) == (False, 1500)
    assert (
        three.sigma_factor == pytest.approx(small(3, 20)[1])
        and three.sigma_factor != two.sigma_factor
    )
    four = next_search(plan, three, 600)  # 3100 to 3001
    assert (four.population, four.large, four.limit, four.sigma_factor) == (40, True, 0, 1.0)
    five = next_search(plan, four, 9000)  # 3100 to 12001
    assert (five.population, five.sigma_factor) == pytest.approx(small(5, 40))
    assert (five.large, five.limit, five.of_small, five.of_large) == (False, 4500, 3100, 12001)


def test_small_bipop_populations_are_between_the_first_and_half_the_largest() -> None:
    plan = RestartPolicy("bipop", 10, 2.0, 9)
    large = replace(FIRST, large=True, growths=4, population=160, of_small=1)
    runs = [next_search(plan, replace(large, restart=restart), 5000) for restart in range(200)]
    populations, steps = [run.population for run in runs], [run.sigma_factor for run in runs]
    assert min(populations) == 10 and 75 < max(populations) <= 80
    assert 0.01 <= min(steps) < 0.011 and 0.95 < max(steps) <= 1


def test_bipop_ends_if_a_large_search_would_exceed_the_population_limit() -> None:
    plan = RestartPolicy("bipop", 10, 2.0, 1)
    two = next_search(plan, next_search(plan, FIRST, 1000), 3000)
    assert not two.large
    assert plan.next_search(KEYS, replace(two, evaluations=2500), 1) is None


def test_restart_records_why_the_previous_search_ended() -> None:
    assert next_search(RestartPolicy("ipop", 10, 2.0, 9), FIRST, 100, ended_by=6).ended_by == 6


def test_search_is_restored_from_the_state() -> None:
    run = Search(3, 80, True, 0.5, 2, 700, 16, 1000, 3000, 2)
    arrays = run.arrays()
    assert Search.from_arrays(arrays) == run
    assert {array.shape for array in arrays.values()} == {()}
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
    assert {name: a.dtype for name, a in arrays.items()} == {
        name: a.dtype for name, a in FIRST.arrays().items()
    }
