"""Episodes of bandits: arms, random numbers and observations.

An episode takes all its random numbers from one generator, in this order: its arms (unless they are
fixed), a float32 uniform number for each trial and, if the distribution is noisy, a float32 normal
number for each trial. The numbers of a trial do not depend on the pulled arm.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpc_es.bandits.extension import BanditPurpose
from hpc_es.bandits.families import FAMILIES, Arms, Family, family
from hpc_es.config.schema import Reduction
from hpc_es.core.data import Array, Float32, Float64, Keywords
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys
from hpc_es.core.tabulated import LastStepInputs, RewardInput, RewardTable, TimeInput

INFO_KEYS = ("regret",)  # numbers that `report.info` may name: the expected regret of a pull


@dataclass(frozen=True)
class BanditEpisodes:
    """Arms and random numbers of several episodes."""

    arms: Arms
    uniforms: Float32  # float32[episodes, trials], U[0, 1)
    normal: Float32 | None  # float32[episodes, trials], N(0, 1), if the distribution is noisy

    def potential_rewards(self) -> Float32:
        """Return the reward that each arm would give in each trial,
        float32[trials, episodes, arms]; see `Arms.rewards`.
        """
        arms = self.arms
        values = (
            arms.values
            if self.normal is None
            else arms.values + arms.spreads * self.normal[:, :, np.newaxis]
        )
        rewards = np.where(self.uniforms[:, :, np.newaxis] < arms.chances, values, np.float32(0))
        return np.ascontiguousarray(rewards.transpose(1, 0, 2))


@dataclass(frozen=True)
class BanditSetting:
    """A bandit problem, which `setting` creates; as an algorithm sees it, `TabulatedEpisodes`."""

    family: Family
    num_trials: int
    fixed_arms: Arms | None  # arms of one episode, for all episodes; None: drawn for each episode
    inputs: LastStepInputs
    # `report.info`: reductions by key, one of INFO_KEYS
    info: Mapping[str, Reduction] = field(default_factory=dict)

    def info_values(self, arms: Arms, pulls: Array) -> Float64:
        """Return the numbers of `info`, float64[episodes, keys], of episodes with these pulls.

        Pulls are int64[episodes, trials].
        """
        regrets = arms.regrets(pulls)
        by_reduction = {
            "final": regrets[:, -1],
            "mean": regrets.mean(axis=1),
            "sum": regrets.sum(axis=1),
        }
        return np.stack([by_reduction[reduction] for reduction in self.info.values()], axis=1)

    @property
    def one_by_one(self) -> str:
        """The task whose episodes are played step by step instead."""
        return "{kind: episodes, env_id: 'hpc_es.tasks.bandits:hpc_es/Bandit-v0'}"

    def table(self, seeds: Sequence[int] | Array) -> RewardTable:
        """Return the rewards of one episode per seed, int[episodes], and its numbers of `info`."""
        episodes = self.episodes_of_seeds(seeds)

        def info_values(pulls: Array) -> Float64:
            return self.info_values(episodes.arms, pulls)

        return RewardTable(episodes.potential_rewards(), info_values if self.info else None)

    def draw(self, rng: np.random.Generator, episodes: int = 1) -> BanditEpisodes:
        """Draw several episodes; they differ from episodes that are drawn one at a time."""
        if self.fixed_arms is None:
            arms = self.family.draw(rng, episodes)
        else:
            arms = self.fixed_arms.select(np.zeros(episodes, np.intp))
        shape = (episodes, self.num_trials)
        uniforms = rng.random(shape, np.float32)
        return BanditEpisodes(
            arms, uniforms, rng.standard_normal(shape, np.float32) if self.family.is_noisy else None
        )

    def episodes_of_seeds(self, seeds: Sequence[int] | Array) -> BanditEpisodes:
        """Return one episode per seed, int[episodes]:
        that of the Gymnasium environment after reset(seed=seed).
        """
        episodes = [self.draw(rng) for rng in generators(seeds)]
        parts = [
            (episode.arms.chances, episode.arms.values, episode.arms.spreads, episode.uniforms)
            for episode in episodes
        ]
        chances, values, spreads, uniforms = (
            np.concatenate(part) for part in zip(*parts, strict=True)
        )
        normals = [episode.normal for episode in episodes if episode.normal is not None]
        return BanditEpisodes(
            Arms(chances, values, spreads), uniforms, np.concatenate(normals) if normals else None
        )


def generators(seeds: Sequence[int] | Array) -> Iterator[np.random.Generator]:
    """Yield Keys(seed).generator(BanditPurpose.BANDITS) for each seed, int64[seeds]; it is valid
    until the next is yielded.

    It is valid until the next is yielded. One generator gets a new key each time: creating a
    generator takes longer than drawing an episode.
    """
    rng = Keys(0).generator(BanditPurpose.BANDITS)
    fresh: Any = rng.bit_generator.state
    for seed in seeds:
        fresh["state"]["key"][0] = int(seed) % 2**64
        rng.bit_generator.state = fresh
        yield rng


class Lockstep:
    """Several episodes, played together one trial at a time."""

    def __init__(self, setting: BanditSetting, episodes: BanditEpisodes) -> None:
        self.setting, self.episodes, self.trial = setting, episodes, 0
        count = len(episodes.uniforms)
        self.observations = setting.inputs.first(count)  # float32[episodes, width]
        self.pulls = np.zeros((count, setting.num_trials), np.int64)
        self.rewards = np.zeros((count, setting.num_trials), np.float32)

    @property
    def is_over(self) -> bool:
        """Whether all trials have been played."""
        return self.trial == self.setting.num_trials

    def pull(self, arms: Array) -> Float32:
        """Play a trial with these arms, and return the rewards.

        They are int64[episodes] and float32[episodes].
        """
        assert not self.is_over
        trial, episodes = self.trial, self.episodes
        normal = None if episodes.normal is None else episodes.normal[:, trial]
        rewards = episodes.arms.rewards(trial, arms, episodes.uniforms[:, trial], normal)
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
    family_options: Keywords | None = None,
    reward_clip: float | None = None,
) -> BanditSetting:
    """Create a bandit problem; raises ConfigError with the names of invalid keys.

    With `meta`, arms are drawn for each episode; otherwise once, from `arms_seed`. `family_options`
    are the keywords of the distribution, without its number of trials.
    """
    if isinstance(num_trials, bool) or not isinstance(num_trials, int) or num_trials < 1:
        raise ConfigError(
            [("num_trials", f"expected a whole number of at least 1, found {num_trials!r}")]
        )
    for key, value, words in (("reward", reward, RewardInput), ("time", time, TimeInput)):
        if value not in (known := words.__args__):  # type: ignore[attr-defined]
            raise ConfigError(
                [(key, f"expected one of {', '.join(map(repr, known))}, found {value!r}")]
            )
    options = dict(family_options or {})
    if "num_trials" in options:
        raise ConfigError(
            [("family.num_trials", "is not an option of the distribution: set num_trials")]
        )
    if "num_trials" in inspect.signature(FAMILIES.get(distribution, family)).parameters:
        options["num_trials"] = num_trials
    chosen = family(distribution, **options)
    if reward_clip is not None and not reward_clip > 0:
        raise ConfigError(
            [("reward_clip", f"expected a number greater than 0, or null, found {reward_clip!r}")]
        )
    inputs = LastStepInputs(chosen.arms, num_trials, reward, action, time, reward_clip)
    if not inputs.width:
        raise ConfigError(
            [
                (
                    "reward",
                    "is 'none', and so are action and time: "
                    "the observation would be empty (try time: fraction)",
                )
            ]
        )
    rng = Keys(arms_seed).generator(
        BanditPurpose.BANDITS, index=1
    )  # index 0 is used for the episodes
    return BanditSetting(chosen, num_trials, None if meta else chosen.draw(rng, 1), inputs)
