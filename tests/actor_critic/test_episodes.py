"""Recorded episodes of toy environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from hpc_es.actor_critic.episodes import (
    MIN_STEPS,
    EpisodeRecorder,
    Trajectories,
)
from hpc_es.tasks.episodes.task import Episodes
from tests.helpers.toys import Still, batch, episodes, lifetime, nothing

# Records.


def recorded(task: Episodes, seeds: Sequence[int], action: int = 0) -> Trajectories:
    recorder = EpisodeRecorder(Still(len(seeds), action), len(seeds), 0)
    message = dataclasses.replace(batch(seeds), on_step=recorder.on_step)
    outcome = task.evaluate(recorder, message, nothing)
    return recorder.trajectories(np.isnan(outcome.rows["return_"]))


def test_every_step_is_recorded() -> None:
    """Lengths 3, 12, 6 and 8: the stack is compacted meanwhile.

    Survival observes (step, lifetime, 1).
    """
    seeds = [2, 11, 5, 7]
    result = recorded(episodes("Survival"), seeds, action=1)
    lengths = np.array([lifetime(seed) for seed in seeds])
    assert lengths.tolist() == [3, 12, 6, 8]
    t = np.arange(MIN_STEPS)[:, np.newaxis]
    lives = (t < lengths).astype(np.float32)
    np.testing.assert_array_equal(result.lives, lives)
    np.testing.assert_array_equal(result.rewards, lives)
    np.testing.assert_array_equal(result.actions, lives)
    observed = (
        np.stack([t + 0 * lengths, lengths + 0 * t, 1 + 0 * t * lengths], axis=-1)
        * lives[..., np.newaxis]
    )
    np.testing.assert_array_equal(result.inputs, observed)
    assert not result.cuts.any()


def test_truncated_episode_keeps_its_last_state() -> None:
    result = recorded(episodes("Survival", max_episode_steps=5), [2, 11, 4])
    assert result.lives.sum(axis=0).tolist() == [3, 5, 5]
    # not the last: it ended by itself at the limit
    assert np.argwhere(result.cuts).tolist() == [[5, 1]]
    assert result.inputs[5].tolist() == [[0, 0, 0], [5, 12, 1], [0, 0, 0]]


def test_lengths_are_powers_of_two_with_room_for_a_last_state() -> None:
    assert len(recorded(episodes("Survival", max_episode_steps=15), [40]).lives) == 16
    assert len(recorded(episodes("Survival", max_episode_steps=16), [40]).lives) == 32


def test_actions_are_numbered_from_zero() -> None:
    recorder = EpisodeRecorder(Still(1, 6), 1, first_action=5)
    message = dataclasses.replace(batch([2]), on_step=recorder.on_step)
    episodes("Shifted").evaluate(recorder, message, nothing)
    assert recorder.trajectories(np.array([False])).actions[:4, 0].tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("fault", ["raise", "observation", "reward"])
def test_failed_jobs_do_not_contribute(fault: str) -> None:
    result = recorded(episodes("Faulty", env_kwargs={"fault": fault}), [5, 7, 8])
    assert result.lives.sum(axis=0).tolist() == [6, 0, 9]
    assert all(np.isfinite(array).all() and not array[:, 1].any() for array in result.arrays())


def test_recorded_rewards_include_the_training_offset() -> None:
    assert recorded(episodes("Survival", reward_offset=-3.0), [1]).rewards[:3, 0].tolist() == [
        -2.0,
        -2.0,
        0.0,
    ]
