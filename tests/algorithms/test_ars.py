"""ARS: the update by hand, the directions that are used, and generations without information."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.core.data import Results
from hpc_es.core.errors import ConfigError
from tests.helpers.stepping import D4, after, following, generation, sphere, strategy

PLUS, MINUS = (1.0, 3.0, -2.0, 0.5), (0.0, 2.5, 1.0, 4.0)
MU = np.array([0.1, -0.2, 0.3])
NAN = math.nan


def directed(plus: Any = PLUS, minus: Any = MINUS, **options: Any) -> Any:
    """The strategy with four directions and these returns."""
    costs = [-return_ for pair in zip(plus, minus, strict=True) for return_ in pair]
    return strategy("ars", costs, MU, D4, population_size=2 * len(plus), **options)


def first_step(created: Any) -> tuple[Any, Any, Any]:
    """The change of theta in the first generation, its metrics and notices."""
    state = created.initial()
    results: Results = generation(created, state)
    new, metrics = created.tell(state, results)
    return new.theta - state.theta, metrics, created.notices(state, results, new)


@pytest.mark.parametrize(
    ("top", "deviation", "step"),
    [
        (None, 1.767766953, [0.01555634919, 0.001414213562, -0.01555634919]),
        (4, 1.767766953, [0.01555634919, 0.001414213562, -0.01555634919]),
        (2, 1.274754878, [0.03333974297, 0.02353393622, -0.01568929081]),
        (1, 1.75, [0.04, 0.03, -0.02]),
    ],
)
def test_ars_steps_along_all_directions_and_the_best_ones_by_hand(
    top: int | None, deviation: float, step: list[float]
) -> None:
    result, metrics, notices = first_step(directed(top_directions=top))
    assert result == pytest.approx(step, rel=1e-9)
    assert metrics["return_deviation"] == pytest.approx(deviation, rel=1e-9)
    assert (metrics["skipped_update"], notices) == (0, [])


def test_both_halves_of_a_pair_use_nu_and_the_same_episodes() -> None:
    created = directed(sigma=0.5)
    generation(created, created.initial())
    tried = np.concatenate(created.problem.evaluated)
    assert tried[:2] == pytest.approx(np.array([[0.35, -0.7, 0.425], [-0.15, 0.3, 0.175]]))
    assert [created.group(job) for job in range(4)] == [0, 0, 1, 1]


def test_ties_between_directions_are_resolved_in_job_order() -> None:
    """All have the maximum 1: only 0 is used, w = (1 - 0) / .5 = 2,
    so the step is .02 * 2 * delta_0.
    """
    step, *_ = first_step(directed([1, 0, 1, 0], [0, 1, 0, 1], top_directions=1))
    assert step == pytest.approx([0.02, -0.04, 0.01])


@pytest.mark.parametrize("wrong", [NAN, math.inf, -math.inf])
def test_failed_half_drops_its_direction(wrong: float) -> None:
    """As without direction 3, the best: 1 and 0 remain for b = 3 with 2; sigma_R of 3 2.5 1 0."""
    result, metrics, _ = first_step(
        directed([1, 3, NAN, 0.5], [0, 2.5, 1, wrong], top_directions=3)
    )
    deviation = np.sqrt(np.square(np.array([3, 2.5, 1, 0]) - 1.625).mean())
    assert metrics["return_deviation"] == pytest.approx(deviation)
    expected = (
        0.02 / (2 * deviation) * (np.array([0.5, -1, 0.25]) + 0.5 * np.array([1.5, 0.75, -0.5]))
    )
    assert result == pytest.approx(expected)


@pytest.mark.parametrize(
    ("plus", "minus", "why"),
    [
        ([0.1] * 4, [0.1] * 4, "all returns of the best directions are equal: no update"),
        (
            [NAN, 1, NAN, 2],
            [0, NAN, NAN, NAN],
            "every direction has a failed evaluation: no update",
        ),
    ],
)
def test_ars_without_information_keeps_theta_with_a_reason(
    plus: list[float], minus: list[float], why: str
) -> None:
    created = directed(plus, minus, anneal_updates=2)
    step, metrics, notices = first_step(created)
    assert (step.tolist(), metrics["skipped_update"], notices) == ([0, 0, 0], 1, [why])
    assert after(created, 3).master["updates"] == 0  # nor does the learning rate fall


def test_learning_rate_decays_linearly() -> None:
    created = directed(anneal_updates=4)
    steps, state = [], created.initial()
    for _ in range(6):
        new = following(created, state)
        steps.append((new.theta - state.theta)[0])
        state = new
    assert steps == pytest.approx(
        [0.01555634919 * share for share in (1, 0.75, 0.5, 0.25, 0, 0)], rel=1e-6, abs=1e-12
    )


def test_without_sigma_perturbations_have_the_problems_deviations() -> None:
    """Deviations 1, 2, 4: nu is their geometric mean 2, with the factors .5, 1,
    2 for candidates and step.
    """
    created = directed(sigma=None)
    created.problem.spread = np.array([1.0, 2.0, 4.0])
    step, *_ = first_step(created)
    assert created.problem.evaluated[0][0] - MU == pytest.approx([0.5, -2, 1])
    assert step == pytest.approx([0.01555634919 / 2, 0.001414213562, -0.01555634919 * 2])


def test_ars_minimises_a_sphere() -> None:
    created = strategy(
        "ars", sphere, np.full(10, 0.2), sigma=0.02, learning_rate=0.01, anneal_updates=150
    )
    assert sphere(after(created, 150).theta) < 1e-3 * sphere(created.initial().theta)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"population_size": 7}, r"population_size: is 7: .*even number \(try 8\)"),
        (
            {"population_size": 8, "top_directions": 5},
            r"top_directions: is 5, .* has 4 directions \(try 4\)",
        ),
    ],
)
def test_invalid_ars_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        validate({"task": {"env_id": "CartPole-v1"}, "algorithm": {"kind": "ars", **options}})


def test_ars_presets_are_a_zero_linear_policy_and_normalised_observations() -> None:
    config = validate({"task": {"env_id": "CartPole-v1"}, "algorithm": {"kind": "ars"}})
    assert (config.policy.hidden_dims, config.policy.bias, config.policy.initial) == (
        (),
        False,
        "zeros",
    )
    observed = config.task.observation_normalization
    assert (observed.enabled, observed.probability, observed.clip, observed.deviation) == (
        True,
        1.0,
        None,
        "sample",
    )
