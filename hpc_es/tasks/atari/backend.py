"""The environment backend of Atari games: one game per job; the frames of a step are resized together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Float64
from hpc_es.tasks.atari.game import Game, GameSettings
from hpc_es.tasks.atari.images import Resize, push
from hpc_es.tasks.episodes.environment_backend import RunningEpisodes, StepResult

INFO_KEYS = ("lives", "episode_frame_number")  # attributes of Game


def info_of(game: Game) -> dict[str, Any]:
    """Return the info of a step: the numbers of INFO_KEYS, and the memory of the console, uint8[128]."""
    return {**{key: getattr(game, key) for key in INFO_KEYS}, "ram": game.ram()}


class AtariBackend:
    """Steps one game per job.

    Observations are uint8[height, width, images * channels]. `clips_rewards` and `ends_with_life` may be set between
    chunks. `keys` are those of `report.info`.
    """

    def __init__(
        self, settings: GameSettings, resize: Resize, shape: tuple[int, ...], keys: Sequence[str] = ()
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
            self._stacks = np.concatenate([self._stacks, np.zeros((missing, *self._shape), np.uint8)])
        yield

    def reset(self, job: int, seed: int) -> Array:
        self._games[job].reset(seed)
        stack: Array = self._stacks[job]
        stack[:] = 0
        push(stack, self._resize(self._games[job].frames[:1])[0])
        return stack

    def resume(self, job: int, seconds: float) -> None:
        """Do nothing: the games and stacks of jobs are kept."""

    def advance(self, running: RunningEpisodes, actions: Array, observations: Array, rewards: Float64) -> StepResult:
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
            result.numbers = np.array([[getattr(game, key) for key in self._keys] for game in games], np.float64)
        return result

    def seconds(self, job: int) -> float:
        return 0.0

    def renew(self, job: int) -> None:
        self._games[job] = Game(self._settings)

    def close(self) -> None:
        self._games.clear()
