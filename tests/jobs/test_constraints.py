"""A task with constraints as columns and its own fitness, with strategies that rank, as whole runs.

Least x + y in the disc x^2 + y^2 <= 2, right of the wall x >= -0.5. The return is -(x + y), which grows without end
outside of the disc. Along the circle x - sqrt(2 - x^2) rises where x > -1, so the optimum is where it meets the wall:
(-0.5, -sqrt(1.75)). Both constraints are active there.
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
    return mpiexec(ranks, ["-m", "hpc_es.main", str(config), "--output", str(directory / run)], env=env)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["cma_es", "snes"])
def test_constrained_optimum_is_identical_on_any_ranks_and_after_a_kill(kind: str, tmp_path: Path) -> None:
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
