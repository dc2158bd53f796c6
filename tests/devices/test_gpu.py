"""Runs on a GPU of this machine (`make test-gpu`): identical results on repetition, on two ranks and after a stop.

Without a GPU the same runs use the CPU.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
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
algorithm: {kind: es, population_size: 16, sigma: 0.1, optimizer: {kind: adam, learning_rate: 0.05}}
noise: {kind: counter}
evaluation: {interval: 0}
checkpoint: {interval: 1, interval_seconds: 0}
report: {plot_interval_seconds: 0}
"""
CONFIGS = {
    "jax": "task: {kind: jax_episodes, env_id: 'tests.helpers.jax_walk:walk', lanes: 4, jobs_per_call: 8}\n"
    "policy: {kind: mlp, hidden_dims: [64, 64]}",
    "images": "task: {env_id: 'blob:Blob-v0'}\n"
    "policy: {kind: cnn, convolutions: [{filters: 3, kernel: 2}], normalisation: virtual_batch, reference_frames: 8}",
    "tensorflow": "task: {env_id: 'tests.helpers.toys:Survival-v0'}\n"
    "policy: {kind: mlp, hidden_dims: [64, 64], backend: tensorflow}",
}
NAMES = {"jax": "JAX", "images": "JAX", "tensorflow": "TensorFlow"}


def finished(library: str, ranks: int, run: Path, generations: int = 4) -> Finished:
    config = run.parent / f"{library}.yaml"
    shutil.copy(ROOT / "examples" / "own_images" / "blob.py", run.parent)  # the environment of "images"
    config.write_text(f"{COMMON}\n{CONFIGS[library]}\n")
    overrides = (f"device={DEVICE}", f"stop={{generations: {generations}}}")
    arguments = ("-m", "hpc_es.main", str(config), "--output", str(run), *overrides)
    with start(ranks, arguments, None, ROOT) as job:
        done = job.wait(600)
    assert done.status == 0, str(done)
    return done


@pytest.mark.parametrize("library", CONFIGS)
def test_run_is_identical_when_repeated_on_two_ranks_and_after_a_stop(library: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(NAMES[library].lower()) is None:
        pytest.skip(f"{NAMES[library]} is not installed here")
    if HAS_GPU and NAMES[library] == "JAX" and not jax_setup.has_cuda():
        pytest.skip("JAX for CUDA is not installed here: make test-gpu")
    done = finished(library, 1, tmp_path / "first")
    device = runs.newest(tmp_path / "first").provenance["device"]
    assert device["kind"] == DEVICE
    if HAS_GPU:
        assert f"{NAMES[library]} computes on GPUs: rank=host:GPU  0=" in done.stdout, str(done)
        assert device["ranks"][0]["model"]
    finished(library, 1, tmp_path / "again")
    finished(library, 2, tmp_path / "two")
    finished(library, 1, tmp_path / "stopped", 2)
    finished(library, 1, tmp_path / "stopped")
    for name in ("again", "two", "stopped"):
        runs.assert_same(tmp_path / "first", tmp_path / name)
