"""Exact values of Bayes-optimal agents, which know the distribution of the arms, for a finite number of trials.

    V(b, 0) = 0,   V(b, n) = max over arms of  m + m V(b after success, n - 1) + (1 - m) V(b after failure, n - 1)

where b counts the successes and failures of each arm and m = (successes + 1) / (pulls + 2) is the arm's expected chance
under the prior U[0, 1]. For two dependent arms (p, 1 - p) each pull is equally informative, so that the arm with the
larger expected chance is optimal.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from math import comb

import numpy as np
import numpy.typing as npt

from hpc_es.bandits.families import family
from hpc_es.core.data import Array, Float64
from hpc_es.core.errors import ConfigError, UserError

TIE = 1e-10  # arms whose values differ by less are considered equal
MAX_TRIALS_TWO_ARMS = 200  # for two arms; time grows with the fourth power, and is 0.3 s for 100 trials
MAX_TRIALS_MANY_ARMS = 20  # for more arms; time grows by half with each trial
LOW = {"easy": 0.1, "medium": 0.25, "hard": 0.4}  # chance of the worse arm
FIXED = ("fixed", "deterministic", "high_low", "high_high", "low_low")  # the same arms in all episodes
EXACT = ("independent", "uniform", *LOW, "eleven", "k_armed", *FIXED)


def optimal_reward(num_arms: int, num_trials: int) -> float:
    """Return the Bayes-optimal expected total reward of `num_arms` independent arms with chances from U[0, 1].

    Raises UserError for more than 200 trials of two arms or 20 trials of more arms.
    """
    for name, number in (("num_arms", num_arms), ("num_trials", num_trials)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UserError(f"{name} is {number!r}: expected a whole number of at least 1")
    if num_arms == 1:
        return num_trials / 2
    limit = MAX_TRIALS_TWO_ARMS if num_arms == 2 else MAX_TRIALS_MANY_ARMS
    if num_trials > limit:
        text = f"num_trials is {num_trials}: the optimum of {num_arms} arms is computed for at most {limit} trials"
        raise UserError(text)
    if num_arms == 2:
        *_, (values_0, values_1) = _two_arms(num_trials)
        return float(max(values_0[0][0, 0], values_1[0][0, 0]))
    return _value_of_many((), min(num_arms, num_trials), num_trials)


Blocks = list[Float64]  # for n = 0 .. t pulls of arm 0: float64[n + 1, t - n + 1], by the successes of both arms


def _two_arms(num_trials: int) -> Iterator[tuple[Blocks, Blocks]]:
    """Yield the expected remaining reward of pulling arm 0 and arm 1 after t = num_trials - 1, ... 0 trials."""
    after = [np.zeros((n + 1, num_trials - n + 1)) for n in range(num_trials + 1)]
    for t in range(num_trials - 1, -1, -1):
        values_0, values_1 = [], []
        for n in range(t + 1):
            mean = (np.arange(n + 1)[:, np.newaxis] + 1.0) / (n + 2)
            success, failure = after[n + 1][1:], after[n + 1][:-1]
            values_0.append(mean * (1 + success - failure) + failure)
            mean = (np.arange(t - n + 1) + 1.0) / (t - n + 2)
            success, failure = after[n][:, 1:], after[n][:, :-1]
            values_1.append(mean * (1 + success - failure) + failure)
        yield values_0, values_1
        after = [np.maximum(value_0, value_1) for value_0, value_1 in zip(values_0, values_1, strict=True)]


@functools.lru_cache(4)
def choices_of_two_arms(num_trials: int) -> tuple[npt.NDArray[np.int8], ...]:
    """Return the better of two independent arms after t = 0, 1, ... trials, each int8[counts].

    It is 1 for arm 0, -1 for arm 1, 0 for both. If arm 0 had s successes in n pulls and arm 1 had r in t - n pulls, the
    index is `index_of_counts(t, n, s, r)`.
    """
    choices = []
    for values_0, values_1 in _two_arms(num_trials):
        blocks = zip(values_0, values_1, strict=True)
        differences = np.concatenate([(value_0 - value_1).ravel() for value_0, value_1 in blocks])
        choices.append(np.sign(np.where(np.abs(differences) < TIE, 0, differences)).astype(np.int8))
    return tuple(reversed(choices))


def index_of_counts(t: int, n: Array, s: Array, r: Array) -> Array:
    """Return indices of `choices_of_two_arms`, int64 in the shape of n, s and r."""
    rows = np.arange(t + 1)
    starts = np.concatenate([[0], np.cumsum((rows + 1) * (t - rows + 1))])
    index: Array = starts[n] + s * (t - n + 1) + r
    return index


Counts = tuple[tuple[int, int], ...]  # (successes, failures) of each arm that was pulled, sorted


def values_of_arms(counts: Counts, untried: int, trials: int) -> list[float]:
    """Return the expected reward of the remaining trials for pulling each arm of `counts`, then an untried one."""
    candidates = [*enumerate(counts)] + ([(len(counts), (0, 0))] if untried else [])
    values = []
    for arm, (successes, failures) in candidates:
        others = counts[:arm] + counts[arm + 1 :]
        left = untried - (arm == len(counts))
        mean = (successes + 1) / (successes + failures + 2)
        success = tuple(sorted((*others, (successes + 1, failures))))
        failure = tuple(sorted((*others, (successes, failures + 1))))
        then = mean * _value_of_many(success, left, trials - 1) + (1 - mean) * _value_of_many(failure, left, trials - 1)
        values.append(mean + then)
    return values


@functools.lru_cache(4_000_000)
def _value_of_many(counts: Counts, untried: int, trials: int) -> float:
    return max(values_of_arms(counts, untried, trials)) if trials else 0.0


def optimal_regret(distribution: str, num_trials: int, **family_options: float) -> float:
    """Return the expected cumulative regret of the Bayes-optimal agent in an episode of `num_trials`.

    Raises ConfigError for an unknown distribution or option, UserError if there is no exact value or too many trials.
    """
    bandits = family(distribution, **family_options)
    if isinstance(num_trials, bool) or not isinstance(num_trials, int) or num_trials < 1:
        raise ConfigError([("num_trials", f"expected a whole number of at least 1, found {num_trials!r}")])
    if distribution in {"independent", "k_armed"}:
        return num_trials * bandits.arms / (bandits.arms + 1) - optimal_reward(bandits.arms, num_trials)
    if distribution == "uniform":
        return num_trials * 0.75 - _reward_of_uniform(num_trials)
    if distribution in LOW:
        return (1 - 2 * LOW[distribution]) * sum(
            _error_probability(t, 1 - LOW[distribution]) for t in range(num_trials)
        )
    if distribution == "eleven":
        return plan_of_eleven(num_trials, **family_options)[0]
    if distribution in FIXED:
        return 0.0
    raise UserError(f"no exact value is known for {distribution!r}: expected one of {', '.join(EXACT)}")


def _reward_of_uniform(num_trials: int) -> float:
    """Return the optimal reward for "uniform": after t trials, evidence for arm 0 is uniform on 0 .. t."""
    total = 0.0
    for t in range(num_trials):
        mean = (np.arange(t + 1) + 1) / (t + 2)
        total += float(np.maximum(mean, 1 - mean).mean())
    return total


def _error_probability(t: int, chance: float) -> float:
    """Return the probability that after t trials the evidence favours the worse arm; ties are broken by a coin."""
    chances = [comb(t, k) * chance**k * (1 - chance) ** (t - k) for k in range(t // 2 + 1)]
    if t % 2 == 0:
        chances[-1] /= 2
    return sum(chances)


def plan_of_eleven(
    num_trials: int, non_target_reward: float = 1.1, target_reward: float = 5.0
) -> tuple[float, list[list[bool]]]:
    """Return the expected regret of the optimal plan for "eleven", and when it pulls arm 10, which reveals the target.

    asks[n][m] is whether to pull it with n trials left after m other arms turned out not to be the target. Trying the
    lowest arms first keeps the reward of arm 10 high.
    """
    miss = target_reward - non_target_reward
    regrets: Float64 = np.zeros(10)  # by the number of arms that were not the target, for the remaining trials
    asks: list[list[bool]] = [[False] * 10]
    for _ in range(num_trials):
        before = regrets.copy()
        asks.append([False] * 10)
        for tried in range(9):
            ask = target_reward - 0.1 * float(np.mean(np.arange(tried, 10) + 1))
            search = (1 - 1 / (10 - tried)) * (miss + before[tried + 1])
            regrets[tried], asks[-1][tried] = min(ask, search), ask < search
    return float(regrets[0]), asks
