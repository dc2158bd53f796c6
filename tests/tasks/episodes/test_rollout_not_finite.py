"""Observations and actions that are not finite fail their episode; policy,
statistics and environment get none.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from hpc_es.actor_critic.episodes import EpisodeRecorder
from hpc_es.core.data import Outcome
from hpc_es.core.policy import DIVERGED
from hpc_es.tasks.episodes.rollout import EpisodeSegments
from hpc_es.tasks.episodes.task import Episodes
from tests.helpers.odd_values import BAD, LENGTH, ODD_STEP
from tests.helpers.toys import Still, batch, episodes, nothing, played

ODD = "tests.helpers.odd_values:Odd-v0"
SEEDS = [1, BAD, 2]
NOT_FINITE = {
    "nan": (np.nan, "the observation is NaN in element 1"),
    "inf": (np.inf, "the observation is infinite in element 1 (float32 ends at 3.4e+38)"),
    "-inf": (-np.inf, "the observation is infinite in element 1 (float32 ends at 3.4e+38)"),
    "too large": (1e39, "the observation is infinite in element 1 (float32 ends at 3.4e+38)"),
}


def odd(what: str, value: Any, **options: Any) -> Episodes:
    return episodes(ODD, env_kwargs={"what": what, "value": value}, **options)


class Seeing(Still):
    """It fails if it sees an observation that is not finite."""

    def act(self, observations: Any) -> Any:
        assert np.isfinite(observations).all()
        return super().act(observations)


def failure(outcome: Outcome) -> str:
    assert [failed.position for failed in outcome.failures] == [1]
    assert outcome.rows["return_"][[0, 2]].tolist() == [LENGTH, LENGTH]
    return outcome.failures[0].text


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("number", NOT_FINITE)
@pytest.mark.parametrize("what", ["first observation", "observation"])
def test_observation_that_is_not_finite_fails_its_episode(what: str, number: str) -> None:
    """Statistics are those of the other episodes."""
    value, text = NOT_FINITE[number]
    observation = np.array([1.0, value, 3.0])
    outcome = played(odd(what, observation), SEEDS, Seeing(3), observe=[True] * 3)
    at = "after reset" if what == "first observation" else f"at step {ODD_STEP}"
    assert failure(outcome) == f"ValueError: {text} {at}"
    others = played(odd("", None), [1, 2], observe=[True] * 2).learned[0][0]
    assert {name: array.tolist() for name, array in outcome.learned[0][0].items()} == {
        name: array.tolist() for name, array in others.items()
    }


@pytest.mark.parametrize("number", [1e30, 3.4e38, -3.4e38])
def test_large_finite_observations_are_no_failures(number: float) -> None:
    """The sum of their squares overflows in float32."""
    outcome = played(
        odd("observation", np.array([number, number, 0])), SEEDS, Seeing(3), observe=[True] * 3
    )
    assert outcome.failures == []
    assert np.isfinite(outcome.learned[0][0]["observation_squares"]).all()


def test_infinite_observation_of_a_vector_environment_fails_its_episode() -> None:
    observations = np.zeros((3, 3))
    observations[1, 2] = np.inf
    outcome = played(odd("observation", observations, stepping="vector"), SEEDS, Seeing(3))
    assert "the observation is infinite in element 2" in failure(outcome)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_infinite_observation_of_native_stepping_fails_its_episode(env_id: str) -> None:
    task = episodes(env_id, stepping="native")
    backend: Any = task._backend
    with backend.chunk([1, 2]):
        pass
    reset = backend.reset

    def broken(job: int, seed: int) -> Any:
        observation = reset(job, seed)
        if job == 1:
            backend._state[:2, job] = np.inf
        return observation

    backend.reset = broken
    actor = Seeing(2, actions=0 if env_id == "CartPole-v1" else 1)
    outcome = played(task, [1, 2], actor)
    assert [failed.position for failed in outcome.failures] == [1]


# Actions.


class Diverging(Still):
    """Its action for job 1 is `value` in its second step."""

    def __init__(self, value: float, actions: int = 0) -> None:
        super().__init__(3, actions=actions)
        self.value, self.steps = value, 0

    def act(self, observations: Any) -> Any:
        actions = super().act(observations)
        self.steps += 1
        if self.steps == 2:
            actions = actions.astype(np.float32 if self._actions else np.float64)
            actions[self.rows.index(1)] = self.value
        return actions


class Valid(gymnasium.ActionWrapper[Any, Any, Any]):
    """Accepts actions of the space only, in their usual types."""

    def action(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        if isinstance(self.action_space, gymnasium.spaces.Discrete):
            assert type(action) is int
        return action


VALID = f"{__name__}:Valid"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["Survival", "Reach"])
def test_action_that_is_not_finite_fails_its_episode_and_reaches_no_environment(
    name: str, value: float
) -> None:
    """Lifetimes are 1 + seed: seeds 8, 9, 10."""
    outcome = played(
        episodes(name, wrappers=(VALID,)), [8, 9, 10], Diverging(value, 2 if name == "Reach" else 0)
    )
    assert [failed.position for failed in outcome.failures] == [1]
    what = "NaN" if np.isnan(value) else "infinite"
    element = " in element 0" if name == "Reach" else ""
    limit = " (float32 ends at 3.4e+38)" if what == "infinite" and name == "Reach" else ""
    text = f"the action of the policy is {what}{element}{limit} at step 2; {DIVERGED}"
    assert outcome.failures[0].text == f"ValueError: {text}"
    assert outcome.rows["length"].tolist() == [9, 1, 11]


@pytest.mark.parametrize("stepping", ["native", "gymnasium"])
def test_chunk_whose_actions_are_all_nan_ends(stepping: str) -> None:
    outcome = played(
        episodes("HalfCheetah-v5", stepping=stepping, max_episode_steps=5),
        [1, 2],
        Still(2, np.nan, 6),
    )
    assert [failed.position for failed in outcome.failures] == [0, 1]
    assert outcome.rows["length"].tolist() == [0, 0]


def test_nan_actions_of_segments_fail_their_jobs_and_are_not_recorded() -> None:
    task = episodes("Survival", wrappers=(VALID,))
    recorder = EpisodeRecorder(Diverging(np.nan), 3, 0)
    jobs = batch([8, 9, 10])
    jobs = type(jobs)(**{**vars(jobs), "on_step": recorder.on_step})
    outcome = EpisodeSegments(task, task.new_backend()).play(recorder, jobs, 4, nothing)
    failed = np.isnan(outcome.rows["return_"])
    assert failed.tolist() == [False, True, False]
    trajectories = recorder.trajectories(failed)
    assert (
        trajectories.lives.sum(axis=0).tolist() == [4, 0, 4]
        and np.isfinite(trajectories.rewards).all()
    )
