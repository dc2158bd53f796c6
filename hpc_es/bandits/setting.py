"""What an episode of a bandit is: its arms, its random numbers, and what the agent sees, in whatever form it is played.

An episode takes all its random numbers from one generator, in this order: its arms (unless they are fixed), a float32
uniform number for each trial, and where the distribution is noisy a float32 normal number for each trial. A trial's
numbers are the same, whatever arm is pulled.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hpc_es.bandits.families import FAMILIES, Arms, Family, family
from hpc_es.config.schema import Reduction
from hpc_es.core.data import Array, Float32, Float64
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys, Purpose

RewardInput = Literal["value", "one_hot", "none"]
TimeInput = Literal["fraction", "number", "none"]
SLOTS = 13  # of a one-hot reward
INFO_KEYS = ("regret",)  # the numbers of a pull that `report.info` may name: its expected regret


@dataclass(frozen=True)
class Inputs:
    """What the agent sees before a trial: [reward of the trial before, its arm one-hot, time]; first all of it is 0.

    reward: its value, one of 13 slots (`slots`), or withheld. time: trial / num_trials, the trial's number from 0, or
    withheld. In slots, no reward yet is a reward of 0.
    """

    arms: int
    num_trials: int
    reward: RewardInput = "value"
    action: bool = True
    time: TimeInput = "fraction"
    reward_clip: float | None = None  # the reward is seen clipped to [-reward_clip, reward_clip]

    @property
    def reward_width(self) -> int:
        """Numbers that tell the reward."""
        return {"value": 1, "one_hot": SLOTS, "none": 0}[self.reward]

    @property
    def width(self) -> int:
        """Numbers in all."""
        return self.reward_width + self.arms * self.action + (self.time != "none")

    def first(self, episodes: int) -> Float32:
        """Before the first trial, float32[episodes, width]."""
        seen = np.zeros((episodes, self.width), np.float32)
        if self.reward == "one_hot":
            seen[:, 0] = 1.0
        return seen

    def after(self, trial: int, pulls: Array, rewards: Float32) -> Float32:
        """After a trial (from 0) with these arms, int64[episodes], and rewards: float32[episodes, width]."""
        seen = np.zeros((len(pulls), self.width), np.float32)
        rows, width = np.arange(len(pulls)), self.reward_width
        if self.reward_clip is not None:
            rewards = np.clip(rewards, -self.reward_clip, self.reward_clip)
        if self.reward == "value":
            seen[:, 0] = rewards
        elif self.reward == "one_hot":
            seen[rows, slots(rewards)] = 1.0
        if self.action:
            seen[rows, width + pulls] = 1.0
        if self.time != "none":
            seen[:, -1] = (trial + 1) / self.num_trials if self.time == "fraction" else trial + 1
        return seen


def slots(rewards: Array) -> Array:
    """Of SLOTS: 0, 0.1, ... 1.0 are 0 to 10, 1.1 is 11, all above is 12; to the nearest, int64 as `rewards`."""
    nearest: Array = np.clip(np.rint(10.0 * np.asarray(rewards, np.float64)), 0, SLOTS - 1).astype(np.int64)
    return nearest


@dataclass(frozen=True)
class Draws:
    """The random numbers of some episodes."""

    arms: Arms
    uniforms: Float32  # float32[episodes, trials], U[0, 1)
    normal: Float32 | None  # float32[episodes, trials], N(0, 1), where the distribution is noisy


@dataclass(frozen=True)
class Setting:
    """A bandit problem; make it with `setting`."""

    family: Family
    num_trials: int
    fixed_arms: Arms | None  # of one episode: those of all episodes
    inputs: Inputs
    info: Mapping[str, Reduction] = field(default_factory=dict)  # of `report.info`: INFO_KEYS

    def numbers(self, arms: Arms, pulls: Array) -> Float64:
        """Return the numbers of `info` of episodes with these pulls, int64[episodes, trials]: [episodes, keys]."""
        regrets = arms.regrets(pulls)
        by_reduction = {"final": regrets[:, -1], "mean": regrets.mean(axis=1), "sum": regrets.sum(axis=1)}
        return np.stack([by_reduction[reduction] for reduction in self.info.values()], axis=1)

    def draw(self, rng: np.random.Generator, episodes: int = 1) -> Draws:
        """Return the random numbers of some episodes; one at a time they are others than all at once."""
        if self.fixed_arms is None:
            arms = self.family.draw(rng, episodes)
        else:
            arms = self.fixed_arms.of(np.zeros(episodes, np.intp))
        shape = (episodes, self.num_trials)
        uniforms = rng.random(shape, np.float32)
        return Draws(arms, uniforms, rng.standard_normal(shape, np.float32) if self.family.is_noisy else None)

    def of_seeds(self, seeds: Sequence[int] | Array) -> Draws:
        """One episode a seed: that of the Gymnasium environment after reset(seed=seed)."""
        drawn = [self.draw(rng) for rng in generators(seeds)]
        parts = [(each.arms.chances, each.arms.values, each.arms.spreads, each.uniforms) for each in drawn]
        chances, values, spreads, uniforms = (np.concatenate(part) for part in zip(*parts, strict=True))
        normals = [each.normal for each in drawn if each.normal is not None]
        return Draws(Arms(chances, values, spreads), uniforms, np.concatenate(normals) if normals else None)


def generators(seeds: Sequence[int] | Array) -> Iterator[np.random.Generator]:
    """Keys(seed).generator(Purpose.BANDITS) of each seed, int from 0; each is valid until the next.

    It is one generator whose key is changed, as to make a new one takes longer than to draw an episode.
    """
    rng = Keys(0).generator(Purpose.BANDITS)
    fresh: Any = rng.bit_generator.state
    for seed in seeds:
        fresh["state"]["key"][0] = int(seed) % 2**64
        rng.bit_generator.state = fresh
        yield rng


class Lockstep:
    """Episodes played side by side, one trial at a time."""

    def __init__(self, setting: Setting, drawn: Draws) -> None:
        self.setting, self.drawn, self.trial = setting, drawn, 0
        episodes = len(drawn.uniforms)
        self.observations = setting.inputs.first(episodes)
        self.pulls = np.zeros((episodes, setting.num_trials), np.int64)
        self.rewards = np.zeros((episodes, setting.num_trials), np.float32)

    @property
    def is_over(self) -> bool:
        """Whether all trials are played."""
        return self.trial == self.setting.num_trials

    def pull(self, arms: Array) -> Float32:
        """Play a trial with these arms, int64[episodes]; the rewards, float32[episodes]."""
        assert not self.is_over
        trial, drawn = self.trial, self.drawn
        normal = None if drawn.normal is None else drawn.normal[:, trial]
        rewards = drawn.arms.rewards(trial, arms, drawn.uniforms[:, trial], normal)
        self.pulls[:, trial], self.rewards[:, trial] = arms, rewards
        self.observations = self.setting.inputs.after(trial, arms, rewards)
        self.trial += 1
        return rewards


def setting(
    distribution: str,
    num_trials: int = 100,
    meta: bool = True,
    arms_seed: int = 0,
    reward: RewardInput = "value",
    action: bool = True,
    time: TimeInput = "fraction",
    family_options: Mapping[str, Any] | None = None,
    reward_clip: float | None = None,
) -> Setting:
    """Return the problem; ConfigError names the keys that are wrong.

    meta: arms are drawn for each episode; if not, once and for all, from `arms_seed`. `family_options` are the keywords
    of the distribution; that of the number of trials, where it has one, is filled in.
    """
    if isinstance(num_trials, bool) or not isinstance(num_trials, int) or num_trials < 1:
        raise ConfigError([("num_trials", f"expected a whole number of at least 1, found {num_trials!r}")])
    for key, value, words in (("reward", reward, RewardInput), ("time", time, TimeInput)):
        if value not in (known := words.__args__):  # type: ignore[attr-defined]
            raise ConfigError([(key, f"expected one of {', '.join(map(repr, known))}, found {value!r}")])
    options = dict(family_options or {})
    if "num_trials" in options:
        raise ConfigError([("family.num_trials", "is not an option of the distribution: set num_trials")])
    if "num_trials" in inspect.signature(FAMILIES.get(distribution, family)).parameters:
        options["num_trials"] = num_trials
    found = family(distribution, **options)
    if reward_clip is not None and not reward_clip > 0:
        raise ConfigError([("reward_clip", f"expected a number greater than 0, or null, found {reward_clip!r}")])
    inputs = Inputs(found.arms, num_trials, reward, action, time, reward_clip)
    if not inputs.width:
        text = "is 'none', and so are action and time: the agent would see nothing (try time: fraction)"
        raise ConfigError([("reward", text)])
    rng = Keys(arms_seed).generator(Purpose.BANDITS, index=1)  # index 0 has the episodes
    return Setting(found, num_trials, None if meta else found.draw(rng, 1), inputs)
