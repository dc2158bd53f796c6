"""One Atari game: episodes with frame skip, no-op starts and sticky actions.

They come from one `ALEInterface`. An episode is that of ale_py's `AtariVectorEnv` after
reset(seed=seed): the same random numbers, the same bytes. `AtariVectorEnv` loads the game again in
each seeded reset, which takes as long as 200 steps. Here the state after loading, which does not
depend on the seed, is restored instead, and the console is reset, which takes as long as 15 steps
and draws a new screen. (Without this, Q*bert and Tetris show parts of the screen of the episode
before.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ale_py
import numpy as np
from ale_py import roms

from hpc_es.core.data import Array
from hpc_es.core.errors import ConfigError, nearest

NOOP, FIRE = 0, 1  # of ale_py.Action
DRAWS = 1024  # random numbers that are drawn at once


@dataclass(frozen=True)
class GameSettings:
    """The rules of a game's episodes and its observations."""

    name: str
    frame_skip: int  # frames for which an action is repeated
    # probability that a frame repeats the action of the frame before, less than 1
    sticky_actions: float
    noop_max: int  # an episode begins with 0 to noop_max - 1 no-ops
    fire_reset: bool  # whether the first of them is FIRE, if the game has that action
    full_action_space: bool  # all 18 actions, or those that the game uses
    max_frames: int  # time limit of an episode in frames
    grayscale: bool  # whether frames have one channel, the luminance
    # whether an observation shows the maximum of the last two frames, or the last one
    pools: bool = True


class Game:
    """Plays episodes.

    `frames` are the last two frames, uint8[2, height, width, channels]: the first one is what an
    observation shows after a reset or step, the maximum of both if `settings.pools`. A step that
    ends the episode may leave earlier frames there.
    """

    def __init__(self, settings: GameSettings) -> None:
        self._settings = settings
        path = rom_path(settings.name)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale: Any = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)  # `_act` repeats them
        self._ale.setInt("random_seed", 0)
        self._ale.loadROM(path)
        self._loaded = self._ale.cloneState()
        actions = (
            self._ale.getLegalActionSet()
            if settings.full_action_space
            else self._ale.getMinimalActionSet()
        )
        self._actions = [action.value for action in actions]
        self._fires = settings.fire_reset and FIRE in self._actions
        self._threshold = float(np.float32(settings.sticky_actions)) * 2.0**32
        self.size: tuple[int, int] = self._ale.getScreenDims()
        self.frames = np.zeros((2, *self.size, 1 if settings.grayscale else 3), np.uint8)
        self._elapsed = 0  # frames since the reset
        self.lives = 0
        self.is_over = self.is_cut = False  # whether the game is over, or the time limit reached

    @property
    def actions(self) -> int:
        """Number of actions."""
        return len(self._actions)

    @property
    def episode_frame_number(self) -> int:
        """Number of frames of the episode, with its no-ops."""
        return int(self._ale.getEpisodeFrameNumber())

    def ram(self) -> Array:
        """Return the memory of the console, uint8[128]."""
        memory: Array = self._ale.getRAM()
        return memory

    def screen(self) -> Array:
        """Return the screen in colour, uint8[height, width, 3]."""
        screen: Array = self._ale.getScreenRGB()
        return screen

    def reset(self, seed: int) -> None:
        """Start the episode of a seed, 0 to 2**31 - 1."""
        self._sticky = _StickyDraws(seed, self._threshold)
        self._last_action = NOOP
        self._ale.restoreState(self._loaded)
        self._ale.reset_game()
        if self._fires:
            self._act(FIRE)
        for _ in range(number_of_noops(seed, self._settings.noop_max) - self._fires):
            self._act(NOOP)
            if self._ale.game_over():
                self._ale.reset_game()
        self._grab(0)
        self.frames[1] = 0
        self._elapsed, self.lives = 0, self._ale.lives()
        self.is_over = self.is_cut = False

    def step(self, action: int, ends_with_life: bool = False) -> float:
        """Repeat an action for `frame_skip` frames and return the points, without clipping.

        With `ends_with_life` the episode is over when a life is lost.
        """
        ale, settings, points = self._ale, self._settings, 0
        code = self._actions[action]
        for remaining in range(settings.frame_skip, 0, -1):
            points += self._act(code)
            self._elapsed += 1
            lives = ale.lives()
            self.is_over = ale.game_over() or (ends_with_life and 0 < lives < self.lives)
            if self.is_over or self._elapsed >= settings.max_frames:
                break
            if remaining <= 1 + settings.pools:
                self._grab(remaining - 1)
        self.is_cut = self._elapsed >= settings.max_frames and not self.is_over
        self.lives = lives
        np.maximum(self.frames[0], self.frames[1], out=self.frames[0])
        return float(points)

    def _act(self, action: int) -> int:
        """Play a frame, and return its points."""
        if self._threshold:
            if not self._sticky.next():
                self._last_action = action
            action = self._last_action
        points: int = self._ale.act(action)
        return points

    def _grab(self, index: int) -> None:
        """Write the screen into `frames[index]`."""
        if self._settings.grayscale:
            self._ale.getScreenGrayscale(self.frames[index, :, :, 0])
        else:
            self._ale.getScreenRGB(self.frames[index])


class _StickyDraws:
    """Whether the action of each frame is repeated, by ALE's random numbers of a seed.

    ALE draws two numbers of its Mersenne Twister per frame; the second is for a second player.
    """

    def __init__(self, seed: int, threshold: float) -> None:
        self._threshold, self._next = threshold, 0
        self._draws: list[bool] = []
        self._rng = np.random.RandomState(seed)

    def next(self) -> bool:
        """Return it for the next frame."""
        if self._next == len(self._draws):
            self._draws = (_draw(self._rng, 2 * DRAWS)[::2] < self._threshold).tolist()
            self._next = 0
        self._next += 1
        return self._draws[self._next - 1]


def number_of_noops(seed: int, noop_max: int) -> int:
    """Return the number of no-ops that AtariVectorEnv draws for a seed.

    It is 0 to noop_max - 1 (0 if that is negative), by std::uniform_int_distribution of libstdc++:
    Lemire 2019, "Fast random integer generation in an interval".
    """
    if noop_max <= 1:
        return 0
    rng = np.random.RandomState(seed)
    while True:
        product = int(_draw(rng, 1)[0]) * noop_max
        if product % 2**32 >= 2**32 % noop_max:
            return product >> 32


def _draw(rng: np.random.RandomState, count: int) -> Array:
    """Return the next numbers of a Mersenne Twister, uint32[count]."""
    return rng.randint(0, 2**32, count, np.uint32)


def rom_path(name: str) -> Any:
    """Return the file of a game; ConfigError if there is none that ALE can play."""
    if name in roms.get_all_rom_ids() and ale_py.ALEInterface.isSupportedROM(
        path := roms.get_rom_path(name)
    ):
        return path
    text = f"expected a game of ale-py {ale_py.__version__} in snake_case, such as pong or ms_pacman, found {name!r}"
    raise ConfigError([("task.game", text + nearest(_snake_case(name), games()))])


def games() -> tuple[str, ...]:
    """Return the names of all games."""
    names = sorted(roms.get_all_rom_ids())
    return tuple(
        name for name in names if ale_py.ALEInterface.isSupportedROM(roms.get_rom_path(name))
    )


def _snake_case(name: str) -> str:
    """Return "ms_pacman" for "ALE/MsPacman-v5" or "MsPacmanNoFrameskip-v4"."""
    name = (
        name.rpartition("/")[2]
        .partition("-")[0]
        .replace("NoFrameskip", "")
        .replace("Deterministic", "")
    )
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip(
        "_"
    )
