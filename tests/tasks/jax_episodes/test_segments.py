"""Segments of compiled episodes: rows and steps by hand, and lanes as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
import jax
import jax.numpy as jnp

from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys
from hpc_es.policies import mlp
from hpc_es.tasks.jax_episodes.segments import CompiledSegments, packed, unpacked
from hpc_es.tasks.jax_episodes.task import FinalObservationOptions, JaxEpisodes, Options
from hpc_es.tasks.problems import ObservationNormalization

STEPS = "tests.helpers.jax_steps:steps"
KEYS = np.array([[0, 7], [0, 8]], np.uint32)


def task(**options: Any) -> JaxEpisodes:
    return JaxEpisodes(Options(**{"env_id": STEPS, **options}))


def created(**options: Any) -> CompiledSegments:
    one = task(**options)
    return CompiledSegments(one.traced, one.time_limit, one.options.reward_offset)


def always_one(memory: Any, observation: Any) -> tuple[Any, Any]:
    """Choose action 1, and count the steps in the memory."""
    return jnp.array([-1e9, 0.0]), memory + 1


def coin(memory: Any, observation: Any) -> tuple[Any, Any]:
    return jnp.zeros(2), memory + 1


class Player:
    """Plays segments of one episode after another, with two jobs."""

    def __init__(self, segments: CompiledSegments, steps: int, policy: Any = always_one) -> None:
        self._segments, self._memory = segments, np.zeros(1, np.float32)
        self.lanes: Any = segments.no_lanes(self._memory, 2)
        self._begin = jax.jit(lambda lanes, keys: segments.begin(self._memory, lanes, keys))
        self._play = jax.jit(lambda lanes, keys: segments.play(policy, lanes, keys, steps))

    def __call__(self, seeds: Any = KEYS, action_keys: Any = KEYS) -> tuple[Any, Any]:
        """The recorded steps and the rows of the next segment, as NumPy arrays."""
        start = self._begin(self.lanes, seeds)
        self.lanes, recorded, rows = self._play(start, action_keys)
        return jax.tree.map(np.asarray, (recorded, rows))


def rows_of(rows: Any) -> list[tuple[float, int, int]]:
    """Return, steps of this segment, and length of the episode that ended in it."""
    return list(
        zip(
            rows.return_.exactly().tolist(),
            rows.length.tolist(),
            rows.episode_length.tolist(),
            strict=True,
        )
    )


def test_episode_continues_in_the_next_segment() -> None:
    """Five steps in segments of three: 10 + 11 + 12, then 13 + 14 and the end,
    then a new episode.
    """
    play = Player(created(), 3)
    recorded, rows = play()
    assert rows_of(rows) == [(33.0, 3, 0)] * 2
    assert recorded.inputs[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert recorded.rewards[:, 0].tolist() == [10, 11, 12, 0] and recorded.actions[
        :, 0
    ].tolist() == [1, 1, 1, 0]
    assert recorded.lives[:, 0].tolist() == [1, 1, 1, 0] and recorded.cuts[:, 0].tolist() == [
        0,
        0,
        0,
        1,
    ]
    recorded, rows = play()
    assert rows_of(rows) == [(60.0, 2, 5)] * 2
    assert recorded.inputs[:2, 0, 0].tolist() == [3, 4] and recorded.rewards[:, 0].tolist() == [
        13,
        14,
        0,
        0,
    ]
    assert recorded.lives[:, 0].tolist() == [1, 1, 0, 0] and not recorded.cuts.any()
    recorded, rows = play()
    assert rows_of(rows) == [(33.0, 3, 0)] * 2 and recorded.inputs[0, 0, 0] == 0


def test_memory_continues_with_its_episode() -> None:
    play = Player(created(), 3)
    memory = []
    for _ in range(3):
        play()
        memory.append(float(play.lanes.memory[0, 0]))
    assert memory == [3, 5, 3]


def test_time_limit_is_a_cut_with_the_state_that_follows() -> None:
    play = Player(created(max_episode_steps=4), 3)
    play()
    recorded, rows = play()
    assert rows_of(rows) == [(46.0, 1, 4)] * 2
    assert recorded.cuts[:, 0].tolist() == [0, 1, 0, 0] and recorded.inputs[1, 0, 0] == 4


def test_end_in_the_last_step_of_a_segment_is_not_a_cut() -> None:
    recorded, rows = Player(created(), 5)()
    assert rows_of(rows) == [(60.0, 5, 5)] * 2 and not recorded.cuts.any()


def test_two_segments_are_one_of_twice_the_steps() -> None:
    """Random rewards and actions depend on the episode and its step only, for the same keys."""
    options: dict[str, Any] = {"env_kwargs": {"random": True, "longest": 9}}
    short, long = Player(created(**options), 3, coin), Player(created(**options), 6, coin)
    first, _ = short()
    second, rows = short()
    whole, expected = long()
    assert rows_of(rows)[0][0] == rows_of(expected)[0][0]
    joined = np.concatenate([first.rewards[:3], second.rewards[:3]])
    np.testing.assert_array_equal(joined, whole.rewards[:6])
    assert (
        len(set(whole.rewards[:6, 0].tolist())) == 6
        and (whole.actions[:6, 0] != whole.actions[:6, 1]).any()
    )


def test_reward_offset_is_added() -> None:
    assert rows_of(Player(created(reward_offset=-1.0), 3)()[1]) == [(30.0, 3, 0)] * 2


def test_failed_episode_counts_nothing_and_a_new_one_begins() -> None:
    """The observation after the fourth step is NaN."""
    play = Player(created(env_kwargs={"nan_at": 3}), 3)
    play()
    recorded, rows = play()
    assert (
        (rows.failed > 0).all()
        and rows.episode_length.tolist() == [0, 0]
        and rows.length.tolist() == [1, 1]
    )
    for array in (recorded.rewards, recorded.lives, recorded.cuts):
        assert not array.any()
    assert rows_of(play()[1]) == [(33.0, 3, 0)] * 2


def test_lanes_are_restored_from_bytes() -> None:
    play = Player(created(env_kwargs={"random": True}), 3, coin)
    template = play.lanes
    play()
    stored = packed(play.lanes)
    assert stored.dtype == np.uint8 and stored.shape[0] == 2
    expected = rows_of(play()[1])
    play.lanes = unpacked(template, stored)
    assert rows_of(play()[1]) == expected
    for row in (0, 1):  # those of any part of the jobs
        np.testing.assert_array_equal(
            packed(unpacked(template, stored[row : row + 1])), stored[row : row + 1]
        )


def trajectories(**options: Any) -> Any:
    one = task(**options)
    return one.problem("trajectories", mlp.build(mlp.Options(), one.spaces), Keys(1), 4)


def test_chunks_of_trajectories_are_calls() -> None:
    assert trajectories(jobs_per_call=12).chunk_size == 12


def test_options_for_other_algorithms_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"enabled: is true, but algorithms that differentiate trajectories do not",
    ):
        trajectories(observation_normalization=ObservationNormalization(enabled=True))
    with pytest.raises(
        ConfigError,
        match=r"task.behaviour: describes episodes for novelty search, .*: leave it out",
    ):
        trajectories(behaviour=FinalObservationOptions())
