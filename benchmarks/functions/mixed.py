"""Evaluations on mixed-integer functions, beside cmaes (CMA-ES with Margin, CatCMA with Margin) and
pycma.

The functions are those of Hamano et al. 2022 (arXiv:2205.13482): h = n / 2 continuous numbers
first, then h integers of -10 .. 10 or booleans. A run succeeds when a value is below 1e-10. Means
start uniformly in [1, 3], booleans at 0.5, with a step size of 1. Counts of evaluations do not
depend on the machine.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from statistics import median
from typing import Any

import numpy as np

import hpc_es
from hpc_es.core.data import Float64

CAP, TARGET = 100_000, 1e-10  # evaluations, value
# of the continuous numbers of hpc_es, so that the scales of numbers and of integers are equally
# wide
LIMIT = 10.5
Objective = Callable[[Float64], float]
# contender, function, n, seed, evaluations; -1 evaluations: no success
Trial = dict[str, int | str]


def functions(n: int) -> dict[str, Objective]:
    """Return the functions of n numbers by name; those ending in Int have integers,
    the others booleans.
    """
    h = n // 2

    def scaled(count: int, condition: float) -> Float64:
        return condition ** (np.arange(count) / (count - 1))

    def one_max(x: Float64) -> float:
        return h - float(x[h:].sum())

    def leading_ones(x: Float64) -> float:
        return h - float(np.cumprod(x[h:]).sum())

    return {
        "SphereOneMax": lambda x: float(np.square(x[:h]).sum()) + one_max(x),
        "SphereLeadingOnes": lambda x: float(np.square(x[:h]).sum()) + leading_ones(x),
        "EllipsoidOneMax": lambda x: float(np.square(scaled(h, 1e3) * x[:h]).sum()) + one_max(x),
        "EllipsoidLeadingOnes": lambda x: (
            float(np.square(scaled(h, 1e3) * x[:h]).sum()) + leading_ones(x)
        ),
        "SphereInt": lambda x: float(np.square(x).sum()),
        "EllipsoidInt": lambda x: float(np.square(scaled(n, 1e3) * x).sum()),
    }


def start(name: str, n: int, seed: int) -> Float64:
    """Return the initial mean, float64[n]."""
    mean = np.random.default_rng(seed).uniform(1, 3, n)
    if not name.endswith("Int"):
        mean[n // 2 :] = 0.5
    return mean


def ours(f: Objective, name: str, n: int, seed: int) -> int:
    """Return the evaluations of cma_es."""
    mean, numbers = start(name, n, seed), n // 2
    parameters: dict[str, Any] = {
        f"x{index}": {"low": -LIMIT, "high": LIMIT, "initial": float(mean[index])}
        for index in range(numbers)
    }
    for index in range(numbers, n):
        if name.endswith("Int"):
            initial = float(np.ceil(mean[index] - 0.5))
            parameters[f"x{index}"] = {"integer": True, "low": -10, "high": 10, "initial": initial}
        else:
            parameters[f"x{index}"] = {"boolean": True}
    es = hpc_es.Strategy(
        parameters=parameters, sigma0=1 / (2 * LIMIT), seed=seed, max_evaluations=CAP
    )
    while not es.stop():
        x = es.ask()
        values = [f(row) for row in x]
        if min(values) < TARGET:
            return (
                es.evaluations
                + next(index for index, value in enumerate(values) if value < TARGET)
                + 1
            )
        es.tell(values)
    return -1


def cmaes_margin(f: Objective, name: str, n: int, seed: int) -> int:
    """Return the evaluations of cmaes.CMAwM, to which booleans are integers."""
    import cmaes

    integer = name.endswith("Int")
    h, (low, high) = n // 2, (-10, 10) if integer else (0, 1)
    bounds = np.array([[-np.inf, np.inf]] * h + [[low, high]] * h, float)
    steps = np.array([0.0] * h + [1.0] * h)
    search = cmaes.CMAwM(
        mean=start(name, n, seed), sigma=1.0, bounds=bounds, steps=steps, seed=seed
    )
    evaluations = 0
    while evaluations < CAP and not search.should_stop():
        solutions = []
        for _ in range(search.population_size):
            x, raw = search.ask()
            value = f(x)
            evaluations += 1
            if value < TARGET:
                return evaluations
            solutions.append((raw, value))
        search.tell(solutions)
    return -1


def cmaes_categories(f: Objective, name: str, n: int, seed: int) -> int:
    """Return the evaluations of cmaes.CatCMAwM, to which booleans are categories."""
    import cmaes

    h, integer = n // 2, name.endswith("Int")
    box, mean = [[-np.inf, np.inf]] * h, start(name, n, seed)
    levels = [list(range(-10, 11))] * h
    search = (
        cmaes.CatCMAwM(x_space=box, z_space=levels, mean=mean, sigma=1.0, seed=seed)
        if integer
        else cmaes.CatCMAwM(x_space=box, c_space=[2] * h, mean=mean[:h], sigma=1.0, seed=seed)
    )
    evaluations = 0
    while evaluations < CAP and not search.should_stop():
        solutions = []
        for _ in range(search.population_size):
            solution = search.ask()
            discrete = solution.z if integer else solution.c[:, 1]
            value = f(np.concatenate([solution.x, discrete]))
            evaluations += 1
            if value < TARGET:
                return evaluations
            solutions.append((solution, value))
        search.tell(solutions)
    return -1


def pycma(f: Objective, name: str, n: int, seed: int) -> int:
    """Return the evaluations of pycma with integer_variables."""
    import cma

    h, (low, high) = n // 2, (-10, 10) if name.endswith("Int") else (0, 1)
    options = {
        "integer_variables": list(range(h, n)),
        "bounds": [[-np.inf] * h + [low - 0.5] * h, [np.inf] * h + [high + 0.5] * h],
        **{"seed": seed + 1, "verbose": -9, "maxfevals": CAP},
    }
    search = cma.CMAEvolutionStrategy(start(name, n, seed), 1.0, options)
    evaluations = 0
    while evaluations < CAP and not search.stop():
        candidates = search.ask()
        values = []
        for x in candidates:
            rounded = np.array(x)
            rounded[h:] = np.round(rounded[h:])
            values.append(f(rounded))
            evaluations += 1
            if values[-1] < TARGET:
                return evaluations
        search.tell(candidates, values)
    return -1


CONTENDERS: dict[str, Callable[..., int]] = {
    "cma_es": ours,
    "cmaes CMAwM": cmaes_margin,
    "cmaes CatCMAwM": cmaes_categories,
    "pycma": pycma,
}


def trials(
    sizes: Sequence[int], runs: int, only: Sequence[str], known: Sequence[Trial] = ()
) -> Iterator[Trial]:
    """Yield the trials of all contenders whose names are in `only`, on all functions,
    except the known ones.
    """
    done = {identity(row) for row in known}
    for n in sizes:
        # outside, so that an unfinished table has equally many runs in all cells
        for seed in range(runs):
            for name, f in functions(n).items():
                for contender in only:
                    row: Trial = {"contender": contender, "function": name, "n": n, "seed": seed}
                    if identity(row) not in done:
                        yield {**row, "evaluations": CONTENDERS[contender](f, name, n, seed)}


def identity(row: Trial) -> tuple[int | str, ...]:
    """Return contender, function, size and seed of a trial."""
    return tuple(row[name] for name in ("contender", "function", "n", "seed"))


def read(text: str) -> list[Trial]:
    """Return the trials of a CSV."""
    numbers = ("n", "seed", "evaluations")
    return [
        {name: int(value) if name in numbers else value for name, value in row.items()}
        for row in csv.DictReader(StringIO(text))
    ]


def csv_text(rows: Sequence[Trial]) -> str:
    """Return the trials as CSV."""
    file = StringIO()
    writer = csv.DictWriter(
        file, ["contender", "function", "n", "seed", "evaluations"], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def markdown(rows: Sequence[Trial]) -> str:
    """Return median evaluations of the successful runs as a table,
    with the runs where some failed or are missing.
    """
    most = max(int(row["seed"]) for row in rows) + 1
    contenders = list(dict.fromkeys(str(row["contender"]) for row in rows))
    lines = [f"| n | function | {' | '.join(contenders)} |", f"|---|---|{'---|' * len(contenders)}"]
    for n, name in dict.fromkeys((row["n"], row["function"]) for row in rows):
        cells = []
        for contender in contenders:
            own = [
                row
                for row in rows
                if (row["contender"], row["n"], row["function"]) == (contender, n, name)
            ]
            counts = [int(row["evaluations"]) for row in own if int(row["evaluations"]) >= 0]
            share = "" if len(counts) == len(own) == most else f" ({len(counts)} of {len(own)})"
            cells.append(
                f"{median(counts):,.0f}{share}" if counts else "-" if not own else share.strip()
            )
        lines.append(f"| {n} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
