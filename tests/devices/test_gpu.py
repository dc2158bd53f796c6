"""Runs on a GPU of this machine (`make test-gpu`): identical results on repetition, on two ranks
and after a stop.

Without a GPU the same runs use the CPU.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_es.devices import jax_setup
from hpc_es.devices.placement import visible_gpus
from tests.helpers import runs
from tests.helpers.harness import ROOT, Finished, start

HAS_GPU = bool(visible_gpus(os.environ).names)
DEVICE = "gpu" if HAS_GPU else "cpu"
pytestmark = [] if HAS_GPU else pytest.mark.long

COMMON = """
seed: 1
mpi: {ranks_per_gpu: 2}
evaluation: {interval: 0}
checkpoint: {interval: 1, interval_seconds: 0}
report: {plot_interval_seconds: 0}
"""
ES = "algorithm: {kind: es, population_size: 16, sigma: 0.1, optimizer: {kind: adam, learning_rate: 0.05}}"
WALK = (
    "task: {kind: jax_episodes, env_id: 'tests.helpers.jax_walk:walk', lanes: 4, jobs_per_call: 8}"
)
SURVIVAL = "task: {env_id: 'tests.helpers.toys:Survival-v0'}"
PLAIN = "policy: {kind: network, network: 'tests.helpers.own_networks:plain', network_kwargs: {width: 64}"
MODEL = "task: {kind: model, model: 'tests.helpers.own_models:layers', jobs_per_call: 8}"
CONFIGS = {
    "compiled": (ES, WALK, "policy: {kind: mlp, hidden_dims: [64, 64]}", "noise: {kind: counter}"),
    "candidates of the device": (
        ES,
        WALK,
        "policy: {kind: mlp, hidden_dims: [64, 64]}",
        "noise: {kind: portable}",
    ),
    "images": (
        *(ES, "task: {env_id: 'blob:Blob-v0'}", "noise: {kind: counter}"),
        "policy: {kind: cnn, convolutions: [{filters: 3, kernel: 2}], normalisation: virtual_batch,"
        " reference_frames: 8}",
    ),
    "network": (ES, SURVIVAL, f"{PLAIN}}}", "noise: {kind: portable, rank: 1}"),
    "model": (ES, MODEL, "noise: {kind: counter}"),
    "model, candidates of the device": (ES, MODEL, "noise: {kind: portable}"),
    "model of low rank": (ES, MODEL, "noise: {kind: portable, rank: 4}"),
    "actor-critic": (
        "task: {kind: jax_episodes, env_id: 'tests.helpers.jax_steps:steps', env_kwargs: {random: true, longest: 9},"
        " jobs_per_call: 2, lanes: 2}",
        "policy: {kind: network, network: 'tests.helpers.own_networks:recurrent'}",
        "algorithm: {kind: actor_critic, batch_size: 6, update_every: 4, optimizer: {kind: adam, learning_rate: 0.01}}",
    ),
    "tensorflow": (
        *(ES, SURVIVAL, "noise: {kind: counter}"),
        "policy: {kind: mlp, hidden_dims: [64, 64], backend: tensorflow}",
    ),
}
PORTABLE = """
import numpy as np
from hpc_es.core.keys import Keys
from hpc_es.devices import jax_setup
from hpc_es.noise.counter import CounterNoise
from hpc_es.noise.portable import fill
from hpc_es.noise.portable_jax import direction
jax_setup.choose({device!r}, {index})
jax = jax_setup.configured_jax()
keys, size = Keys(5), 1_000_003
result = jax.jit(lambda generation, pair: direction(keys, generation, pair, 0, size))(np.uint32(7), np.uint32(9))
assert result.device.platform == {device!r}, result.device
assert np.asarray(result).tobytes() == CounterNoise(keys, size, fill).direction(7, 9, 0, size).tobytes()
"""


def library_of(name: str) -> str:
    return "TensorFlow" if name == "tensorflow" else "JAX"


def skip_without(library: str) -> None:
    if importlib.util.find_spec(library.lower()) is None:
        pytest.skip(f"{library} is not installed here")
    if HAS_GPU and library == "JAX" and not jax_setup.has_cuda():
        pytest.skip("JAX for CUDA is not installed here: make test-gpu")


def finished(name: str, ranks: int, run: Path, generations: int = 4) -> Finished:
    config = run.parent / "run.yaml"
    # the environment of "images"
    shutil.copy(ROOT / "examples" / "own_images" / "blob.py", run.parent)
    config.write_text("\n".join((COMMON, *CONFIGS[name])))
    overrides = (f"device={DEVICE}", f"stop={{generations: {generations}}}")
    arguments = ("-m", "hpc_es.main", str(config), "--output", str(run), *overrides)
    with start(ranks, arguments, None, ROOT) as job:
        done = job.wait(600)
    assert done.status == 0, str(done)
    return done


@pytest.mark.parametrize("name", CONFIGS)
def test_run_is_identical_when_repeated_on_two_ranks_and_after_a_stop(
    name: str, tmp_path: Path
) -> None:
    library = library_of(name)
    skip_without(library)
    done = finished(name, 1, tmp_path / "first")
    device = runs.newest(tmp_path / "first").provenance["device"]
    assert device["kind"] == DEVICE
    if HAS_GPU:
        assert f"{library} computes on GPUs: rank=host:GPU  0=" in done.stdout, str(done)
        assert device["ranks"][0]["model"]
    finished(name, 1, tmp_path / "again")
    finished(name, 2, tmp_path / "two")
    finished(name, 1, tmp_path / "stopped", 2)
    finished(name, 1, tmp_path / "stopped")
    for other in ("again", "two", "stopped"):
        runs.assert_same(tmp_path / "first", tmp_path / other)


def test_portable_noise_equals_that_of_numpy_by_bytes() -> None:
    skip_without("JAX")
    program = PORTABLE.format(device=DEVICE, index=0 if HAS_GPU else None)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
