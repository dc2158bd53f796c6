"""The Gymnasium environment hpc_es/Bandit-v0: an episode has `num_trials` pulls."""

from __future__ import annotations

from typing import ClassVar

import gymnasium
import numpy as np

from hpc_es.bandits.setting import Lockstep, RewardInput, TimeInput, setting
from hpc_es.core.data import Array, Float32


class Bandit(gymnasium.Env[Array, int]):  # type: ignore[misc]
    """`gymnasium.make("hpc_es/Bandit-v0", distribution="independent", num_trials=100)`.

    Observations are float32[width], see `hpc_es.bandits.setting.BanditInputs`; actions are Discrete(arms). Infos
    contain `optimal_arm` (from 0) and `expected_reward` (float64[arms]) of the next trial; the info of a step also
    contains `regret`, the expected regret of its pull. All random numbers come from the seed of the last `reset` with a
    seed. Further keywords are those of the distribution, such as num_arms=5 for "k_armed".

    Raises ConfigError with the name of an invalid keyword.
    """

    metadata: ClassVar[dict[str, object]] = {"render_modes": []}

    def __init__(
        self,
        distribution: str = "independent",
        num_trials: int = 100,
        meta: bool = True,
        arms_seed: int = 0,
        reward: RewardInput = "value",
        action: bool = True,
        time: TimeInput = "fraction",
        reward_clip: float | None = None,
        render_mode: str | None = None,
        **family_options: float,
    ) -> None:
        inputs = (reward, action, time)
        self.setting = setting(distribution, num_trials, meta, arms_seed, *inputs, family_options, reward_clip)
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.setting.inputs.width,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(self.setting.family.arms)
        self._play: Lockstep | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Float32, dict[str, object]]:
        """Return the first observation, float32[width], and info; `options` are not used."""
        super().reset(seed=seed)
        episode_seed = int(self.np_random.integers(2**31)) if seed is None else seed
        self._play = Lockstep(self.setting, self.setting.episodes_of_seeds([episode_seed]))
        return self._play.observations[0], self._info(0)

    def step(self, action: int) -> tuple[Float32, float, bool, bool, dict[str, object]]:
        """Pull an arm; return the next observation, float32[width], and the reward.

        Raises RuntimeError before the first reset and after the last trial, ValueError for another arm.
        """
        play = self._play
        if play is None or play.is_over:
            raise RuntimeError("the episode is over, or never began: call reset first")
        if not self.action_space.contains(action):
            raise ValueError(f"expected an arm from 0 to {self.setting.family.arms - 1}, found {action!r}")
        trial = play.trial
        reward = play.pull(np.array([action]))[0]
        info = self._info(min(trial + 1, self.setting.num_trials - 1))
        info["regret"] = float(play.episodes.arms.regrets(play.pulls)[0, trial])
        return play.observations[0], float(reward), play.is_over, False, info

    def _info(self, trial: int) -> dict[str, object]:
        assert self._play
        arms = self._play.episodes.arms
        index = trial if self.setting.family.changes else 0
        return {"optimal_arm": int(arms.optimal()[0, index]), "expected_reward": arms.expected()[0, index]}
