"""Episodes of a game: against AtariVectorEnv byte for byte,
and against hand-made expectations on a false emulator.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from hpc_es.core.errors import ConfigError
from tests.helpers.atari import FALSE_FRAMES, FalseEmulator

if importlib.util.find_spec("ale_py") is None:
    pytest.skip("ale-py is not installed", allow_module_level=True)

import ale_py

from hpc_es.tasks.atari.game import FIRE, Game, GameSettings, games, number_of_noops, rom_path
from hpc_es.tasks.atari.task import Atari, Options, picture_options, protocol_options

LARGEST_SEED = 2**31 - 1


def settings(name: str = "pong", **changes: Any) -> GameSettings:
    defaults = {
        **{
            "frame_skip": 4,
            "sticky_actions": 0.0,
            "noop_max": 0,
            "fire_reset": False,
            "full_action_space": False,
        },
        **{"max_frames": 1000, "grayscale": True},
    }
    return GameSettings(name, **{**defaults, **changes})


# Against AtariVectorEnv.


def channels_last(observations: Any) -> Any:
    """Return the observation of a vector of one environment with the channels last."""
    image = observations[0]
    if image.ndim == 3:
        return image.transpose(1, 2, 0)
    return image.transpose(1, 2, 0, 3).reshape(*image.shape[1:3], -1)


def assert_same_episodes(options: Options, seeds: Sequence[int], steps: int) -> None:
    """Play the episodes of these seeds with random actions in both,
    and compare all that they return.
    """
    chosen, picture, task = protocol_options(options), picture_options(options), Atari(options)
    vector = ale_py.AtariVectorEnv(
        options.game,
        num_envs=1,
        num_threads=1,
        max_num_frames_per_episode=chosen["max_frames"],
        repeat_action_probability=chosen["sticky_actions"],
        full_action_space=chosen["full_action_space"],
        img_height=picture["height"],
        img_width=picture["width"],
        grayscale=options.grayscale,
        stack_num=picture["stack"],
        frameskip=chosen["frame_skip"],
        noop_max=chosen["noop_max"],
        use_fire_reset=chosen["fire_reset"],
        reward_clipping=False,
    )
    environment = task.environment()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        expected, info = vector.reset(seed=np.array([seed]))
        observation, own_info = environment.reset(seed=seed)
        np.testing.assert_array_equal(observation, channels_last(expected))
        assert own_info["episode_frame_number"] == info["episode_frame_number"][0]
        for _ in range(steps):
            action = int(rng.integers(environment.action_space.n))
            expected, *numbers, info = vector.step(np.array([action]))
            observation, *own_numbers, own_info = environment.step(action)
            np.testing.assert_array_equal(observation, channels_last(expected))
            assert own_numbers == [values[0] for values in numbers]
            assert all(
                own_info[name] == info[name][0] for name in ("lives", "episode_frame_number")
            )
            if any(own_numbers[1:]):
                break
    vector.close()


GAMES = ("pong", "breakout", "seaquest")
VARIANTS: dict[str, dict[str, Any]] = {
    "2017": {"protocol": "salimans2017"},
    "2018": {},
    "fire": {"protocol": "salimans2017", "fire_reset": True, "noop_max": 7, "sticky_actions": 0.1},
    "small": {"height": 42, "width": 42, "stack": 1, "frame_skip": 3, "max_frames": 200},
    "colour": {"height": 64, "width": 64, "grayscale": False, "stack": 2, "max_frames": 200},
    "thirds": {"height": 70, "width": 40, "frame_skip": 1, "max_frames": 60},
    "halves": {"height": 105, "width": 80, "max_frames": 200},
    "whole": {"height": 210, "width": 160, "max_frames": 200},
}


# variants of pictures; the others are protocols
PICTURES = ("small", "colour", "thirds", "halves", "whole")
FAST = [
    *((game, name) for game in GAMES for name in VARIANTS if name not in PICTURES),
    *zip(cycle(GAMES), PICTURES),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("game", "variant"),
    [
        pytest.param(game, name, marks=[] if (game, name) in FAST else [pytest.mark.long])
        for game in GAMES
        for name in VARIANTS
    ],
)
def test_episodes_are_those_of_atari_vector_env(game: str, variant: str) -> None:
    """Observations, rewards, ends, lives and frames are equal,
    with the same no-ops and sticky actions for a seed.
    """
    assert_same_episodes(Options(game=game, **VARIANTS[variant]), (5, LARGEST_SEED), 120)


@pytest.mark.parametrize("game", ["qbert", "tetris"])
def test_episode_does_not_depend_on_the_previous_one(game: str) -> None:
    """Both do not draw the whole screen in every frame,
    so that the state alone does not determine it.
    """
    assert_same_episodes(Options(game=game, **VARIANTS["2017"]), (78, 77, 72), 10)


# with sticky actions, which AtariVectorEnv also applies to selecting a mode
STARTS_DIFFER = ("berzerk", "double_dunk")


@pytest.mark.parametrize("game", games())
@pytest.mark.long
def test_all_games_are_those_of_atari_vector_env(game: str) -> None:
    assert_same_episodes(Options(game=game, **VARIANTS["2017"]), (5, 78), 100)
    if game not in STARTS_DIFFER:
        assert_same_episodes(Options(game=game), (5, 78), 100)


# On a false emulator.


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> FalseEmulator:
    """The emulator of the games that a test creates."""
    emulator = FalseEmulator()
    monkeypatch.setattr(ale_py, "ALEInterface", lambda: emulator)
    monkeypatch.setattr(ale_py.ALEInterface, "setLoggerMode", lambda mode: None, raising=False)
    monkeypatch.setattr("hpc_es.tasks.atari.game.rom_path", lambda name: name)
    return emulator


def test_step_repeats_its_action_and_returns_the_maximum_of_two_frames(
    emulator: FalseEmulator,
) -> None:
    game = Game(settings(frame_skip=4))
    game.reset(0)
    assert game.frames[0, 0, 0, 0] == FALSE_FRAMES
    assert game.step(2) == 1 + 2 + 3 + 4
    assert emulator.actions == [2, 2, 2, 2]
    assert game.frames[0, 0, 0, 0] == FALSE_FRAMES - 3  # of frames 3 and 4
    assert game.step(1) == 5 + 6 + 7 + 8
    assert game.frames[0, 0, 0, 0] == FALSE_FRAMES - 7


def test_episode_starts_with_fire_and_no_ops(emulator: FalseEmulator) -> None:
    game = Game(settings(noop_max=10, fire_reset=True))
    for seed in range(20):
        emulator.actions.clear()
        game.reset(seed)
        assert emulator.actions == [FIRE] + [0] * (number_of_noops(seed, 10) - 1)


def test_episode_without_no_ops_starts_at_once(emulator: FalseEmulator) -> None:
    game = Game(settings(noop_max=0))
    game.reset(7)
    assert emulator.actions == [] and emulator.resets == 1


def test_lost_life_ends_a_step_only_if_configured(emulator: FalseEmulator) -> None:
    """The false emulator loses a life in frame 6."""
    game = Game(settings(frame_skip=4))
    game.reset(0)
    game.step(0, ends_with_life=True)
    assert not game.is_over and game.lives == 3
    assert game.step(0, ends_with_life=True) == 5 + 6
    assert game.is_over and not game.is_cut and game.lives == 2
    game.reset(0)
    game.step(0)
    assert game.step(0) == 5 + 6 + 7 + 8
    assert not game.is_over and game.lives == 2


def test_time_limit_counts_frames_and_truncates_a_step(emulator: FalseEmulator) -> None:
    game = Game(settings(frame_skip=4, max_frames=10))
    game.reset(0)
    game.step(0)
    game.step(0)
    assert not game.is_cut
    assert game.step(0) == 9 + 10
    assert game.is_cut and not game.is_over


def test_end_of_the_game_in_the_last_frame_is_not_a_truncation(emulator: FalseEmulator) -> None:
    """The false emulator's game is over after frame 12."""
    game = Game(settings(frame_skip=4, max_frames=12))
    game.reset(0)
    assert [game.step(0), game.step(0), game.step(0)] == [10, 26, 42]
    assert game.is_over and not game.is_cut


@pytest.mark.parametrize("probability", [0.25, 0.1])
def test_sticky_actions_repeat_with_the_published_probability(
    probability: float, emulator: FalseEmulator
) -> None:
    """The number of frames that repeat another action is binomial: 5 standard deviations."""
    emulator.last_frame = None
    game = Game(settings(frame_skip=1, sticky_actions=probability, max_frames=10**6))
    game.reset(3)
    wanted = [1 + step % 3 for step in range(20_000)]
    for action in wanted:
        game.step(action)
    played = [0, *emulator.actions]
    trials = [played[step] != action for step, action in enumerate(wanted)]
    repeats = sum(trial and played[step + 1] == played[step] for step, trial in enumerate(trials))
    assert all(played[step + 1] in (action, played[step]) for step, action in enumerate(wanted))
    deviation = (sum(trials) * probability * (1 - probability)) ** 0.5
    assert abs(repeats - sum(trials) * probability) < 5 * deviation


def test_no_ops_are_uniform() -> None:
    """0 to 29 in 6,000 seeds: 200 each, 5 standard deviations of a binomial number."""
    counts = np.bincount([number_of_noops(seed, 30) for seed in range(6000)])
    assert len(counts) == 30 and (abs(counts - 200) < 5 * (200 * 29 / 30) ** 0.5).all()
    assert (
        {number_of_noops(seed, 1) for seed in range(10)}
        == {number_of_noops(seed, 0) for seed in range(10)}
        == {0}
    )


def test_draws_that_would_favour_some_numbers_are_repeated() -> None:
    """Multiplying 2**32 draws by 3/4 gives each third number twice;
    below 3 * 2**30 they must be equally frequent.
    """
    counts = np.bincount([number_of_noops(seed, 3 * 2**30) % 3 for seed in range(6000)])
    assert (abs(counts - 2000) < 5 * (2000 * 2 / 3) ** 0.5).all()


# Names.


@pytest.mark.parametrize("name", ["Pong", "pongg", "ALE/Pong-v5", "PongNoFrameskip-v4"])
def test_misspelt_game_gets_the_nearest_name(name: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"task.game: expected a game of ale-py .* found '.*'; did you mean 'pong'\?",
    ):
        rom_path(name)


def test_game_that_ale_cannot_play_is_refused() -> None:
    """Loading it would end the process."""
    with pytest.raises(ConfigError, match="found 'combat'"):
        rom_path("combat")
    assert "combat" not in games() and {"pong", "ms_pacman", "montezuma_revenge"} <= {*games()}
