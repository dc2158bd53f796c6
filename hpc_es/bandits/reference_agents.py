"""Reference agents for bandits, and exact values of the Bayes-optimal ones.

Agents play many episodes at once.

random             a uniformly random arm
ucb1               highest mean reward + sqrt(2 ln t / pulls), after pulling each arm once
                   (Auer et al. 2002)
ucb                the same with sqrt(ln t / pulls)
thompson           best arm of a sample from the posterior: Beta(1, 1) priors for independent
                   arms (rewards between 0 and 1 are treated as chances), N(0, 1) for
                   "gaussian", targets not yet tried for "eleven"
epsilon_greedy     highest (rewards + 1) / (pulls + 2); a random arm with probability 0.1
posterior_greedy   the same without random arms
rescorla_wagner    highest q, where a pull changes q by half of reward - q; for restless arms
bayes_optimal      Bayes-optimal agent of the distribution, if it can be computed

Ties are broken at random. t is the number of trials so far.

Bayes-optimal agents know the distribution of the arms and the number of trials. The value with n
trials left is

    V(b, 0) = 0
    V(b, n) = max over arms of  m + m V(b after success, n - 1) + (1 - m) V(b after failure, n - 1)

where b counts the successes and failures of each arm and m = (successes + 1) / (pulls + 2) is the
arm's expected chance under the prior U[0, 1]. For two dependent arms (p, 1 - p) each pull is
equally informative, so that the arm with the larger expected chance is optimal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import comb, lgamma, log

import numpy as np
import numpy.typing as npt

from hpc_es.bandits.families import family
from hpc_es.bandits.setting import BanditEpisodes, BanditSetting, Lockstep
from hpc_es.core.data import Array, Float32, Float64
from hpc_es.core.errors import ConfigError, UserError

TIE = 1e-10  # arms whose values differ by less are considered equal
# for two arms; time grows with the fourth power, and is 0.3 s for 100 trials
MAX_TRIALS_TWO_ARMS = 200
MAX_TRIALS_MANY_ARMS = 20  # for more arms; time grows by half with each trial
MOST_EXACT = 1000  # trials whose binomial coefficients are float64
LEAST_ERROR = 1e-18  # probability of an error that no sum shows
LOW = {"easy": 0.1, "medium": 0.25, "hard": 0.4}  # chance of the worse arm
# the same arms in all episodes
FIXED = ("fixed", "deterministic", "high_low", "high_high", "low_low")
EXACT = ("independent", "uniform", *LOW, "eleven", "k_armed", *FIXED)
TARGET = 2.0  # of eleven arms, only the target gives a higher reward
MAX_TRIALS_INDEPENDENT = 200  # for two independent arms: 70 MB of choices


# Exact values.


def optimal_reward(num_arms: int, num_trials: int) -> float:
    """Return the Bayes-optimal expected total reward of `num_arms` independent arms.

    Their chances are from U[0, 1].

    Raises:
        UserError: for more than 200 trials of two arms or 20 trials of more arms.
    """
    for name, number in (("num_arms", num_arms), ("num_trials", num_trials)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UserError(f"{name} is {number!r}: expected a whole number of at least 1")
    if num_arms == 1:
        return num_trials / 2
    limit = MAX_TRIALS_TWO_ARMS if num_arms == 2 else MAX_TRIALS_MANY_ARMS
    if num_trials > limit:
        raise UserError(
            f"num_trials is {num_trials}: the optimum of {num_arms} arms is computed for at "
            f"most {limit} trials"
        )
    if num_arms == 2:
        *_, (values_0, values_1) = _two_arms(num_trials)
        return float(max(values_0[0][0, 0], values_1[0][0, 0]))
    return _value_of_many((), min(num_arms, num_trials), num_trials)


# for n = 0 .. t pulls of arm 0: float64[n + 1, t - n + 1], by the successes of both arms
Blocks = list[Float64]


def _two_arms(num_trials: int) -> Iterator[tuple[Blocks, Blocks]]:
    """Yield the expected remaining reward of pulling arm 0 and arm 1.

    That is after t = num_trials - 1, ... 0 trials.
    """
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
        after = [
            np.maximum(value_0, value_1)
            for value_0, value_1 in zip(values_0, values_1, strict=True)
        ]


@functools.lru_cache(4)
def choices_of_two_arms(num_trials: int) -> tuple[npt.NDArray[np.int8], ...]:
    """Return the better of two independent arms after t = 0, 1, ... trials, each int8[counts].

    It is 1 for arm 0, -1 for arm 1, 0 for both. If arm 0 had s successes in n pulls and arm 1 had r
    in t - n pulls, the index is `index_of_counts(t, n, s, r)`.
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
    """Return the expected reward of the remaining trials for pulling each arm of `counts`.

    Then for pulling an untried one.
    """
    candidates = [*enumerate(counts)] + ([(len(counts), (0, 0))] if untried else [])
    values = []
    for arm, (successes, failures) in candidates:
        others = counts[:arm] + counts[arm + 1 :]
        left = untried - (arm == len(counts))
        mean = (successes + 1) / (successes + failures + 2)
        success = tuple(sorted((*others, (successes + 1, failures))))
        failure = tuple(sorted((*others, (successes, failures + 1))))
        then = mean * _value_of_many(success, left, trials - 1) + (1 - mean) * _value_of_many(
            failure, left, trials - 1
        )
        values.append(mean + then)
    return values


@functools.lru_cache(4_000_000)
def _value_of_many(counts: Counts, untried: int, trials: int) -> float:
    return max(values_of_arms(counts, untried, trials)) if trials else 0.0


def optimal_regret(distribution: str, num_trials: int, **family_options: float) -> float:
    """Return the Bayes-optimal agent's expected cumulative regret in `num_trials` trials.

    Raises:
        ConfigError: the distribution or an option is not known.
        UserError: there is no exact value, or too many trials.
    """
    bandits = family(distribution, **family_options)
    if isinstance(num_trials, bool) or not isinstance(num_trials, int) or num_trials < 1:
        raise ConfigError(
            [("num_trials", f"expected a whole number of at least 1, found {num_trials!r}")]
        )
    if distribution in {"independent", "k_armed"}:
        return num_trials * bandits.arms / (bandits.arms + 1) - optimal_reward(
            bandits.arms, num_trials
        )
    if distribution == "uniform":
        return num_trials * 0.75 - _reward_of_uniform(num_trials)
    if distribution in LOW:
        return (1 - 2 * LOW[distribution]) * _expected_errors(num_trials, 1 - LOW[distribution])
    if distribution == "eleven":
        return plan_of_eleven(num_trials, **family_options)[0]
    if distribution in FIXED:
        return 0.0
    raise UserError(
        f"no exact value is known for {distribution!r}: expected one of {', '.join(EXACT)}"
    )


def _reward_of_uniform(num_trials: int) -> float:
    """Return the optimal reward for "uniform".

    After t trials, evidence for arm 0 is uniform on 0 .. t.
    """
    total = 0.0
    for t in range(num_trials):
        mean = (np.arange(t + 1) + 1) / (t + 2)
        total += float(np.maximum(mean, 1 - mean).mean())
    return total


def _expected_errors(num_trials: int, chance: float) -> float:
    """Return in how many of the trials the evidence is expected to favour the worse arm."""
    total = 0.0
    for t in range(num_trials):
        probability = _error_probability(t, chance)
        total += probability
        # they fall exponentially
        if t % 2 and probability < LEAST_ERROR:
            break
    return total


def _error_probability(t: int, chance: float) -> float:
    """Return the probability that after t trials the evidence favours the worse arm.

    Ties are broken by a coin.
    """
    if t <= MOST_EXACT:
        chances = [comb(t, k) * chance**k * (1 - chance) ** (t - k) for k in range(t // 2 + 1)]
    else:
        k = np.arange(t // 2 + 1)
        ways = lgamma(t + 1) - np.array([lgamma(i + 1) + lgamma(t - i + 1) for i in k.tolist()])
        chances = np.exp(ways + k * log(chance) + (t - k) * log(1 - chance)).tolist()
    if t % 2 == 0:
        chances[-1] /= 2
    return sum(chances)


def plan_of_eleven(
    num_trials: int, non_target_reward: float = 1.1, target_reward: float = 5.0
) -> tuple[float, list[list[bool]]]:
    """Return the expected regret of the optimal plan for "eleven", and when it pulls arm 10.

    That arm reveals the target. asks[n][m] is whether to pull it with n trials left after m other
    arms turned out not to be the target. Trying the lowest arms first keeps the reward of arm 10
    high.
    """
    miss = target_reward - non_target_reward
    # by the number of arms that were not the target, for the remaining trials
    regrets: Float64 = np.zeros(10)
    asks: list[list[bool]] = [[False] * 10]
    for _ in range(num_trials):
        before = regrets.copy()
        asks.append([False] * 10)
        for tried in range(9):
            ask = target_reward - 0.1 * float(np.mean(np.arange(tried, 10) + 1))
            search = (1 - 1 / (10 - tried)) * (miss + before[tried + 1])
            regrets[tried], asks[-1][tried] = min(ask, search), ask < search
    return float(regrets[0]), asks


# Agents.


@dataclass
class AgentHistory:
    """Pulls and rewards of an agent in its episodes so far."""

    setting: BanditSetting
    rng: np.random.Generator
    episodes: int
    pulls: Float64 = field(init=False)  # float64[episodes, arms]
    rewards: Float64 = field(init=False)  # float64[episodes, arms], sums
    # the same, with rewards between 0 and 1 replaced by coin flips
    successes: Float64 = field(init=False)
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
        self.successes[index] += (
            rewards if self.setting.family.is_binary else self.rng.random(self.episodes) < rewards
        )
        self.q[index] += 0.5 * (rewards - self.q[index])

    def best(self, scores: Float64) -> Array:
        """Return the arms of the highest scores, int64[episodes].

        Scores are float64[episodes, arms]; tied arms are chosen at random.
        """
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
    """Pull the arm with the highest mean of a Beta(1, 1) posterior.

    For other rewards the formula is the same.
    """
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
    return history.best(
        history.rng.beta(history.successes + 1, history.pulls - history.successes + 1)
    )


def thompson_of_gaussian(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull the best arm of a sample from N(sum / (n + 1), 1 / (n + 1)).

    That is the posterior of N(0, 1) given N(q, 1).
    """
    return history.best(
        history.rng.normal(history.rewards / (history.pulls + 1), 1 / np.sqrt(history.pulls + 1))
    )


def thompson_of_eleven(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull a possible target.

    Arm 10, which reveals the target, is never the best arm and so never pulled.
    """
    is_new = history.pulls == 0
    is_new[:, 10] = False
    means = np.where(history.pulls > 0, history.rewards / np.maximum(history.pulls, 1), -np.inf)
    has_target = (means.max(axis=1) > TARGET)[:, np.newaxis]
    return history.best(np.where(has_target, means, is_new))


def optimal_of_opposite(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull the arm with more evidence, of arms with p and 1 - p:
    its successes and the failures of the other one.
    """
    failures = history.pulls - history.rewards
    return history.best(history.rewards + failures[:, ::-1])


def optimal_of_two(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull the optimal one of two independent arms, by dynamic programming."""
    choices = choices_of_two_arms(history.setting.num_trials)[history.trial]
    n, s, r = (
        part.astype(np.int64)
        for part in (history.pulls[:, 0], history.rewards[:, 0], history.rewards[:, 1])
    )
    better = choices[index_of_counts(history.trial, n, s, r)].astype(np.float64)
    return history.best(np.stack([better, -better], axis=1))


def optimal_of_many(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull the optimal one of several independent arms.

    It follows by dynamic programming over their unordered counts.
    """
    successes = history.rewards.astype(np.int64)
    failures = history.pulls.astype(np.int64) - successes
    return np.array(
        [
            _optimal(history, tuple(zip(*row, strict=True)))
            for row in zip(successes, failures, strict=True)
        ]
    )


def _optimal(history: AgentHistory, counts: tuple[tuple[int, int], ...]) -> int:
    plain = tuple((int(s), int(f)) for s, f in counts)
    left = history.setting.num_trials - history.trial
    tried = tuple(sorted(count for count in plain if count != (0, 0)))
    values = values_of_arms(tried, min(len(plain) - len(tried), left), left)
    best = max(range(len(values)), key=values.__getitem__)
    return plain.index((*tried, (0, 0))[best])


def optimal_of_eleven(history: AgentHistory) -> Array:  # int64[episodes]
    """Pull arm 10, whose reward reveals the target, then the target.

    In a single trial, any other arm is better.
    """
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
    within_one = family.is_binary or family.distribution in {
        "k_armed_values",
        "k_armed_chances_and_values",
    }
    special = {"gaussian": thompson_of_gaussian, "eleven": thompson_of_eleven}
    if within_one or family.distribution in special:
        agents["thompson"] = special.get(family.distribution, thompson)
    agents |= {"epsilon_greedy": epsilon_greedy, "posterior_greedy": posterior_greedy}
    if family.changes:
        agents["rescorla_wagner"] = rescorla_wagner
    if family.distribution in OPTIMAL and setting.num_trials <= _most_trials(
        family.distribution, family.arms
    ):
        agents["bayes_optimal"] = OPTIMAL[family.distribution]
    return agents


def _most_trials(distribution: str, arms: int) -> float:
    if distribution == "independent":
        return MAX_TRIALS_INDEPENDENT
    if distribution == "k_armed" and arms > 1:
        return MAX_TRIALS_MANY_ARMS
    return np.inf


def play(
    setting: BanditSetting, episodes: BanditEpisodes, agent: Agent, rng: np.random.Generator
) -> Lockstep:
    """Play these episodes with an agent, whose random numbers come from `rng`."""
    lockstep = Lockstep(setting, episodes)
    history = AgentHistory(setting, rng, len(episodes.uniforms))
    while not lockstep.is_over:
        pulls = agent(history)
        history.add(pulls, lockstep.pull(pulls))
    return lockstep
