"""Deep GA in whole runs: ranks, restarts, ask and tell, and the counting of validation episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from tests.helpers import runs

DEEP_GA = "algorithm={kind: deep_ga, population_size: 12, parents: 4, validate_top: 3, validation_episodes: 5}"


def cost(x: Any) -> float:
    return float(np.square(x).sum())


@pytest.mark.long
def test_results_do_not_depend_on_ranks_and_restarts(tmp_path: Path) -> None:
    runs.finished(1, tmp_path / "one", DEEP_GA)
    runs.finished(3, tmp_path / "three", DEEP_GA, "stop.generations=4")
    runs.finished(2, tmp_path / "three", DEEP_GA)
    runs.assert_same(tmp_path / "three", tmp_path / "one")
    state = runs.newest(tmp_path / "three").state
    assert len(state.shared["chains"]) == 4 and state.shared["chain_lengths"].max() > 1


def test_validation_episodes_are_counted(tmp_path: Path) -> None:
    """The children, and three candidates that are validated by five episodes each."""
    runs.here(runs.tiny(tmp_path), tmp_path / "run", (DEEP_GA, "stop.generations=2"))
    rows = runs.rows(tmp_path / "run")
    assert [row["episodes_this_generation"] for row in rows] == [12 + 3 * 5] * 2
    assert (
        rows[1]["timesteps_total"]
        == rows[0]["timesteps_this_generation"] + rows[1]["timesteps_this_generation"]
    )


def test_ask_tell_finds_the_result_of_minimize() -> None:
    """A generation has 20 children, then the elite and the best 9 of them;
    the first elite is x0 itself.
    """
    options: dict[str, Any] = {
        "population_size": 20,
        "seed": 3,
        "max_evaluations": 300,
        "sigma_decay": 0.8,
    }
    result = hpc_es.minimize(cost, np.ones(3), 0.3, algorithm="deep_ga", **options)
    es = hpc_es.Strategy("deep_ga", x0=np.ones(3), sigma0=0.3, **options)
    asked = []
    while not es.stop():
        asked.append(es.ask())
        es.tell([cost(x) for x in asked[-1]])
    assert [len(x) for x in asked] == [20, 10] * 10
    assert np.array_equal(asked[1][0], np.ones(3))
    best = np.argsort([cost(x) for x in asked[0]], kind="stable")[:9]
    assert np.array_equal(asked[1][1:], asked[0][best])
    assert es.best is not None and result.f == es.best.f < 0.1
    assert (result.evaluations, result.generations) == (es.evaluations, es.generation) == (300, 10)


def test_best_vector_can_come_from_validation() -> None:
    es = hpc_es.Strategy("deep_ga", x0=np.ones(3), sigma0=0.3, population_size=4, seed=3)
    es.tell([2.0, 3.0, 4.0, 5.0])
    validated = es.ask()
    es.tell([1.0, 2.0, 3.0, 4.0, 5.0])
    assert es.best is not None and es.best.f == 1.0
    assert np.array_equal(es.best.x, validated[0]) and np.array_equal(es.theta, np.ones(3))
    # of generation 0, and of a centre, not of a child
    assert es._state.master["best_at"].tolist() == [0, -1]


def test_saved_search_continues_with_the_same_vectors(tmp_path: Path) -> None:
    """Also between the evaluation of the children and their validation."""
    es = hpc_es.Strategy("deep_ga", x0=np.ones(3), population_size=4, seed=3)
    for _ in range(5):
        es.tell([cost(x) for x in es.ask()])
        es.save(tmp_path / "es.h5")
        assert np.array_equal(hpc_es.Strategy.load(tmp_path / "es.h5").ask(), es.ask())
