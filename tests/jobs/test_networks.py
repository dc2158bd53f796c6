"""Runs of custom networks of every kind: bit-identical on any number of ranks and after a kill, with every command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
import hpc_es
from tests.helpers import runs
from tests.helpers.harness import ROOT, mpiexec
from tests.helpers.own_networks import NAMES

LONG = set(NAMES) - {"recurrent", "keras"}
NORMALISED = "task.observation_normalization={enabled: true, probability: 0.5}"


def policy(name: str) -> str:
    return f"policy={{kind: network, network: 'tests.helpers.own_networks:{name}', candidates_per_call: 3}}"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in NAMES])
def test_killed_on_three_ranks_and_resumed_on_two_the_result_is_that_of_one(name: str, tmp_path: Path) -> None:
    options, run = (policy(name), NORMALISED, *runs.EVERY), tmp_path / "three"
    with runs.begin(3, run, *options, "stop.generations=10000") as job:
        runs.wait_for(lambda: runs.generation(run) > 2, 120.0)
        job.kill()
    end = runs.newest(run).state.generation + 2
    runs.finished(2, run, *options, f"stop.generations={end}")
    runs.here(runs.tiny(tmp_path), tmp_path / "one", [*options, f"stop.generations={end}"])
    runs.assert_same(run, tmp_path / "one")


def test_results_do_not_depend_on_the_chunk_size(tmp_path: Path) -> None:
    config = runs.tiny(tmp_path)
    for size in ("1", "5", "auto"):
        runs.here(config, tmp_path / size, [policy("recurrent"), NORMALISED, f"mpi.chunk_size={size}"])
    assert len({runs.digest(runs.newest(tmp_path / size)) for size in ("1", "5", "auto")}) == 1


def test_loaded_policy_acts_like_the_one_in_training(tmp_path: Path) -> None:
    runs.here(runs.tiny(tmp_path), tmp_path / "run", [policy("recurrent"), NORMALISED])
    loaded = hpc_es.load_policy(tmp_path / "run", "last")
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    together = loaded(observations)
    assert together.shape == (5, 2)
    loaded.restart()
    assert loaded(observations[3]).tobytes() == together[3].tobytes()


def test_example_runs_from_another_directory(tmp_path: Path) -> None:
    config = ROOT / "examples" / "own_network_jax" / "cartpole.yaml"
    overrides = ["stop.generations=3", "report.plot_interval_seconds=0"]
    done = mpiexec(2, ["-m", "hpc_es.main", str(config), "--output", "run", *overrides], 120.0, cwd=tmp_path)
    assert done.status == 0, str(done)
    runs.here(config, tmp_path / "one", overrides)
    assert runs.digest(runs.newest(tmp_path / "run")) == runs.digest(runs.newest(tmp_path / "one"))
