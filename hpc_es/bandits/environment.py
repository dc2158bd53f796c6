"""A bandit as a Gymnasium environment: an episode is `num_trials` pulls."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np

from hpc_es.bandits.setting import Lockstep, RewardInput, TimeInput, setting
from hpc_es.core.data import Array, Float32


class Bandit(gymnasium.Env[Array, int]):  # type: ignore[misc]
    """`gymnasium.make("hpc_es/Bandit-v0", distribution="independent", num_trials=100)`.

    Observations are float32[width], as `bandit_setting.Inputs` has them; actions are Discrete(arms). The infos have
    `optimal_arm` (from 0) and `expected_reward` (float64[arms]) of the trial to come; that of a step has `regret` too,
    the expected regret of its pull. Everything random comes from the seed of `reset`, or goes on from there. Further
    keywords are those of the distribution, such as num_arms=5 of "k_armed".

    Raises ConfigError, which names the keyword, for what cannot be.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

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
        **family_options: Any,
    ) -> None:
        inputs = (reward, action, time)
        self.setting = setting(distribution, num_trials, meta, arms_seed, *inputs, family_options, reward_clip)
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.setting.inputs.width,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(self.setting.family.arms)
        self._play: Lockstep | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Float32, Any]:
        """Return the first observation and info; `options` are not used."""
        super().reset(seed=seed)
        own = int(self.np_random.integers(2**31)) if seed is None else seed
        self._play = Lockstep(self.setting, self.setting.of_seeds([own]))
        return self._play.observations[0], self._info(0)

    def step(self, action: int) -> tuple[Float32, float, bool, bool, Any]:
        """Pull an arm; RuntimeError before the first reset and after the last trial."""
        play = self._play
        if play is None or play.is_over:
            raise RuntimeError("the episode is over, or never began: call reset first")
        if not self.action_space.contains(action):
            raise ValueError(f"expected an arm from 0 to {self.setting.family.arms - 1}, found {action!r}")
        trial = play.trial
        reward = play.pull(np.array([action]))[0]
        info = self._info(min(trial + 1, self.setting.num_trials - 1))
        info["regret"] = float(play.drawn.arms.regrets(play.pulls)[0, trial])
        return play.observations[0], float(reward), play.is_over, False, info

    def _info(self, trial: int) -> dict[str, Any]:
        assert self._play
        arms = self._play.drawn.arms
        at = trial if self.setting.family.changes else 0
        return {"optimal_arm": int(arms.optimal()[0, at]), "expected_reward": arms.expected()[0, at]}
