"""Exact values of bandits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from hpc_es.bandits.reference_agents import (
    choices_of_two_arms,
    index_of_counts,
    optimal_regret,
    optimal_reward,
    plan_of_eleven,
    values_of_arms,
)
from hpc_es.core.errors import ConfigError, UserError


@pytest.mark.parametrize(  # T17, T19
    ("num_arms", "num_trials", "reward"),
    [
        (2, 1, 0.5),
        (2, 2, 13 / 12),
        (2, 10, 6.0217857),
        (2, 100, 64.9184207),
        (5, 10, 6.659988),
        (10, 10, 6.713951),
        (50, 10, 6.713951),
        (1, 7, 3.5),
    ],
)
def test_optimal_rewards_of_independent_arms_equal_the_published_ones(
    num_arms: int, num_trials: int, reward: float
) -> None:
    assert optimal_reward(num_arms, num_trials) == pytest.approx(reward, abs=5e-7)


@pytest.mark.parametrize(  # T17, T20
    ("distribution", "num_trials", "regret"),
    [
        ("independent", 100, 1.748246),
        ("uniform", 100, 1.221363),
        ("easy", 100, 0.625),
        ("medium", 100, 1.0),
        ("hard", 100, 2.312081),
        ("eleven", 5, 4.45),
        ("k_armed", 10, 10 * 5 / 6 - 6.659988),
        ("fixed", 100, 0.0),
        ("high_low", 100, 0.0),
    ],
)
def test_optimal_regrets_equal_the_reference_values(
    distribution: str, num_trials: int, regret: float
) -> None:
    assert optimal_regret(distribution, num_trials) == pytest.approx(regret, abs=1e-6)


@pytest.mark.parametrize(
    ("distribution", "regret"),  # of a coin in the first trial, as nothing is known
    [("independent", 1 / 6), ("uniform", 0.25), ("easy", 0.4), ("medium", 0.25), ("hard", 0.1)],
)
def test_optimal_regret_of_a_single_trial_by_hand(distribution: str, regret: float) -> None:
    assert optimal_regret(distribution, 1) == pytest.approx(regret, rel=1e-12)


@pytest.mark.parametrize(("distribution", "low"), [("easy", 0.1), ("hard", 0.4)])
def test_optimal_regret_of_many_trials_is_the_sum_of_a_walk(distribution: str, low: float) -> None:
    """The evidence is a random walk, whose steps point to the worse arm with the chance p: it
    favours that arm where it is below 0, and by a coin at 0.
    """
    p, q, expected = low, 1 - low, 0.0
    chances = np.array([1.0])  # of the sum of t steps, from -t to t
    for t in range(3000):
        positions = np.arange(-t, t + 1, 2)
        expected += chances[positions < 0].sum() + chances[positions == 0].sum() / 2
        chances = np.convolve(chances, [p, q])
    regret = (1 - 2 * low) * expected
    assert optimal_regret(distribution, 3000) == pytest.approx(regret, rel=1e-9)
    assert optimal_regret(distribution, 10**9) == pytest.approx(regret, rel=1e-9)


def test_optimal_regret_of_two_trials_by_hand() -> None:
    """After one trial the observation is right with probability 0.9: .4 + .8 * .1."""
    assert optimal_regret("easy", 2) == pytest.approx(0.48, rel=1e-12)


def test_both_algorithms_for_two_arms_agree() -> None:
    """Blocks of counts against sets of counts."""
    values = values_of_arms((), 2, 9)
    assert optimal_reward(2, 9) == pytest.approx(max(values), rel=1e-12)


def test_optimal_choices_follow_from_the_values() -> None:
    trials = 12
    choices = choices_of_two_arms(trials)
    for t in range(trials):
        cells = [(n, s, r) for n in range(t + 1) for s in range(n + 1) for r in range(t - n + 1)]
        places = [
            int(index_of_counts(t, np.array(n), np.array(s), np.array(r))) for n, s, r in cells
        ]
        assert places == list(range(len(choices[t])))
        for position, (n, s, r) in zip(places, cells, strict=True):
            counts = ((s, n - s), (r, t - n - r))
            values = values_of_arms(counts, 0, trials - t)
            assert choices[t][position] == np.sign(round(values[0] - values[1], 9))


def by_brute_force(num_trials: int, other: float) -> float:
    """The least regret of eleven arms over all plans: some trials in any order,
    then the informative arm, or never.
    """
    regrets = []
    for tries in range(min(num_trials, 9) + 1):
        for order in itertools.combinations(range(10), tries):
            for asks in (False, True):
                total = 0.0
                for target in range(10):
                    if target in order:
                        total += (5 - other) * order.index(target)
                    elif asks and tries < num_trials:
                        total += (5 - other) * tries + 5 - 0.1 * (target + 1)
                    else:
                        total += (5 - other) * num_trials if tries == num_trials else np.inf
                regrets.append(total / 10)
    return min(regrets)


@pytest.mark.parametrize("num_trials", [1, 2, 3, 5])
@pytest.mark.parametrize("other", [1.0, 1.1, 4.5])
def test_plan_for_eleven_arms_is_optimal(num_trials: int, other: float) -> None:
    assert plan_of_eleven(num_trials, other)[0] == pytest.approx(
        by_brute_force(num_trials, other), rel=1e-12
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((2, 201), "num_trials is 201: the optimum of 2 arms is computed for at most 200 trials"),
        ((3, 21), "num_trials is 21: the optimum of 3 arms is computed for at most 20 trials"),
        ((0, 5), "num_arms is 0: expected a whole number of at least 1"),
        ((2, -1), "num_trials is -1: expected a whole number of at least 1"),
        ((2, True), "num_trials is True"),
    ],
)
def test_problems_too_large_are_refused(arguments: Any, text: str) -> None:
    with pytest.raises(UserError, match=text):
        optimal_reward(*arguments)


def test_optimal_regret_refuses_unknown_distributions_and_numbers_of_trials() -> None:
    with pytest.raises(UserError, match="no exact value is known for 'restless'"):
        optimal_regret("restless", 100)
    with pytest.raises(ConfigError, match=r"distribution: expected one of .* found 'esay'"):
        optimal_regret("esay", 100)
    with pytest.raises(
        ConfigError, match="num_trials: expected a whole number of at least 1, found 0"
    ):
        optimal_regret("easy", 0)
