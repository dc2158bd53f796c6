"""Evaluations on constrained functions with known optima, beside pycma's fmin_con2.

A run succeeds at a feasible vector whose value is within 1e-4 max(1, |f*|) of the optimum f*.
Functions with a box start uniformly in the middle 80 % of it, the others near one vector. Both
libraries keep vectors in the box by a smooth map. The pressure vessel has two integers and is
searched with restarts (BIPOP) from random points. Counts do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import hpc_es
from benchmarks.functions.mixed import Trial, identity
from hpc_es.core.data import Float64

CAP = 30_000  # evaluations
# value, and constraints that hold where they are at most 0
Function = Callable[[Float64], tuple[float, list[float]]]
Box = tuple[Sequence[float], Sequence[float]]  # low, high


@dataclass(frozen=True)
class Problem:
    """A function, its optimum, and where searches begin."""

    f: Function
    optimum: float
    start: Sequence[float] | None = None  # None: in the box
    box: Box | None = None
    sigma: float = 1.0  # in the box: of 0 .. 1
    # number of leading integers; the box is then searched on its own scale, with restarts
    integers: int = 0

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return len(self.start if self.start is not None else self.box[0] if self.box else ())

    def first(self, seed: int) -> Float64:
        """Return the initial mean, float64[size]; in a box from 0 to 1."""
        rng = np.random.default_rng(seed)
        if self.start is None:
            return rng.uniform(0.1, 0.9, self.size)
        mean: Float64 = np.array(self.start) + 0.1 * self.sigma * rng.normal(size=self.size)
        return mean

    def at(self, x: Float64) -> Float64:
        """Return the function's vector of a search vector, float64[size]."""
        if self.box is None or self.integers:
            return x
        low, high = np.array(self.box[0]), np.array(self.box[1])
        vector: Float64 = low + x * (high - low)
        return vector


def wall(x: Float64) -> tuple[float, list[float]]:
    return float(x @ x), [float(x[0]) + 1]


def tangent(x: Float64) -> tuple[float, list[float]]:
    return float(x @ x), [2 - float(x[0] + x[1])]


def corner(x: Float64) -> tuple[float, list[float]]:
    return float(x @ x), (1 - x[:5]).tolist()


def scaled_corner(x: Float64) -> tuple[float, list[float]]:
    return float((1e6 ** (np.arange(10) / 9) * x * x).sum()), (1 - x[:5]).tolist()


def rosenbrock_in_a_ball(x: Float64) -> tuple[float, list[float]]:
    value = float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())
    return value, [float(x @ x) - 5]


def g04(x: Float64) -> tuple[float, list[float]]:
    a, b, c, d, e = x.tolist()
    u = 85.334407 + 0.0056858 * b * e + 0.0006262 * a * d - 0.0022053 * c * e
    v = 80.51249 + 0.0071317 * b * e + 0.0029955 * a * b + 0.0021813 * c * c
    w = 9.300961 + 0.0047026 * c * e + 0.0012547 * a * c + 0.0019085 * c * d
    value = 5.3578547 * c * c + 0.8356891 * a * e + 37.293239 * a - 40792.141
    return value, [u - 92, -u, v - 110, 90 - v, w - 25, 20 - w]


def g06(x: Float64) -> tuple[float, list[float]]:
    a, b = x.tolist()
    limits = [100 - (a - 5) ** 2 - (b - 5) ** 2, (a - 6) ** 2 + (b - 5) ** 2 - 82.81]
    return (a - 10) ** 3 + (b - 20) ** 3, limits


def g07(x: Float64) -> tuple[float, list[float]]:
    a, b, c, d, e, f, g, h, i, j = x.tolist()
    value = (
        a * a + b * b + a * b - 14 * a - 16 * b + (c - 10) ** 2 + 4 * (d - 5) ** 2 + (e - 3) ** 2
    )
    value += (
        2 * (f - 1) ** 2 + 5 * g * g + 7 * (h - 11) ** 2 + 2 * (i - 10) ** 2 + (j - 7) ** 2 + 45
    )
    return value, [
        4 * a + 5 * b - 3 * g + 9 * h - 105,
        10 * a - 8 * b - 17 * g + 2 * h,
        -8 * a + 2 * b + 5 * i - 2 * j - 12,
        3 * (a - 2) ** 2 + 4 * (b - 3) ** 2 + 2 * c * c - 7 * d - 120,
        5 * a * a + 8 * b + (c - 6) ** 2 - 2 * d - 40,
        a * a + 2 * (b - 2) ** 2 - 2 * a * b + 14 * e - 6 * f,
        0.5 * (a - 8) ** 2 + 2 * (b - 4) ** 2 + 3 * e * e - f - 30,
        -3 * a + 6 * b + 12 * (i - 8) ** 2 - 7 * j,
    ]


def g10(x: Float64) -> tuple[float, list[float]]:
    a, b, c, d, e, f, g, h = x.tolist()
    return a + b + c, [
        0.0025 * (d + f) - 1,
        0.0025 * (e + g - d) - 1,
        0.01 * (h - e) - 1,
        -a * f + 833.33252 * d + 100 * a - 83333.333,
        -b * g + 1250 * e + b * d - 1250 * d,
        -c * h + 1250000 + c * e - 2500 * e,
    ]


def g09(x: Float64) -> tuple[float, list[float]]:
    a, b, c, d, e, f, g = x.tolist()
    value = (
        (a - 10) ** 2 + 5 * (b - 12) ** 2 + c**4 + 3 * (d - 11) ** 2 + 10 * e**6 + 7 * f * f + g**4
    )
    value -= 4 * f * g + 10 * f + 8 * g
    return value, [
        2 * a * a + 3 * b**4 + c + 4 * d * d + 5 * e - 127,
        7 * a + 3 * b + 10 * c * c + d - e - 282,
        23 * a + b * b + 6 * f * f - 8 * g - 196,
        4 * a * a + b * b - 3 * a * b + 2 * c * c + 5 * f - 11 * g,
    ]


def vessel(x: Float64) -> tuple[float, list[float]]:
    """Cost of a pressure vessel; the thickness of shell and head are multiples of 1/16 inch."""
    a, b, r, l = x[0] / 16, x[1] / 16, x[2], x[3]  # noqa: E741  as in the literature
    value = 0.6224 * a * r * l + 1.7781 * b * r * r + 3.1661 * a * a * l + 19.84 * a * a * r
    volume = np.pi * r * r * l + 4 / 3 * np.pi * r**3
    return float(value), [
        float(g) for g in (0.0193 * r - a, 0.00954 * r - b, 1_296_000 - volume, l - 240)
    ]


BALL = 1.9689566  # optimum of `rosenbrock_in_a_ball`, by all contenders
PROBLEMS = {
    "sphere, x0 <= -1": Problem(wall, 1.0, [1.0] * 10),
    "sphere, x0 + x1 >= 2": Problem(tangent, 2.0, [50.0, 50.0], sigma=10.0),
    "sphere, 5 walls": Problem(corner, 5.0, [3.0] * 10),
    "ellipsoid, 5 walls": Problem(
        scaled_corner, float((1e6 ** (np.arange(5) / 9)).sum()), [3.0] * 10
    ),
    "Rosenbrock in a ball": Problem(rosenbrock_in_a_ball, BALL, [0.0] * 10),
    "g04": Problem(g04, -30665.538672, None, ([78, 33, 27, 27, 27], [102, 45, 45, 45, 45]), 0.3),
    "g06": Problem(g06, -6961.8138756, None, ([13, 0], [100, 100]), 0.3),
    "g07": Problem(g07, 24.306209068, None, ([-10] * 10, [10] * 10), 0.3),
    "g09": Problem(g09, 680.630057374, None, ([-10] * 7, [10] * 7), 0.3),
    "g10": Problem(
        g10, 7049.24802, None, ([100, 1000, 1000, *[10] * 5], [10000] * 3 + [1000] * 5), 0.3
    ),
    "pressure vessel": Problem(
        vessel, 6059.714335, None, ([1, 1, 10, 10], [99, 99, 200, 200]), 0.3, integers=2
    ),
}


class Solved(Exception):  # noqa: N818  it ends a search
    """The optimum was reached."""


class Counted:
    """A problem that counts evaluations, and raises Solved at the optimum."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self.evaluations = problem, 0

    def __call__(self, x: Float64) -> tuple[float, list[float]]:
        value, g = self._problem.f(self._problem.at(np.asarray(x)))
        self.evaluations += 1
        optimum = self._problem.optimum
        if max(g) <= 0 and value - optimum <= 1e-4 * max(1.0, abs(optimum)):
            raise Solved
        return value, g


def ours(problem: Problem, f: Counted, seed: int, handling: str) -> None:
    """Search with cma_es."""
    options: dict[str, Any] = {}
    if problem.integers and problem.box is not None:
        options["parameters"] = {
            f"x{index}": {"low": low, "high": high, "integer": index < problem.integers}
            for index, (low, high) in enumerate(zip(*problem.box, strict=True))
        }
        options |= {"x0": "random", "keep": "transform", "restarts": "bipop"}
    else:
        options |= {
            "x0": problem.first(seed),
            "bounds": None if problem.box is None else (0.0, 1.0),
        }
        options["keep"] = "reflect" if problem.box is None else "transform"  # as pycma
    _, g = problem.f(problem.at(problem.first(seed)))
    limits = {"constraints": len(g), "constraint_handling": handling, "max_evaluations": CAP}
    es = hpc_es.Strategy(sigma0=problem.sigma, seed=seed, **limits, **options)
    while not es.stop():
        results = [f(x) for x in es.ask()]
        es.tell([value for value, _ in results], [g for _, g in results])


def pycma(problem: Problem, f: Counted, seed: int) -> None:
    """Search with cma.fmin_con2, which asks for value and
    constraints of the same vector one after the other.
    """
    import cma

    cached: dict[bytes, tuple[float, list[float]]] = {}

    def both(x: Float64) -> tuple[float, list[float]]:
        key = np.asarray(x).tobytes()
        if key not in cached:
            cached.clear()
            cached[key] = f(x)
        return cached[key]

    options: dict[str, Any] = {"seed": seed + 1, "verbose": -9, "maxfevals": CAP}
    start, sigma, restarts = problem.first(seed), problem.sigma, {}
    if problem.integers and problem.box is not None:
        low, high = (np.array(side, float) for side in problem.box)
        half = np.where(np.arange(problem.size) < problem.integers, 0.5, 0.0)
        options |= {
            "bounds": [low - half, high + half],
            "integer_variables": list(range(problem.integers)),
        }
        options["CMA_stds"] = problem.sigma * (high - low)
        rng = np.random.default_rng(seed)
        start, sigma = lambda: rng.uniform(low, high), 1.0
        restarts = {"restarts": 9, "bipop": True}
    elif problem.box is not None:
        options["bounds"] = [0, 1]
    cma.fmin_con2(
        lambda x: both(x)[0], start, sigma, lambda x: both(x)[1], options=options, **restarts
    )


CONTENDERS: dict[str, Callable[[Problem, Counted, int], None]] = {
    "cma_es augmented_lagrangian": lambda *task: ours(*task, "augmented_lagrangian"),
    "cma_es feasible_first": lambda *task: ours(*task, "feasible_first"),
    "pycma fmin_con2": pycma,
}


def trials(
    runs: int,
    only: Sequence[str],
    functions: Sequence[str] = tuple(PROBLEMS),
    known: Sequence[Trial] = (),
) -> Iterator[Trial]:
    """Yield the trials, except the known ones: contender, function, n, seed and evaluations,
    -1 without success.
    """
    done = {identity(row) for row in known}
    for seed in range(runs):
        for name in functions:
            problem = PROBLEMS[name]
            for contender in only:
                row: Trial = {
                    "contender": contender,
                    "function": name,
                    "n": problem.size,
                    "seed": seed,
                }
                if identity(row) in done or (problem.integers and contender.endswith("lagrangian")):
                    continue
                f, evaluations = Counted(problem), -1
                try:
                    CONTENDERS[contender](problem, f, seed)
                except Solved:
                    evaluations = f.evaluations
                yield {**row, "evaluations": evaluations}
