"""Programs a second of the searches without gradients on one core: 'reverse', 100 characters.

The time of a generation is that of drawing or sending programs (ask, evaluate), of executing them, and of the update
(tell). The genetic algorithm is compared with the reference interpreter in Python on the very programs it executes.
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
TARGETS = {"ga": 30}  # times the programs a second of the reference


def run() -> list[dict[str, Any]]:
    """Each algorithm, its repeats beside those of the reference."""
    return [_measured(kind) for kind in GENERATIONS]


def _measured(kind: str) -> dict[str, Any]:
    task = {"kind": "programs", "name": "reverse"}
    config = validate({"task": task, "algorithm": {"kind": kind}, "mpi": {"chunk_size": 100}})
    made = build_parts(config, World("none"), build_task(config))
    state, *_ = generation(made, made.initial())  # compile
    rates, ratios, shares = [], [], []
    for _ in range(REPEATS):
        spent = np.zeros(4)
        for _ in range(GENERATIONS[kind]):
            state, *more = generation(made, state)
            spent += more
        programs, seconds = spent[0], spent[1:].sum()
        reference = _reference(made, state)
        rates.append(float(programs / seconds))
        ratios.append(float(programs / seconds / reference))
        shares.append(spent[1:] / seconds)
    ratio, share = median(ratios), np.median(shares, axis=0).tolist()
    row = {"algorithm": kind, "programs_per_second": median(rates), "over_reference": ratio}
    row |= {"sampling": share[0], "executing": share[1], "updating": share[2]}
    return row | ({"target": TARGETS[kind], "met": ratio >= TARGETS[kind]} if kind in TARGETS else {})


def generation(made: Parts, state: State) -> tuple[State, int, float, float, float]:
    """The next state, programs executed, and seconds of sampling, executing and updating."""
    since = time.perf_counter()
    outcomes = [made.algorithm.evaluate(state, chunk, lambda: None) for chunk in _asked(made, state)]
    rows = np.concatenate([outcome.rows for outcome in outcomes])
    executing = sum(outcome.seconds["environment"] for outcome in outcomes)
    evaluated = time.perf_counter()
    state, _ = made.algorithm.tell(state, Results(rows, [{}] * len(outcomes), [], fitness=rows["return_"]))
    return state, len(rows), evaluated - since - executing, executing, time.perf_counter() - evaluated


def _asked(made: Parts, state: State) -> Sequence[Chunk]:
    """The chunks of a generation."""
    return made.algorithm.ask(state, 0, np.zeros(0, made.row), NO_FITNESS)


def _reference(made: Parts, state: State) -> float:
    """Programs a second of the interpreter in Python, on the first of this generation."""
    caught: list[str] = []
    task: Any = made.task
    kept = task.score_many
    task.score_many = lambda programs: (caught.extend(programs), kept(programs))[1]
    made.algorithm.evaluate(state, _asked(made, state)[0], lambda: None)
    task.score_many = kept
    since = time.perf_counter()
    for program in caught[:FEW]:
        task.coding.score(program)
    return len(caught[:FEW]) / (time.perf_counter() - since)
