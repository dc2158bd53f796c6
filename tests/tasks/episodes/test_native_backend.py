"""Native stepping is used if its results equal Gymnasium's, for any library versions."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from hpc_es.core.data import Array
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.episodes import classic_control, environments, native_backend
from hpc_es.tasks.episodes import classic_control as classic
from hpc_es.tasks.episodes.mujoco.models import MODELS
from hpc_es.tasks.episodes.stepping import stepping_differences
from tests.helpers.toys import episodes

CLASSIC = ("CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1")
# except for their time limit
ENDLESS = {"Pendulum", "HalfCheetah", "Swimmer", "HumanoidStandup", "Reacher", "Pusher"}


@pytest.fixture(autouse=True)
def nothing_compared() -> Iterator[None]:
    """Clear the cache of comparisons before and after each test."""
    before = dict(stepping_differences)
    stepping_differences.clear()
    yield
    stepping_differences.clear()
    stepping_differences.update(before)


def test_other_library_versions_are_stepped_natively_if_results_are_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.metadata.version

    def version(package: str) -> str:
        return "1.3.0" if package == "gymnasium" else real(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    task = episodes("CartPole-v1")
    assert task.notices == ()
    assert isinstance(task.new_backend(), classic.ClassicControlBackend)


@pytest.mark.parametrize("env_id", [*CLASSIC, *(f"{name}-v5" for name in MODELS)])
def test_comparison_covers_all_kinds_of_episode_ends(env_id: str) -> None:
    """Terminations, if the environment has any, and truncations; at least two resets per row."""
    if env_id.endswith("v5"):
        pytest.importorskip("mujoco")
    environment = environments.make(env_id, {})
    kind = native_backend.kind_of(environment)
    lines, actions = native_backend.record_native(
        environment, kind.backend_factory(environment)(kind.TRIAL.limit), kind.TRIAL
    )
    assert np.prod(actions.shape[:2]) >= 300
    flat = [line for row in lines for line in row]
    can_end = env_id.partition("-")[0] not in ENDLESS
    assert any(line.is_over and not line.is_cut for line in flat) == can_end
    assert any(line.is_cut for line in flat) or can_end
    assert sum(line.step == 0 for line in flat) >= 2 * kind.TRIAL.rows
    assert (
        native_backend.difference(environment, kind.backend_factory(environment), kind.TRIAL) == ""
    )


class LastBit(classic_control.Pendulum):
    """A processor whose cosine has another last bit."""

    def observe(self, state: Array) -> tuple[Array, ...]:
        return (
            np.nextafter(np.cos(state[0]).astype(np.float32), np.float32(2)),
            np.sin(state[0]),
            state[1],
        )


class OtherReward(classic_control.Pendulum):
    def step(self, state: Array, actions: Array) -> classic_control.Transition:
        step = super().step(state, actions)
        return step._replace(rewards=np.nextafter(step.rewards, 1))


class OtherEnd(classic_control.Pendulum):
    def step(self, state: Array, actions: Array) -> classic_control.Transition:
        return super().step(state, actions)._replace(terminated=state[1] > 3)


@pytest.mark.parametrize(("other", "text"), [
    (LastBit, "observation[0] is "),
    (OtherReward, "the reward is "),
    (OtherEnd, "terminated is True and truncated False, unlike Gymnasium's at step "),
])  # fmt: skip
def test_different_last_bit_disables_native_stepping(
    other: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(classic.DYNAMICS, f"{classic.PACKAGE}.pendulum:PendulumEnv", other)
    monkeypatch.setitem(classic.COMPARED, "gymnasium", "0.9")
    task = episodes("Pendulum-v1")
    assert not isinstance(task.new_backend(), classic.ClassicControlBackend)
    (notice,) = task.notices
    here = importlib.metadata.version("gymnasium")
    assert notice.startswith(
        "task.stepping: Pendulum-v1 is stepped by Gymnasium, which is slower (about 6 times): native stepping gives "
        f"other numbers than gymnasium {here}: {text}"
    )
    assert notice.endswith(
        " in row 0; install gymnasium 0.9, which native stepping was written for"
    )
    with pytest.raises(
        ConfigError,
        match="is native, which is not possible here: native stepping gives other numbers",
    ):
        episodes("Pendulum-v1", stepping="native")


def test_different_last_bit_disables_native_stepping_of_mujoco(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control cost differs by one unit in the last place of a float64 reward."""
    pytest.importorskip("mujoco")
    from hpc_es.tasks.episodes.mujoco import models

    step = models.HalfCheetah.step

    def other(self: Any, s: Any, velocity: Any, actions: Array) -> Any:
        rewards, terminated = step(self, s, velocity, actions)
        return np.nextafter(rewards, 1), terminated

    monkeypatch.setattr(models.HalfCheetah, "step", other)
    (notice,) = episodes("HalfCheetah-v5").notices
    assert "the reward is " in notice
    assert notice.endswith("; change that, or accept it by task.stepping: gymnasium")


def test_result_of_a_comparison_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """One comparison for each set of keywords, none for wrappers that need Gymnasium."""
    calls = list[str]()
    real = native_backend.difference

    def counted(environment: Any, make: Any, trial: Any) -> str:
        calls.append(environment.spec.id)
        return real(environment, make, trial)

    monkeypatch.setattr(native_backend, "difference", counted)
    for keywords in ({}, {"g": 9.0}, {"g": 9.0}, {}):
        episodes("Pendulum-v1", env_kwargs=keywords)
    episodes("CartPole-v1", wrappers=("gymnasium.wrappers:RecordEpisodeStatistics",))
    assert calls == ["Pendulum-v1", "Pendulum-v1"]


def test_model_file_is_in_the_key_of_the_cache(tmp_path: Any) -> None:
    """The same path with another content is compared again."""
    pytest.importorskip("mujoco")
    file = tmp_path / "hopper.xml"
    assets = gymnasium.__path__[0] + "/envs/mujoco/assets/hopper.xml"
    keys = set[str]()
    for comment in ("<!-- 1 -->", "<!-- 2 -->"):
        with open(assets) as source:  # noqa: PTH123
            file.write_text(source.read() + comment)
        keys.add(native_backend.key(environments.make("Hopper-v5", {"xml_file": str(file)})))
    assert len(keys) == 2
