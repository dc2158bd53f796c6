"""Hidden state is found before a run."""

from __future__ import annotations

import pytest

from hpc_es.tasks.episodes.environments import COMPARED_EPISODES, hidden_state_difference
from tests.helpers.toys import Faulty, episodes


@pytest.mark.parametrize("name", ["Survival", "Globals", "Chaos", "Shifted", "CartPole-v1", "Pendulum-v1"])
def test_environments_without_hidden_state_pass_the_probe(name: str) -> None:
    assert hidden_state_difference(episodes(name).environment, 30) is None


def test_a_reward_with_hidden_state_is_detected() -> None:
    """Hidden pays 1 in the first episode of an instance and 2 in the second, from its first step on."""
    assert hidden_state_difference(episodes("Hidden").environment, 30) == "from step 1 of episode 1"


def test_an_episode_length_with_hidden_state_is_detected() -> None:
    """The first episode of an instance of Growing has 1 step, the second 2: with the reset, 3 records instead of 2."""
    assert hidden_state_difference(episodes("Growing").environment, 30) == "episode 1 has 3 steps instead of 2"


def test_the_probe_closes_its_environments() -> None:
    environment = episodes("Faulty", env_kwargs={"bad_seed": -1}).environment
    made, closed = Faulty.made, Faulty.closed
    assert hidden_state_difference(environment, 30) is None
    assert Faulty.made - made == Faulty.closed - closed == COMPARED_EPISODES + 1


def test_the_probe_treats_nan_as_equal() -> None:
    """A fault that comes back each time is no hidden state."""
    nan = episodes("Survival", wrappers=({"tests.helpers.toys:Plus": {"by": float("nan")}},))
    assert hidden_state_difference(nan.environment, 30) is None
