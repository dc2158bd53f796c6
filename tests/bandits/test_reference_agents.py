"""Reference agents: published and exact regrets, by Monte Carlo with fixed seeds."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from hpc_es.bandits.reference_agents import (
    AgentHistory,
    optimal_regret,
    optimal_reward,
    play,
    posterior_greedy,
    references,
)
from hpc_es.bandits.setting import setting
from hpc_es.core.data import Array

TWO = ("independent", "uniform", "easy", "medium", "hard")
EPISODES = 10_000


@functools.cache
def regrets(
    distribution: str, agent: str, trials: int = 100, episodes: int = EPISODES, **options: Any
) -> Array:
    """Regret per episode, float64[episodes]."""
    created = setting(distribution, trials, family_options=options)
    drawn = created.draw(np.random.default_rng(1), episodes)
    played = play(created, drawn, references(created)[agent], np.random.default_rng(2))
    total: Array = drawn.arms.regrets(played.pulls).sum(axis=1)
    return total


def near(result: Array, expected: float, tolerance: float = 0.0) -> bool:
    """Whether the means agree within four standard errors and
    the tolerance of the published value.
    """
    return bool(abs(result.mean() - expected) < tolerance + 4 * result.std() / np.sqrt(len(result)))


# T15
@pytest.mark.parametrize(
    ("distribution", "regret"), [*zip(TWO, (16.667, 25, 40, 25, 10), strict=True)]
)
def test_random_agent_has_the_expected_regret(distribution: str, regret: float) -> None:
    assert near(regrets(distribution, "random"), regret)


@pytest.mark.parametrize(  # T18
    ("agent", "expected"),
    [
        ("thompson", (2.79, 2.78, 2.12, 3.00, 4.07)),
        ("ucb1", (5.61, 6.00, 6.33, 7.03, 6.01)),
        ("ucb", (4.14, 4.20, 3.92, 4.70, 4.89)),
        ("posterior_greedy", (2.69, 2.11, 0.65, 1.88, 4.77)),
    ],
)
@pytest.mark.parametrize("number", range(5))
def test_reference_agents_have_the_published_regrets(
    agent: str, expected: tuple[float, ...], number: int
) -> None:
    assert near(regrets(TWO[number], agent), expected[number], 0.05)


@pytest.mark.parametrize("distribution", TWO)
def test_optimal_agent_has_the_exact_regret(distribution: str) -> None:  # T17
    assert near(regrets(distribution, "bayes_optimal"), optimal_regret(distribution, 100))


def test_optimal_agent_of_many_arms_has_the_exact_regret() -> None:  # T19
    exact = optimal_regret("k_armed", 10)
    result = regrets("k_armed", "bayes_optimal", 10, 2000)
    assert near(result, exact)
    assert exact == pytest.approx(10 * 5 / 6 - optimal_reward(5, 10))
    few = regrets("k_armed", "bayes_optimal", 4, 4000, num_arms=2)
    assert near(few, optimal_regret("k_armed", 4, num_arms=2))


@pytest.mark.parametrize(("other", "searching"), [(1.1, 13.65), (1.0, 14.0)])
def test_regrets_of_agents_on_eleven_arms_by_hand(other: float, searching: float) -> None:  # T20
    assert near(regrets("eleven", "bayes_optimal", 5, non_target_reward=other), 4.45)
    assert near(regrets("eleven", "thompson", 5, non_target_reward=other), searching)
    rewards = 5 * (5 + 9 * other + 0.55) / 11
    assert near(regrets("eleven", "random", 5, non_target_reward=other), 25 - rewards)


def test_thompson_sampling_uses_the_known_prior_of_gaussian_arms() -> None:
    """One arm pulled once: the posterior mean is half the reward, its variance one half."""
    created = setting("gaussian", 2, family_options={"num_arms": 2})
    observed = AgentHistory(created, np.random.default_rng(0), 20_000)
    observed.add(np.zeros(20_000, np.int64), np.full(20_000, 2, np.float32))
    chosen = references(created)["thompson"](observed)
    first_is_larger = 0.7928919  # P(N(1, 1/2) > N(0, 1)) = Phi(1 / sqrt(1.5))
    assert (chosen == 0).mean() == pytest.approx(first_is_larger, abs=4 * 0.5 / np.sqrt(20_000))


def test_ties_between_arms_are_broken_uniformly() -> None:
    created = setting("k_armed", 5, family_options={"num_arms": 4})
    chosen = posterior_greedy(AgentHistory(created, np.random.default_rng(0), 8000))
    np.testing.assert_allclose(np.bincount(chosen, minlength=4) / 8000, 0.25, atol=0.02)


def test_ucb_pulls_each_arm_once_first() -> None:
    created = setting("k_armed", 7, family_options={"num_arms": 7})
    drawn = created.draw(np.random.default_rng(1), 50)
    played = play(created, drawn, references(created)["ucb1"], np.random.default_rng(2))
    assert (np.sort(played.pulls, axis=1) == np.arange(7)).all()


def test_rescorla_wagner_follows_restless_arms() -> None:
    """q moves by half of its error: after 1, 1, 0 it is .4375 from .5 for the pulled arm."""
    created = setting("restless", 100)
    observed = AgentHistory(created, np.random.default_rng(0), 1)
    for reward in (1, 1, 0):
        observed.add(np.zeros(1, np.int64), np.array([reward], np.float32))
    assert observed.q.tolist() == [[0.4375, 0.5]]
    assert references(created)["rescorla_wagner"](observed).tolist() == [1]
    fast, slow = (
        regrets("restless", agent, episodes=500).mean() for agent in ("rescorla_wagner", "thompson")
    )
    assert fast < slow


@pytest.mark.parametrize(
    ("distribution", "trials", "there"),
    [
        ("independent", 200, True),
        ("independent", 201, False),
        ("k_armed", 20, True),
        ("k_armed", 21, False),
        ("restless", 5, False),
        ("gaussian", 5, False),
        ("fixed", 1000, True),
    ],
)
def test_optimal_agent_exists_if_it_can_be_computed(
    distribution: str, trials: int, there: bool
) -> None:
    assert ("bayes_optimal" in references(setting(distribution, trials))) == there
