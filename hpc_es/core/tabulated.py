"""Episodes whose rewards can be tabulated before they are played, such as those of bandits.

In such an episode the reward of every action in every step is drawn in advance, and a policy
observes nothing but its last step. An algorithm can therefore play whole episodes in one compiled
graph of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from hpc_es.core.data import Array, Float32, Float64

RewardInput = Literal["value", "one_hot", "none"]
TimeInput = Literal["fraction", "number", "none"]
REWARD_SLOTS = 13  # width of a one-hot reward


@dataclass(frozen=True)
class LastStepInputs:
    """The observation before a step: [last reward, last action one-hot, time], all 0 before the
    first step.

    `reward` is its value, one-hot in 13 slots (see `slots`), or none. `time` is step / steps, the
    number of the step from 0, or none. With slots, the first observation shows a reward of 0.
    """

    choices: int  # number of actions
    steps: int  # of an episode
    reward: RewardInput = "value"
    action: bool = True
    time: TimeInput = "fraction"
    # the observed reward is clipped to [-reward_clip, reward_clip]
    reward_clip: float | None = None

    @property
    def reward_width(self) -> int:
        """Number of elements for the reward."""
        return {"value": 1, "one_hot": REWARD_SLOTS, "none": 0}[self.reward]

    @property
    def width(self) -> int:
        """Number of elements of an observation."""
        return self.reward_width + self.choices * self.action + (self.time != "none")

    def first(self, episodes: int) -> Float32:
        """Return the observation before the first step, float32[episodes, width]."""
        observation = np.zeros((episodes, self.width), np.float32)
        if self.reward == "one_hot":
            observation[:, 0] = 1.0
        return observation

    def after(self, step: int, actions: Array, rewards: Float32) -> Float32:
        """Return the observation after a step, float32[episodes, width].

        `actions` are int64[episodes], `rewards` float32[episodes].
        """
        observation = np.zeros((len(actions), self.width), np.float32)
        rows, width = np.arange(len(actions)), self.reward_width
        if self.reward_clip is not None:
            rewards = np.clip(rewards, -self.reward_clip, self.reward_clip)
        if self.reward == "value":
            observation[:, 0] = rewards
        elif self.reward == "one_hot":
            observation[rows, slots(rewards)] = 1.0
        if self.action:
            observation[rows, width + actions] = 1.0
        if self.time != "none":
            observation[:, -1] = (step + 1) / self.steps if self.time == "fraction" else step + 1
        return observation


def slots(rewards: Array) -> Array:
    """Return the nearest slot of each reward, int64 in their shape: 0, 0.1,
    ... 1.1 are 0 to 11, more is 12.
    """
    nearest: Array = np.clip(
        np.rint(10.0 * np.asarray(rewards, np.float64)), 0, REWARD_SLOTS - 1
    ).astype(np.int64)
    return nearest


@dataclass(frozen=True)
class RewardTable:
    """The rewards of several episodes."""

    rewards: Float32  # float32[steps, episodes, actions], the reward that each action would give
    # The numbers of `report.info`, float64[episodes, keys], of actions, int64[episodes, steps];
    # None: it names none.
    info_values: Callable[[Array], Float64] | None = None


@runtime_checkable
class TabulatedEpisodes(Protocol):
    """Episodes of equal lengths with tabulated rewards, as `TrajectoryProblem.compiled`."""

    @property
    def inputs(self) -> LastStepInputs:
        """What the policy observes, and the number of steps."""
        ...

    @property
    def one_by_one(self) -> str:
        """A task, as in a config, whose episodes are played step by step instead."""
        ...

    def table(self, seeds: Sequence[int] | Array) -> RewardTable:
        """Return the rewards of one episode per seed, int[episodes]."""
        ...
