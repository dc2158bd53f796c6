"""The task: presets, checks of options, episodes of jobs in chunks, scores of evaluations,
and the environment.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from hpc_es.core.data import BEHAVIOUR, INFO, Array, Discrete, ObservationSpec
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys
from hpc_es.tasks.atari.images import A3CPicture
from hpc_es.tasks.atari.task import Atari, Options, protocol_options
from hpc_es.tasks.episodes.behaviour import BehaviourOptions
from hpc_es.tasks.episodes.environment_backend import RunningEpisodes
from hpc_es.tasks.problems import ObservationNormalization
from tests.helpers.atari import FalseEmulator
from tests.helpers.toys import Still, batch, nothing

if importlib.util.find_spec("ale_py") is None:
    pytest.skip("ale-py is not installed", allow_module_level=True)

import ale_py


class Cycling:
    """An actor whose action depends on the observation,
    and which keeps all of those that it gets.
    """

    def __init__(self, jobs: int, actions: int) -> None:
        self._rows, self._actions = list(range(jobs)), actions
        self.observed: list[list[bytes]] = [[] for _ in range(jobs)]

    def act(self, observations: Array) -> Array:
        for row, job in enumerate(self._rows):
            self.observed[job].append(observations[row].tobytes())
        return (observations.astype(np.int64).sum(axis=(1, 2, 3)) // 7) % self._actions

    def keep(self, rows: Any) -> None:
        self._rows = [self._rows[row] for row in rows]

    def restart(self, row: int) -> None:
        """Do nothing."""


def atari(game: str = "breakout", **options: Any) -> Atari:
    return Atari(Options(game=game, **options))


# Options.


def test_protocols_have_their_published_values() -> None:
    """Machado et al. 2018, section 5; Mnih et al. 2015 and the 5,000 steps of Such et al. 2017."""
    assert protocol_options(Options(game="pong", protocol="machado2018")) == {
        **{
            "frame_skip": 5,
            "sticky_actions": 0.25,
            "noop_max": 0,
            "fire_reset": False,
            "full_action_space": True,
        },
        "max_frames": 5 * 60 * 60,
    }
    assert protocol_options(Options(game="pong", protocol="salimans2017")) == {
        **{
            "frame_skip": 4,
            "sticky_actions": 0.0,
            "noop_max": 30,
            "fire_reset": False,
            "full_action_space": False,
        },
        "max_frames": 4 * 5000,
    }


def test_option_replaces_that_of_the_protocol() -> None:
    chosen = protocol_options(
        Options(game="pong", frame_skip=2, sticky_actions=0.0, full_action_space=False)
    )
    assert (chosen["frame_skip"], chosen["sticky_actions"], chosen["full_action_space"]) == (
        2,
        0.0,
        False,
    )
    assert chosen["max_frames"] == 18_000


@pytest.mark.parametrize(
    ("options", "shape", "actions"),
    [
        ({}, (84, 84, 4), 18),
        ({"full_action_space": False}, (84, 84, 4), 4),
        ({"height": 42, "width": 40, "stack": 1}, (42, 40, 1), 18),
        ({"grayscale": False, "stack": 2}, (84, 84, 6), 18),
        ({"picture": "a3c"}, (42, 42, 1), 18),
        ({"picture": "a3c", "height": 40, "stack": 2, "grayscale": False}, (40, 42, 6), 18),
    ],
)
def test_spaces_follow_the_options(
    options: dict[str, Any], shape: tuple[int, ...], actions: int
) -> None:
    spaces = atari(**options).spaces
    assert spaces.observations == ObservationSpec(shape, np.dtype(np.uint8))
    assert spaces.actions == Discrete(actions)


def test_time_limit_is_in_steps() -> None:
    """18,000 frames are 3,600 steps of 5; 10 frames are 3 steps of 4, the last one shorter."""
    assert atari().time_limit == 3600
    assert atari(frame_skip=4, max_frames=10).time_limit == 3


def test_observation_larger_than_the_screen_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        atari(height=211, width=200)
    assert list(refused.value.problems) == [
        ("task.height", "is 211, but the screen of breakout has 210: expected at most 210"),
        ("task.width", "is 200, but the screen of breakout has 160: expected at most 160"),
    ]
    with pytest.raises(
        ConfigError,
        match=r"task.width: is 81, but the halved picture of .* a3c has 80: expected at most",
    ):
        atari(picture="a3c", width=81)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ale_py" else find_spec(name)
    )
    with pytest.raises(
        ConfigError,
        match=r"task.kind: is atari, which needs ale_py, .* pip install 'hpc_es\[atari\]'",
    ):
        atari()


def test_unknown_info_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        ConfigError,
        match=r"no 'live' \(they have: lives, episode_frame_number\); did you mean 'lives'",
    ):
        Atari(Options(game="pong"), {"live": "final"})


def test_equal_episodes_are_warned_of() -> None:
    same = Options(game="pong", protocol="salimans2017", noop_max=1)
    assert [key for key, _ in same.warnings()] == ["noop_max"]
    assert not list(Options(game="pong").warnings()) and not list(
        Options(game="pong", protocol="salimans2017").warnings()
    )


def test_summary_has_the_protocol_and_its_options() -> None:
    line, picture = atari(reward_clipping=True, width=60).check_lines
    assert line.startswith(
        "atari breakout, protocol machado2018: frame_skip 5, sticky_actions 0.25, noop_max 0,"
    )
    assert line.endswith("max_frames 18000, episodic_life false, reward_clipping true")
    assert picture == "picture standard: height 84, width 60, stack 4"


# Episodes.


@pytest.fixture(scope="module")
def task() -> Iterator[Atari]:
    task = atari("seaquest", max_frames=600, noop_max=10, height=42, width=42)
    yield task
    task.close()


def played(task: Atari, seeds: Sequence[int]) -> tuple[list[list[bytes]], list[float]]:
    """The observations and the returns of the episodes of these seeds, in one chunk."""
    actor = Cycling(len(seeds), task.spaces.actions.n)  # type: ignore[union-attr]
    rows = task.evaluate(actor, batch(seeds), nothing).rows
    return actor.observed, rows["return_"].tolist()


@pytest.mark.long
def test_episode_depends_on_its_seed_only(task: Atari) -> None:
    """Alone, among others, in another place and after other episodes; with sticky actions."""
    alone = played(atari("seaquest", max_frames=600, noop_max=10, height=42, width=42), [11])
    assert len(alone[0][0]) > 50
    for seeds in ([11, 22, 33], [44, 33, 11], [11]):
        observed, returns = played(task, seeds)
        index = seeds.index(11)
        length = len(alone[0][0])  # rows of ended episodes stay in the batch for a while
        assert observed[index][:length] == alone[0][0] and returns[index] == alone[1][0]
    others, _ = played(task, [22])
    assert others[0] != alone[0][0]


def test_episodes_of_a_job_equal_those_of_separate_jobs() -> None:
    options = {"max_frames": 300, "height": 42, "width": 42}
    task = atari("seaquest", episodes_per_job=2, **options)
    both = task.evaluate(Cycling(1, 18), batch([[5, 6]]), nothing).rows
    single = atari("seaquest", **options).evaluate(Cycling(2, 18), batch([5, 6]), nothing).rows
    assert (
        both["return_"][0] == single["return_"].mean()
        and both["length"][0] == single["length"].sum()
    )


def test_memory_of_the_console_can_be_the_behaviour() -> None:
    """In Pong its bytes 13 and 14 are the scores (Anand et al. 2019);
    a constant action loses points only.
    """
    task = atari(
        "pong", protocol="salimans2017", max_frames=1600, behaviour=BehaviourOptions(info="ram")
    )
    row = task.evaluate(Still(1), batch([3]), nothing).rows[0]
    assert row[BEHAVIOUR].shape == (128,)
    assert row["return_"] < 0 and row[BEHAVIOUR][[13, 14]].tolist() == [-row["return_"], 0]


def test_environment_plays_the_episodes_of_evaluations(task: Atari) -> None:
    """`make_env` and videos show what `hpc-es eval` scores."""
    actor = Cycling(1, 18)
    row = task.evaluate(actor, batch([11], training=False), nothing).rows[0]
    environment = task.environment("rgb_array")
    observation, info = environment.reset(seed=11)
    assert environment.render().shape == (210, 160, 3) and info["lives"] == 4
    total, length, is_over = 0.0, 0, False
    while not is_over:
        assert observation.tobytes() == actor.observed[0][length]
        action = Cycling(1, 18).act(observation[np.newaxis])[0]
        observation, reward, terminated, truncated, _ = environment.step(action)
        total, length, is_over = total + reward, length + 1, terminated or truncated
    assert (total, length) == (row["return_"], row["length"])
    assert environment.metadata["render_fps"] == 12


def test_picture_of_a3c_shows_the_last_frame_in_training_and_evaluations() -> None:
    """Seaquest's enemies flicker, so that the maximum of two frames is another picture."""
    task = atari("seaquest", protocol="salimans2017", picture="a3c")
    actor = Cycling(1, 18)
    task.evaluate(actor, batch([5]), nothing)
    environment = task.environment("rgb_array")
    picture, frames = A3CPicture((42, 42), grayscale=True), set()
    observation, _ = environment.reset(seed=5)
    for step in range(60):
        frame = picture(environment.render()[np.newaxis])[0]
        np.testing.assert_array_equal(observation, frame)
        assert observation.tobytes() == actor.observed[0][step]
        frames.add(frame.tobytes())
        observation, *_ = environment.step(Cycling(1, 18).act(observation[np.newaxis])[0])
    assert len(frames) > 30


# Segments, for algorithms that learn from trajectories.


def trajectories(task: Atari) -> Any:
    policy: Any = object()  # segments get an actor instead
    return task.problem("trajectories", policy, Keys(1), 4)


def test_segments_play_the_episodes_that_are_played_at_once() -> None:
    """Stacks, sticky actions and returns continue;
    the second episode of a job begins after the end of its first.
    """
    options = {"max_frames": 300, "height": 42, "width": 42, "noop_max": 10}
    whole = atari("seaquest", **options)
    expected, returns = played(whole, [11, 22])
    segments, actor = trajectories(atari("seaquest", **options)).segments(), Cycling(2, 18)
    lengths = []
    for _ in range(4):
        rows = segments.play(actor, batch([11, 22]), 16, nothing).rows
        lengths.append(rows["length"].tolist())
    assert rows["return_"].tolist() == returns and rows["episode_length"].tolist() == [60, 60]
    assert lengths == [[16, 16]] * 3 + [[12, 12]]
    assert [observed[:60] for observed in actor.observed] == [
        observed[:60] for observed in expected
    ]


def test_segments_clip_rewards_and_end_with_a_life(false_task: Atari) -> None:
    """In segments of one step, 4 frames: the life is lost in frame 6, the second step;
    a new game begins.
    """
    segments = trajectories(false_task).segments()
    actor, columns = Cycling(1, 4), ["return_", "length", "episode_length"]
    rows = [
        segments.play(actor, batch([1]), 1, nothing).rows[columns][0].tolist() for _ in range(3)
    ]
    assert rows == [(1, 1, 0), (2, 1, 2), (1, 1, 0)]
    assert false_task.evaluate(Cycling(1, 4), batch([1], training=False), nothing).rows[
        "return_"
    ] == [78]


def test_segment_that_ends_with_the_time_limit_is_reported_as_truncated(false_task: Atari) -> None:
    """5 frames are two steps of at most 4; both are reported with the state that follows them."""
    steps: list[tuple[list[int], list[int]]] = []

    def on_step(jobs: Any, live: Any, observations: Array, rewards: Any, cut: Any) -> None:
        steps.append((observations[0].ravel().tolist(), list(cut)))

    options = {
        "protocol": "salimans2017",
        "noop_max": 0,
        "max_frames": 5,
        "height": 3,
        "width": 2,
        "stack": 1,
    }
    segments = trajectories(Atari(Options(game="false", **options))).segments()
    jobs = dataclasses.replace(batch([1]), on_step=on_step)
    lengths = [
        segments.play(Cycling(1, 4), jobs, 1, nothing).rows["episode_length"][0] for _ in range(2)
    ]
    assert lengths == [0, 2] and [cut for _, cut in steps] == [[0], [0]]
    assert steps[0][0] == [197] * 6


def test_statistics_of_observations_are_refused_with_trajectories() -> None:
    task = atari(observation_normalization=ObservationNormalization(enabled=True))
    with pytest.raises(
        ConfigError,
        match=r"enabled: is true, but algorithms that differentiate trajectories do not",
    ):
        trajectories(task)


def test_environment_without_a_seed_draws_one() -> None:
    environment = atari("seaquest", noop_max=30).environment()
    environment.reset(seed=3)
    frames = {environment.reset()[1]["episode_frame_number"] for _ in range(8)}
    assert len(frames) > 1
    environment.reset(seed=3)
    assert {environment.reset()[1]["episode_frame_number"] for _ in range(8)} == frames


@pytest.fixture
def false_task(monkeypatch: pytest.MonkeyPatch) -> Atari:
    """A task whose games are those of `FalseEmulator`: 78 points in 12 frames,
    a life is lost in frame 6.
    """
    monkeypatch.setattr(ale_py, "ALEInterface", FalseEmulator)
    monkeypatch.setattr(FalseEmulator, "setLoggerMode", lambda mode: None, raising=False)
    monkeypatch.setattr("hpc_es.tasks.atari.game.rom_path", lambda name: name)
    options = {"protocol": "salimans2017", "noop_max": 0, "height": 3, "width": 2, "stack": 1}
    info: Any = {"lives": "final", "episode_frame_number": "mean"}
    return Atari(Options(game="false", episodic_life=True, reward_clipping=True, **options), info)


def test_clipping_and_lost_lives_are_for_training_only(false_task: Atari) -> None:
    """Frame n gives n points: 1 to 4, 5 and 6 until the loss of a life in training;
    1 to 12 in an evaluation.
    """
    training = false_task.evaluate(Cycling(2, 4), batch([1, 2]), nothing).rows
    assert training["return_"].tolist() == [2, 2] and training["length"].tolist() == [2, 2]
    assert training[INFO].tolist() == [[2, (4 + 6) / 2]] * 2
    evaluation = false_task.evaluate(Cycling(2, 4), batch([1, 2], training=False), nothing).rows
    assert evaluation["return_"].tolist() == [78, 78] and evaluation["length"].tolist() == [3, 3]
    assert evaluation[INFO].tolist() == [[2, (4 + 8 + 12) / 3]] * 2


def test_episode_begins_with_black_images_before_the_first_one(false_task: Atari) -> None:
    """The false emulator's first screen is 200;
    with a frame skip of 4 the next image is that of frame 3: 197.
    """
    options = {"protocol": "salimans2017", "noop_max": 0, "height": 3, "width": 2, "stack": 3}
    backend = Atari(Options(game="false", **options)).new_backend()
    observations = np.zeros((1, 3, 2, 3), np.uint8)
    with backend.chunk([1]):
        for _ in range(2):
            assert backend.reset(0, 1)[0, 0].tolist() == [0, 0, 200]
            backend.advance(
                RunningEpisodes([0], [0]), np.zeros(1, np.int64), observations, np.zeros(1)
            )
            assert observations[0, 2, 1].tolist() == [0, 200, 197]


def test_time_limit_is_reported_as_truncation(false_task: Atari) -> None:
    task = Atari(
        Options(
            game="false", noop_max=0, sticky_actions=0.0, max_frames=5, height=3, width=2, stack=1
        )
    )
    backend = task.new_backend()
    observations, rewards = np.zeros((2, 3, 2, 1), np.uint8), np.zeros(2)
    with backend.chunk([1, 2]):
        observations[:] = [backend.reset(job, job) for job in (0, 1)]
        result = backend.advance(
            RunningEpisodes([1], [1]), np.zeros(2, np.int64), observations, rewards
        )
    assert result.ended == [1] and result.cut == [1] and rewards.tolist() == [0, 1 + 2 + 3 + 4 + 5]
    assert (observations[0] == 200).all()  # of the reset; it is not running


def test_exception_of_a_game_fails_its_episode_only(
    false_task: Atari, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, emulators = FalseEmulator.act, list[FalseEmulator]()

    def failing(self: FalseEmulator, action: int) -> int:
        emulators.extend([self] if self not in emulators else [])
        if self is emulators[0]:
            raise RuntimeError("no picture")
        return act(self, action)

    monkeypatch.setattr(FalseEmulator, "act", failing)
    outcome = false_task.evaluate(Cycling(2, 4), batch([1, 2], training=False), nothing)
    assert (
        np.isnan(outcome.rows["return_"]).tolist() == [True, False]
        and outcome.rows["return_"][1] == 78
    )
    assert "RuntimeError: no picture" in outcome.failures[0].text
