"""What a search for the best vector has found, from the arrays of its state."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_es.core.data import Arrays, ConfigData
from hpc_es.core.quantities import Goal
from hpc_es.storage.answers import LARGEST_X, Answer, BestEvaluation, Found, number
from hpc_es.tasks.functions.best import best_report
from hpc_es.tasks.functions.best_arrays import BEST_AT, BEST_X
from hpc_es.tasks.functions.parameters import Scale, scales_of


def found_vector(config: ConfigData, goal: Goal, master: Arrays) -> Found:
    """Return the best vector of a search.

    Args:
        config: the resolved config as plain data.
        goal: of the task.
        master: arrays of the state, those of `BEST_ARRAYS` among them.
    """
    size = np.size(master[BEST_X])
    report = best_report(master, _scales(config, size))
    value, violation = number(report.get("value")), number(report.get("violation"))
    x = report.get("x") if size <= LARGEST_X else None
    evaluations = 0 if value is None else _evaluations(config)
    answer = Answer("evaluation", value, x, None, evaluations, violation)
    if value is None:
        return Found(goal, answer)
    generation, job = np.asarray(master[BEST_AT]).tolist()
    return Found(goal, answer, BestEvaluation(value, x, generation, job, violation))


def _evaluations(config: ConfigData) -> int:
    """Return how many evaluations the value of a candidate is the mean of; 0 if that varies."""
    task: Any = config.get("task") or {}
    repeats = task.get("repeats")
    if not isinstance(repeats, dict):
        return 1
    least, most = repeats.get("at_least", 1), repeats.get("at_most", 1)
    return int(least) if least == most else 0


def _scales(config: ConfigData, size: int) -> dict[str, Scale]:
    """Return the scales of named parameters by name; {} if the coordinates have no names.

    The `parameters` of a user's own task may be of another form.
    """
    task: Any = config.get("task") or {}
    try:
        scales = scales_of(task.get("parameters"))
    except (TypeError, ValueError, AttributeError):
        return {}
    return scales if len(scales) == size else {}
