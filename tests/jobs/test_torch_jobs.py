"""Runs of modules of PyTorch: bit-identical on any number of ranks and after a kill, with every
command.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed here: make test-torch")
import hpc_es
from hpc_es import cli
from tests.helpers import runs

NORMALISED = "task.observation_normalization={enabled: true, probability: 0.5}"


def policy(name: str) -> str:
    network = f"'tests.helpers.torch_nets:{name}'"
    return f"policy={{kind: network, network: {network}, backend: torch, candidates_per_call: 3}}"


@pytest.mark.parametrize(
    "name", ["plain", "lstm", pytest.param("gru_cell", marks=pytest.mark.long)]
)
def test_killed_on_three_ranks_and_resumed_on_two_the_result_is_that_of_one(
    name: str, tmp_path: Path
) -> None:
    options, run = (policy(name), NORMALISED, *runs.EVERY), tmp_path / "three"
    end = runs.killed_and_resumed(run, 3, 2, *options)
    runs.here(runs.tiny(tmp_path), tmp_path / "one", [*options, f"stop.generations={end}"])
    runs.assert_same(run, tmp_path / "one")


def test_results_do_not_depend_on_the_chunk_size(tmp_path: Path) -> None:
    config = runs.tiny(tmp_path)
    for size in ("1", "5", "auto"):
        runs.here(config, tmp_path / size, [policy("lstm"), NORMALISED, f"mpi.chunk_size={size}"])
    assert len({runs.digest(runs.newest(tmp_path / size)) for size in ("1", "5", "auto")}) == 1


def test_loaded_policy_acts_like_the_one_in_training(tmp_path: Path) -> None:
    runs.here(runs.tiny(tmp_path), tmp_path / "run", [policy("lstm"), NORMALISED])
    loaded = hpc_es.load_policy(tmp_path / "run", "last")
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    together = loaded(observations)
    assert together.shape == (5, 2)
    loaded.restart()
    assert loaded(observations[3]).tobytes() == together[3].tobytes()


def test_check_eval_and_init_from(tmp_path: Path, capsys: Any) -> None:
    config, run = runs.tiny(tmp_path), tmp_path / "run"
    assert cli.run(["check", str(config), policy("gru_cell"), NORMALISED]) == 0
    runs.here(config, run, [policy("gru_cell"), NORMALISED])
    recorded = runs.newest(run).provenance["compiled_for"]
    assert recorded["platform"] == "cpu" and recorded["threads"] == 1
    assert recorded["candidates_per_call"] == 3 and recorded["mkl_cbwr"] == "AUTO,STRICT"
    capsys.readouterr()
    assert cli.run(["eval", str(run), "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["failed"] == 0
    start = [f"policy.init_from={run}", "stop.generations=0"]
    runs.here(config, tmp_path / "next", [policy("gru_cell"), NORMALISED, *start])
    before, after = (runs.newest(tmp_path / name).state.theta for name in ("run", "next"))
    assert before.tobytes() == after.tobytes()


@pytest.mark.parametrize("rank", [1, 2])
def test_low_rank_noise_gives_the_same_results_on_every_number_of_ranks(
    rank: int, tmp_path: Path
) -> None:
    options = [policy("wider"), f"noise={{kind: counter, rank: {rank}}}", "stop.generations=2"]
    runs.here(runs.tiny(tmp_path), tmp_path / "one", options)
    runs.finished(2, tmp_path / "two", *options)
    runs.assert_same(tmp_path / "one", tmp_path / "two")
