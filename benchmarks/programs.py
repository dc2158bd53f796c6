"""Programs per second of the searches without gradients on one core: task 'reverse', 100
characters.

The time of a generation is divided into sampling (ask, evaluate), execution and update (tell). The
genetic algorithm is compared with the reference interpreter in Python on the programs that it
executes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from hpc_es.config.loading import validate
from hpc_es.core.data import NO_FITNESS, Chunk, Results, State
from hpc_es.mpi.world import World
from hpc_es.training.build import Parts, build_parts, build_task

REPEATS, FEW = 5, 40
GENERATIONS = {"ga": 60, "random_search": 6}
TARGETS = {"ga": 30}  # times the programs per second of the reference


def run() -> list[dict[str, Any]]:
    """Return one row per algorithm; search and reference alternate."""
    return [_measure(kind) for kind in GENERATIONS]


def _measure(kind: str) -> dict[str, Any]:
    task = {"kind": "programs", "name": "reverse"}
    config = validate({"task": task, "algorithm": {"kind": kind}, "mpi": {"chunk_size": 100}})
    parts = build_parts(config, World("none"), build_task(config))
    state, *_ = generation(parts, parts.initial())  # compile
    rates, ratios, shares = [], [], []
    for _ in range(REPEATS):
        spent = np.zeros(4)
        for _ in range(GENERATIONS[kind]):
            state, *more = generation(parts, state)
            spent += more
        programs, seconds = spent[0], spent[1:].sum()
        reference = _reference(parts, state)
        rates.append(float(programs / seconds))
        ratios.append(float(programs / seconds / reference))
        shares.append(spent[1:] / seconds)
    ratio, share = median(ratios), np.median(shares, axis=0).tolist()
    row = {"algorithm": kind, "programs_per_second": median(rates), "over_reference": ratio}
    row |= {"sampling": share[0], "executing": share[1], "updating": share[2]}
    return row | (
        {"target": TARGETS[kind], "met": ratio >= TARGETS[kind]} if kind in TARGETS else {}
    )


def generation(parts: Parts, state: State) -> tuple[State, int, float, float, float]:
    """Return the next state, the number of programs, and the seconds of sampling,
    execution and update.
    """
    since = time.perf_counter()
    outcomes = [
        parts.algorithm.evaluate(state, chunk, lambda: None) for chunk in _chunks(parts, state)
    ]
    rows = np.concatenate([outcome.rows for outcome in outcomes])
    executing = sum(outcome.seconds["environment"] for outcome in outcomes)
    evaluated = time.perf_counter()
    state, _ = parts.algorithm.tell(
        state, Results(rows, [{}] * len(outcomes), [], fitness=rows["return_"])
    )
    return (
        state,
        len(rows),
        evaluated - since - executing,
        executing,
        time.perf_counter() - evaluated,
    )


def _chunks(parts: Parts, state: State) -> Sequence[Chunk]:
    return parts.algorithm.ask(state, 0, np.zeros(0, parts.row), NO_FITNESS)


def _reference(parts: Parts, state: State) -> float:
    """Return the programs per second of the interpreter in Python,
    on the first programs of this generation.
    """
    executed: list[str] = []
    task: Any = parts.task
    score_many = task.score_many
    task.score_many = lambda programs: (executed.extend(programs), score_many(programs))[1]
    parts.algorithm.evaluate(state, _chunks(parts, state)[0], lambda: None)
    task.score_many = score_many
    since = time.perf_counter()
    for program in executed[:FEW]:
        task.coding.score(program)
    return len(executed[:FEW]) / (time.perf_counter() - since)
