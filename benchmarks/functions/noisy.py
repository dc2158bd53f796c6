"""Noisy functions: bbob-noisy f101 to f130 (coco-experiment) under small budgets.

A trial is one search; its results are the noise-free values of its mean when 200 n and 500 n
evaluations are used up. The budgets are those of Wang & Lu 2026 (arXiv:2606.06555), whose means of
ranks are in PAPER. All searches start at 0 with the standard deviation 2. Each trial has a seed of
its own, the hash of what it is, so that no lucky start helps a contender on several problems.

The noise-free value is that of the Cauchy member of the same triple of functions at the same
instance: most of its evaluations have a known offset and no noise, so the median of some has none.

Constants of hpc_es were chosen on the instances TRAINING; tables are of the others.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import math
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

import hpc_es
from benchmarks.functions.trials import drop_cut_line, end_with_parent
from hpc_es.algorithms.common.ranking import default_population
from hpc_es.core.data import Float64

FUNCTIONS = tuple(range(101, 131))
DIMENSIONS = (10, 20, 40)
TRAINING, INSTANCES = tuple(range(16, 31)), tuple(range(1, 16))
BUDGETS = (200, 500)  # evaluations per dimension
SIGMA = 2.0
MEDIAN_OF = 41  # evaluations of the Cauchy member
BOOTSTRAPS = 2000
PRECISION = 1e-7  # of values; the targets of BBOB end at 1e-8, and the added offsets cost digits
COLUMNS = ("contender", "function", "n", "instance", "seed", "budget", "value", "reevaluations")
KNOWN = COLUMNS[:5]  # of a finished trial
_ORDER = (*COLUMNS[:4], "budget")  # of the rows of a table
# mean ranks of the paper at n = 40, by budget per dimension
PAPER: Mapping[str, Mapping[int, float]] = {
    "probe and switch": {200: 2.587, 500: 2.978},
    "RB-PEM": {200: 3.080, 500: 3.589},
    "sep_cma_es": {200: 3.220, 500: 3.476},
    "resample 2": {200: 4.091, 500: 4.007},
    "resample 3": {200: 4.656, 500: 4.258},
    "resample 5": {200: 5.529, 500: 4.680},
    "pycma UH": {200: 4.838, 500: 5.013},
}

Function = Callable[[Float64], float]
Row = dict[str, Any]


class Budget:
    """A noisy function that records the mean of a search at each budget.

    `mean` is the current mean; the search sets it after each update.
    """

    def __init__(self, function: Function, n: int, budgets: Sequence[int]) -> None:
        self._function, self._left = function, [budget * n for budget in sorted(budgets)]
        self.evaluations = self.reevaluations = 0
        self.mean: Float64 = np.zeros(n)
        self.means: list[Float64] = []

    def __call__(self, x: Float64) -> float:
        """Return a value; StopIteration after the last one."""
        if self.evaluations >= self._left[len(self.means)]:
            self.means.append(self.mean.copy())
            if len(self.means) == len(self._left):
                raise StopIteration
        self.evaluations += 1
        return float(self._function(x))

    def end(self) -> None:
        """Record the last mean for all budgets that a search did not use up."""
        self.means += [self.mean.copy()] * (len(self._left) - len(self.means))


Search = Callable[[Budget, int, int], None]  # function, n, seed


# Contenders.


def ours(kind: str, mode: str, repeats: int = 1, larger: int = 1, **options: Any) -> Search:
    """Return a search by hpc_es.

    Args:
        kind: of the algorithm.
        mode: of noise handling.
        repeats: evaluations of each candidate.
        larger: factor of the default population.
        options: others of the algorithm.
    """

    def search(f: Budget, n: int, seed: int) -> None:
        more = {} if larger == 1 else {"population_size": larger * default_population(n)}
        es = hpc_es.Strategy(
            kind,
            x0=np.zeros(n),
            sigma0=SIGMA,
            seed=seed,
            noise_handling=mode,
            **more,
            **options,
        )
        while True:  # beyond criteria such as tolfun, which noise may meet by chance
            values = [np.mean([f(x) for _ in range(repeats)]) for x in es.ask()]
            es.tell(values)
            f.mean = es.theta

    return search


def uncertainty_handling(f: Budget, n: int, seed: int) -> None:
    """Search with pycma's handler of uncertainty (Hansen et al. 2009), at most 30 evaluations."""
    import cma

    options = {"seed": seed + 1, "verbose": -9, "verb_log": 0}
    es = cma.CMAEvolutionStrategy(np.zeros(n), SIGMA, options)
    handler = cma.NoiseHandler(n, maxevals=[1, 1, 30])
    while True:
        vectors, values = es.ask_and_eval(f, evaluations=handler.evaluations)
        es.tell(vectors, values)
        es.sigma *= handler(vectors, values, f, es.ask)
        f.mean = np.array(es.mean)


def learning_rates(f: Budget, n: int, seed: int) -> None:
    """Search with LRA-CMA-ES of the package cmaes."""
    import cmaes

    es = cmaes.CMA(mean=np.zeros(n), sigma=SIGMA, lr_adapt=True, seed=seed + 1)
    while True:
        vectors = [es.ask() for _ in range(es.population_size)]
        es.tell([(x, f(x)) for x in vectors])
        f.mean = np.array(es.mean)


class NoiseMemory:
    """Residuals of the paper's method, and the weights that follow from them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._scale, self._pool = rng, np.full(2, np.nan), np.zeros(0)

    def weights(self, f: Budget, x: Float64, values: Float64, usual: Float64, mu: int) -> Any:
        """Return the weights of candidates; some are evaluated again, which changes `values`."""
        count = len(values)
        band = np.argsort(values)[max(0, mu - 2) : mu + 3][: max(2, int(0.3 * count))]
        again = np.array([f(x[row]) for row in band])
        f.reevaluations += len(band)
        middle = (values[band] + again) / 2
        residuals = np.concatenate([values[band] - middle, again - middle])
        sizes = np.tile(np.abs(middle), 2)
        values[band] = middle
        if len(residuals) >= 6:
            design = np.stack([np.ones(len(sizes)), sizes], axis=1)
            fitted = np.maximum(np.linalg.lstsq(design, np.abs(residuals), rcond=None)[0], 0)
            is_first = np.isnan(self._scale).any()
            self._scale = fitted if is_first else self._scale + 0.25 * (fitted - self._scale)
        if np.isnan(self._scale).any():
            return usual[_ranks(values)]
        units = np.maximum(self._scale[0] + self._scale[1] * sizes, 1e-300)
        self._pool = np.concatenate([self._pool, np.clip(residuals / units, -10, 10)])[-512:]
        widths = self._scale[0] + self._scale[1] * np.abs(values)
        drawn = values + widths * self._rng.choice(self._pool, (32, count))
        return np.mean([usual[_ranks(row)] for row in drawn], axis=0)


@dataclass
class Paper:
    """sep-CMA-ES with RB-PEM, as the paper describes it, for comparison.

    Ranks mu - 2 .. mu + 2 are evaluated again, at least 2 and at most 30 % of the candidates, which
    then count with their medians; weights are means over 32 rankings of bootstrapped noise.

    Args:
        probes: whether a probe of the first generation decides, with the threshold 0.12.
    """

    probes: bool

    def __call__(self, f: Budget, n: int, seed: int) -> None:
        """Search."""
        rng = np.random.default_rng(seed)
        count = max(4, 4 + int(3 * math.log(n)))
        mu = count // 2
        raw = np.maximum(0, math.log(mu + 0.5) - np.log(np.arange(1, count + 1)))
        usual = raw / raw.sum()
        mu_eff = 1 / np.square(usual).sum()
        c_s, c_c = (mu_eff + 2) / (n + mu_eff + 5), (4 + mu_eff / n) / (n + 4 + 2 * mu_eff / n)
        d_s = 1 + 2 * max(0, math.sqrt((mu_eff - 1) / (n + 1)) - 1) + c_s
        faster = (n + 2) / 3
        c_1 = min(1.0, faster * 2 / ((n + 1.3) ** 2 + mu_eff))
        c_mu = min(1 - c_1, faster * 2 * (mu_eff - 2 + 1 / mu_eff) / ((n + 2) ** 2 + mu_eff))
        chi = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
        m, sigma, variances = np.zeros(n), SIGMA, np.ones(n)
        p_s, p_c, generation = np.zeros(n), np.zeros(n), 0
        handles, memory = not self.probes, NoiseMemory(rng)
        while True:
            z = rng.standard_normal((count, n))
            y = np.sqrt(variances) * z
            x = m + sigma * y
            values = np.array([f(row) for row in x])
            if self.probes and not generation:
                second = np.array([f(row) for row in x])
                handles = np.abs(_ranks(values) - _ranks(second)).mean() / count >= 0.12
                values = (values + second) / 2
            weights = usual[_ranks(values)]
            if handles:
                weights = memory.weights(f, x, values, usual, mu)
            own = 1 / np.square(weights).sum()
            z_w, y_w = weights @ z, weights @ y
            m = m + sigma * y_w
            p_s = (1 - c_s) * p_s + math.sqrt(c_s * (2 - c_s) * own) * z_w
            length, generation = np.linalg.norm(p_s), generation + 1
            bias = math.sqrt(1 - (1 - c_s) ** (2 * generation))
            h = length / bias < (1.4 + 2 / (n + 1)) * chi
            p_c = (1 - c_c) * p_c + h * math.sqrt(c_c * (2 - c_c) * own) * y_w
            decay = 1 - c_1 - c_mu + (1 - h) * c_1 * c_c * (2 - c_c)
            variances = decay * variances + c_1 * p_c**2 + c_mu * (weights @ y**2)
            sigma *= math.exp(min(1, c_s / d_s * (length / chi - 1)))
            f.mean = m


def _ranks(values: Float64) -> Any:
    ranks = np.empty(len(values), int)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks


CONTENDERS: Mapping[str, Search] = {
    "sep_cma_es auto": ours("sep_cma_es", "auto"),
    "cma_es auto": ours("cma_es", "auto"),
    "sep_cma_es": ours("sep_cma_es", "none"),
    "cma_es": ours("cma_es", "none"),
    "resample 2": ours("sep_cma_es", "none", 2),
    "resample 3": ours("sep_cma_es", "none", 3),
    "resample 5": ours("sep_cma_es", "none", 5),
    "probe and switch": Paper(True),
    "RB-PEM": Paper(False),
    "pycma UH": uncertainty_handling,
    "cmaes lr_adapt": learning_rates,
    "sep_cma_es reevaluate": ours("sep_cma_es", "reevaluate"),
    "sep_cma_es auto, drawn": ours("sep_cma_es", "auto", reevaluated="drawn"),
    "cma_es learning_rate": ours("cma_es", "learning_rate"),
    "cma_es, population x2": ours("cma_es", "none", larger=2),
    "cma_es, population x4": ours("cma_es", "none", larger=4),
    "cma_es auto, population x4": ours("cma_es", "auto", larger=4),
}
# the seven that the paper compares, with our method in the place of its own
OF_PAPER = tuple(PAPER)
OURS = ("sep_cma_es auto", *OF_PAPER[1:])


# Trials.


@dataclass(frozen=True)
class Trial:
    """One search."""

    contender: str
    function: int
    n: int
    instance: int

    @property
    def seed(self) -> int:
        """The seed of the search, 0 .. 2**31 - 1."""
        words = f"{self.contender}, f{self.function}, n={self.n}, instance {self.instance}"
        return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "little") >> 1

    @property
    def key(self) -> tuple[Any, ...]:
        """The identity of the trial, values of KNOWN."""
        return *vars(self).values(), self.seed

    def rows(self) -> list[Row]:
        """Run the search and return a row per budget."""
        f = Budget(problem(self.function, self.n, self.instance), self.n, BUDGETS)
        np.random.seed(self.seed)  # of pycma's handler
        with contextlib.suppress(StopIteration):
            CONTENDERS[self.contender](f, self.n, self.seed)
        f.end()
        member = problem(cauchy_member(self.function), self.n, self.instance)
        free = noise_free(member, self.function)
        return [
            {
                **dict(zip(KNOWN, self.key, strict=True)),
                "budget": budget,
                "value": free(mean),
                "reevaluations": f.reevaluations,
            }
            for budget, mean in zip(BUDGETS, f.means, strict=True)
        ]


def problem(function: int, n: int, instance: int) -> Any:
    """Return a function of bbob-noisy."""
    import cocoex

    which = f"dimensions:{n} function_indices:{function - 100}"
    return cocoex.Suite("bbob-noisy", f"instances:{instance}", which).next_problem()


def cauchy_member(function: int) -> int:
    """Return the function of the same triple with Cauchy noise."""
    return function + 2 - (function - 101) % 3


def noise_free(cauchy: Function, function: int) -> Function:
    """Return the noise-free function, from the Cauchy member of its triple."""
    offset = 10.0 if function < 107 else 1000.0  # alpha 1000 of moderate and severe noise

    def value(x: Float64) -> float:
        return float(np.median([cauchy(x) for _ in range(MEDIAN_OF)])) - offset

    return value


def plan(
    contenders: Sequence[str],
    functions: Sequence[int],
    dimensions: Sequence[int],
    instances: Sequence[int],
) -> list[Trial]:
    """Return all trials, those of one instance together, so that unfinished tables are fair."""
    return [
        Trial(contender, function, n, instance)
        for n in dimensions
        for instance in instances
        for function in functions
        for contender in contenders
    ]


def read(path: Path) -> list[Row]:
    """Return the rows of a file of JSON lines, or of CSV."""
    if not path.exists():
        return []
    if path.suffix == ".csv":
        return [
            {
                name: text if name == "contender" else float(text) if name == "value" else int(text)
                for name, text in row.items()
            }
            for row in csv.DictReader(StringIO(path.read_text()))
        ]
    drop_cut_line(path)
    return [json.loads(line) for line in path.read_text().splitlines()]


def has_own_seed(row: Row) -> bool:
    """Return whether the seed of a row is that of its trial; earlier versions had one for all."""
    return Trial(*(row[name] for name in KNOWN[:4])).seed == row.get("seed")


def run(trials: Sequence[Trial], path: Path, jobs: int) -> int:
    """Run the trials that the file lacks; return the number of failures."""
    known = {tuple(row.get(name) for name in KNOWN) for row in read(path)}
    missing = [trial for trial in trials if trial.key not in known]
    print(f"{len(trials)} trials, {len(missing)} of them missing", flush=True)
    since, failed = time.perf_counter(), 0
    with path.open("a") as file:
        for number, (trial, rows) in enumerate(_finished(missing, jobs), 1):
            if isinstance(rows, str):
                failed += 1
                print(f"{trial}: {rows}", file=sys.stderr, flush=True)
                continue
            # one line per budget, written at once
            file.write("".join(json.dumps(row) + "\n" for row in rows))
            file.flush()
            if number % 100 == 0:
                print(f"{number} trials in {time.perf_counter() - since:.0f} s", flush=True)
    return failed


def _finished(trials: Sequence[Trial], jobs: int) -> Iterator[tuple[Trial, list[Row] | str]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=end_with_parent) as pool:
        futures = {pool.submit(_attempt, trial): trial for trial in trials}
        try:
            for future in as_completed(futures):
                yield futures.pop(future), future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _attempt(trial: Trial) -> list[Row] | str:
    try:
        return trial.rows()
    except Exception as error:  # one contender's error must not end the other trials
        return f"{type(error).__name__}: {error}"


def csv_text(rows: Sequence[Row]) -> str:
    """Return the rows as CSV."""
    file = StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=lambda row: [str(row[name]) for name in _ORDER]))
    return file.getvalue()


# Tables.

Cell = tuple[int, int]  # function and instance


def values_of(rows: Sequence[Row], n: int, budget: int) -> dict[str, dict[Cell, float]]:
    """Return the value of each contender by problem."""
    found: dict[str, dict[Cell, float]] = defaultdict(dict)
    for row in rows:
        if (row["n"], row["budget"]) == (n, budget):
            found[row["contender"]][row["function"], row["instance"]] = row["value"]
    return found


def mean_ranks(values: Mapping[str, Mapping[Cell, float]], names: Sequence[str]) -> Any:
    """Return the ranks of contenders, float64[problems, contenders], 1 is best; equal values share
    their mean rank. Differences below PRECISION, such as of two searches at the optimum, are none.
    """
    cells = sorted(set.intersection(*(set(values[name]) for name in names)))
    table = np.array([[values[name][cell] for name in names] for cell in cells])
    table = np.where(np.isfinite(table), table, np.inf).reshape(len(cells), len(names))
    table = np.round(table / PRECISION)
    lower = (table[:, np.newaxis, :] < table[:, :, np.newaxis]).sum(axis=2)
    equal = (table[:, np.newaxis, :] == table[:, :, np.newaxis]).sum(axis=2)
    return lower + (equal + 1) / 2


def interval(differences: Any) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean of paired differences, float64[functions,
    instances], NaN if missing; functions and instances are resampled.
    """
    rng, (functions, instances) = np.random.default_rng(0), differences.shape
    means = []
    for _ in range(BOOTSTRAPS):
        drawn = rng.integers(functions, size=functions)
        means.append(np.nanmean(differences[drawn][:, rng.integers(instances, size=instances)]))
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def by_instance(cells: Sequence[Cell], differences: Float64) -> Float64:
    """Return differences, float64[cells], as float64[functions, instances]; NaN if missing."""
    functions, instances = (sorted(set(numbers)) for numbers in zip(*cells, strict=True))
    table = np.full((len(functions), len(instances)), np.nan)
    for (function, instance), difference in zip(cells, differences, strict=True):
        table[functions.index(function), instances.index(instance)] = difference
    return table


def markdown(rows: Sequence[Row]) -> str:
    """Return the tables: mean ranks, and wins against the same method without handling."""
    lines: list[str] = []
    for n, budget in sorted({(row["n"], row["budget"]) for row in rows}):
        values = values_of(rows, n, budget)
        groups = {"the paper's seven": OF_PAPER, "ours in place of the paper's": OURS}
        groups["all"] = tuple(name for name in CONTENDERS if name in values)
        lines += ["", f"n = {n}, {budget} n evaluations", ""]
        lines += [
            "| among | contender | mean rank | of the paper | problems |",
            "|---|---|---|---|---|",
        ]
        for title, names in groups.items():
            if not set(names) <= set(values):
                continue
            ranks = mean_ranks(values, names)
            for name, mean in sorted(
                zip(names, ranks.mean(axis=0), strict=True), key=lambda p: p[1]
            ):
                published = (
                    PAPER.get(name, {}).get(budget) if n == 40 and title.startswith("the") else None
                )
                lines.append(
                    f"| {title} | {name} | {mean:.3f} | {published or ''} | {len(ranks)} |"
                )
        lines += ["", *pair_lines(values, PAIRS)]
    return "\n".join(lines).strip()


def pair_lines(
    values: Mapping[str, Mapping[Cell, float]], pairs: Sequence[tuple[str, str]]
) -> list[str]:
    """Return the table of the pairs whose values are known."""
    lines = [
        "| pair | wins | losses | difference of mean ranks among two (95 %) |",
        "|---|---|---|---|",
    ]
    for one, other in pairs:
        if {one, other} <= set(values):
            ranks = mean_ranks(values, (one, other))
            differences = ranks[:, 0] - ranks[:, 1]
            cells = sorted(set(values[one]) & set(values[other]))
            low, high = interval(by_instance(cells, differences))
            wins, losses = int((differences < 0).sum()), int((differences > 0).sum())
            lines.append(
                f"| {one} beside {other} | {wins} | {losses} | {differences.mean():+.3f} ({low:+.3f} to {high:+.3f}) |"
            )
    return lines


PAIRS = (
    ("sep_cma_es auto", "sep_cma_es"),
    ("sep_cma_es auto", "probe and switch"),
    ("probe and switch", "sep_cma_es"),
    ("sep_cma_es auto, drawn", "sep_cma_es auto"),
    ("cma_es auto", "cma_es"),
    ("sep_cma_es reevaluate", "sep_cma_es"),
    ("cma_es learning_rate", "cma_es"),
    ("cma_es learning_rate", "cmaes lr_adapt"),
)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the mean ranks with their intervals, a panel for each budget and dimension.

    Contenders are in the order of the first panel.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes = sorted({row["n"] for row in rows})
    tables = {(n, budget): values_of(rows, n, budget) for n in sizes for budget in BUDGETS}
    names = [name for name in CONTENDERS if all(name in table for table in tables.values())]
    first = mean_ranks(tables[sizes[0], BUDGETS[0]], names).mean(axis=0)
    order = np.argsort(-first, kind="stable")
    figure, axes = plt.subplots(
        len(sizes),
        len(BUDGETS),
        figsize=(8, (0.6 + 0.27 * len(names)) * len(sizes)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, ((n, budget), table) in zip(axes.flat, tables.items(), strict=True):
        cells = sorted(set.intersection(*(set(table[name]) for name in names)))
        ranks = mean_ranks(table, names)
        for place, index in enumerate(order):
            low, high = interval(by_instance(cells, ranks[:, index]))
            color = "#0072b2" if names[index].endswith("auto") else "#767676"
            axis.plot([low, high], [place, place], color=color, linewidth=1.5)
            axis.plot(ranks[:, index].mean(), place, "o", color=color, markersize=5)
        axis.set_yticks(range(len(names)), [names[index] for index in order])
        axis.set_title(f"n = {n}, {budget} n evaluations", fontsize=10)
        axis.grid(axis="x", color="#e5e5e5")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel(f"mean rank among {len(names)}, with 95 % intervals")
    figure.savefig(path, dpi=120)
    plt.close(figure)
