"""Wrappers applied outside of an environment equal those inside; unsupported ones are refused."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import hpc_es
from hpc_es.api.evaluate import EvaluationRequest, evaluate, seeds
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.tasks.episodes.task import Options
from hpc_es.tasks.episodes.wrappers import applied_wrappers
from hpc_es.trained.stored import read_policy
from tests.helpers.trained import lengths_by_hand, run

REACH = ("task.env_id=tests.helpers.toys:Reach-v0", "task.env_kwargs={low: 0.0, high: 20.0}")
RESCALED = "{gymnasium.wrappers:RescaleAction: {min_action: -1.0, max_action: 1.0}}"
EPISODES = 5


class Smoothed(gymnasium.ActionWrapper[Any, Any, Any]):  # type: ignore[misc]
    """Half of the last action stays."""

    last = 0.0

    def action(self, action: Any) -> Any:
        self.last = 0.5 * self.last + 0.5 * action
        return self.last


class Halfway(gymnasium.ObservationWrapper[Any, Any, Any]):  # type: ignore[misc]
    """Reads from the environment whether half of the episode is over."""

    def observation(self, observation: Any) -> Any:
        return observation * (1 + (getattr(self.unwrapped, "count", 0) > 1))


class Shaped(gymnasium.RewardWrapper[Any, Any]):  # type: ignore[misc]
    """Other rewards."""

    def reward(self, reward: Any) -> Any:
        return 2 * reward


class Mirrored(gymnasium.ObservationWrapper[Any, Any, Any]):  # type: ignore[misc]
    """A function of the observation."""

    def observation(self, observation: Any) -> Any:
        return -observation


class Twofold(gymnasium.ActionWrapper[Any, Any, Any]):  # type: ignore[misc]
    """Discrete actions for Reach."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.action_space = spaces.Discrete(2)

    def action(self, action: Any) -> Any:
        return np.full(2, 3.0 + action, np.float32)


def returns(policy: Any, environment: Any) -> float:
    """The mean return of the episodes that `hpc-es eval` plays, by hand."""
    return float(np.mean(lengths_by_hand(policy, environment, seeds(0, range(EPISODES)))[0]))


@pytest.mark.long
@pytest.mark.parametrize(
    "wrappers",
    [
        f"[{RESCALED}]",
        f"[{RESCALED}, gymnasium.wrappers:ClipAction]",
        "[tests.tasks.episodes.test_wrappers:Twofold]",
        f"[{{gymnasium.wrappers:DtypeObservation: {{dtype: float64}}}}, {__name__}:Shaped, {RESCALED}]",
    ],
)
def test_actions_in_the_environment_itself_give_the_return_of_eval(wrappers: str) -> None:
    path = run(*REACH, f"task.wrappers={wrappers}")
    expected = evaluate(read_policy(path), EvaluationRequest(EPISODES, 0))["return_mean"]
    expected /= 2 if "Shaped" in wrappers else 1
    policy = hpc_es.load_policy(path)
    assert returns(
        policy, gymnasium.make("tests.helpers.toys:Reach-v0", low=0.0, high=20.0)
    ) == pytest.approx(expected)
    assert returns(policy, policy.make_env()) == pytest.approx(expected)


def test_policy_for_the_wrapped_environment_applies_no_wrapper() -> None:
    path = run(*REACH, f"task.wrappers=[{RESCALED}]")
    policy = hpc_es.load_policy(path, env="wrapped")
    environment = policy.make_env()
    assert isinstance(environment, gymnasium.wrappers.RescaleAction)
    assert returns(policy, environment) == pytest.approx(
        evaluate(read_policy(path), EvaluationRequest(EPISODES, 0))["return_mean"]
    )
    inner = hpc_es.load_policy(path)
    observed = np.array([1, 2, 1], np.float32)
    np.testing.assert_allclose(
        inner(observed), 10 * (np.asarray(policy(observed)) + 1), rtol=1e-6
    )  # from -1, 1 to 0, 20
    np.testing.assert_allclose(inner([[1, 2, 1], [3, 2, 1]])[0], inner(observed))  # type: ignore[index]
    assert np.shape(inner(np.zeros((0, 3)))) == (0, 2)
    with pytest.raises(
        ValueError, match=r"expected an observation of shape \(3,\), or \(n, 3\), found \(4,\)"
    ):
        inner(np.zeros(4))


@pytest.mark.long
def test_observations_that_are_dicts_are_flattened() -> None:
    path = run(
        "task.env_id=tests.helpers.toys:Named-v0",
        "task.wrappers=[gymnasium.wrappers:FlattenObservation]",
    )
    policy = hpc_es.load_policy(path)
    observed = {"time": np.array([1, 2, 1], np.float32), "even": 1}
    assert policy(observed) == hpc_es.load_policy(path, env="wrapped")(np.array([0, 1, 1, 2, 1]))
    assert (
        returns(policy, policy.make_env())
        == evaluate(read_policy(path), EvaluationRequest(EPISODES, 0))["return_mean"]
    )


OWN_STEP = "defines `step` or `reset`"
REMEMBERS = "has memory, is random or uses the environment"


@pytest.mark.parametrize(
    ("wrapper", "env", "reason"),
    [
        ("hpc_es.tasks.last_step:LastStep", "Survival", OWN_STEP),
        ("gymnasium.wrappers:NormalizeObservation", "Survival", REMEMBERS),
        ("tests.tasks.episodes.test_wrappers:Smoothed", "Chaos", REMEMBERS),
        ("tests.tasks.episodes.test_wrappers:Halfway", "Survival", REMEMBERS),
    ],
)
def test_wrappers_that_cannot_be_applied_are_refused_by_name(
    wrapper: str, env: str, reason: str
) -> None:
    options = Options(
        env_id=f"tests.helpers.toys:{env}-v0",
        wrappers=("gymnasium.wrappers:OrderEnforcing", wrapper),
    )
    with pytest.raises(ConfigError) as error:
        applied_wrappers(options)
    assert str(error.value).startswith(f"task.wrappers[1]: {wrapper} {reason}")


def test_environment_that_fails_while_wrappers_are_compared_is_named() -> None:
    options = Options(
        env_id="tests.helpers.toys:Faulty-v0",
        wrappers=("tests.tasks.episodes.test_wrappers:Mirrored",),
    )
    text = r"^task\.wrappers: tests\.helpers\.toys:Faulty-v0 fails .* ValueError: the simulator"
    with pytest.raises(ConfigError, match=text):
        applied_wrappers(options)


@pytest.mark.long
def test_run_with_other_wrappers_is_loaded_for_the_wrapped_environment() -> None:
    path = run("task.wrappers=[hpc_es.tasks.last_step:LastStep]")
    with pytest.raises(
        UserError, match=r"LastStep defines `step`.*env='wrapped'.*policy\.make_env\(\)"
    ):
        hpc_es.load_policy(path)
    policy = hpc_es.load_policy(path, env="wrapped")
    assert (
        returns(policy, policy.make_env())
        == evaluate(read_policy(path), EvaluationRequest(EPISODES, 0))["return_mean"]
    )
