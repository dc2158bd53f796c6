"""Evaluations per second of a search on two ranks, relative to two concurrent bare loops.

A generation has 64 evaluations of a function that sleeps or computes for a fixed time. Loops and
searches alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, Literal

from benchmarks.functions.job import Spec

Work = Literal["sleep", "busy"]
RANKS, POPULATION, KIND = 2, 64, "cma_es"
TARGETS = {0.001: 0.9, 1.0: 0.99}  # by seconds per evaluation
COUNTED_SECONDS = 1.5  # of evaluations per rank, but at least two generations


def rows(seconds: Sequence[float], work: Work, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield one row per duration of an evaluation."""
    for duration in seconds:
        yield measure(duration, work, rounds)


def measure(seconds: float, work: Work, rounds: int) -> dict[str, Any]:
    """Return one row; loops and searches alternate."""
    calls = max(8, int(COUNTED_SECONDS / seconds))
    generations = max(2, calls * RANKS // POPULATION)
    search = Spec(
        KIND, population=POPULATION, generations=generations + 1, work=work, seconds=seconds
    )
    loop = Spec(generations=calls, work=work, seconds=seconds)
    rates = [(loop.run(RANKS), search.rate(search.run(RANKS))) for _ in range(rounds)]
    share, target = median(ours / bare for bare, ours in rates), TARGETS.get(seconds)
    row = {
        "seconds": seconds,
        "work": work,
        "ranks": RANKS,
        "population": POPULATION,
        "rounds": rounds,
    }
    row |= {"evaluations_per_second": median(ours for _, ours in rates), "of_loops": share}
    return row if target is None else {**row, "target": target, "met": share >= target}
