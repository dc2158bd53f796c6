"""Sampled actions against their probabilities, and recorded episodes of toy environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from hpc_es.algorithms.actor_critic.episodes import (
    MIN_STEPS,
    UNIFORMS_PER_DRAW,
    EpisodeRecorder,
    SamplingActor,
    Trajectories,
    potential_rewards,
)
from hpc_es.bandits.families import Arms
from hpc_es.bandits.setting import BanditEpisodes
from hpc_es.core.data import Discrete, Spaces, flat_observations
from hpc_es.policies.lstm import LSTM
from hpc_es.policies.lstm import Options as LSTMOptions
from hpc_es.policies.mlp import MLP, Options
from hpc_es.tasks.episodes.task import Episodes
from tests.helpers.toys import Still, batch, episodes, lifetime, nothing


def generators(count: int, first: int = 0) -> list[np.random.Generator]:
    return [np.random.default_rng(first + number) for number in range(count)]


def biased(probabilities: Sequence[float], start: int = 0) -> tuple[MLP, np.ndarray]:
    """A policy and parameters with these action probabilities for every observation."""
    policy = MLP(
        Options(hidden_dims=()), Spaces(flat_observations(2), Discrete(len(probabilities), start))
    )
    theta = np.zeros(policy.layout.size, np.float32)
    # the softmax does not see what all have in common
    theta[-len(probabilities) :] = np.log(probabilities) + 50.0
    return policy, theta


# Sampling.


def test_sampled_actions_have_the_policys_probabilities() -> None:
    policy, theta = biased((0.1, 0.6, 0.3), start=5)
    rows, steps = 40, 100
    actor = SamplingActor(policy, theta, generators(rows))
    actions = np.concatenate([actor.act(np.zeros((rows, 2), np.float32)) for _ in range(steps)])
    shares = np.bincount(actions - 5, minlength=3) / actions.size
    # four standard errors
    assert np.abs(shares - (0.1, 0.6, 0.3)).max() < 4 * np.sqrt(0.25 / actions.size)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("wrong", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
def test_rows_without_probabilities_have_nan_actions(wrong: list[float]) -> None:
    policy, theta = biased((0.5, 0.5))
    actor = SamplingActor(policy, theta, generators(2))
    actor.act(np.zeros((2, 2), np.float32))
    actions = actor.actions(np.array([[0.0, -np.inf], wrong], np.float32))
    assert actions[0] == 0 and np.isnan(actions[1])


def test_sampling_does_not_change_the_policy() -> None:
    policy, theta = biased((0.1, 0.9))
    SamplingActor(policy, theta, generators(2))
    assert policy.head.actions(np.array([[3.0, 1.0]], np.float32)).tolist() == [0]


@pytest.mark.parametrize("moment", [0, 3, UNIFORMS_PER_DRAW, UNIFORMS_PER_DRAW + 1])
def test_actions_of_a_job_do_not_depend_on_other_jobs(moment: int) -> None:
    """Also after others have left the stack, between any two steps."""
    policy = LSTM(LSTMOptions(hidden_dims=(4,)), Spaces(flat_observations(2), Discrete(3)))
    theta = 3 * policy.initial(np.random.default_rng(1))
    observations = (
        np.random.default_rng(2)
        .standard_normal((2 * UNIFORMS_PER_DRAW + 5, 5, 2))
        .astype(np.float32)
    )
    together, leaving = (SamplingActor(policy, theta, generators(5)) for _ in range(2))
    expected = np.array([together.act(step) for step in observations])
    for t, step in enumerate(observations):
        if t == moment:
            leaving.keep(np.array([1, 4]))
        rows = [0, 1, 2, 3, 4] if t < moment else [1, 4]
        assert leaving.act(step[rows]).tolist() == expected[t, rows].tolist()
    assert len(np.unique(expected)) == 3


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


# Bandits.


def test_payouts_are_the_rewards_of_all_arms() -> None:
    chances = np.array([[[0.5, 0.9]]], np.float32)
    values, spreads = np.array([[[1.0, 5.0]]], np.float32), np.array([[[0.0, 2.0]]], np.float32)
    uniforms, normal = (
        np.array([[0.4, 0.5, 0.95]], np.float32),
        np.array([[1.0, -1.0, 1.0]], np.float32),
    )
    result = potential_rewards(BanditEpisodes(Arms(chances, values, spreads), uniforms, normal))
    assert result[:, 0].tolist() == [[1.0, 7.0], [0.0, 3.0], [0.0, 0.0]]
    plain = potential_rewards(BanditEpisodes(Arms(chances, values, 0 * spreads), uniforms, None))
    assert plain[:, 0].tolist() == [[1.0, 5.0], [0.0, 5.0], [0.0, 0.0]]
