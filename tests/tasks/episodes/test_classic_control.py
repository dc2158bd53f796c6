"""Classic control without Gymnasium's overhead is bit-identical to Gymnasium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import hpc_es
from hpc_es.config.loading import load
from hpc_es.core.data import Array, Discrete, Spaces
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.episodes import classic_control
from hpc_es.tasks.episodes.classic_control import ClassicControlBackend
from hpc_es.tasks.episodes.environment_backend import RunningEpisodes
from hpc_es.tasks.episodes.gymnasium_backend import GymnasiumBackend
from hpc_es.tasks.episodes.task import Episodes
from tests.helpers import runs
from tests.helpers.toys import episodes, played

ENVIRONMENTS: list[tuple[str, dict[str, Any]]] = [
    ("CartPole-v0", {}),
    ("CartPole-v1", {}),
    ("CartPole-v1", {"sutton_barto_reward": True}),
    ("Pendulum-v1", {}),
    ("Pendulum-v1", {"g": 9.81}),
    ("MountainCar-v0", {}),
    ("MountainCar-v0", {"goal_velocity": 0.01}),
    ("MountainCarContinuous-v0", {}),
    ("MountainCarContinuous-v0", {"goal_velocity": 0.02}),
    ("Acrobot-v1", {}),
]
JOBS = 40


class Pushing:
    """Actions that depend only on step and job; some reach the goals of car and acrobot."""

    def __init__(self, spaces: Spaces) -> None:
        self.spaces, self.rows, self.step = spaces, np.arange(JOBS), 0

    def act(self, observations: Array) -> Array:
        self.step += 1
        drawn = np.random.default_rng(self.step).random(JOBS)[self.rows]
        swing = np.sin(self.step / (4 + self.rows % 30)) > 0
        actions = self.spaces.actions
        if isinstance(actions, Discrete):
            return np.where(
                drawn < 0.3, (drawn * 10).astype(np.int64) % actions.n, swing * (actions.n - 1)
            )
        # at the bounds, too
        force = np.where(drawn < 0.3, 7 * drawn - 1, 2.0 * swing - 1).clip(-1, 1)
        return (force[:, None] * actions.high).astype(np.float32)

    def keep(self, rows: Array) -> None:
        self.rows = self.rows[rows]

    def restart(self, row: int) -> None:
        pass


def outcome(env_id: str, stepping: str, **options: Any) -> Any:
    task = episodes(env_id, stepping=stepping, **options)
    seeds = np.arange(JOBS * task.episodes_per_job).reshape(JOBS, -1).tolist()
    return played(task, seeds, Pushing(task.spaces), observe=[True] * JOBS, unit=16)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("env_id", "keywords"), ENVIRONMENTS)
def test_classic_control_episodes_equal_gymnasiums_bit_for_bit(
    env_id: str, keywords: dict[str, Any]
) -> None:
    """Returns, signs and lengths of 80 episodes, and sums of all observations."""
    ours, theirs = (
        outcome(env_id, stepping, env_kwargs=keywords, episodes_per_job=2)
        for stepping in ("native", "gymnasium")
    )
    assert ours.rows.tobytes() == theirs.rows.tobytes()
    assert not np.isnan(ours.rows["return_"]).any()
    if env_id != "Pendulum-v1":  # whose episodes have one length
        assert len(set(ours.rows["length"].tolist())) > 1, "no episode ended by itself"
    assert sums(ours) == sums(theirs)
    assert len(sums(ours)) > 1


def sums(outcome: Any) -> list[dict[str, bytes]]:
    parts = [part for unit in outcome.learned for part in unit]
    return [{name: array.tobytes() for name, array in part.items()} for part in parts]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_classic_control_uses_the_time_limit_of_the_config(env_id: str) -> None:
    ours, theirs = (
        outcome(env_id, stepping, max_episode_steps=9) for stepping in ("native", "gymnasium")
    )
    assert ours.rows.tobytes() == theirs.rows.tobytes()
    assert ours.rows["length"].max() == 9


def test_classic_control_gives_the_theta_of_gymnasium(tmp_path: Path) -> None:
    config = runs.tiny(tmp_path)
    thetas = []
    for stepping in ("auto", "gymnasium"):
        overrides = [f"task.stepping={stepping}", "task.env_id=Pendulum-v1", "stop.generations=2"]
        overrides.append("task.max_episode_steps=30")
        with hpc_es.train(load(config, overrides), tmp_path / stepping) as run:
            for _ in run:
                pass
            thetas.append(run.theta.tobytes())
    assert thetas[0] == thetas[1]


# The choice.


def is_native(task: Episodes) -> bool:
    return isinstance(task.new_backend(), ClassicControlBackend)


@pytest.mark.parametrize("env_id", sorted({env_id for env_id, _ in ENVIRONMENTS}))
def test_every_classic_control_environment_is_stepped_natively(env_id: str) -> None:
    task = episodes(env_id)
    assert is_native(task)
    assert task.notices == ()
    assert isinstance(episodes(env_id, stepping="gymnasium").new_backend(), GymnasiumBackend)


class Other(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper unknown to native stepping."""


FALLBACKS: dict[str, tuple[dict[str, Any], str]] = {
    "wrapper": ({"wrappers": (f"{__name__}:Other",)}, "its wrapper Other needs Gymnasium"),
    "time-out": (
        {"episode_timeout_seconds": 5.0},
        "task.episode_timeout_seconds needs Gymnasium's steps",
    ),
    "rendered": ({"env_kwargs": {"render_mode": "rgb_array"}}, "it is rendered"),
}


@pytest.mark.parametrize("why", FALLBACKS)
def test_unknown_variants_are_stepped_by_gymnasium_with_a_warning(why: str) -> None:
    options, reason = FALLBACKS[why]
    task = episodes("CartPole-v1", **options)
    assert not is_native(task)
    assert task.notices[0].startswith(
        "task.stepping: CartPole-v1 is stepped by Gymnasium, which is slower (about 6 times): "
    )
    assert reason in task.notices[0]
    with pytest.raises(
        ConfigError, match=r"is native, which is not possible here: .*expected auto or gymnasium"
    ):
        episodes("CartPole-v1", stepping="native", **options)


def test_keyword_that_is_not_a_number_fails_as_in_gymnasium() -> None:
    task = episodes("Pendulum-v1", env_kwargs={"g": "ten"})
    assert "it fails with this model or these keywords: TypeError" in task.notices[0]


def test_other_environments_are_stepped_by_gymnasium_without_a_warning() -> None:
    task = episodes("Chaos")
    assert not is_native(task)
    assert task.notices == ()
    with pytest.raises(
        ConfigError, match="is not one of the environments of MuJoCo and classic control"
    ):
        episodes("Chaos", stepping="native")


# Formulas, by hand.


def stepped(env_id: str, state: list[float], action: Any) -> tuple[list[float], float, bool]:
    """State, reward and end of one step of the dynamics."""
    created = classic_control.DYNAMICS[classic_control._class_name(gymnasium.make(env_id))](
        gymnasium.make(env_id).unwrapped
    )
    result = created.step(np.array(state)[:, None], np.array([action]))
    over = result.terminated is not None and bool(result.terminated[0])
    return result.state[:, 0].tolist(), float(np.broadcast_to(result.rewards, 1)[0]), over


def test_hanging_pendulum_equals_gymnasiums() -> None:
    """At angle pi, speed 1, torque 2: costs pi^2 + 0.1 + 0.004,
    the speed grows by 0.05 (15 sin pi + 3 * 2) = 0.3.
    """
    state, reward, over = stepped("Pendulum-v1", [-np.pi, 1.0], [2.0])
    assert state == pytest.approx([-np.pi + 0.05 * 1.3, 1.3])
    assert reward == pytest.approx(-(np.pi**2 + 0.104), rel=1e-6)
    assert not over


def test_car_at_the_goal_equals_gymnasiums() -> None:
    """From 0.49 at speed 0.05, force 1: the speed changes by 0.001 - 0.0025 cos 1.47, past 0.5."""
    state, reward, over = stepped("MountainCar-v0", [0.49, 0.05], 2)
    assert state[1] == pytest.approx(0.051 - 0.0025 * np.cos(1.47))
    assert state[0] == pytest.approx(0.49 + state[1])
    assert (reward, over) == (-1.0, True)


def test_finished_episode_does_not_affect_the_others() -> None:
    """The first and the last of three jobs continue."""
    bare = gymnasium.make("CartPole-v1").unwrapped
    stepping = ClassicControlBackend(classic_control.CartPole(bare), 2)
    observations, rewards = np.zeros((3, 4), np.float32), np.zeros(3)
    with stepping.chunk([1, 2, 3]):
        for job in range(3):
            observations[job] = stepping.reset(job, job + 1)
        before = observations.copy()
        result = stepping.advance(
            RunningEpisodes([0, 2], [0, 2]), np.array([1, 1, 1]), observations, rewards
        )
        assert result.ended == []
        assert observations[1].tobytes() == before[1].tobytes()
        assert rewards.tolist() == [1.0, 0.0, 1.0]
        result = stepping.advance(
            RunningEpisodes([2], [2]), np.array([1, 1, 1]), observations, rewards
        )
        assert (result.ended, result.cut) == ([2], [2])
