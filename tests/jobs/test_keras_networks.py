"""Runs of Keras models on TensorFlow: bit-identical on any number of ranks and after a kill;
export and its inverse.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import runs
from tests.helpers.harness import Finished, python, script

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed here"
    ),
]

NORMALISED = "task.observation_normalization={enabled: true, probability: 0.5}"


def policy(name: str) -> str:
    network = f"'tests.helpers.own_networks:{name}'"
    return (
        f"policy={{kind: network, network: {network}, backend: tensorflow, candidates_per_call: 3}}"
    )


@pytest.mark.parametrize("name", ["keras", "keras_recurrent"])
def test_run_killed_and_resumed_on_three_ranks_equals_one_on_one_rank(
    name: str, tmp_path: Path
) -> None:
    options, run = (policy(name), NORMALISED, *runs.EVERY), tmp_path / "three"
    end = runs.killed_and_resumed(run, 3, 3, *options)
    runs.finished(0, tmp_path / "one", *options, f"stop.generations={end}")
    runs.assert_same(run, tmp_path / "one")


@pytest.mark.parametrize("name", ["keras", "keras_recurrent"])
def test_actor_critic_killed_and_resumed_on_two_and_three_ranks_equals_one_on_one_rank(
    name: str, tmp_path: Path
) -> None:
    """Synchronous updates, whose gradient TensorFlow computes,
    with the value as a further output.
    """
    task = "task={kind: episodes, env_id: CartPole-v1, max_episode_steps: 20}"
    algorithm = "algorithm={kind: actor_critic, batch_size: 6, optimizer: {kind: adam, learning_rate: 0.01}}"
    options, run = (
        (policy(name), task, algorithm, "mpi.chunk_size=2", *runs.EVERY),
        tmp_path / "three",
    )
    end = runs.killed_and_resumed(run, 3, 2, *options)
    runs.finished(0, tmp_path / "one", *options, f"stop.generations={end}")
    runs.assert_same(run, tmp_path / "one")


EXPORTED = """
import sys
from pathlib import Path
import numpy as np
import hpc_es, keras
from hpc_es import cli

folder = Path(sys.argv[1])
policy = hpc_es.load_policy(folder / "run", "last")
assert cli.run(["export", str(folder / "run"), str(folder / "policy.keras"), "--which", "last"]) == 0
model = keras.models.load_model(folder / "policy.keras")
seen = np.random.default_rng(0).normal(0, 2, (3, 5, 4)).astype(np.float32)
memory = [np.zeros((5, *leaf.shape), np.float32) for leaf in policy.policy.network.memory()]
for step in seen:
    actions, *memory = map(np.asarray, model([step, *memory]) if memory else [model(step)])
    wanted = policy(step)
    np.testing.assert_allclose(actions, wanted, rtol=1e-5, atol=1e-5)
    assert len(np.unique(wanted)) > 1
"""


@pytest.mark.parametrize("name", ["keras", "keras_recurrent"])
def test_exported_model_acts_like_the_policy_and_new_runs_start_from_it(
    name: str, tmp_path: Path
) -> None:
    """theta and the statistics of the observations come back from the file."""
    options = (policy(name), NORMALISED, "task.observation_normalization.clip=0.5")
    well(
        runs.train(0, tmp_path / "run", *options, "report.export_interval=2", "stop.generations=3")
    )
    assert (tmp_path / "run" / "policy.keras").stat().st_size > 0
    well(python([*script(EXPORTED), str(tmp_path)]))
    start = (f"policy.init_from={tmp_path / 'policy.keras'}", "stop.generations=0")
    well(runs.train(0, tmp_path / "next", *options, *start))
    before, after = (runs.newest(tmp_path / run).state.shared for run in ("run", "next"))
    assert np.array_equal(before["theta"], after["theta"])
    np.testing.assert_allclose(before["observation_mean"], after["observation_mean"], rtol=1e-6)


def well(done: Finished) -> Finished:
    assert done.status == 0, str(done)
    return done


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "outputs": (
        ("policy.network=tests.helpers.own_networks:keras_wide",),
        "policy.network: expected outputs float32[",
    ),
    "no file": (("policy.network=nowhere.keras",), "nowhere.keras cannot be read"),
    "JAX functions": (
        ("policy.network=tests.helpers.own_networks:nothing_known",),
        "to return a Keras model, or an object with layout",
    ),
    "squash": (
        ("policy.action_bounds=squash", "task.env_id=CartPole-v1"),
        "policy.action_bounds: is squash, but the actions are Discrete(2): leave it out",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_check_reports_wrong_networks(mistake: str, tmp_path: Path) -> None:
    overrides, text = WRONG[mistake]
    done: Any = runs.train(0, tmp_path / "run", "--check", policy("keras"), *overrides)
    assert done.status == 2 and text in done.stderr, str(done)
