"""A task with constraints as columns and its own fitness, with strategies that rank, as whole runs.

Least x + y in the disc x^2 + y^2 <= 2, right of the wall x >= -0.5. The return is -(x + y), which
grows without end outside of the disc. Along the circle x - sqrt(2 - x^2) rises where x > -1, so the
optimum is where it meets the wall: (-0.5, -sqrt(1.75)). Both constraints are active there.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.helpers.harness import Finished, mpiexec

TASK = """
import os
import signal

import numpy as np

from hpc_es.extend import Column, Layout, Offers, Outcome, VectorProblemDefaults, VectorTask, option, options, row_dtype


class Disc(VectorProblemDefaults):
    columns = (Column("disc", "<f8"), Column("wall", "<f8"))  # a constraint holds where its value is at most 0

    def __init__(self):
        self.layout = Layout({"xy": (2,)})

    def initial(self, rng):
        return np.array([1.0, 0.5])

    def evaluate(self, population, jobs, carried, poll):
        if jobs.generation == int(os.environ.get("KILLED_IN", -1)):
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = population.stacked().T
        rows = np.zeros(len(jobs), row_dtype(self.columns))
        rows["return_"], rows["length"] = -(x + y), 1
        rows["disc"], rows["wall"] = x * x + y * y - 2, -0.5 - x
        return Outcome(rows)

    def fitness(self, rows, carried):
        violation = np.maximum(rows["disc"], 0) + np.maximum(rows["wall"], 0)
        return np.where(violation > 0, -1e6 - violation, rows["return_"])  # feasible first


class Task:
    OFFERS = Offers(problems=("vectors",))

    @options
    class Options:
        kind: str = option("this class")

    @staticmethod
    def build(options, repetition=0):
        return VectorTask("least sum in a cut disc", lambda keys: Disc())
"""
CONFIG = """
seed: 1
task: {{kind: "my_disc:Task"}}
algorithm: {{kind: {kind}, population_size: 12}}
noise: {{kind: counter}}
mpi: {{chunk_size: 2}}
checkpoint: {{interval: 1, interval_seconds: 0, keep_last: 1000}}
stop: {{generations: 60}}
report: {{plot_interval_seconds: 0}}
"""
OPTIMUM = (-0.5, -math.sqrt(1.75))


def trained(ranks: int, directory: Path, kind: str, run: str, **env: str) -> Finished:
    """Train into this run directory, to the end or until a rank is killed."""
    (directory / "my_disc.py").write_text(TASK)
    config = directory / f"{kind}.yaml"
    config.write_text(CONFIG.format(kind=kind))
    return mpiexec(
        ranks, ["-m", "hpc_es.main", str(config), "--output", str(directory / run)], env=env
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", ["cma_es", "snes"])
def test_constrained_optimum_is_identical_on_any_ranks_and_after_a_kill(
    kind: str, tmp_path: Path
) -> None:
    for ranks, run in ((1, "one"), (3, "three")):
        done = trained(ranks, tmp_path, kind, run)
        assert done.status == 0, str(done)
    assert runs.newest(tmp_path / "one").state.theta == pytest.approx(OPTIMUM, abs=1e-3)
    assert runs.digests(tmp_path / "three") == runs.digests(tmp_path / "one")
    killed = trained(3, tmp_path, kind, "killed", KILLED_IN="20")
    assert killed.status != 0
    assert runs.newest(tmp_path / "killed").state.generation <= 20
    done = trained(2, tmp_path, kind, "killed")
    assert done.status == 0, str(done)
    assert runs.newest(tmp_path / "killed").state.generation == 60
    runs.assert_same(tmp_path / "killed", tmp_path / "one")


FUNCTIONS = """
import math
import os
import signal

CALLS = [0]


def count():
    CALLS[0] += 1
    if CALLS[0] == int(os.environ.get("KILLED_AT_CALL", -1)):
        os.kill(os.getpid(), signal.SIGKILL)


def typed(layers, nodes, grid, solver, fast, rate, damping):
    count()
    assert [type(item) for item in (layers, nodes, grid, fast, rate, damping)] == [int, int, int, bool, float, float]
    discrete = (layers - 5) ** 2 + math.log(nodes / 40) ** 2 + math.log2(grid / 64) ** 2 + (solver != 3) + (not fast)
    value = discrete + math.log10(rate / 1e-5) ** 2 + (4 * damping - 1) ** 2
    return {"value": value, "constraints": {"speed": damping - 0.2, "memory": layers * grid / 256 - 1}}


def smooth(x, y, z):
    count()
    return {"value": x + y + z, "constraints": [x * x + y * y + z * z - 3, -0.5 - x]}
"""
TYPED = """
task:
  kind: function
  function: "my_limits:typed"
  initial: random
  parameters:
    layers: {integer: true, low: 1, high: 8}
    nodes: {integer: true, low: 2, high: 1000, scale: log}
    grid: {values: [16, 32, 64, 128]}
    solver: {choices: [cg, 3, true]}
    fast: {boolean: true}
    rate: {low: 1.0e-8, high: 1.0e-2, scale: log}
    damping: {low: 0, high: 1}
  constraints: [memory, speed]
algorithm: {kind: KIND, population_size: 12, restarts: ipop, stops: {max_generations: 12}}
"""
SMOOTH = """
task:
  kind: function
  function: "my_limits:smooth"
  parameters: {x: {low: -3, high: 3}, y: {low: -3, high: 3}, z: {low: -1, high: 3}}
  bounds: {keep: transform}
  constraints: 2
  constraint_handling: augmented_lagrangian
algorithm: {kind: KIND, population_size: 12}
"""
REST = """
seed: 1
mpi: {chunk_size: 2}
checkpoint: {interval: 1, interval_seconds: 0, keep_last: 1000}
evaluation: {interval: 5}
stop: {generations: 25}
report: {plot_interval_seconds: 0}
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "kind"),
    [(TYPED, "cma_es"), (TYPED, "sep_cma_es"), (SMOOTH, "cma_es")],
    ids=["all", "diagonal", "smooth"],
)
def test_every_parameter_and_constraint_is_identical_on_any_ranks_and_after_a_kill(
    task: str, kind: str, tmp_path: Path
) -> None:
    (tmp_path / "my_limits.py").write_text(FUNCTIONS)
    config = tmp_path / "limits.yaml"
    config.write_text(task.replace("KIND", kind) + REST)

    def run(ranks: int, name: str, **env: str) -> Finished:
        return mpiexec(
            ranks, ["-m", "hpc_es.main", str(config), "--output", str(tmp_path / name)], env=env
        )

    for ranks, name in ((1, "one"), (3, "three")):
        done = run(ranks, name)
        assert done.status == 0, str(done)
    assert run(3, "killed", KILLED_AT_CALL="40").status != 0
    assert 0 < runs.newest(tmp_path / "killed").state.generation < 25
    done = run(2, "killed")
    assert done.status == 0, str(done)
    for name in ("three", "killed"):
        runs.assert_same(tmp_path / name, tmp_path / "one")
        assert (tmp_path / name / "evaluations.csv").read_bytes() == (
            tmp_path / "one/evaluations.csv"
        ).read_bytes()
    row = runs.rows(tmp_path / "one")[-1]
    assert row["best_violation"] == 0 and 0 < row["feasible_share"] < 1
