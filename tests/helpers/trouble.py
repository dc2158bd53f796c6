"""An environment for the end-to-end tests: its returns depend on the last bit of theta, and it
makes trouble on demand.

Named in configs as `tests.helpers.trouble:Rough-v0`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Step = tuple[Any, Any, bool, bool, dict[str, Any]]


class Rough(gymnasium.Env[Any, Any]):
    """A logistic map pushed by the action, for up to 20 steps.

    `fault` is "raise", "nan" or "hang", at step 3 of every episode whose seed is a multiple of
    `every`, or, with `rank`, of every episode there. With `pause_file` each step takes
    `pause_file_seconds` more while that file exists. The file `diary` gets a line per episode.
    """

    observation_space: Any = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(
        self,
        fault: str = "",
        every: int = 5,
        rank: int | None = None,
        pause_file: str | None = None,
        pause_seconds: float = 0.0,
        pause_file_seconds: float = 0.05,
        diary: str | None = None,
    ) -> None:
        self.diary = diary
        self.fault, self.every, self.rank = fault, every, rank
        self.pause_file, self.pause_file_seconds, self.pause_seconds = (
            pause_file,
            pause_file_seconds,
            pause_seconds,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = self.np_random.uniform(0.1, 0.9, 4)
        self.count = 0
        if self.diary:
            with Path(self.diary).open("a") as file:
                file.write(f"{seed}\n")
        here = self.rank is None or os.environ.get("PMI_RANK", "0") == str(self.rank)
        self.bad = (
            bool(self.fault) and here and (self.rank is not None or (seed or 0) % self.every == 0)
        )
        return self.x.astype(np.float32), {}

    def step(self, action: Any) -> Step:
        self.count += 1
        if self.pause_seconds:
            time.sleep(self.pause_seconds)
        if self.pause_file and Path(self.pause_file).exists():
            time.sleep(self.pause_file_seconds)
        self.x = 3.99 * self.x * (1 - self.x)
        self.x = np.clip(self.x + 0.01 * float(action.sum()), 0.01, 0.99)
        reward = float(self.x[0] + action[1])
        if self.bad and self.count == 3:
            if self.fault == "raise":
                raise ValueError("the simulator diverged")
            if self.fault == "hang":
                time.sleep(3600)
            reward = np.nan
        return (
            self.x.astype(np.float32),
            reward,
            bool(self.x[1] > 0.985),
            False,
            {"step": self.count},
        )


gymnasium.register("Rough-v0", Rough, max_episode_steps=20, order_enforce=False)
