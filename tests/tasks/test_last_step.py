"""The LastStep wrapper, on a toy whose reward is its action and
whose observation is (step, lifetime, 1).
"""

from __future__ import annotations

import gymnasium
import pytest

from hpc_es.core.errors import ConfigError
from hpc_es.tasks.last_step import LastStep
from tests.helpers.toys import episodes

WRAPPER = "hpc_es.tasks.last_step:LastStep"


def test_observations_include_the_last_action_and_reward() -> None:
    """Actions 5, 6, 7."""
    environment = LastStep(gymnasium.make("tests.helpers.toys:Shifted-v0"), time_scale=10.0)
    assert environment.reset(seed=2)[0].tolist() == [0, 3, 1, 0, 0, 0, 0, 0]
    observed, reward, *_ = environment.step(6)
    assert observed.tolist() == pytest.approx([1, 3, 1, 6, 0, 1, 0, 0.1])
    assert reward == 6
    assert environment.step(7)[0].tolist() == pytest.approx([2, 3, 1, 7, 0, 0, 1, 0.2])
    assert environment.reset(seed=2)[0].tolist() == [0, 3, 1, 0, 0, 0, 0, 0]
    assert environment.observation_space.shape == (8,)


def test_observed_reward_can_be_clipped() -> None:
    """Actions 6 and 7 pay as much."""
    environment = LastStep(gymnasium.make("tests.helpers.toys:Shifted-v0"), reward_clip=6.5)
    environment.reset(seed=2)
    steps = [environment.step(action)[:2] for action in (6, 7)]
    assert [(observed[3], reward) for observed, reward in steps] == [(6, 6), (6.5, 7)]


def test_last_step_works_as_a_wrapper_of_a_task() -> None:
    assert episodes("CartPole-v1", wrappers=(WRAPPER,)).spaces.observations.size == 4 + 1 + 2 + 1


@pytest.mark.parametrize(
    ("name", "wrapper", "text"),
    [
        ("Reach", WRAPPER, "expected Discrete actions"),
        ("Survival", {WRAPPER: {"time_scale": 0}}, "expected a number greater than 0"),
        (
            "Survival",
            {WRAPPER: {"reward_clip": 0}},
            "reward_clip is 0: expected a number greater than 0, or null",
        ),
    ],
)
def test_last_step_refuses_unsuitable_environments(name: str, wrapper: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        episodes(name, wrappers=(wrapper,))
