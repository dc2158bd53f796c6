"""Evaluations per second of NSGA-II on two ranks, beside pymoo with a pool of two processes.

ZDT1 with 30 parameters, 100 children per generation; an evaluation sleeps or computes for a fixed
time. Searches alternate. The share is that of two processes that do nothing but evaluate.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.functions.job import Spec, Work

PROCESSES, POPULATION, SIZE = 2, 100, 30
COUNTED_SECONDS = 5.0  # of evaluations per process, but at least two generations


def spec_of(seconds: float, work: Work) -> Spec:
    """Return the search with evaluations of this time."""
    generations = max(2, int(COUNTED_SECONDS * PROCESSES / seconds / POPULATION))
    return Spec("nsga2", SIZE, POPULATION, generations + 1, work, seconds, objectives=2)


def of_pymoo(spec: Spec) -> list[float]:
    """Return the seconds of each generation but the first of pymoo's NSGA-II."""
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.callback import Callback
    from pymoo.optimize import minimize
    from pymoo.parallelization.starmap import StarmapParallelization

    from benchmarks.functions.pymoo_problem import OfSpec

    class Ends(Callback):  # type: ignore[misc]
        def notify(self, _: Any) -> None:
            ends.append(time.perf_counter())

    ends = list[float]()
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        runner = StarmapParallelization(pool.starmap)
        problem = OfSpec(spec, elementwise_runner=runner)
        limit = ("n_gen", spec.generations)
        minimize(problem, NSGA2(POPULATION), limit, seed=1, callback=Ends())
    return np.diff(ends).tolist()


def rows(durations: Sequence[float], work: Work, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield one row for each duration of an evaluation."""
    for seconds in durations:
        spec = spec_of(seconds, work)
        pairs = [(spec.rate(spec.run(PROCESSES)), spec.rate(of_pymoo(spec))) for _ in range(rounds)]
        ours, theirs = (median(rates) for rates in zip(*pairs, strict=True))
        most = PROCESSES / seconds
        yield {
            "seconds": seconds,
            "work": work,
            "nsga2": ours,
            "pymoo": theirs,
            "ratio": median(one / other for one, other in pairs),
            "share": ours / most,
            "share of pymoo": theirs / most,
        }
