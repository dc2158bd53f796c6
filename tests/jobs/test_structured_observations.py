"""Runs in environments whose observations are dicts or tuples of arrays."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces.utils import flatten

import hpc_es
from hpc_es import cli
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.episodes.policy_spaces import spaces
from tests.helpers.harness import python, script
from tests.helpers.runs import (
    EVERY,
    assert_same,
    digest,
    finished,
    here,
    killed_and_resumed,
    newest,
    status,
    tiny,
)
from tests.helpers.structured import Senses

SENSES = (
    "task={env_id: 'tests.helpers.structured:Senses-v0', "
    "observation_normalization: {enabled: true, probability: 1.0}}",
    *EVERY,
)
FLATTENED = "task.wrappers=['gymnasium.wrappers:FlattenObservation']"
POLICIES = {
    "mlp": "policy={kind: mlp, hidden_dims: [4]}",
    "lstm": "policy={kind: lstm, hidden_dims: [3]}",
}


def trained(folder: Path, name: str, *overrides: str) -> Path:
    here(tiny(folder), folder / name, [*SENSES, *overrides])
    return folder / name


@pytest.mark.long
@pytest.mark.parametrize("kind", ["dict", "tuple"])
@pytest.mark.parametrize("policy", POLICIES)
def test_run_equals_that_with_the_wrapper(policy: str, kind: str, tmp_path: Path) -> None:
    options = (POLICIES[policy], f"task.env_kwargs.kind={kind}")
    plain = trained(tmp_path, "plain", *options)
    wrapped = trained(tmp_path, "wrapped", *options, FLATTENED)
    assert digest(newest(plain)) == digest(newest(wrapped))
    # 2 + 1 + 3 + 3 elements
    assert newest(plain).state.shared["observation_mean"].shape == (9,)
    assert status(plain)["failed_episodes"] == 0


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_ranks_and_kills_do_not_change_bits(policy: str, tmp_path: Path) -> None:
    options = (*SENSES, POLICIES[policy])
    killed_and_resumed(tmp_path / "killed", 2, 1, *options)
    generations = newest(tmp_path / "killed").state.generation
    finished(2, tmp_path / "whole", *options, f"stop.generations={generations}")
    assert_same(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.long
def test_vector_environment_equals_single_ones(tmp_path: Path) -> None:
    options = ("mpi.chunk_size=4", POLICIES["mlp"])
    vector = trained(tmp_path, "vector", "task.stepping=vector", *options)
    assert digest(newest(vector)) == digest(newest(trained(tmp_path, "single", *options)))


@pytest.mark.long
def test_policy_eval_video_and_file_take_the_observations(tmp_path: Path, capsys: Any) -> None:
    run = trained(tmp_path, "run", POLICIES["mlp"], "task.env_kwargs.box=true")
    policy: Any = hpc_es.load_policy(run)
    environment: Any = policy.make_env()
    assert cli.run(["export", str(run), str(tmp_path / "acting.py")]) == 0
    spec = importlib.util.spec_from_file_location("acting", tmp_path / "acting.py")
    assert spec is not None and spec.loader is not None
    acting = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(acting)
    seen = [environment.reset(seed=seed)[0] for seed in range(40)]
    actions = np.array([policy(observation) for observation in seen])
    exported = np.array([acting.policy(observation) for observation in seen])
    np.testing.assert_allclose(exported, actions, atol=1e-6)
    assert len(np.unique(actions.round(3))) > 20
    vectors = np.array([flatten(environment.observation_space, one) for one in seen], np.float32)
    np.testing.assert_allclose(policy(vectors), actions, atol=1e-6)
    film = str(tmp_path / "film.gif")
    assert cli.run(["eval", str(run), "--episodes", "2", "--json", "--video", film]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["failed"] == 0


class Louder(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Doubles one part."""

    def observation(self, observation: Any) -> Any:
        return {**observation, "vector": 2 * observation["vector"]}


@pytest.mark.long
def test_wrapper_may_change_a_part(tmp_path: Path) -> None:
    wrapper = f"task.wrappers=['{__name__}:Louder']"
    run = trained(tmp_path, "run", POLICIES["mlp"], wrapper)
    plain, wrapped = hpc_es.load_policy(run), hpc_es.load_policy(run, env="wrapped")
    for seed in range(10):
        inside, outside = (one.make_env().reset(seed=seed)[0] for one in (plain, wrapped))
        np.testing.assert_array_equal(2 * inside["vector"], outside["vector"])
        assert plain(inside) == wrapped(outside)


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_image_parts_are_refused_with_working_remedies(policy: str, tmp_path: Path) -> None:
    options = (*SENSES, POLICIES[policy], "task.env_kwargs.image=true")
    with pytest.raises(ConfigError) as refused:
        cli.run(["check", str(tiny(tmp_path)), *options])
    text = str(refused.value)
    found = (
        f"'{policy}' takes flat observations, found images among the parts: image uint8[4, 4, 3]"
    )
    assert text.startswith(
        f"policy.kind: {found}: use the policy network, which gets the parts, or"
    )
    wrapper = "{'gymnasium.wrappers:FilterObservation': {filter_keys: ['hand', 'mode', 'vector']}}"
    assert text.endswith(
        f"'gymnasium.wrappers:FlattenObservation' makes 57 observations; {wrapper} leaves them out"
    )
    for number, remedy in enumerate((FLATTENED, f"task.wrappers=[{wrapper}]")):
        width = trained(tmp_path, str(number), *options[len(SENSES) :], remedy)
        shape = newest(width).state.shared["observation_mean"].shape
        assert shape == ((57,), (9,))[number]


def test_environment_that_returns_another_part_fails_its_episode() -> None:
    class Forgetful(Senses):
        def observed(self) -> Any:
            parts = super().observed()
            return parts if self.t < 2 else {**parts, "vector": parts["vector"][:1]}

    environment = Forgetful()
    spec = spaces(environment).observations
    environment.reset(seed=1)
    environment.step(0)
    with pytest.raises(ValueError, match=r"'vector' of the observation: expected float32\[3\]"):
        spec.require(environment.step(0)[0])


# Networks get the parts.

NETS = "tests.helpers.structured_networks"
IMAGE = "task.env_kwargs.image=true"
NETWORKS = {
    "jax": f"policy={{kind: network, network: '{NETS}:jax_pair'}}",
    "flax": f"policy={{kind: network, network: '{NETS}:linen'}}",
    "keras": f"policy={{kind: network, network: '{NETS}:keras_model'}}",
    "torch": f"policy={{kind: network, network: '{NETS}:torch_module', backend: torch}}",
}
NEEDED = {"jax": ("jax",), "flax": ("jax", "flax"), "keras": ("jax", "keras"), "torch": ("torch",)}


def require(library: str) -> None:
    for package in NEEDED[library]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@pytest.mark.long
@pytest.mark.parametrize("library", NETWORKS)
def test_network_gets_the_parts(library: str, tmp_path: Path) -> None:
    """The networks check shapes and dtypes themselves."""
    require(library)
    options = (*SENSES, NETWORKS[library], IMAGE, "stop.generations=3")
    for ranks in (1, 2):
        finished(ranks, tmp_path / str(ranks), *options)
    assert status(tmp_path / "1")["failed_episodes"] == 0
    assert_same(tmp_path / "2", tmp_path / "1")
    finished(1, tmp_path / "2", *options, "stop.generations=5")
    loaded = """
        import sys
        import numpy as np
        import hpc_es
        policy = hpc_es.load_policy(sys.argv[1])
        environment = policy.make_env()
        seen = [environment.reset(seed=seed)[0] for seed in range(20)]
        assert {policy(observation) for observation in seen} <= {0, 1}
    """
    done = python([*script(loaded), str(tmp_path / "2")])
    assert done.status == 0, str(done)


def test_actions_are_those_of_the_function(tmp_path: Path) -> None:
    """Fractions are normalised, and whole numbers are not."""
    require("jax")
    import jax

    from tests.helpers.structured_networks import jax_pair

    run = trained(tmp_path, "run", NETWORKS["jax"], IMAGE, "task.env_kwargs.box=true")
    policy: Any = hpc_es.load_policy(run)
    environment: Any = policy.make_env()
    spec = policy.spaces.observations
    _, apply = jax_pair(spec, 1)
    source = policy.source
    weights = policy.policy.layout.split(source.theta)
    mean, deviation, clip = source.normaliser
    for seed in range(20):
        seen = environment.reset(seed=seed)[0]
        scaled = (seen["vector"] - mean[-3:]) / deviation[-3:]
        inputs = {**seen, "vector": np.clip(scaled, -clip, clip).astype(np.float32)}
        expected = apply(weights, jax.tree.map(jax.numpy.asarray, inputs))
        np.testing.assert_allclose(policy(seen), np.clip(expected, -1, 1), rtol=2e-5, atol=2e-6)


def test_network_for_another_part_is_refused_with_the_parts(tmp_path: Path) -> None:
    require("flax")
    with pytest.raises(ConfigError) as refused:
        cli.run(
            ["check", str(tiny(tmp_path)), *SENSES, NETWORKS["flax"], "task.env_kwargs.kind=tuple"]
        )
    text = (
        "fails for an observation with the parts 0/0 int8[2], 0/1 int16[], 1 int64[], 2 float32[3]"
    )
    assert text in str(refused.value)
