"""Atari games as environments: a backend that steps one game per job, and a Gymnasium environment.

The backend resizes the frames of a step together. The environment plays the episodes of
evaluations, for `make_env` and videos.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

from hpc_es.core.data import Array, Float64
from hpc_es.tasks.atari.game import Game, GameSettings
from hpc_es.tasks.atari.images import Resize, push
from hpc_es.tasks.episodes.environment_backend import RunningEpisodes, StepResult

INFO_KEYS = ("lives", "episode_frame_number")  # attributes of Game
FRAMES_PER_SECOND = 60  # of the console


def info_of(game: Game) -> dict[str, Any]:
    """Return the info of a step: the numbers of INFO_KEYS, and the console's memory.

    The memory is uint8[128].
    """
    return {**{key: getattr(game, key) for key in INFO_KEYS}, "ram": game.ram()}


class AtariBackend:
    """Steps one game per job.

    Observations are uint8[height, width, images * channels]. `clips_rewards` and `ends_with_life`
    may be set between chunks. `keys` are those of `report.info`.
    """

    def __init__(
        self,
        settings: GameSettings,
        resize: Resize,
        shape: tuple[int, ...],
        keys: Sequence[str] = (),
    ) -> None:
        self._settings, self._resize, self._shape, self._keys = settings, resize, shape, keys
        self._games: list[Game] = []
        self._stacks = np.zeros((0, *shape), np.uint8)  # of each job
        self.clips_rewards = self.ends_with_life = False

    @contextlib.contextmanager
    def chunk(self, seeds: Sequence[int]) -> Iterator[None]:
        while len(self._games) < len(seeds):
            self._games.append(Game(self._settings))
        if (missing := len(seeds) - len(self._stacks)) > 0:
            self._stacks = np.concatenate(
                [self._stacks, np.zeros((missing, *self._shape), np.uint8)]
            )
        yield

    def reset(self, job: int, seed: int) -> Array:
        self._games[job].reset(seed)
        stack: Array = self._stacks[job]
        stack[:] = 0
        push(stack, self._resize(self._games[job].frames[:1])[0])
        return stack

    def resume(self, job: int, seconds: float) -> None:
        """Do nothing: the games and stacks of jobs are kept."""

    def advance(
        self, running: RunningEpisodes, actions: Array, observations: Array, rewards: Float64
    ) -> StepResult:
        result, rows, games = StepResult(), running.rows, [self._games[job] for job in running.jobs]
        for row, game, action in zip(rows, games, actions[rows].tolist(), strict=True):
            try:
                points = game.step(action, self.ends_with_life)
            except Exception as error:  # such as an action that does not exist
                result.failed.append((row, error))
                continue
            rewards[row] = max(-1.0, min(points, 1.0)) if self.clips_rewards else points
            if game.is_over or game.is_cut:
                result.ended.append(row)
                result.infos[row] = info_of(game)
                if game.is_cut:
                    result.cut.append(row)
        images = self._resize(np.stack([game.frames[0] for game in games]))
        for row, job, image in zip(rows, running.jobs, images, strict=True):
            push(self._stacks[job], image)
            observations[row] = self._stacks[job]
        if self._keys:
            result.numbers = np.array(
                [[getattr(game, key) for key in self._keys] for game in games], np.float64
            )
        return result

    def seconds(self, job: int) -> float:
        return 0.0

    def renew(self, job: int) -> None:
        self._games[job] = Game(self._settings)

    def close(self) -> None:
        self._games.clear()


class AtariEnvironment(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """Whole games without clipped rewards.

    Observations are uint8[height, width, images * channels].
    """

    def __init__(
        self,
        settings: GameSettings,
        resize: Resize,
        shape: tuple[int, ...],
        render_mode: str | None = None,
    ) -> None:
        fps = FRAMES_PER_SECOND / settings.frame_skip
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}
        self._game, self._resize, self.render_mode = Game(settings), resize, render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(self._game.actions)
        self._stack = np.zeros(shape, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start the episode of a seed, or of a random one.

        Returns:
            The observation, uint8[*shape], and the info.
        """
        super().reset(seed=seed)
        self._game.reset(int(self.np_random.integers(2**31)) if seed is None else seed)
        self._stack[:] = 0
        return self._observation(), info_of(self._game)

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take a step.

        Returns:
            The observation uint8[*shape], the points, whether it is over or cut, and the info.
        """
        points = self._game.step(int(action))
        return (
            self._observation(),
            points,
            self._game.is_over,
            self._game.is_cut,
            info_of(self._game),
        )

    def _observation(self) -> Array:
        push(self._stack, self._resize(self._game.frames[:1])[0])
        observation: Array = self._stack.copy()
        return observation

    def render(self) -> Array:
        """Return the screen, uint8[height, width, 3]."""
        return self._game.screen()
