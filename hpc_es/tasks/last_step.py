"""A wrapper that adds the previous reward, the previous action and the time to the observation.

    task: {env_id: CartPole-v1, wrappers: ['hpc_es.tasks.last_step:LastStep']}

With these a recurrent policy can learn to explore (Wang et al. 2016, Duan et al. 2016).
"""

from __future__ import annotations

import gymnasium
import numpy as np

from hpc_es.core.data import Array, Float32


class LastStep(gymnasium.Wrapper):  # type: ignore[misc]
    """Observations also have the last reward, the one-hot action and the time.

    They are float32[observations + 1 + actions + 1]. Reward, action and time are 0 at the start of
    an episode. Time is the number of steps so far, divided by `time_scale`. The reward in the
    observation is clipped to [-reward_clip, reward_clip], unless that is None; the reward of the
    step is not.

    Raises:
        ValueError: observations are not flat, or actions not Discrete.
    """

    def __init__(
        self, env: gymnasium.Env, time_scale: float = 100.0, reward_clip: float | None = None
    ) -> None:
        super().__init__(env)
        observations, actions = env.observation_space, env.action_space
        if not isinstance(observations, gymnasium.spaces.Box) or len(observations.shape) != 1:
            raise ValueError(
                f"expected flat observations, found {observations}: put FlattenObservation before it"
            )
        if not isinstance(actions, gymnasium.spaces.Discrete):
            raise ValueError(f"expected Discrete actions, found {actions}")
        if not time_scale > 0:
            raise ValueError(f"time_scale is {time_scale}: expected a number greater than 0")
        if reward_clip is not None and not reward_clip > 0:
            raise ValueError(
                f"reward_clip is {reward_clip}: expected a number greater than 0, or null"
            )
        self._reward_clip = np.inf if reward_clip is None else reward_clip
        self._actions, self._first, self._time_scale = (
            int(actions.n),
            int(actions.start),
            time_scale,
        )
        width = observations.shape[0] + 1 + self._actions + 1
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Float32, dict[str, object]]:
        """Start an episode; in the observation, float32[width], reward, action and time are 0."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._steps = 0
        return self._extended(observation, 0.0, None), info

    def step(self, action: Array | int) -> tuple[Float32, float, bool, bool, dict[str, object]]:
        """Take a step; its action and reward are part of the observation, float32[width]."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        return (
            self._extended(observation, float(reward), int(action)),
            reward,
            terminated,
            truncated,
            info,
        )

    def _extended(self, observation: Array, reward: float, action: int | None) -> Float32:
        last = np.zeros(1 + self._actions + 1, np.float32)
        last[0] = min(max(reward, -self._reward_clip), self._reward_clip)
        last[-1] = self._steps / self._time_scale
        if action is not None:
            last[1 + action - self._first] = 1.0
        return np.concatenate([np.asarray(observation, np.float32), last])
