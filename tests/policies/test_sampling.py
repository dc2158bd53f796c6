"""Sampled actions against their probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hpc_es.core.data import Discrete, Spaces, flat_observations
from hpc_es.policies.lstm import LSTM
from hpc_es.policies.lstm import Options as LSTMOptions
from hpc_es.policies.mlp import MLP, Options
from hpc_es.policies.sampling import UNIFORMS_PER_DRAW, SamplingActor


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
