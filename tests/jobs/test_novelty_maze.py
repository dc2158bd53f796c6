"""Novelty search solves a deceptive maze in which evolution strategies stay in the trap."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpc_es
from hpc_es.config.loading import load
from tests.helpers.harness import ROOT

TRAP, GOAL = 1.1, 1.3  # returns below the roof of the trap, and at the goal


def best(config: str, run: Path, *overrides: str) -> float:
    """The best evaluation of a run in this process."""
    options = load(ROOT / "configs" / config, ["report.plot_interval_seconds=0", *overrides])
    returns = [row["evaluation_return_mean"] for row in hpc_es.train(options, run)]
    return max(float(item) for item in returns if item is not None)


@pytest.mark.long
def test_es_stays_in_the_trap(tmp_path: Path) -> None:
    assert (
        TRAP - 0.01 < best("es_maze.yaml", tmp_path / "es", "stop.generations=150") <= TRAP + 1e-6
    )


@pytest.mark.long
@pytest.mark.parametrize(("mode", "patience"), [("nsr", 50), ("nsra", 10)])
def test_novelty_search_leaves_the_trap(mode: str, patience: int, tmp_path: Path) -> None:
    overrides = (f"algorithm.mode={mode}", f"algorithm.patience={patience}", "seed=2")
    assert best("novelty_maze.yaml", tmp_path / mode, *overrides) >= GOAL
