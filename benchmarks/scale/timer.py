"""An environment whose steps sleep, with episode lengths from a list."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

LENGTHS = Path(__file__).with_name("humanoid_lengths.json")
STEP_SECONDS = 0.01


class Timer(gymnasium.Env[Any, Any]):
    """Samples the length of each episode from a list, by the seed alone."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(
        self, which: str = "early", step_seconds: float = STEP_SECONDS, scale: float = 1.0
    ) -> None:
        self._lengths: list[int] = json.loads(LENGTHS.read_text())[which]
        self._seconds, self._scale = step_seconds, scale
        self._left = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Sample the length of the episode."""
        super().reset(seed=seed)
        length = self._lengths[int(self.np_random.integers(len(self._lengths)))]
        self._left = max(1, round(length * self._scale))
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        self._left -= 1
        return np.zeros(1, np.float32), 1.0, self._left == 0, False, {}


gymnasium.register("Timer-v0", Timer)
