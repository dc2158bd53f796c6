"""The libraries behind the prefixes of `task.env_id`: Jumanji and Craftax themselves, and a
stand-in for Playground.

Playground brings 470 MB, so what stands for it here is as its registry is: names, configs,
environments with states.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import CalledProcessError
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
import jax
import jax.numpy as jnp

from hpc_es.config.loading import validate
from hpc_es.core.data import Box, Discrete, ObservationSpec
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.jax_episodes.environments import observation_spec
from hpc_es.tasks.jax_episodes.task import Options, build
from hpc_es.training import check as checking
from tests.helpers.harness import python
from tests.helpers.jax_playing import parts, plainly, played

SEEDS = [3, 4, 5]


def checked(env_id: str, **task: Any) -> int:
    config = {
        "task": {"kind": "jax_episodes", "env_id": env_id, **task},
        "policy": {"hidden_dims": [4]},
    }
    return checking.check(validate(config))


def refused(env_id: str, **task: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        checked(env_id, **task)
    return str(caught.value)


def assert_played_as_plainly(**options: Any) -> None:
    """The episodes are those of a Python loop over the library's own functions."""
    created = parts((("hidden_dims", (4,)),), **options)
    theta = (
        np.random.default_rng(1)
        .standard_normal((len(SEEDS), created[1].layout.size))
        .astype(np.float32)
    )
    result = played(created, theta, SEEDS).rows
    for index, seed in enumerate(SEEDS):
        return_, length, _ = plainly(created, theta[index], seed)
        assert result["length"][index] == length
        assert result["return_"][index] == pytest.approx(return_, rel=1e-5)


def test_states_can_contain_random_keys() -> None:
    """Refilled lanes too: each episode has its own random numbers."""
    assert_played_as_plainly(
        env_id="tests.helpers.jax_walk:keyed", env_kwargs={"jitter": 0.3}, lanes=2
    )


def test_images_are_vectors_unless_they_keep_their_shape() -> None:
    pytest.importorskip("gymnax")
    breakout = "gymnax:Breakout-MinAtar"
    assert build(Options(env_id=breakout)).spaces.observations == ObservationSpec((400,))
    images = build(Options(env_id=breakout, flatten_observations=False))
    assert images.spaces.observations == ObservationSpec((10, 10, 4))
    vectors = build(Options(env_id="gymnax:CartPole-v1", flatten_observations=False))
    assert vectors.spaces.observations == ObservationSpec((4,))
    assert "'mlp' takes flat observations, found float32[10, 10, 4]" in refused(
        breakout, flatten_observations=False
    )


def test_integer_images_keep_their_dtype() -> None:
    image = observation_spec(lambda key: jnp.zeros((8, 8, 3), jnp.uint8), "image")
    assert image == ObservationSpec((8, 8, 3), np.dtype(np.uint8))
    assert observation_spec(lambda key: jnp.zeros((8, 8), bool), "mask") == ObservationSpec((8, 8))
    assert observation_spec(lambda key: jnp.float32(1), "number") == ObservationSpec((1,))


def test_steps_with_several_rewards_are_refused() -> None:
    text = refused("tests.helpers.jax_walk:pair")
    assert "the reward of a step is float32[2]: expected one number" in text


def test_brax_writes_no_mujoco_log(tmp_path: Path) -> None:
    """MuJoCo reads the model of halfcheetah, which has a deprecated attribute."""
    pytest.importorskip("brax")
    text = "from hpc_es.tasks.jax_episodes.environments import make; make('brax:halfcheetah', {})"
    done = python(["-c", text], cwd=tmp_path)
    assert done.status == 0 and "settotalmass" not in done.stderr, done
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["gymnax", "brax", "mujoco_playground", "jumanji", "craftax"])
def test_missing_library_is_reported(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # so that importing it fails
    library = "playground" if module == "mujoco_playground" else module
    remedy = "'hpc_es[jax]'" if module in {"gymnax", "brax"} else library
    text = refused(f"{library}:Any-v1")
    assert (
        text
        == f"task.env_id: {library}:Any-v1 needs {module}, which is not installed: pip install {remedy}"
    )


# Jumanji.


@pytest.fixture(scope="module")
def jumanji() -> Any:
    return pytest.importorskip("jumanji", reason="Jumanji is not installed here: make test-jax")


@pytest.mark.usefixtures("jumanji")
def test_snake_equals_jumanji() -> None:
    assert_played_as_plainly(env_id="jumanji:Snake-v1", max_episode_steps=20)


@pytest.mark.usefixtures("jumanji")
def test_time_limits_of_jumanji_are_read() -> None:
    task = build(Options(env_id="jumanji:Snake-v1", env_kwargs={"time_limit": 70}))
    assert task.time_limit == 70
    assert task.spaces.actions == Discrete(4)
    assert "task.max_episode_steps: is null, but jumanji:TSP-v1 has no time limit" in refused(
        "jumanji:TSP-v1"
    )


@pytest.mark.usefixtures("jumanji")
@pytest.mark.parametrize(
    ("name", "result"),
    [
        (
            "Tetris-v0",
            "an action of Tetris-v0 is int32[2], of [4, 10] values: expected one whole number, or real numbers",
        ),
        (
            "MultiCVRP-v0",
            "an action of MultiCVRP-v0 is int16[2]: expected one whole number, or real numbers",
        ),
        ("SearchAndRescue-v0", "the reward of a step is float32[2]: expected one number"),
        ("Snake-v2", "did you mean 'Snake-v1'?"),
    ],
)
def test_unsupported_jumanji_environments_are_refused(name: str, result: str) -> None:
    assert result in refused(f"jumanji:{name}", max_episode_steps=9)


# Craftax: a call compiles for half a minute.


def test_craftax_ends_at_its_time_limit() -> None:
    pytest.importorskip("craftax", reason="Craftax is not installed here: make test-jax")
    env_id = "craftax:Craftax-Classic-Symbolic-v1"
    assert checked(env_id) == 0
    task = build(Options(env_id=env_id, env_kwargs={"max_timesteps": 123}))
    assert (task.time_limit, task.spaces.observations.size, task.spaces.actions) == (
        123,
        1345,
        Discrete(17),
    )
    assert "did you mean 'Craftax-Symbolic-v1'?" in refused("craftax:Craftax-Symbolc-v1")


# Playground.


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """A state as in Playground and Brax."""

    data: Any
    obs: Any
    reward: Any
    done: Any


class Cart:
    """The state is the sum of the actions, and the reward; the episode ends beyond 1."""

    action_size = 1

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = SimpleNamespace(**config)

    def _observed(self, x: Any) -> Any:
        return {
            "array": x[None],
            "state": {"state": x[None], "privileged_state": jnp.zeros(5)},
            "pixels": {"view": x},
        }[self._config.observes]

    def reset(self, key: Any) -> State:
        x = 0.1 * jax.random.normal(key)
        return State(x, self._observed(x), jnp.zeros(()), jnp.zeros(()))

    def step(self, state: State, action: Any) -> State:
        x = state.data + self._config.ctrl_dt * action[0]
        return replace(
            state, data=x, obs=self._observed(x), reward=x, done=jnp.where(jnp.abs(x) > 1, 1.0, 0.0)
        )


def load(name: str, config: Any = None, config_overrides: Any = None) -> Cart:
    if name == "Go1":
        raise CalledProcessError(128, ["git", "clone"])
    assert config_overrides["impl"] == "jax"
    return Cart({**default_config(name), **config_overrides})


def default_config(name: str) -> dict[str, Any]:
    return {"ctrl_dt": 0.5, "episode_length": 12, "impl": "warp", "observes": "array"}


@pytest.fixture
def playground(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Any = ModuleType("mujoco_playground.registry")
    registry.ALL_ENVS, registry.load, registry.get_default_config = (
        ("Cart", "Go1"),
        load,
        default_config,
    )
    package: Any = ModuleType("mujoco_playground")
    package.registry = registry
    monkeypatch.setitem(sys.modules, "mujoco_playground", package)
    monkeypatch.setitem(sys.modules, "mujoco_playground.registry", registry)


@pytest.mark.usefixtures("playground")
@pytest.mark.parametrize("observes", ["array", "state"])
def test_playground_ends_at_its_episode_length_or_before(observes: str) -> None:
    assert_played_as_plainly(env_id="playground:Cart", env_kwargs={"observes": observes})
    task = build(Options(env_id="playground:Cart", env_kwargs={"observes": observes}))
    assert task.time_limit == 12
    assert task.spaces.observations.size == 1
    assert isinstance(task.spaces.actions, Box)


@pytest.mark.usefixtures("playground")
def test_unknown_playground_environments_are_refused() -> None:
    assert "found 'Crt'; did you mean 'Cart'?" in refused("playground:Crt")
    text = refused("playground:Cart", env_kwargs={"ctrl_dt.of": 1, "ctl_dt": 0.1})
    assert text.startswith(
        "task.env_kwargs: the config of playground:Cart has no 'ctl_dt' (it has ctrl_dt, episode_length"
    )
    assert text.endswith("did you mean 'ctrl_dt'?")
    text = refused("playground:Cart", env_kwargs={"observes": "pixels"})
    assert "expected an environment whose observation is one array" in text
    assert "needs MuJoCo Menagerie, which Playground downloads by git" in refused("playground:Go1")
