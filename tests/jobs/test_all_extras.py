"""All extras in one virtual environment: stepping is native, with the results and the speed of a
lean installation.

`make test-all-extras` runs this; it names the Python of the lean installation in LEAN_PYTHON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es import cli, load_policy
from hpc_es.core.errors import EXTRAS
from tests.helpers import harness, runs
from tests.helpers.harness import ROOT, Job

LEAN = os.environ.get("LEAN_PYTHON", "")
if not LEAN:
    pytest.skip("make test-all-extras runs these", allow_module_level=True)

TRAINED = """
import hashlib, json, os, sys
import gymnasium
import hpc_es
from hpc_es.config.loading import load

config, directory, *overrides = sys.argv[1:]
with hpc_es.train(load(config, overrides), directory) as run:
    rows = iter(run)
    next(rows)  # whose imports and comparison are not counted
    since = os.times().user
    for _ in rows:
        pass
    seconds = os.times().user - since
    stepping = type(run._run.training.parts.task.new_backend()).__name__
    theta = hashlib.sha256(run.theta.tobytes()).hexdigest()
print(json.dumps({"stepping": stepping, "theta": theta, "seconds": seconds, "gymnasium": gymnasium.__version__}))
"""
NOISE = ("noise={kind: counter}", "evaluation={interval: 100}")


def trained(python: str, directory: Path, *overrides: str) -> dict[str, Any]:
    """Train the tiny config by this Python; return what it prints."""
    config = runs.tiny(directory)
    with Job(
        [python, "-c", TRAINED, str(config), str(directory / "run"), *NOISE, *overrides], cwd=ROOT
    ) as job:
        done = job.wait()
    assert done.status == 0, done
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_all_extras_are_installed() -> None:
    missing = [package for package in EXTRAS if importlib.util.find_spec(package) is None]
    # mpich has libraries alone; PyTorch has a virtual environment of its own
    assert sorted(missing) == ["mpich", "safetensors", "torch"]


@pytest.mark.parametrize(("env_id", "by"), [
    ("CartPole-v1", "ClassicControlBackend"),
    ("HalfCheetah-v5", "MujocoBackend"),
])  # fmt: skip
def test_native_stepping_equals_that_of_the_lean_installation(
    env_id: str, by: str, tmp_path: Path
) -> None:
    small = (f"task.env_id={env_id}", "task.max_episode_steps=100", "stop.generations=3")
    here, lean = (
        trained(sys.executable, tmp_path / "here", *small),
        trained(LEAN, tmp_path / "lean", *small),
    )
    theirs = trained(sys.executable, tmp_path / "theirs", *small, "task.stepping=gymnasium")
    assert (here["stepping"], lean["stepping"], theirs["stepping"]) == (by, by, "GymnasiumBackend")
    assert here["theta"] == lean["theta"] == theirs["theta"]


def test_cartpole_has_at_least_0_8_of_the_speed_of_the_lean_installation(tmp_path: Path) -> None:
    """User seconds of 12 generations, alternating;
    stepping by Gymnasium would have 0.15 of the speed.
    """
    large = (
        "task.env_id=CartPole-v1",
        "algorithm.population_size=256",
        "mpi.chunk_size=128",
        "stop.generations=13",
    )
    ratios = []
    for attempt in range(4):  # other processes of a busy machine may slow one of the two down
        seconds: dict[str, list[float]] = {"here": [], "lean": []}
        for turn in range(3):
            for name, python in (("here", sys.executable), ("lean", LEAN)):
                directory = tmp_path / f"{name}_{attempt}_{turn}"
                seconds[name].append(trained(python, directory, *large)["seconds"])
        ratios.append(statistics.median(seconds["lean"]) / statistics.median(seconds["here"]))
        if ratios[-1] >= 0.8:
            return
    pytest.fail(f"the speed of the lean installation times {ratios}")


ACTED = """
import sys
import keras
import numpy as np

seen = np.load("seen.npy")
np.save("acted.npy", np.asarray(keras.models.load_model("policy.keras")(seen)))
assert keras.backend.backend() == sys.argv[1] and "hpc_es" not in sys.modules
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
@pytest.mark.parametrize("policy", [
    "{kind: mlp, hidden_dims: [8]}",
    "{kind: mlp, hidden_dims: [8], action_bounds: squash}",
    "{kind: network, network: 'tests.helpers.own_networks:keras', backend: tensorflow}",
])  # fmt: skip
def test_exported_policy_acts_with_each_backend_of_keras(
    policy: str, backend: str, tmp_path: Path
) -> None:
    config, run = runs.tiny(tmp_path), tmp_path / "run"
    settings = ["task={env_id: Pendulum-v1, max_episode_steps: 20}", f"policy={policy}"]
    runs.here(config, run, [*settings, *NOISE, "stop.generations=2"])
    assert cli.run(["export", str(run), str(tmp_path / "policy.keras")]) == 0
    observed = np.random.default_rng(1).normal(0, 2, (1000, 3)).astype(np.float32)
    np.save(tmp_path / "seen.npy", observed)
    environment = {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
    done = harness.python(["-c", ACTED, backend], env=environment, cwd=tmp_path)
    assert done.status == 0, done
    expected = load_policy(run, trust=True)(observed)
    np.testing.assert_allclose(np.load(tmp_path / "acted.npy"), expected, atol=1e-5)
