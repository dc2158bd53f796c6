"""An Atari game as a Gymnasium environment, with the episodes that evaluations play: for `make_env` and videos."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from hpc_es.core.data import Array
from hpc_es.tasks.atari.backend import info_of
from hpc_es.tasks.atari.game import Game, GameSettings
from hpc_es.tasks.atari.images import Resize, push

FRAMES_PER_SECOND = 60  # of the console


class AtariEnvironment(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """Whole games without clipped rewards; observations are uint8[height, width, images * channels]."""

    def __init__(
        self, settings: GameSettings, resize: Resize, shape: tuple[int, ...], render_mode: str | None = None
    ) -> None:
        fps = FRAMES_PER_SECOND / settings.frame_skip
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}
        self._game, self._resize, self.render_mode = Game(settings), resize, render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(self._game.actions)
        self._stack = np.zeros(shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start the episode of a seed, or of a random one; return the observation uint8[*shape] and the info."""
        super().reset(seed=seed)
        self._game.reset(int(self.np_random.integers(2**31)) if seed is None else seed)
        self._stack[:] = 0
        return self._observation(), info_of(self._game)

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take a step; return the observation uint8[*shape], the points, whether it is over or cut, and the info."""
        points = self._game.step(int(action))
        return self._observation(), points, self._game.is_over, self._game.is_cut, info_of(self._game)

    def _observation(self) -> Array:
        push(self._stack, self._resize(self._game.frames[:1])[0])
        observation: Array = self._stack.copy()
        return observation

    def render(self) -> Array:
        """Return the screen, uint8[height, width, 3]."""
        return self._game.screen()
