"""The metrics of a generation."""

from __future__ import annotations

from pathlib import Path

import yaml

import hpc_es
from tests.helpers.runs import TINY


def test_observations_are_counted_per_generation_and_in_total(tmp_path: Path) -> None:
    """With probability 1 each timestep of training is an observation; the count starts at 0.01."""
    config = yaml.safe_load(TINY)
    config["task"]["observation_normalization"] = {"enabled": True, "probability": 1.0}
    with hpc_es.train({**config, "stop": {"generations": 3}}, tmp_path / "run") as run:
        rows = list(run)
    steps = [row["timesteps_this_generation"] for row in rows]
    assert [row["observations_this_generation"] for row in rows] == steps and len(steps) == 3
    assert abs(rows[-1]["observation_count"] - 0.01 - sum(steps)) < 1e-6
