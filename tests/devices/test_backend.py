"""The registry of backends, and a new one: one file, with which a policy is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_es.actor_critic.algorithm import NEEDS
from hpc_es.actor_critic.differentiable import DIFFERENTIATED
from hpc_es.core.errors import ConfigError
from hpc_es.devices.backend import backend, names
from hpc_es.policies.networks.backend import backends_of, network_backend
from tests.helpers import runs
from tests.helpers.harness import python, script

# The only file of the backend. It computes with NumPy, and says that it has a GPU.
FAKE = """
import os

from hpc_es.policies.networks.backend import NetworkBackend


class Call:
    factored, memory = (), ()

    def __init__(self, network, size):
        self.network, self.layout, self.size = network, network.layout, size

    def load(self, parts, common):
        return parts

    def step(self, parameters, memory, observations):
        assert len(observations) == self.size
        return self.network.apply(parameters, (), observations)[0], []


class Fake(NetworkBackend):
    name, title, package, extra, cuda_extra = "fake", "Fake", "fake_library", "fake", "fake-cuda"

    def set_up(self):
        import fake_library

        fake_library.calls.append(self.chosen)

    def choose(self, kind, index):
        self.chosen = kind, index

    def gpu_model(self):
        return "Fake 9000"

    def compilation_info(self):
        return {"platform": "fake"}

    def call(self, network, size, factored=()):
        return Call(network, size)


BACKEND = Fake()
"""
NETWORK = """
import numpy as np

from hpc_es.extend import Layout


class Linear:
    backend = "fake"

    def __init__(self, inputs, outputs):
        self.layout = Layout({"W": (inputs, outputs)})

    def initial(self, rng):
        return rng.normal(0.0, 0.1, self.layout.size).astype(np.float32)

    def memory(self):
        return ()

    def apply(self, parameters, memory, observation):
        return np.matmul(observation[:, np.newaxis], parameters["W"])[:, 0], memory


def build(observations, outputs):
    return Linear(observations.size, outputs)
"""
PROGRAM = """
    import sys
    import hpc_es.backends
    hpc_es.backends.__path__.append("backends")
    from hpc_es.api.train import train
    policy = {"kind": "network", "network": "my_net:build", "backend": "fake", "candidates_per_call": 4}
    config = {
        "task": {"env_id": "CartPole-v1"},
        "policy": policy,
        "device": "gpu",
        "algorithm": {"population_size": 6},
        "noise": {"kind": "counter"},
        "evaluation": {"interval": 1, "episodes": 2},
        "stop": {"generations": 2},
        "report": {"plot_interval_seconds": 0},
    }
    print(len(list(train(config, "run"))))
    import fake_library
    print(*fake_library.calls)
    print(*sorted({"jax", "tensorflow"} & sys.modules.keys()))
"""


def test_a_policy_is_trained_by_a_new_backend_which_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "fake.py").write_text(FAKE)
    (tmp_path / "fake_library.py").write_text("calls = []\n")
    (tmp_path / "my_net.py").write_text(NETWORK)
    environment = {"CUDA_VISIBLE_DEVICES": "3", "PYTHONPATH": str(tmp_path)}
    done = python(script(PROGRAM), cwd=tmp_path, env=environment)
    assert done.status == 0, str(done)
    assert done.stdout.splitlines()[-3:] == ["2", "('gpu', 0)", ""]
    recorded = runs.newest(tmp_path / "run").provenance
    assert (recorded["device"]["library"], recorded["device"]["kind"]) == ("fake", "gpu")
    assert recorded["device"]["ranks"][0]["model"] == "Fake 9000"
    assert recorded["compiled_for"] == {"platform": "fake", "candidates_per_call": 4}


def test_a_backend_that_is_not_installed_is_refused_with_the_command_that_installs_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "fake.py").write_text(FAKE)
    (tmp_path / "my_net.py").write_text(NETWORK)
    done = python(
        script(PROGRAM),
        cwd=tmp_path,
        env={"CUDA_VISIBLE_DEVICES": "3", "PYTHONPATH": str(tmp_path)},
    )
    text = "policy.backend: is fake, which needs fake_library, which is not installed: pip install 'hpc_es[fake]'"
    assert done.status != 0 and text in done.stderr, str(done)


def test_backends_are_the_files_of_their_folder() -> None:
    assert names() == ("jax", "numpy", "tensorflow", "torch")
    assert [backend(name).name for name in names()] == [*names()]
    assert [backend(name).title for name in names()] == ["JAX", "NumPy", "TensorFlow", "PyTorch"]
    assert backends_of("network") == ("jax", "tensorflow", "torch")
    assert backends_of("mlp") == backends_of("lstm") == ("tensorflow",)


def test_unknown_backends_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"expected one of 'jax', 'numpy', 'tensorflow', 'torch', found 'tensorflw'; did you",
    ):
        backend("tensorflw")
    with pytest.raises(ConfigError, match=r"policy\.backend: is numpy, which computes no networks"):
        network_backend("numpy")


def test_backends_of_the_actor_critic_are_those_that_it_can_differentiate() -> None:
    assert NEEDS.backends == (*DIFFERENTIATED,)
