"""Seconds per generation of ask and tell, without the function, compared with pycma.

These are CPU seconds of one thread, which other load affects less. Values are random numbers, so
that no search ends. The contenders alternate; a figure is the median over rounds of the mean over
some generations, in which each contender decomposes its covariance several times. Whole jobs on one
rank and on two include messages and the training loop, and are measured in wall time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from statistics import median
from typing import Any

import numpy as np

import hpc_es
from benchmarks.functions.job import Spec
from hpc_es.config import registry
from hpc_es.core.errors import require

FULL, SEPARABLE = ("cma_es", "xnes"), ("sep_cma_es", "snes", "cr_fm_nes")
GENERATIONS = {  # per round, by number of parameters
    FULL: {10: 200, 100: 50, 1000: 21},
    SEPARABLE: {1000: 50, 10_000: 20, 100_000: 5, 1_000_000: 2},
}
JOB_ROUNDS = 3
JOB_GENERATIONS = 200  # at least, since rank 0 tries in the first ones what is faster
SMALL = 10_000  # parameters, up to which this matters


class Ours:
    """A strategy of hpc_es."""

    def __init__(self, kind: str, size: int) -> None:
        self._es = hpc_es.Strategy(kind, x0=np.zeros(size), sigma0=1.0, seed=1)
        self.population = len(self._es.ask())

    def generation(self, rng: np.random.Generator) -> float:
        since = time.process_time()
        count = len(self._es.ask())
        seconds, values = time.process_time() - since, rng.standard_normal(count)
        since = time.process_time()
        self._es.tell(values)
        return seconds + time.process_time() - since


class Pycma:
    """CMA-ES of the package cma, with a full covariance or a diagonal one."""

    def __init__(self, size: int, is_diagonal: bool) -> None:
        import cma

        options = {"seed": 1, "verbose": -9, "CMA_diagonal": is_diagonal}
        self._es = cma.CMAEvolutionStrategy(np.zeros(size), 1.0, options)

    def generation(self, rng: np.random.Generator) -> float:
        since = time.process_time()
        vectors = self._es.ask()
        seconds, values = time.process_time() - since, rng.standard_normal(len(vectors)).tolist()
        since = time.process_time()
        self._es.tell(vectors, values)
        return seconds + time.process_time() - since


def rows(
    globs: Sequence[str], largest: int, rounds: int, with_jobs: bool
) -> Iterator[dict[str, Any]]:
    """Yield one row per strategy and size."""
    require("cost", "cma")
    there = registry.kinds("algorithms")
    for names, sizes in GENERATIONS.items():
        chosen = [
            name for name in names if name in there and any(fnmatch(name, glob) for glob in globs)
        ]
        for size, generations in sizes.items():
            if chosen and size <= largest:
                yield from compared(
                    chosen, size, names is SEPARABLE, generations, rounds, with_jobs
                )


def compared(
    names: Sequence[str],
    size: int,
    is_diagonal: bool,
    generations: int,
    rounds: int,
    with_jobs: bool,
) -> Iterator[dict[str, Any]]:
    """Yield one row per strategy, for one size."""
    ours = {name: Ours(name, size) for name in names}
    population = {name: strategy.population for name, strategy in ours.items()}
    seconds = alternated({"pycma": Pycma(size, is_diagonal), **ours}, generations, rounds)
    ours.clear()
    for name in names:
        over = median(a / b for a, b in zip(seconds[name], seconds["pycma"], strict=True))
        row = {"strategy": name, "n": size, "population": population[name]}
        row |= {
            "ms": 1e3 * median(seconds[name]),
            "pycma_ms": 1e3 * median(seconds["pycma"]),
            "over_pycma": over,
        }
        yield row | (of_jobs(name, size, population[name], generations) if with_jobs else {})


def alternated(contenders: dict[str, Any], generations: int, rounds: int) -> dict[str, list[float]]:
    """Return the mean seconds per generation in each round, by contender."""
    rng = np.random.default_rng(1)
    for contender in contenders.values():
        contender.generation(rng)
    means: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            means[name].append(
                sum(contender.generation(rng) for _ in range(generations)) / generations
            )
    return means


def of_jobs(name: str, size: int, population: int, generations: int) -> dict[str, float]:
    """Return the milliseconds per generation of whole jobs on one rank and on two."""
    spec = Spec(
        name,
        size,
        population,
        1 + (max(generations, JOB_GENERATIONS) if size <= SMALL else generations),
    )
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(JOB_ROUNDS):
        for ranks, means in times.items():
            means.append(float(np.mean(spec.run(ranks))))
    return {"job_1_rank_ms": 1e3 * median(times[1]), "job_2_ranks_ms": 1e3 * median(times[2])}
