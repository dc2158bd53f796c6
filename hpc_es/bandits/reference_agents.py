"""Agents to compare with, which play many episodes side by side.

random             any arm
ucb1               mean reward + sqrt(2 ln t / pulls), after each arm was pulled once (Auer et al. 2002)
ucb                the same with sqrt(ln t / pulls)
thompson           the best arm of a sample from the posterior: Beta(1, 1) priors of independent arms (rewards between 0
                   and 1 count as chances), N(0, 1) for "gaussian", targets not yet tried for "eleven"
epsilon_greedy     the arm of the largest (rewards + 1) / (pulls + 2); any arm with chance 0.1
posterior_greedy   the same without chance
rescorla_wagner    the arm of the largest q, where a pull moves q by half of reward - q; for restless arms
bayes_optimal      the best that there is for the distribution, where it can be computed

Arms that are equally good are chosen alike. t counts the trials before this one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hpc_es.bandits import optimal as bandit_optimal
from hpc_es.bandits.setting import Draws, Lockstep, Setting
from hpc_es.core.data import Array, Float32, Float64

TARGET = 2.0  # of eleven arms, the target alone pays more than this
MOST_CHOICES = 200  # trials of two independent arms: 70 MB of choices


@dataclass
class Seen:
    """What an agent has seen in its episodes."""

    setting: Setting
    rng: np.random.Generator
    episodes: int
    pulls: Float64 = field(init=False)  # float64[episodes, arms]
    rewards: Float64 = field(init=False)  # float64[episodes, arms], sums
    successes: Float64 = field(init=False)  # the same, where a reward between 0 and 1 is a coin's chance
    q: Float64 = field(init=False)
    trial: int = 0

    def __post_init__(self) -> None:
        shape = (self.episodes, self.setting.family.arms)
        self.pulls, self.rewards, self.successes = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.q = np.full(shape, 0.5)

    def add(self, pulls: Array, rewards: Float32) -> None:
        """A trial's arms and rewards."""
        at = np.arange(self.episodes), pulls
        self.trial += 1
        self.pulls[at] += 1
        self.rewards[at] += rewards
        self.successes[at] += rewards if self.setting.family.is_binary else self.rng.random(self.episodes) < rewards
        self.q[at] += 0.5 * (rewards - self.q[at])

    def best(self, scores: Float64) -> Array:
        """Return the arm of the highest score, one of them where several have it."""
        lots = self.rng.random(scores.shape)
        lots[scores < scores.max(axis=1, keepdims=True)] = -1.0
        arms: Array = lots.argmax(axis=1)
        return arms


Agent = Callable[[Seen], Array]  # what to pull, int64[episodes]


def random(seen: Seen) -> Array:
    """Any arm."""
    return seen.rng.integers(seen.setting.family.arms, size=seen.episodes)


def _ucb(factor: float, seen: Seen) -> Array:
    pulls = np.maximum(seen.pulls, 1)
    bonus = np.sqrt(factor * np.log(max(seen.trial, 1)) / pulls)
    return seen.best(np.where(seen.pulls == 0, np.inf, seen.rewards / pulls + bonus))


def posterior_greedy(seen: Seen) -> Array:
    """Return the largest mean of a Beta(1, 1) posterior, or what is like it for other rewards."""
    return seen.best((seen.rewards + 1) / (seen.pulls + 2))


def epsilon_greedy(seen: Seen) -> Array:
    """Return the same, and any arm in a tenth of the trials."""
    explores = seen.rng.random(seen.episodes) < 0.1
    return np.where(explores, random(seen), posterior_greedy(seen))


def rescorla_wagner(seen: Seen) -> Array:
    """Return the largest q."""
    return seen.best(seen.q)


def thompson(seen: Seen) -> Array:
    """Return a sample from the posterior of independent chances."""
    return seen.best(seen.rng.beta(seen.successes + 1, seen.pulls - seen.successes + 1))


def thompson_of_gaussian(seen: Seen) -> Array:
    """Prior N(0, 1), rewards N(q, 1): the posterior is N(sum / (n + 1), 1 / (n + 1))."""
    return seen.best(seen.rng.normal(seen.rewards / (seen.pulls + 1), 1 / np.sqrt(seen.pulls + 1)))


def thompson_of_eleven(seen: Seen) -> Array:
    """Return a target that may still be it; the arm that tells is never the best one, so it is never pulled."""
    is_new = seen.pulls == 0
    is_new[:, 10] = False
    means = np.where(seen.pulls > 0, seen.rewards / np.maximum(seen.pulls, 1), -np.inf)
    has_target = (means.max(axis=1) > TARGET)[:, np.newaxis]
    return seen.best(np.where(has_target, means, is_new))


def optimal_of_opposite(seen: Seen) -> Array:
    """Two arms with p and 1 - p: what either pays is evidence for one, and what it does not for the other."""
    failures = seen.pulls - seen.rewards
    return seen.best(seen.rewards + failures[:, ::-1])


def optimal_of_two(seen: Seen) -> Array:
    """Two independent arms, by dynamic programming."""
    choices = bandit_optimal.choices_of_two_arms(seen.setting.num_trials)[seen.trial]
    n, s, r = (part.astype(np.int64) for part in (seen.pulls[:, 0], seen.rewards[:, 0], seen.rewards[:, 1]))
    better = choices[bandit_optimal.place_of_two_arms(seen.trial, n, s, r)].astype(np.float64)
    return seen.best(np.stack([better, -better], axis=1))


def optimal_of_many(seen: Seen) -> Array:
    """Independent arms, by dynamic programming over their counts in any order."""
    successes = seen.rewards.astype(np.int64)
    failures = seen.pulls.astype(np.int64) - successes
    return np.array([_optimal(seen, tuple(zip(*row, strict=True))) for row in zip(successes, failures, strict=True)])


def _optimal(seen: Seen, counts: tuple[tuple[int, int], ...]) -> int:
    plain = tuple((int(s), int(f)) for s, f in counts)
    left = seen.setting.num_trials - seen.trial
    tried = tuple(sorted(count for count in plain if count != (0, 0)))
    values = bandit_optimal.values_of_arms(tried, min(len(plain) - len(tried), left), left)
    best = max(range(len(values)), key=values.__getitem__)
    return plain.index((*tried, (0, 0))[best])


def optimal_of_eleven(seen: Seen) -> Array:
    """Ask arm 10, whose reward tells the target; in a single trial any other arm is better."""
    if seen.setting.num_trials == 1:
        return np.zeros(seen.episodes, np.int64)
    if seen.trial == 0:
        return np.full(seen.episodes, 10)
    targets: Array = np.rint(10 * seen.rewards[:, 10]).astype(np.int64) - 1
    return targets


def oracle(seen: Seen) -> Array:
    """Return the best of arms that are the same in all episodes."""
    arms = seen.setting.family.draw(seen.rng, 1)
    return np.repeat(arms.optimal()[0], seen.episodes)


OPTIMAL: dict[str, Agent] = {
    "independent": optimal_of_two,
    **dict.fromkeys(("uniform", "easy", "medium", "hard"), optimal_of_opposite),
    "eleven": optimal_of_eleven,
    "k_armed": optimal_of_many,
    **dict.fromkeys(("fixed", "deterministic", "high_low", "high_high", "low_low"), oracle),
}


def references(setting: Setting) -> dict[str, Agent]:
    """Return the agents that there are for a setting, by name."""
    family = setting.family
    ucb1, ucb = functools.partial(_ucb, 2.0), functools.partial(_ucb, 1.0)
    found: dict[str, Agent] = {"random": random, "ucb1": ucb1, "ucb": ucb}
    within_one = family.is_binary or family.distribution in {"k_armed_values", "k_armed_chances_and_values"}
    special = {"gaussian": thompson_of_gaussian, "eleven": thompson_of_eleven}
    if within_one or family.distribution in special:
        found["thompson"] = special.get(family.distribution, thompson)
    found |= {"epsilon_greedy": epsilon_greedy, "posterior_greedy": posterior_greedy}
    if family.changes:
        found["rescorla_wagner"] = rescorla_wagner
    if family.distribution in OPTIMAL and setting.num_trials <= _most_trials(family.distribution, family.arms):
        found["bayes_optimal"] = OPTIMAL[family.distribution]
    return found


def _most_trials(distribution: str, arms: int) -> float:
    if distribution == "independent":
        return MOST_CHOICES
    if distribution == "k_armed" and arms > 1:
        return bandit_optimal.MOST_TRIALS_OF_MANY
    return np.inf


def play(setting: Setting, drawn: Draws, agent: Agent, rng: np.random.Generator) -> Lockstep:
    """Return the episodes of `drawn` as an agent plays them; what it draws comes from `rng`."""
    lockstep = Lockstep(setting, drawn)
    seen = Seen(setting, rng, len(drawn.uniforms))
    while not lockstep.is_over:
        pulls = agent(seen)
        seen.add(pulls, lockstep.pull(pulls))
    return lockstep
