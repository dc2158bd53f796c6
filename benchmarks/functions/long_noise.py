"""Long searches with adapted learning rates: sphere, ellipsoid and Rastrigin with noise, n = 10,
and Rastrigin without noise, n = 10 and 20.

    python -m benchmarks.functions.long_noise --evaluations 1000000 --trials 5

Each search starts at 3 in all coordinates with the standard deviation 2, as in Nomura, Akimoto &
Ono 2025 (arXiv:2401.15876), and is judged by the noise-free value of its mean at the end. The noise
is normal, with the variance 1. Without noise, a search ends when its mean has the value TARGET. The
command continues from its results.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import hpc_es
from benchmarks.functions.trials import continued
from hpc_es.core.data import Float64

TARGET = 1e-8
KEY = ("contender", "function", "limit", "seed")  # of a trial
GENERATIONS_PER_LOOK = 20  # between two looks at the mean

Function = Callable[[Float64], float]
Step = Callable[[Function], tuple[int, Float64]]  # evaluations of a generation, and the mean


def sphere(x: Float64) -> float:
    """Return the squared length."""
    return float(x @ x)


def ellipsoid(x: Float64) -> float:
    """Return the ellipsoid whose axes have the condition 10^6."""
    return float(1e6 ** np.linspace(0, 1, len(x)) @ (x * x))


def rastrigin(x: Float64) -> float:
    """Return Rastrigin's function, with some 10^n local optima."""
    return float(10 * len(x) + (x * x - 10 * np.cos(2 * np.pi * x)).sum())


class Case(NamedTuple):
    """A function, its number of parameters and the standard deviation of its noise."""

    f: Function
    n: int
    noise: float


FUNCTIONS: Mapping[str, Case] = {
    "noisy sphere": Case(sphere, 10, 1.0),
    "noisy ellipsoid": Case(ellipsoid, 10, 1.0),
    "noisy Rastrigin": Case(rastrigin, 10, 1.0),
    "Rastrigin": Case(rastrigin, 10, 0.0),
    "Rastrigin, n = 20": Case(rastrigin, 20, 0.0),
}


def ours(mode: str) -> Callable[[int, int], Step]:
    """Return searches by `cma_es` with this handling of noise."""

    def make(n: int, seed: int) -> Step:
        es = hpc_es.Strategy(
            "cma_es", x0=np.full(n, 3.0), sigma0=2.0, seed=seed, noise_handling=mode
        )

        def step(f: Function) -> tuple[int, Float64]:
            vectors = es.ask()
            es.tell([f(x) for x in vectors])
            return len(vectors), es.theta

        return step

    return make


def of_cmaes(n: int, seed: int) -> Step:
    """Return a search by LRA-CMA-ES of the package cmaes."""
    import cmaes

    es = cmaes.CMA(mean=np.full(n, 3.0), sigma=2.0, lr_adapt=True, seed=seed + 1)

    def step(f: Function) -> tuple[int, Float64]:
        vectors = [es.ask() for _ in range(es.population_size)]
        es.tell([(x, f(x)) for x in vectors])
        return len(vectors), np.array(es.mean)

    return step


CONTENDERS: Mapping[str, Callable[[int, int], Step]] = {
    "cma_es": ours("none"),
    "cma_es learning_rate": ours("learning_rate"),
    "cmaes lr_adapt": of_cmaes,
}


def trial(contender: str, name: str, limit: int, seed: int) -> dict[str, object]:
    """Run one search; return the evaluations that it used and the value of its mean."""
    function, n, deviation = FUNCTIONS[name]
    rng = np.random.default_rng([seed, 1])

    def noisy(x: Float64) -> float:
        return function(x) + deviation * rng.standard_normal()

    step, used, generation = CONTENDERS[contender](n, seed), 0, 0
    while used < limit:
        count, mean = step(noisy if deviation else function)
        used, generation = used + count, generation + 1
        if not deviation and generation % GENERATIONS_PER_LOOK == 0 and function(mean) <= TARGET:
            break
    return {
        "contender": contender,
        "function": name,
        "limit": limit,
        "seed": seed,
        "used": used,
        "value": function(mean),
    }


def markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """Return a table: the median value, and for Rastrigin the successes and their evaluations."""
    lines = [
        "| function | limit | contender | median value of the mean | at most 1e-8 | median evaluations |",
        "|---|---|---|---|---|---|",
    ]
    keys = sorted({(str(r["function"]), int(str(r["limit"])), str(r["contender"])) for r in rows})
    for function, limit, contender in keys:
        own = [
            row
            for row in rows
            if (row["function"], row["limit"], row["contender"]) == (function, limit, contender)
        ]
        values = np.array([row["value"] for row in own], np.float64)
        used = float(np.median([int(str(row["used"])) for row in own]))
        reached = f"{int((values <= TARGET).sum())} of {len(own)}"
        lines.append(
            f"| {function} | {limit:,} | {contender} | {np.median(values):.2g} | {reached} | {used:,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the trials that the file lacks, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.functions.long_noise", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("--evaluations", type=int, nargs="+", default=[100_000])
    parser.add_argument("--trials", type=int, default=3, help="number of seeds")
    parser.add_argument("--functions", nargs="+", default=list(FUNCTIONS), choices=list(FUNCTIONS))
    parser.add_argument("--only", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of processes")
    parser.add_argument(
        "--file", type=Path, default=Path("long_noise.jsonl"), help="of the trials, to continue"
    )
    given = parser.parse_args()
    wanted = [
        (contender, name, limit, seed)
        for limit in given.evaluations
        for seed in range(given.trials)
        for name in given.functions
        for contender in given.only
    ]
    print(markdown(continued(trial, wanted, KEY, given.file, given.jobs)))


if __name__ == "__main__":
    main()
