"""PGPE: updates against pgpelib and evosax, initial distribution, failures and plateaus."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms.pgpe import Optimizer, Options
from hpc_es.core.data import NO_FITNESS, Array, State, row_dtype
from tests.helpers.stepping import D4, Rows, after, following, generation, sphere, strategy
from tests.helpers.toys import nothing

MU, S = np.array([0.1, -0.2, 0.3]), np.array([0.5, 0.4, 0.2])
RETURNS = [1, 0, 3, 2.5, -2, 1, 0.5, 4]  # F+ and F- of the four pairs
PLAIN = {"kind": "none", "learning_rate": 1.0}  # theta moves by grad_mu


def started(
    returns: Sequence[float] = RETURNS, noise: Any = D4, **options: Any
) -> tuple[Any, State]:
    """A strategy of these returns, and a state with the centre
    and the deviations of the test vectors.
    """
    created = strategy(
        "pgpe", [-item for item in returns], MU, noise, population_size=len(returns), **options
    )
    state = created.initial()
    return created, replace(state, shared={**state.shared, "deviations": S})


# One generation.


@pytest.mark.parametrize(
    ("options", "gradient", "deviations"),
    [
        (
            {"fitness_shaping": "none"},
            [0.34375, 0.025, -0.1375],
            [0.5509765625, 0.4021875, 0.18921875],
        ),
        (
            {"fitness_shaping": "none", "sigma_learning_rate": 1.0},  # changes are cut at a fifth
            [0.34375, 0.025, -0.1375],
            [0.6, 0.421875, 0.16],
        ),
        (
            {},
            [0.07700892857, 0.001785714286, -0.02410714286],
            [0.5090680804, 0.4, 0.1985267857],
        ),
    ],
)
def test_pgpe_equals_other_implementations(
    options: dict[str, Any], gradient: list[float], deviations: list[float]
) -> None:
    created, state = started(optimizer=PLAIN, **options)
    after = following(created, state)
    assert after.theta - MU == pytest.approx(gradient, rel=1e-8)
    assert after.shared["deviations"] == pytest.approx(deviations, rel=1e-9)


def test_both_halves_of_a_pair_are_mirrored_and_share_their_seeds() -> None:
    created, state = started()
    generation(created, state)
    stack = np.concatenate(created.problem.evaluated)
    expected = MU + S * np.array(
        [[0.5, -1, 0.25], [1.5, 0.75, -0.5], [-0.25, 0.5, 1.25], [-1, -0.75, 0.5]]
    )
    np.testing.assert_allclose(stack[0::2], expected, rtol=1e-12)
    np.testing.assert_allclose(stack[1::2], 2 * MU - expected, rtol=1e-12, atol=1e-15)
    assert list(
        created.jobs(state, created.ask(state, 0, np.zeros(0, row_dtype()), NO_FITNESS)[1]).groups
    ) == [
        2,
        2,
        3,
        3,
    ]


def test_first_clipup_step_has_the_learning_rate_as_length() -> None:
    created, state = started(optimizer={"max_speed": 0.3})
    step = following(created, state).theta - MU
    gradient = np.array([0.07700892857, 0.001785714286, -0.02410714286])
    assert step == pytest.approx(0.15 * gradient / math.sqrt((gradient**2).sum()), rel=1e-8)


def test_pgpe_metrics_by_hand() -> None:
    created, state = started(optimizer=PLAIN, sigma_max_change=0.0)
    metrics = created.tell(state, generation(created, state))[1]
    length = math.hypot(0.07700892857, 0.001785714286, -0.02410714286)
    assert metrics["gradient_norm"] == pytest.approx(length)
    assert metrics["update_ratio"] == pytest.approx(length / math.sqrt(0.14))
    assert metrics["theta_norm"] == pytest.approx(
        math.hypot(0.17700892857, -0.198214285714, 0.27589285714)
    )
    assert metrics["sigma"] == pytest.approx(0.04 ** (1 / 3))  # the geometric mean
    assert (metrics["sigma_min"], metrics["sigma_max"], metrics["skipped_update"]) == (0.2, 0.5, 0)


def test_deviations_stay_above_their_minimum() -> None:
    created, state = started(fitness_shaping="none", sigma_learning_rate=1.0, sigma_min=0.19)
    assert following(created, state).shared["deviations"] == pytest.approx([0.6, 0.421875, 0.19])


# Failures and plateaus.


@pytest.mark.parametrize("shaping", ["none", "centered_rank"])
def test_failed_half_drops_its_pair(shaping: str) -> None:
    """As without the pair."""
    rows = [[0.5, -1, 0.25], [9, 9, 9], [-0.25, 0.5, 1.25]]
    three = started([1, 0, math.nan, 5, -2, 1], Rows(rows), fitness_shaping=shaping)
    two = started([1, 0, -2, 1], Rows([rows[0], rows[2]]), fitness_shaping=shaping)
    for name in ("theta", "deviations"):
        assert np.array_equal(following(*three).shared[name], following(*two).shared[name])


@pytest.mark.parametrize(
    ("returns", "notice"),
    [
        ([math.nan, 1, 2, math.nan], "every pair has a failed evaluation: no update"),
        ([5, 5, 5, 5], "all evaluations are equal: no update"),
        ([5, 5, math.nan, 7], "all evaluations are equal: no update"),
    ],
)
def test_pgpe_without_information_keeps_its_distribution(returns: list[float], notice: str) -> None:
    """The velocity does not move it either."""
    created, state = started(returns)
    state = replace(state, master={**state.master, "clipup_velocity": np.ones(3)})
    results = generation(created, state)
    after, metrics = created.tell(state, results)
    assert (after.generation, after.shared, after.master) == (1, state.shared, state.master)
    assert list(created.notices(state, results, after)) == [notice]
    assert metrics["skipped_update"] == 1 and np.isfinite(list(metrics.values())).all()


def test_deviations_stay_if_returns_are_noise() -> None:
    """The mean of ln sigma drifts by less than 0.1 in 100 generations."""
    rng = np.random.default_rng(0)
    created = strategy(
        "pgpe", lambda x: rng.standard_normal(), np.zeros(20), sigma=1.0, population_size=20
    )
    assert abs(np.log(after(created, 100).shared["deviations"]).mean()) < 0.1


# A search.


def test_pgpe_minimises_a_sphere() -> None:
    """From a distance of sqrt(10), which is 50 of the longest steps of ClipUp."""
    created = strategy("pgpe", sphere, np.ones(10), chunk_size=40, population_size=40)
    assert math.sqrt(sphere(after(created, 200).theta)) < 3 * created.optimizer.max_speed


def test_pgpe_depends_on_ranks_of_returns_only() -> None:
    def steep(x: Array) -> float:
        return math.exp(sphere(x)) + 7

    plain, changed = (after(strategy("pgpe", cost, np.ones(4)), 10) for cost in (sphere, steep))
    assert np.array_equal(plain.theta, changed.theta)
    assert np.array_equal(plain.shared["deviations"], changed.shared["deviations"])


# What it begins with.


@pytest.mark.parametrize(
    ("options", "sigma", "speed", "rate"),
    [
        ({}, 0.3, 0.04, 0.02),  # the problem's spread; a radius of 0.6
        ({"sigma": 1.5}, 1.5, 0.2, 0.1),
        ({"radius": 3.0}, 1.5, 0.2, 0.1),
        ({"optimizer": {"max_speed": 0.3}}, 2.25, 0.3, 0.15),  # a radius of 4.5
        ({"optimizer": {"learning_rate": 0.15}}, 2.25, 0.3, 0.15),
        ({"sigma": 1.5, "optimizer": {"max_speed": 0.3, "learning_rate": 0.1}}, 1.5, 0.3, 0.1),
        ({"optimizer": {"kind": "adam"}}, 0.3, None, 0.01),
        ({"optimizer": {"kind": "sgd", "learning_rate": 0.5}}, 0.3, None, 0.5),
    ],
)
def test_sigma_radius_and_speed_determine_each_other(
    options: dict[str, Any], sigma: float, speed: float | None, rate: float
) -> None:
    """With 4 parameters."""
    created = strategy("pgpe", sphere, np.ones(4), **options)
    assert created.initial().shared["deviations"] == pytest.approx([sigma] * 4)
    assert created.optimizer.learning_rate == pytest.approx(rate)
    assert created.optimizer.max_speed == (None if speed is None else pytest.approx(speed))


def test_initial_deviations_follow_the_problem_per_coordinate() -> None:
    created = strategy("pgpe", sphere, np.ones(2))
    created.problem.spread = np.array([3.0, 4.0])
    assert created.initial().shared["deviations"] == pytest.approx([3, 4])
    assert created.optimizer.max_speed == pytest.approx(5 / 15)


@pytest.mark.parametrize(("size", "jobs"), [(1, 8), (10, 20), (1000, 48)])
def test_population_is_even_and_grows_with_the_parameters(size: int, jobs: int) -> None:
    """Twice the integer parts of 4, 4 + 6.9 and 4 + 20.7."""
    created = strategy("pgpe", sphere, np.ones(size))
    assert created.population(created.initial()) == jobs


# Rounds.


@pytest.mark.parametrize(
    ("least", "most", "rounds"),
    [
        (0, None, [8]),
        (20, None, [8, 8, 8]),
        (20, 20, [8, 8, 4]),
        (20, 16, [8, 8]),
        (16, 100, [8, 8]),
    ],
)
def test_rounds_are_added_until_min_timesteps_or_max_jobs(
    least: int, most: int | None, rounds: list[int]
) -> None:
    created = strategy(
        "pgpe",
        sphere,
        np.ones(2),
        population_size=8,
        min_timesteps_per_generation=least,
        max_population_size=most,
    )
    state, asked, rows = created.initial(), list[int](), np.zeros(0, row_dtype())
    while chunks := created.ask(state, len(asked), rows, rows["return_"]):
        assert chunks[0].first_job == len(rows)
        asked.append(sum(chunk.jobs for chunk in chunks))
        rows = np.concatenate(
            [rows, *(created.evaluate(state, chunk, nothing).rows for chunk in chunks)]
        )
    assert asked == rounds
    assert created.prepare(state, rows, rows["return_"]).count == len(rows)


# Mistakes.


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"population_size": 7}, ("population_size", "is 7: pairs need an even number (try 8)")),
        (
            {"max_population_size": 9},
            ("max_population_size", "is 9: pairs need an even number (try 10)"),
        ),
        (
            {"population_size": 8, "max_population_size": 6},
            ("max_population_size", "is 6: expected at least population_size, 8"),
        ),
        (
            {"sigma": 0.5, "radius": 2.0},
            ("radius", "is 2, but sigma is 0.5: leave one of them out"),
        ),
        ({"sigma": 1e-12}, ("sigma", "is 1e-12: expected at least sigma_min, 1e-10")),
    ],
)
def test_invalid_pgpe_options_are_refused(
    options: dict[str, Any], problem: tuple[str, str]
) -> None:
    assert list(Options(**options).problems()) == [problem]


def test_pgpe_options_without_effect_are_warned_about() -> None:
    (cap,) = Options(population_size=8, max_population_size=8).warnings()
    assert cap == (
        "max_population_size",
        "is 8, but does nothing: min_timesteps_per_generation is 0: one round is enough",
    )
    assert not list(Options(max_population_size=8).warnings())  # of the default population
    assert [key for key, _ in Options(sigma_learning_rate=0.0, sigma_min=0.1).warnings()] == [
        "sigma_min"
    ]
    assert [key for key, _ in Optimizer(kind="adam", max_speed=0.1, momentum=0.5).warnings()] == [
        "momentum",
        "max_speed",
    ]
    assert not list(Optimizer(max_speed=0.1, momentum=0.5).warnings())
