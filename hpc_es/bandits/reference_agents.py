"""Reference agents for bandits, which play many episodes at once.

random             a uniformly random arm
ucb1               highest mean reward + sqrt(2 ln t / pulls), after pulling each arm once (Auer et al. 2002)
ucb                the same with sqrt(ln t / pulls)
thompson           best arm of a sample from the posterior: Beta(1, 1) priors for independent arms (rewards between 0
and 1
                   are treated as chances), N(0, 1) for "gaussian", targets not yet tried for "eleven"
epsilon_greedy     highest (rewards + 1) / (pulls + 2); a random arm with probability 0.1
posterior_greedy   the same without random arms
rescorla_wagner    highest q, where a pull changes q by half of reward - q; for restless arms
bayes_optimal      Bayes-optimal agent of the distribution, if it can be computed

Ties are broken at random. t is the number of trials so far.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hpc_es.bandits import optimal as bandit_optimal
from hpc_es.bandits.setting import BanditEpisodes, BanditSetting, Lockstep
from hpc_es.core.data import Array, Float32, Float64

TARGET = 2.0  # of eleven arms, only the target gives a higher reward
MAX_TRIALS_INDEPENDENT = 200  # for two independent arms: 70 MB of choices


@dataclass
class AgentHistory:
    """Pulls and rewards of an agent in its episodes so far."""

    setting: BanditSetting
    rng: np.random.Generator
    episodes: int
    pulls: Float64 = field(init=False)  # float64[episodes, arms]
    rewards: Float64 = field(init=False)  # float64[episodes, arms], sums
    successes: Float64 = field(init=False)  # the same, with rewards between 0 and 1 replaced by coin flips
    q: Float64 = field(init=False)  # float64[episodes, arms], values of rescorla_wagner
    trial: int = 0

    def __post_init__(self) -> None:
        shape = (self.episodes, self.setting.family.arms)
        self.pulls, self.rewards, self.successes = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.q = np.full(shape, 0.5)

    def add(self, pulls: Array, rewards: Float32) -> None:
        """Add a trial with pulls, int64[episodes], and rewards, float32[episodes]."""
        index = np.arange(self.episodes), pulls
        self.trial += 1
        self.pulls[index] += 1
        self.rewards[index] += rewards
        self.successes[index] += rewards if self.setting.family.is_binary else self.rng.random(self.episodes) < rewards
        self.q[index] += 0.5 * (rewards - self.q[index])

    def best(self, scores: Float64) -> Array:
        """Return the arms of the highest scores, int64[episodes], of float64[episodes, arms]; random if tied."""
        random_scores = self.rng.random(scores.shape)
        random_scores[scores < scores.max(axis=1, keepdims=True)] = -1.0
        arms: Array = random_scores.argmax(axis=1)
        return arms


Agent = Callable[[AgentHistory], Array]  # returns the arms to pull, int64[episodes]


def random(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull a random arm."""
    return history.rng.integers(history.setting.family.arms, size=history.episodes)


def _ucb(factor: float, history: AgentHistory) -> Array:
    pulls = np.maximum(history.pulls, 1)
    bonus = np.sqrt(factor * np.log(max(history.trial, 1)) / pulls)
    return history.best(np.where(history.pulls == 0, np.inf, history.rewards / pulls + bonus))


def posterior_greedy(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull the arm with the highest mean of a Beta(1, 1) posterior, or the same formula for other rewards."""
    return history.best((history.rewards + 1) / (history.pulls + 2))


def epsilon_greedy(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull that arm, or a random one with probability 0.1."""
    explores = history.rng.random(history.episodes) < 0.1
    return np.where(explores, random(history), posterior_greedy(history))


def rescorla_wagner(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull the arm with the highest q."""
    return history.best(history.q)


def thompson(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull the best arm of a sample from the Beta posteriors of independent chances."""
    return history.best(history.rng.beta(history.successes + 1, history.pulls - history.successes + 1))


def thompson_of_gaussian(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull the best arm of a sample from N(sum / (n + 1), 1 / (n + 1)), the posterior of N(0, 1) given N(q, 1)."""
    return history.best(history.rng.normal(history.rewards / (history.pulls + 1), 1 / np.sqrt(history.pulls + 1)))


def thompson_of_eleven(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull a possible target; arm 10, which reveals the target, is never the best arm and so never pulled."""
    is_new = history.pulls == 0
    is_new[:, 10] = False
    means = np.where(history.pulls > 0, history.rewards / np.maximum(history.pulls, 1), -np.inf)
    has_target = (means.max(axis=1) > TARGET)[:, np.newaxis]
    return history.best(np.where(has_target, means, is_new))


def optimal_of_opposite(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull the arm with more evidence, of arms with p and 1 - p: its successes and the failures of the other one."""
    failures = history.pulls - history.rewards
    return history.best(history.rewards + failures[:, ::-1])


def optimal_of_two(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull the optimal one of two independent arms, by dynamic programming."""
    choices = bandit_optimal.choices_of_two_arms(history.setting.num_trials)[history.trial]
    n, s, r = (part.astype(np.int64) for part in (history.pulls[:, 0], history.rewards[:, 0], history.rewards[:, 1]))
    better = choices[bandit_optimal.index_of_counts(history.trial, n, s, r)].astype(np.float64)
    return history.best(np.stack([better, -better], axis=1))


def optimal_of_many(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull the optimal one of several independent arms, by dynamic programming over their unordered counts."""
    successes = history.rewards.astype(np.int64)
    failures = history.pulls.astype(np.int64) - successes
    return np.array([_optimal(history, tuple(zip(*row, strict=True))) for row in zip(successes, failures, strict=True)])


def _optimal(history: AgentHistory, counts: tuple[tuple[int, int], ...]) -> int:
    plain = tuple((int(s), int(f)) for s, f in counts)
    left = history.setting.num_trials - history.trial
    tried = tuple(sorted(count for count in plain if count != (0, 0)))
    values = bandit_optimal.values_of_arms(tried, min(len(plain) - len(tried), left), left)
    best = max(range(len(values)), key=values.__getitem__)
    return plain.index((*tried, (0, 0))[best])


def optimal_of_eleven(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull arm 10, whose reward reveals the target, then the target; in a single trial, any other arm is better."""
    if history.setting.num_trials == 1:
        return np.zeros(history.episodes, np.int64)
    if history.trial == 0:
        return np.full(history.episodes, 10)
    targets: Array = np.rint(10 * history.rewards[:, 10]).astype(np.int64) - 1
    return targets


def oracle(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull the best arm, if arms are the same in all episodes."""
    arms = history.setting.family.draw(history.rng, 1)
    return np.repeat(arms.optimal()[0], history.episodes)


OPTIMAL: dict[str, Agent] = {
    "independent": optimal_of_two,
    **dict.fromkeys(("uniform", "easy", "medium", "hard"), optimal_of_opposite),
    "eleven": optimal_of_eleven,
    "k_armed": optimal_of_many,
    **dict.fromkeys(("fixed", "deterministic", "high_low", "high_high", "low_low"), oracle),
}


def references(setting: BanditSetting) -> dict[str, Agent]:
    """Return the agents that support a setting, by name."""
    family = setting.family
    ucb1, ucb = functools.partial(_ucb, 2.0), functools.partial(_ucb, 1.0)
    agents: dict[str, Agent] = {"random": random, "ucb1": ucb1, "ucb": ucb}
    within_one = family.is_binary or family.distribution in {"k_armed_values", "k_armed_chances_and_values"}
    special = {"gaussian": thompson_of_gaussian, "eleven": thompson_of_eleven}
    if within_one or family.distribution in special:
        agents["thompson"] = special.get(family.distribution, thompson)
    agents |= {"epsilon_greedy": epsilon_greedy, "posterior_greedy": posterior_greedy}
    if family.changes:
        agents["rescorla_wagner"] = rescorla_wagner
    if family.distribution in OPTIMAL and setting.num_trials <= _most_trials(family.distribution, family.arms):
        agents["bayes_optimal"] = OPTIMAL[family.distribution]
    return agents


def _most_trials(distribution: str, arms: int) -> float:
    if distribution == "independent":
        return MAX_TRIALS_INDEPENDENT
    if distribution == "k_armed" and arms > 1:
        return bandit_optimal.MAX_TRIALS_MANY_ARMS
    return np.inf


def play(setting: BanditSetting, episodes: BanditEpisodes, agent: Agent, rng: np.random.Generator) -> Lockstep:
    """Play these episodes with an agent, whose random numbers come from `rng`."""
    lockstep = Lockstep(setting, episodes)
    history = AgentHistory(setting, rng, len(episodes.uniforms))
    while not lockstep.is_over:
        pulls = agent(history)
        history.add(pulls, lockstep.pull(pulls))
    return lockstep
