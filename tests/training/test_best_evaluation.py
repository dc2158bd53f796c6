"""The best evaluation of a run, by the fitness that a problem derives: a penalty,
or ranks within the rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.config.loading import validate
from hpc_es.core.data import Column, Float64, ProblemState, Rows, State, row_dtype
from hpc_es.storage.checkpoint import BestCentre, Snapshot, load, save
from hpc_es.tasks.problems import ProblemDefaults
from hpc_es.trained.theta import read_theta
from hpc_es.training.standing import Standing

LIMIT = """
import numpy as np
from hpc_es.extend import *

EXCESS = Column("excess", "<f8")

class Limit(VectorProblemDefaults):
    columns, cutting = (EXCESS,), "free"
    layout = Layout({"x": (1,)})

    def initial(self, rng):
        return np.array([3.0])

    def evaluate(self, population, jobs, carried, poll):
        x = population.stacked()[:, 0]
        rows = np.zeros(len(jobs), row_dtype(self.columns))
        rows["length"], rows["return_"], rows["excess"] = 1, x, np.maximum(x - 1, 0)
        return Outcome(rows)

    def fitness(self, rows, carried):
        return rows["return_"] - 100 * rows["excess"]

class Task:
    OFFERS = Offers(problems=("vectors",), any_chunks=True)

    @options
    class Options:
        kind: str = option("this class", "limit_of_x:Task")

    @staticmethod
    def build(options, repetition=0):
        return VectorTask("limit", lambda keys: Limit())
"""


def trained(directory: Path, run: str, generations: int) -> tuple[list[float], Path]:
    """Maximise x, where x may be at most 1, from x = 3;
    return the centres of all generations and the run directory.
    """
    (directory / "limit_of_x.py").write_text(LIMIT)
    config = {
        "directory": str(directory),
        "task": {"kind": "limit_of_x:Task"},
        "algorithm": {
            "kind": "es",
            "population_size": 8,
            "sigma": 0.1,
            "optimizer": {"learning_rate": 0.3},
        },
        "noise": {"kind": "counter"},
        "evaluation": {"interval": 1, "episodes": 2},
        "stop": {"generations": generations},
        "report": {"plot_interval_seconds": 0},
    }
    with hpc_es.train(config, directory / run) as training:
        thetas = [float(training.theta[0]), *(float(training.theta[0]) for _ in training)]
    return thetas, directory / run


@pytest.mark.long
def test_best_parameters_have_the_best_fitness_and_not_the_best_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    thetas, run = trained(tmp_path, "run", 30)

    def fitness(x: float) -> float:
        return x - 100 * max(x - 1, 0)

    expected = max(thetas[:-1], key=fitness)  # the last one is evaluated at the end
    assert expected < 2 < thetas[0] == 3.0, "the centre did not move to the constraint"
    best = load(run / "checkpoints" / "best.h5").best
    assert (
        best is not None
        and best.shared["theta"].tolist() == [expected]
        and best.return_ == expected
    )
    status = json.loads((run / "status.json").read_text())
    assert status["best_return"] == expected
    *_, which = read_theta(run)
    assert which == ("last" if fitness(thetas[-1]) > fitness(expected) else "best")
    assert bool(status["final_is_best"]) == (which == "last")
    trained(tmp_path, "resumed", 12)
    _, resumed = trained(tmp_path, "resumed", 30)
    resumed_best = load(resumed / "checkpoints" / "best.h5").best
    assert resumed_best is not None and best.rows is not None and resumed_best.rows is not None
    assert (resumed_best.generation, resumed_best.rows.tobytes()) == (
        best.generation,
        best.rows.tobytes(),
    )


VIOLATION = Column("violation", "<f8")


class Ranked(ProblemDefaults):
    """Ranks within the rows: feasible rows by return, above infeasible ones by violation."""

    columns = (VIOLATION,)

    def fitness(self, rows: Rows, carried: ProblemState) -> Float64:
        order = np.lexsort((rows["return_"], -rows["violation"]))
        return np.argsort(order).astype(np.float64)


def rows_of(*values: tuple[float, float]) -> Rows:
    """Rows with these (return, violation)."""
    rows = np.zeros(len(values), row_dtype((VIOLATION,)))
    rows["return_"], rows["violation"] = np.transpose(values)
    return rows


def standing(problem: Any, best: BestCentre | None) -> Standing:
    return Standing(
        validate({"task": {"env_id": "CartPole-v1"}}), problem, State(1, {}, {}), best=best
    )


@pytest.mark.parametrize(
    ("known", "new", "is_better"),
    [
        (None, (-5.0, 9.0), True),  # the first one
        ((5.0, 1.0), (2.0, 0.0), True),  # feasible
        ((2.0, 0.0), (5.0, 1.0), False),
        ((2.0, 0.0), (3.0, 0.0), True),
        ((2.0, 0.0), (np.nan, 0.0), False),  # failed
    ],
)
def test_evaluations_are_compared_by_ranks_within_both(
    known: tuple[float, float] | None, new: tuple[float, float], is_better: bool
) -> None:
    best = None if known is None else BestCentre(known[0], 0, {}, rows_of(known))
    assert standing(Ranked(), best).is_better(State(1, {}, {}), rows_of(new)) == is_better


def test_best_evaluation_of_an_older_checkpoint_is_replaced_only_if_the_fitness_is_derived() -> (
    None
):
    best, worse = BestCentre(5.0, 0, {}), rows_of((2.0, 0.0))
    assert standing(Ranked(), best).is_better(State(1, {}, {}), worse)
    assert not standing(ProblemDefaults(), best).is_better(State(1, {}, {}), worse)


def test_rows_of_the_best_evaluation_are_stored_in_a_checkpoint(tmp_path: Path) -> None:
    empty: dict[str, Any] = {}
    for rows in (None, rows_of((5.0, 1.0), (np.nan, 2.0))):
        best = BestCentre(5.0, 0, {}, rows)
        save(
            tmp_path / "x.h5",
            Snapshot(State(0, {}, {}), empty, best, empty, "", "", empty, empty, empty),
        )
        restored = load(tmp_path / "x.h5").best
        assert restored is not None
        if rows is None:
            assert restored.rows is None
        else:
            assert restored.rows is not None and restored.rows.dtype == rows.dtype
            assert restored.rows.tobytes() == rows.tobytes()
