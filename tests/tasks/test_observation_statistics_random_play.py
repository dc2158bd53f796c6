"""Observations of random play: which ones they are, and that they are functions of the keys."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hpc_es.core.data import Box, Discrete, MultiDiscrete
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys, Purpose
from hpc_es.tasks.episodes.task import Episodes, Options
from hpc_es.tasks.observation_statistics import (
    INTERVAL,
    random_actions,
    random_observations,
    sha256,
)
from tests.helpers import toys  # registers the environments

assert toys
KEYS = Keys(5)


def observations(env_id: str, count: int, keys: Keys = KEYS, **options: Any) -> Any:
    task = Episodes(Options(env_id=env_id, **options))
    try:
        return random_observations(task, keys, count)
    finally:
        task.close()


def test_every_tenth_observation_is_taken_across_episodes() -> None:
    """An episode of Survival has 1 to 50 steps;
    it observes the number of the step and the length.
    """
    observed = observations("Survival-v0", 40)
    assert (observed.dtype, observed.shape) == (np.float32, (40, 3))
    assert observed[0, 0] == 0
    for (step, lifetime, _), (later, next_lifetime, _) in pairwise(observed):
        if step + INTERVAL < lifetime:
            assert (later, next_lifetime) == (step + INTERVAL, lifetime)
        else:  # in a later episode
            assert later < INTERVAL


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_they_depend_on_the_keys_only(env_id: str) -> None:
    first = observations(env_id, 8)
    assert sha256(first) == sha256(observations(env_id, 8))
    assert sha256(first) == sha256(
        observations(env_id, 8, episodes_per_job=1, stepping="gymnasium")
    )
    np.testing.assert_array_equal(observations(env_id, 20)[:8], first)
    assert sha256(first) != sha256(observations(env_id, 8, Keys(6)))
    assert sha256(first) != sha256(observations(env_id, 8, Keys(5, repetition=1)))


def test_another_environment_gives_another_sum() -> None:
    assert sha256(observations("Pendulum-v1", 8)) != sha256(
        observations("Pendulum-v1", 8, env_kwargs={"g": 5.0})
    )


def test_failed_episode_is_reported() -> None:
    # of the first episode
    seed = int(Keys(5).generator(Purpose.REFERENCE).integers(2**31, size=(1, 1))[0, 0])
    with pytest.raises(ConfigError) as caught:
        observations("Faulty-v0", 4, env_kwargs={"at": 1, "bad_seed": seed})
    assert "the simulator diverged" in str(caught.value)
    assert "policy.normalisation: is virtual_batch, which needs observations of random play" in str(
        caught.value
    )


def test_random_actions_are_uniform_in_their_space() -> None:
    rng = np.random.default_rng(0)
    discrete = random_actions(Discrete(3, start=2), rng, 1000)
    assert discrete.dtype == np.int64 and {2, 3, 4} == set(discrete.tolist())
    several = random_actions(MultiDiscrete((2, 3)), rng, 1000)
    assert several.shape == (1000, 2) and several.max(axis=0).tolist() == [1, 2]
    low = np.array([-3, -np.inf, 2, -np.inf], np.float32)
    high = np.array([-2, np.inf, np.inf, -2], np.float32)
    box = random_actions(Box(low, high), rng, 1000)
    assert box.dtype == np.float32 and (box >= low).all() and (box <= high).all()
    assert box[:, 0].mean() == pytest.approx(-2.5, abs=0.05) and box[:, 1].std() == pytest.approx(
        3**-0.5, rel=0.1
    )
