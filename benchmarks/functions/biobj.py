"""Runtime profiles on the functions of bbob-biobj, beside pymoo (NSGA-II) and comocma.

The suite (Brockhoff, Auger, Hansen & Tusar 2022, "Using well-understood single-objective functions
in multiobjective black-box optimization test suites") is that of the package coco-experiment.

All contenders search within -5 .. 5, which contains the fronts but for small parts. The observer of
COCO compares the hypervolume of all evaluated vectors with that of the best known front; a trial
reaches a target when the difference is at most that.
"""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.functions import front
from hpc_es.core.data import Float64
from hpc_es.core.errors import require

FUNCTIONS, INSTANCES = range(1, 56), range(1, 6)
LOW, HIGH = -5.0, 5.0
# comocma transforms vectors beyond the bounds, too.
CONTENDERS = ("nsga2", "como_cma_es_transform", "pymoo", "comocma")
# The targets of COCO, 58 differences of hypervolumes, the easiest first.
TARGETS = (
    *(10 ** (-number / 10) for number in range(51)),
    0.0,
    *(-(10 ** (-5 + number / 5)) for number in range(6)),
)
BUDGETS = (10, 30, 100, 300, 1000)  # evaluations per parameter, of the table
PAIRS = (
    ("nsga2", "pymoo"),
    ("como_cma_es_transform", "comocma"),
    ("como_cma_es_reflect", "comocma"),
)
# of the picture: number of the colour, and style
LINES = {
    "nsga2": (0, "-"),
    "pymoo": (0, "--"),
    "como_cma_es_reflect": (2, "-"),
    "como_cma_es_transform": (2, ":"),
    "comocma": (2, "--"),
}
KEY = ("contender", "function", "dimension", "instance", "evaluations")  # of a trial
Trial = dict[str, Any]  # KEY, reached


class Problem:
    """A problem of COCO, of parameters from 0 to 1, with a limit of evaluations."""

    def __init__(self, problem: Any, evaluations: int) -> None:
        self._problem, self._left = problem, evaluations
        self.worst = tuple(float(value) for value in problem.largest_fvalues_of_interest)

    def __call__(self, x: Float64) -> Float64:
        # A contender may finish its last generation; the observer does not see that.
        if self._left <= 0:
            return np.array(self.worst)
        self._left -= 1
        return np.array(self._problem(LOW + (HIGH - LOW) * x))


def reached(text: str) -> list[int | None]:
    """Return the evaluations after which each target was reached, from a .dat file of an observer;
    None: not reached.
    """
    lines = [line.split() for line in text.splitlines() if line.strip() and line[0] != "%"]
    best = np.array([[float(number) for number in line[:2]] for line in lines]).reshape(-1, 2)
    hits = [best[best[:, 1] <= target, 0] for target in TARGETS]
    return [int(hit[0]) if len(hit) else None for hit in hits]


def trial(contender: str, function: int, dimension: int, instance: int, evaluations: int) -> Trial:
    """Run a contender once."""
    import cocoex

    which = f"dimensions:{dimension} function_indices:{function} instance_indices:{instance}"
    with tempfile.TemporaryDirectory() as directory:
        observer = cocoex.Observer(
            "bbob-biobj",
            f"outer_folder: {directory} result_folder: of_trial log_nondominated: none",
        )
        suite = cocoex.Suite("bbob-biobj", "", which)
        # the suite closes a problem when it is asked for the next one
        problem = next(iter(suite))
        problem.observe_with(observer)
        f = Problem(problem, evaluations)
        case = front.Case(f, dimension, f.worst)
        front.CONTENDERS[contender][0](
            front.Recorded(f), case, instance, evaluations, front.KERNELS
        )
        problem.free()
        (file,) = Path(directory).rglob("*_hyp.dat")
        return {
            "contender": contender,
            "function": function,
            "dimension": dimension,
            "instance": instance,
            "evaluations": evaluations,
            "reached": reached(file.read_text()),
        }


def plan(
    contenders: Sequence[str],
    functions: Sequence[int],
    dimension: int,
    instances: Sequence[int],
    budget: int,
) -> list[tuple[str, int, int, int, int]]:
    """Return the arguments of each `trial`, of the contenders that are installed."""
    require("bbob", "cocoex")
    packages = {name: front.CONTENDERS[name][1] for name in contenders}
    installed = [name for name, package in packages.items() if not package or find_spec(package)]
    return [
        (contender, function, dimension, instance, budget * dimension)
        for instance, function, contender in product(instances, functions, installed)
    ]


def shares(one: Trial) -> dict[str, float]:
    """Return the share of the targets that a trial has reached after each of BUDGETS."""
    limits = {f"{budget} n": budget * one["dimension"] for budget in BUDGETS}
    return {
        name: sum(hit is not None and hit <= limit for hit in one["reached"]) / len(TARGETS)
        for name, limit in limits.items()
        if limit <= one["evaluations"]
    }


def by_contender(found: Sequence[Trial]) -> Mapping[str, list[Trial]]:
    """Return the trials of each contender that has some."""
    parts = {name: [one for one in found if one["contender"] == name] for name in front.CONTENDERS}
    return {name: own for name, own in parts.items() if own}


def markdown(found: Sequence[Trial]) -> str:
    """Return a table with the mean share of reached targets after some numbers of evaluations."""
    budgets = list(shares(found[0]))
    lines = [f"| contender | trials | {' | '.join(budgets)} |", "|---|---|" + "---|" * len(budgets)]
    for name, own in by_contender(found).items():
        values = [shares(one) for one in own]
        cells = [f"{np.mean([value[budget] for value in values]):.3f}" for budget in budgets]
        lines.append(f"| {name} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def csv_text(found: Sequence[Trial]) -> str:
    """Return all trials as CSV, with the shares of reached targets."""
    text = io.StringIO()
    rows = [
        {name: value for name, value in one.items() if name != "reached"}
        | {name: f"{share:.4f}" for name, share in shares(one).items()}
        for one in found
    ]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def differences(found: Sequence[Trial]) -> str:
    """Return the mean differences between our strategies and others after the whole budget, with
    95 % intervals over the means of functions.
    """
    means: dict[str, dict[int, float]] = {}
    for name, own in by_contender(found).items():
        functions = sorted({one["function"] for one in own})
        means[name] = {
            function: float(
                np.mean([_share(one) for one in own if one["function"] == function], dtype=float)
            )
            for function in functions
        }
    lines = list[str]()
    for ours, other in PAIRS:
        if (
            means.get(ours, {}).keys() != means.get(other, {}).keys()
            or len(means.get(ours, ())) < 2
        ):
            continue
        gains = np.array(
            [means[ours][function] - means[other][function] for function in means[ours]]
        )
        half = 1.96 * gains.std(ddof=1) / len(gains) ** 0.5
        counts = f"more on {(gains > 0).sum()} functions, fewer on {(gains < 0).sum()}"
        lines.append(f"{ours} - {other}: {gains.mean():+.4f} ± {half:.4f}, {counts}")
    return "\n".join(lines)


def _share(one: Trial) -> float:
    return sum(hit is not None for hit in one["reached"]) / len(TARGETS)


def draw(found: Sequence[Trial], path: Path) -> None:
    """Draw the runtime profiles: the share of all targets that were reached within a number of
    evaluations per parameter.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from hpc_es.report.plot import PALETTE, STYLE

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axis = figure.subplots()
        for name, own in by_contender(found).items():
            hits = sorted(
                hit / one["dimension"] for one in own for hit in one["reached"] if hit is not None
            )
            share = np.arange(1, len(hits) + 1) / (len(own) * len(TARGETS))
            color, line = LINES.get(name, (4, "-"))
            axis.step(
                [*hits, max(one["evaluations"] / one["dimension"] for one in own)],
                [*share, share[-1]],
                where="post",
                color=PALETTE[color],
                linestyle=line,
                label=name,
            )
        functions = len({one["function"] for one in found})
        axis.set(
            xscale="log",
            xlabel="evaluations per parameter",
            ylabel="share of targets",
            title=f"bbob-biobj, n = {found[0]['dimension']}, {functions} functions",
            ylim=(0, None),
        )
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.legend(loc="upper left")
        figure.savefig(path, dpi=120, metadata={"Software": None})
