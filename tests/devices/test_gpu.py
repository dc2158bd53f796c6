"""Runs on a GPU of this machine (`make test-gpu`): identical results on repetition, on two ranks and after a stop."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from hpc_es.devices import jax_setup
from hpc_es.devices.placement import visible_gpus
from tests.helpers import runs
from tests.helpers.harness import ROOT, Finished, start

pytestmark = pytest.mark.skipif(
    not visible_gpus(os.environ).names, reason="there is no NVIDIA GPU here (/proc/driver/nvidia/gpus): make test-gpu"
)

COMMON = """
seed: 1
device: gpu
mpi: {ranks_per_gpu: 2}
algorithm: {kind: es, population_size: 16, sigma: 0.1, optimizer: {kind: adam, learning_rate: 0.05}}
noise: {kind: counter}
evaluation: {interval: 0}
checkpoint: {interval: 1, interval_seconds: 0}
report: {plot_interval_seconds: 0}
"""
CONFIGS = {
    "jax": "task: {kind: jax_episodes, env_id: 'tests.helpers.jax_walk:walk', lanes: 4, jobs_per_call: 8}\n"
    "policy: {kind: mlp, hidden_dims: [64, 64]}",
    "tensorflow": "task: {env_id: 'tests.helpers.toys:Survival-v0'}\n"
    "policy: {kind: mlp, hidden_dims: [64, 64], backend: tensorflow}",
}
NAMES = {"jax": "JAX", "tensorflow": "TensorFlow"}


def finished(library: str, ranks: int, run: Path, generations: int = 4) -> Finished:
    config = run.parent / f"{library}.yaml"
    config.write_text(f"{COMMON}\n{CONFIGS[library]}\n")
    arguments = ("-m", "hpc_es.main", str(config), "--output", str(run), f"stop={{generations: {generations}}}")
    with start(ranks, arguments, None, ROOT) as job:
        done = job.wait(600)
    assert done.status == 0, str(done)
    return done


@pytest.mark.parametrize("library", CONFIGS)
def test_gpu_run_is_identical_when_repeated_on_two_ranks_and_after_a_stop(library: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None or (library == "jax" and not jax_setup.has_cuda()):
        pytest.skip(f"{NAMES[library]} for CUDA is not installed here: make test-gpu")
    done = finished(library, 1, tmp_path / "first")
    assert f"{NAMES[library]} computes on GPUs: rank=host:GPU  0=" in done.stdout, str(done)
    device = runs.newest(tmp_path / "first").provenance["device"]
    assert device["kind"] == "gpu"
    assert device["ranks"][0]["model"]
    finished(library, 1, tmp_path / "again")
    finished(library, 2, tmp_path / "two")
    finished(library, 1, tmp_path / "stopped", 2)
    finished(library, 1, tmp_path / "stopped")
    for name in ("again", "two", "stopped"):
        runs.assert_same(tmp_path / "first", tmp_path / name)
