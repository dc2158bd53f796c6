"""Export of the parameters of any policy by name, as .npz."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es import cli
from hpc_es.core.population import Layout
from hpc_es.report import export
from tests.helpers import runs
from tests.helpers.trained import NORMALISED, run

HAS_JAX = importlib.util.find_spec("jax") is not None


def exported(path: Path, *options: str) -> dict[str, Any]:
    assert cli.run(["export", str(path), str(path.parent / "policy.npz"), *options]) == 0
    with np.load(path.parent / "policy.npz") as arrays:
        return dict(arrays)


@pytest.mark.long
@pytest.mark.parametrize(
    "policy",
    [
        "{kind: mlp, hidden_dims: [4]}",
        "{kind: lstm, hidden_dims: [3]}",
        pytest.param(
            "{kind: network, network: 'tests.helpers.own_networks:plain'}",
            marks=pytest.mark.skipif(
                not HAS_JAX, reason="JAX is not installed here: make test-jax"
            ),
        ),
    ],
)
def test_arrays_have_the_names_and_shapes_of_the_layout(policy: str, tmp_path: Path) -> None:
    runs.here(runs.tiny(tmp_path), tmp_path / "run", [f"policy={policy}", "stop.generations=1"])
    arrays, loaded = (
        exported(tmp_path / "run", "--which", "last"),
        hpc_es.load_policy(tmp_path / "run", "last"),
    )
    layout = loaded.policy.layout
    assert {name: array.shape for name, array in arrays.items()} == dict(layout.shapes)
    assert layout.join(arrays).tobytes() == runs.newest(tmp_path / "run").state.theta.tobytes()


@pytest.mark.long
def test_normalised_policy_has_its_statistics(tmp_path: Path) -> None:
    path = run(*NORMALISED)
    (tmp_path / "run").symlink_to(path)
    arrays, loaded = exported(tmp_path / "run"), hpc_es.load_policy(path)
    assert loaded.source.normaliser is not None
    mean, deviation, clip = loaded.source.normaliser
    assert arrays["observation_mean"].tobytes() == mean.tobytes()
    assert arrays["observation_std"].tobytes() == deviation.tobytes()
    assert arrays["observation_clip"] == clip == 0.5


@pytest.mark.long
def test_part_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`file` is an argument of numpy.savez."""
    path = tmp_path / "run"
    runs.here(
        runs.tiny(tmp_path), path, ["policy={kind: mlp, hidden_dims: []}", "stop.generations=1"]
    )
    monkeypatch.setattr(
        Layout, "split", lambda layout, vector: {"file": vector[:8], "a/b": vector[8:]}
    )
    assert {name: array.shape for name, array in exported(path).items()} == {
        "file": (8,),
        "a/b": (2,),
    }


@pytest.mark.long
def test_missing_value_head_is_reported(tmp_path: Path) -> None:
    with pytest.raises(export.UserError, match="trained by es has no value head to export"):
        cli.run(["export", str(run()), str(tmp_path / "policy.npz"), "--value"])
