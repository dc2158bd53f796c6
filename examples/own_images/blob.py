"""Image observations: a bright blob on a noisy background; its side and colour determine the right
action.

In 12 steps each side is shown 6 times and each colour 4 times. So a perfect policy earns 12, and
one that always does the same 6 with the actions "discrete" (the side) and "box" (the side, -1 to
1), or 5 with "several" (side and colour).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

SIZE, STEPS = 16, 12
ACTIONS = {
    "discrete": Discrete(2),
    "box": Box(-1, 1, (1,), np.float32),
    "several": MultiDiscrete([2, 3]),
}


class Blob(gymnasium.Env[Any, Any]):
    """`task: {env_id: "blob:Blob-v0", env_kwargs: {actions: discrete}}`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012
    observation_space = Box(0, 255, (SIZE, SIZE, 3), np.uint8)

    def __init__(self, actions: str = "discrete", render_mode: str | None = None) -> None:
        self.action_space, self._actions, self.render_mode = ACTIONS[actions], actions, render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = self.np_random.permutation(STEPS).tolist()
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        expected = {
            "discrete": [self._side],
            "box": [2 * self._side - 1],
            "several": [self._side, self._colour],
        }
        missed = np.abs(np.subtract(expected[self._actions], action))
        reward = 1 - missed.mean() / 2 if self._actions == "box" else np.mean(missed == 0)
        is_over = not self._left
        return self._show(), float(reward), is_over, False, {}

    def _show(self) -> Any:
        if self._left:  # the last image stays
            blob = self._left.pop()
            self._side, self._colour = blob % 2, blob % 3
            self._image = self.np_random.integers(64, size=(SIZE, SIZE, 3), dtype=np.uint8)
            row, column = self.np_random.integers([0, 8 * self._side], [13, 8 * self._side + 5])
            self._image[row : row + 4, column : column + 4, self._colour] = 255
        return self._image

    def render(self) -> Any:
        return self._image.repeat(8, axis=0).repeat(8, axis=1)


gymnasium.register("Blob-v0", Blob)
