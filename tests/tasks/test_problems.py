"""VectorProblemDefaults and VectorTask: the defaults of problems on vectors."""

from __future__ import annotations

import numpy as np

from hpc_es.core.keys import Keys
from hpc_es.core.population import Layout
from hpc_es.tasks.problems import VectorProblemDefaults, VectorTask


class Positions(VectorProblemDefaults):
    """Two points."""

    layout = Layout({"points": (2, 2)})


def test_size_and_initial_deviations_follow_from_the_layout() -> None:
    problem = Positions()
    assert problem.size == 4
    assert problem.dtype == problem.spread.dtype == np.float64
    assert problem.spread.tolist() == [0.3] * 4
    assert len(problem.carried().shared) == 0


def test_task_builds_its_problem_from_the_keys() -> None:
    keys: list[Keys] = []
    problem = Positions()
    task = VectorTask("points", lambda received: (keys.append(received), problem)[1])
    assert task.problem("vectors", None, Keys(3, 1), 16) is problem
    assert keys == [Keys(3, 1)]
    assert task.spaces is None
