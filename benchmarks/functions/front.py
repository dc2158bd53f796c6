"""Hypervolumes of fronts, beside pymoo (NSGA-II), cmaes (COMOCatCMAwM) and comocma.

ZDT1 to 4 and 6 (Zitzler, Deb & Thiele 2000) and DTLZ1, 2 and 7 (Deb et al. 2002) with 25,000
evaluations, reference point 1.1 (DTLZ1: 1, DTLZ7: 1.1, 1.1 and 6.6), and DSIntLFTL of cmaes with
7,000, of numbers, integers and choices (pymoo and comocma have none), reference point 3.3.
Hypervolumes are recorded of `all` evaluated vectors, of a `population` of 100, which is the last
one of a genetic algorithm, or the archive of `como_cma_es`, and of its last `means`. They do not
depend on the machine.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import hpc_es
from benchmarks.functions.trials import Row
from hpc_es.algorithms.common.front import PREFIX
from hpc_es.core.data import Float64
from hpc_es.core.hypervolume import hypervolume

POPULATION, KERNELS = 100, 10
MIXED, CATEGORIES, MIXED_EVALUATIONS = "DSIntLFTL", 5, 7_000
Objectives = Callable[[Float64], Float64]
Fronts = Mapping[str, Float64]  # by the names FRONTS: float64[members, objectives]
FRONTS = ("all", "population", "means")
KEY = ("contender", "function", "seed", "evaluations", "kernels")  # of a trial


def zdt(number: int, x: Float64) -> Float64:
    """Return the two objectives of ZDT1, 2, 3, 4 or 6; x is scaled to 0 .. 1."""
    first, rest = float(x[0]), x[1:]
    if number == 6:
        first = 1 - np.exp(-4 * x[0]) * np.sin(6 * np.pi * x[0]) ** 6
        g = 1 + 9 * float(rest.mean()) ** 0.25
    elif number == 4:
        y = 10 * rest - 5
        g = 1 + 10 * len(rest) + float((y**2 - 10 * np.cos(4 * np.pi * y)).sum())
    else:
        g = 1 + 9 * float(rest.mean())
    share = first / g
    shapes = {2: 1 - share**2, 6: 1 - share**2}
    shape = shapes.get(number, 1 - np.sqrt(share))
    if number == 3:
        shape -= share * np.sin(10 * np.pi * first)
    return np.array([first, g * shape])


def dtlz(number: int, x: Float64) -> Float64:
    """Return the three objectives of DTLZ1, 2 or 7."""
    a, b, rest = float(x[0]), float(x[1]), x[2:]
    if number == 7:
        g = 1 + 9 * float(rest.mean())
        h = 3 - sum(f / (1 + g) * (1 + np.sin(3 * np.pi * f)) for f in (a, b))
        return np.array([a, b, (1 + g) * h])
    y = rest - 0.5
    if number == 1:
        g = 100 * (len(y) + float((y**2 - np.cos(20 * np.pi * y)).sum()))
        return 0.5 * (1 + g) * np.array([a * b, a * (1 - b), 1 - a])
    g, s, t = float(y @ y), a * np.pi / 2, b * np.pi / 2
    return (1 + g) * np.array([np.cos(s) * np.cos(t), np.cos(s) * np.sin(t), np.sin(s)])


def mixed(x: Float64) -> Float64:
    """Return the two objectives of DSIntLFTL, an example of cmaes, of three numbers and three
    integers in -5 .. 15 and three choices of five.

    Both objectives of the first six are spheres, around 0 and around 10. Of the choices, one counts
    those that lead with the first category, the other those that trail with the last one.
    """
    numbers, choices = x[:6].reshape(2, 3) / 10, x[6:]
    leading = float(np.cumprod(choices == 0).sum())
    trailing = float(np.cumprod(choices[::-1] == CATEGORIES - 1).sum())
    spheres = [float(np.square(numbers - centre).mean(axis=1).sum()) for centre in (0, 1)]
    return np.array([spheres[0] + 1 - leading / 3, spheres[1] + 1 - trailing / 3])


class Case(NamedTuple):
    """A function of several objectives, of parameters from 0 to 1 unless it is `mixed`."""

    f: Objectives
    size: int  # number of parameters
    reference: tuple[float, ...]


FUNCTIONS: Mapping[str, Case] = {
    **{
        f"ZDT{number}": Case(partial(zdt, number), 30 if number < 4 else 10, (1.1, 1.1))
        for number in (1, 2, 3, 4, 6)
    },
    "DTLZ1": Case(partial(dtlz, 1), 7, (1.0, 1.0, 1.0)),
    "DTLZ2": Case(partial(dtlz, 2), 12, (1.1, 1.1, 1.1)),
    "DTLZ7": Case(partial(dtlz, 7), 22, (1.1, 1.1, 6.6)),
    MIXED: Case(mixed, 9, (3.3, 3.3)),
}


class Recorded:
    """A function that keeps the objectives of all evaluations."""

    def __init__(self, f: Objectives) -> None:
        self._f, self.values = f, list[Float64]()

    def __call__(self, x: Float64) -> Float64:
        self.values.append(self._f(x if self._f is mixed else np.clip(x, 0, 1)))
        return self.values[-1]


def ours(
    algorithm: str,
    keep: str,
    f: Recorded,
    case: Case,
    seed: int,
    evaluations: int,
    kernels: int,
) -> Fronts:
    """Run one of our strategies, which keeps vectors within the bounds in this way."""
    size, reference = case.size, case.reference
    options: dict[str, Any] = {"population_size": POPULATION}
    if algorithm == "como_cma_es":
        options = {"kernels": kernels, "reference": reference, "archive_size": POPULATION}
    where: dict[str, Any] = {"region": (np.zeros(size), np.ones(size)), "bounds": (0, 1)}
    if case.f is mixed:
        number = {"low": -5, "high": 15}
        named = {f"x{place}": number for place in range(3)}
        named |= {f"z{place}": {**number, "integer": True} for place in range(3)}
        named |= {f"c{place}": {"choices": [*"abcde"]} for place in range(3)}
        where = {"parameters": named, "x0": "random"}
    es = hpc_es.Strategy(
        algorithm,
        **where,
        keep=keep,
        objectives=len(reference),
        seed=seed,
        max_evaluations=evaluations,
        hypervolume_interval=0,
        **options,
    )
    sweep = list[Float64]()
    while not es.stop():
        jobs, told = es._algorithm.population(es._state), [f(x) for x in es.ask()]
        sweep = told if len(told) == jobs else sweep  # the last one may be cut short
        es.tell(told)
    if algorithm == "nsga2":
        return {"population": es._state.master["objectives"]}
    means = np.array(sweep[es._algorithm.samples :: es._algorithm.samples + 1])
    return {"population": es._state.master[PREFIX + "objectives"], "means": means}


def pymoo(f: Recorded, case: Case, seed: int, evaluations: int, _: int) -> Fronts:
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.problem import ElementwiseProblem
    from pymoo.optimize import minimize

    class Problem(ElementwiseProblem):  # type: ignore[misc]
        def _evaluate(self, x: Float64, out: dict[str, Any], *_: Any, **__: Any) -> None:
            out["F"] = f(x)

    problem = Problem(n_var=case.size, n_obj=len(case.reference), xl=0.0, xu=1.0)
    found = minimize(problem, NSGA2(POPULATION), ("n_eval", evaluations), seed=seed)
    return {"population": found.pop.get("F")}


def cmaes(f: Recorded, case: Case, seed: int, evaluations: int, kernels: int) -> Fronts:
    from cmaes import COMOCatCMAwM

    spaces: dict[str, Any] = {"x_space": [[0.0, 1.0]] * case.size}
    if case.f is mixed:
        integers = [list(range(-5, 16))] * 3
        spaces = {"x_space": [[-5, 15]] * 3, "z_space": integers, "c_space": [CATEGORIES] * 3}
    search = COMOCatCMAwM(**spaces, kernel_size=kernels, seed=seed + 1)
    while len(f.values) < evaluations:
        told = []
        for _ in range(search.ask_queue_size):
            solution = search.ask()
            x = solution.x
            if case.f is mixed:
                x = np.concatenate([x, solution.z, solution.c.argmax(axis=1)])
            told.append((solution, f(x).tolist()))
        search.tell(told)
    return {}


def comocma(f: Recorded, case: Case, seed: int, evaluations: int, kernels: int) -> Fronts:
    import comocma as library

    starts = np.random.default_rng(seed).random((kernels, case.size)).tolist()
    inner = {"bounds": [0, 1], "verbose": -9, "seed": seed + 1}
    searches = library.get_cmas(starts, 0.3, inopts=inner)
    search = library.Sofomore(
        searches, reference_point=list(case.reference), opts={"verb_filename": ""}
    )
    while len(f.values) < evaluations and not search.stop():
        vectors = search.ask("all")
        search.tell(vectors, [f(np.array(x)).tolist() for x in vectors])
    return {}


CONTENDERS: Mapping[str, tuple[Callable[..., Fronts], str | None, int]] = {
    # how it runs, the package that it needs, and the most objectives
    "nsga2": (partial(ours, "nsga2", "reflect"), None, 8),
    "pymoo": (pymoo, "pymoo", 8),
    # The fronts of ZDT are at bounds, which clipped vectors reach.
    "como_cma_es": (partial(ours, "como_cma_es", "clip"), None, 8),
    "como_cma_es_reflect": (partial(ours, "como_cma_es", "reflect"), None, 8),
    "como_cma_es_transform": (partial(ours, "como_cma_es", "transform"), None, 8),
    "cmaes": (cmaes, "cmaes", 2),
    "comocma": (comocma, "comocma", 2),
}


def trial(contender: str, name: str, seed: int, evaluations: int, kernels: int) -> Row:
    """Run a contender once."""
    case = FUNCTIONS[name]
    recorded = Recorded(case.f)
    fronts = CONTENDERS[contender][0](recorded, case, seed, evaluations, kernels)
    fronts = {"all": np.array(recorded.values[:evaluations]), **fronts}
    point = np.array(case.reference)
    return {
        "contender": contender,
        "function": name,
        "seed": seed,
        "evaluations": evaluations,
        "kernels": kernels,
        **{
            name: hypervolume(np.asarray(fronts[name]), point) if name in fronts else None
            for name in FRONTS
        },
    }


class Plan(NamedTuple):
    """The trials of a table."""

    runs: int
    evaluations: int
    contenders: Sequence[str]
    functions: Sequence[str]
    kernels: int  # of the forms of COMO-CMA-ES

    def trials(self) -> Iterator[tuple[str, str, int, int, int]]:
        """Yield the arguments of each `trial`, one seed after the other."""
        for seed, name, contender in product(range(self.runs), self.functions, self.contenders):
            _, package, most = CONTENDERS[contender]
            is_missing = package is not None and find_spec(package) is None
            no_choices = name == MIXED and contender in ("pymoo", "comocma")
            if not (is_missing or no_choices or len(FUNCTIONS[name].reference) > most):
                limit = MIXED_EVALUATIONS if name == MIXED else self.evaluations
                kernels = 0 if contender in ("nsga2", "pymoo") else self.kernels
                yield contender, name, seed, min(limit, self.evaluations), kernels


def markdown(found: Sequence[Row]) -> str:
    """Return a table with the median and the range of the hypervolumes."""
    lines = [
        "| function | contender | runs | all evaluations | population | means |",
        "|---|---|---|---|---|---|",
    ]
    names = list(dict.fromkeys(one["function"] for one in found))
    for name in names:
        for contender in CONTENDERS:
            own = [one for one in found if (one["function"], one["contender"]) == (name, contender)]
            if own:
                cells = [_range([one[key] for one in own]) for key in FRONTS]
                lines.append(f"| {name} | {contender} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def csv_text(found: Sequence[Row]) -> str:
    """Return all trials as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def _range(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return ""
    return f"{median(numbers):.4f} ({min(numbers):.4f} to {max(numbers):.4f})"
