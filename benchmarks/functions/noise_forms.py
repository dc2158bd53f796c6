"""Forms of noise handling in sep-CMA-ES on bbob-noisy, many searches at once.

    python -m benchmarks.functions.noise_forms --instances 16 17 18 --csv forms.csv

The forms of FORMS differ in the constants of the search, the scale of the residuals and its fit,
and later probes; `auto` is that of hpc_es. All searches of an instance are rows of the same arrays,
which takes a tenth of the time of `python -m benchmarks.functions noisy`. Searches and budgets are
those of `noisy.py`. The noise of bbob-noisy is one stream per process, so the rows depend on the
forms and functions that run together.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.functions import noisy
from benchmarks.functions.noisy import BUDGETS, SIGMA, Row
from hpc_es.algorithms import sep_cma_es
from hpc_es.algorithms.common.covariance import expected_length
from hpc_es.algorithms.common.noise_handling import (
    DRAWS,
    LEAST_RESIDUALS,
    POOL_SIZE,
    SMOOTHING,
    NoiseHandling,
    fitted_scale,
)
from hpc_es.algorithms.common.ranking import default_population
from hpc_es.core.data import Float64

NEVER = 1 << 60  # a generation
# evaluations per dimension: generations are complete, so that the noise of others stays the same
ENDLESS = 1 << 40


@dataclass(frozen=True)
class Form:
    """A form of noise handling.

    Args:
        has_own_constants: whether the search has the constants of `sep_cma_es`, or the paper's.
        threshold: misranking from which noise is handled; 9: never, and no probe.
        interval: generations between probes; NEVER: only the first generation has one.
        scale: of the residuals of candidates with one value; those with two have the scale 1.
        clips: whether a negative coefficient of the line of least squares is set to 0, or the best
            line without one is taken.
    """

    has_own_constants: bool = True
    threshold: float = 0.12
    interval: int = NEVER
    scale: float = 1.0
    clips: bool = False


FORMS = {
    "larger residuals": Form(interval=50, scale=math.sqrt(2)),
    "none": Form(threshold=9),
    "paper": Form(has_own_constants=False, clips=True),
    "clipped fit": Form(clips=True),
    "later probes": Form(interval=50),
    "auto": Form(),
}
PAIRS = (
    ("auto", "none"),
    ("auto", "larger residuals"),
    ("larger residuals", "none"),
    ("later probes", "none"),
    ("later probes", "larger residuals"),
    ("later probes", "auto"),
    ("clipped fit", "none"),
    ("clipped fit", "larger residuals"),
    ("clipped fit", "auto"),
    ("paper", "none"),
    ("paper", "clipped fit"),
)


def constants(n: int, population: int, form: Form) -> tuple[Float64, Float64]:
    """Return the weights, and mu_eff, c_sigma, c_c, c_1, c_mu, d_sigma."""
    if form.has_own_constants:
        c = sep_cma_es.constants(n, population)
        return c.weights, np.array([c.mu_eff, c.c_sigma, c.c_c, c.c_1, c.c_mu, c.d_sigma])
    raw = np.log(population // 2 + 0.5) - np.log(np.arange(1, population + 1))
    weights = np.maximum(0, raw) / np.maximum(0, raw).sum()
    mu_eff = 1 / np.square(weights).sum()
    faster, c_sigma = (n + 2) / 3, (mu_eff + 2) / (n + mu_eff + 5)
    c_c = (4 + mu_eff / n) / (n + 4 + 2 * mu_eff / n)
    c_1 = min(1, faster * 2 / ((n + 1.3) ** 2 + mu_eff))
    c_mu = min(1 - c_1, faster * 2 * (mu_eff - 2 + 1 / mu_eff) / ((n + 2) ** 2 + mu_eff))
    d_sigma = 1 + 2 * max(0, math.sqrt((mu_eff - 1) / (n + 1)) - 1) + c_sigma
    return weights, np.array([mu_eff, c_sigma, c_c, c_1, c_mu, d_sigma])


def ranks(values: Float64) -> Any:
    """Return ranks along the last axis, 0 is lowest."""
    return np.argsort(np.argsort(values, -1, kind="stable"), -1, kind="stable")


@dataclass
class Memory:
    """What one search knows about the noise."""

    form: Form
    misranking: float = math.nan
    next_probe: int = 0
    scale: Float64 | None = None
    # a ring, to which `added` residuals were written
    pool: Float64 = field(default_factory=lambda: np.zeros(POOL_SIZE))
    added: int = 0

    @property
    def handles(self) -> bool:
        """Whether candidates are evaluated again."""
        return self.misranking >= self.form.threshold

    def probed(self, generation: int, first: Float64, second: Float64) -> None:
        """Note the misranking of two values of each candidate."""
        measured = float(np.abs(ranks(first) - ranks(second)).mean() / len(first))
        is_first = math.isnan(self.misranking)
        self.misranking = measured if is_first else 0.5 * (self.misranking + measured)
        self.next_probe = generation + self.form.interval

    def learn(self, values: Float64, residuals: Float64) -> None:
        """Learn from pairs, float64[k] each: means, and first values less means."""
        sizes, lengths = np.abs(values), np.abs(residuals)
        if 2 * len(sizes) >= LEAST_RESIDUALS or self.scale is None:
            fit = clipped_scale if self.form.clips else fitted_scale
            fitted = fit(sizes, lengths)
            old = fitted if self.scale is None else self.scale
            self.scale = old + SMOOTHING * (fitted - old)
        z = np.clip(residuals / np.maximum(self.widths(values), 1e-300), -10, 10)
        z = np.concatenate([z, -z])
        self.pool[(self.added + np.arange(len(z))) % POOL_SIZE] = z
        self.added += len(z)

    def widths(self, values: Float64) -> Float64:
        """Return s_0 + s_1 |f|."""
        assert self.scale is not None
        return np.asarray(self.scale[0] + self.scale[1] * np.abs(values))

    def expected(self, weights: Float64, values: Float64, is_pair: Any, draws: Any) -> Float64:
        """Return the means of weights over rankings; draws are int64[rankings, candidates]."""
        widths = self.widths(values) * np.where(is_pair, 1.0, self.form.scale)
        residuals = self.pool[draws % min(self.added, POOL_SIZE)]
        return np.asarray(weights[ranks(values + widths * residuals)].mean(axis=0))


def clipped_scale(sizes: Float64, residuals: Float64) -> Float64:
    """Return the line of least squares with negative coefficients set to 0."""
    spread = sizes - sizes.mean()
    squares = np.square(spread).sum()
    slope = (spread * residuals).sum() / squares if squares > 0 else 0.0
    return np.maximum([residuals.mean() - slope * sizes.mean(), slope], 0)


class Searches:
    """The searches of one instance: a row of all arrays for each function and form."""

    def __init__(self, trials: Sequence[tuple[int, str]], n: int, instance: int, seed: int) -> None:
        self.n, self.instance, self.count = n, instance, default_population(n)
        self._rng = np.random.default_rng([seed, n, instance])
        self._functions = [
            noisy.Budget(noisy.problem(function, n, instance), n, (*BUDGETS, ENDLESS))
            for function, _ in trials
        ]
        self._memories = [Memory(FORMS[name]) for _, name in trials]
        found = [constants(n, self.count, memory.form) for memory in self._memories]
        self._weights = np.array([weights for weights, _ in found])
        self._constants = np.array([numbers for _, numbers in found])
        # next to the boundary between ranks mu - 1 and mu
        boundary = self.count // 2 - 0.5
        near = sorted(range(self.count), key=lambda rank: (abs(rank - boundary), rank))
        self._band = near[: NoiseHandling.most(self.count)]
        rows = len(trials)
        self._sigma, self._variances = np.full(rows, SIGMA), np.ones((rows, n))
        self._mean, self._p_sigma, self._p_c = np.zeros((3, rows, n))
        self._ended = np.zeros(rows, bool)

    def run(self) -> list[noisy.Budget]:
        """Search until all budgets are used up; return what the functions have recorded."""
        generation = 0
        while not self._ended.all():
            self._step(generation)
            generation += 1
        return self._functions

    def _step(self, generation: int) -> None:
        rows = np.flatnonzero(~self._ended)
        z = self._rng.standard_normal((len(rows), self.count, self.n))
        y = np.sqrt(self._variances[rows])[:, np.newaxis] * z
        x = self._mean[rows][:, np.newaxis] + self._sigma[rows][:, np.newaxis, np.newaxis] * y
        handled = [row for row in rows if self._memories[row].handles]
        drawn = self._rng.integers(0, 1 << 40, (len(handled), DRAWS, self.count))
        draws = dict(zip(handled, drawn, strict=True))
        weights = np.zeros((len(rows), self.count))
        for k, row in enumerate(rows):
            weights[k] = self._evaluated(row, generation, x[k], draws.get(row))
            self._ended[row] = len(self._functions[row].means) == len(BUDGETS)
        self._update(rows, generation, weights, z, y)
        for row in rows:
            self._functions[row].mean = self._mean[row]

    def _evaluated(self, row: int, generation: int, x: Float64, draws: Any) -> Float64:
        """Evaluate the candidates of a search; return their weights, expected ones over the draws
        unless these are None.
        """
        f, memory = self._functions[row], self._memories[row]
        values = np.array([f(vector) for vector in x])
        again: Any = []
        if memory.form.threshold <= 1 and generation >= memory.next_probe:
            again = np.arange(self.count)
        elif draws is not None:
            again = np.argsort(values, kind="stable")[self._band]
        if len(again):
            second = np.array([f(x[candidate]) for candidate in again])
            f.reevaluations += len(again)
            if len(again) == self.count:
                memory.probed(generation, values, second)
            residuals = (values[again] - second) / 2
            values[again] = (values[again] + second) / 2
            memory.learn(values[again], residuals)
        if draws is None:
            return np.asarray(self._weights[row][ranks(values)])
        is_pair = np.isin(np.arange(self.count), again)
        return memory.expected(self._weights[row], values, is_pair, draws)

    def _update(self, rows: Any, generation: int, weights: Float64, z: Float64, y: Float64) -> None:
        n, chi_n = self.n, expected_length(self.n)
        _, c_s, c_c, c_1, c_mu, d_s = self._constants[rows].T
        mu_eff = 1 / np.square(weights).sum(axis=1)
        z_w, y_w = (np.einsum("kl,kln->kn", weights, steps) for steps in (z, y))
        self._mean[rows] += self._sigma[rows][:, np.newaxis] * y_w
        gain = np.sqrt(c_s * (2 - c_s) * mu_eff)
        self._p_sigma[rows] = _times(1 - c_s, self._p_sigma[rows]) + _times(gain, z_w)
        length = np.linalg.norm(self._p_sigma[rows], axis=1)
        bias = np.sqrt(1 - (1 - c_s) ** (2 * (generation + 1)))
        h = length / bias < (1.4 + 2 / (n + 1)) * chi_n
        gain = h * np.sqrt(c_c * (2 - c_c) * mu_eff)
        p_c = self._p_c[rows] = _times(1 - c_c, self._p_c[rows]) + _times(gain, y_w)
        decay = 1 - c_1 - c_mu + (1 - h) * c_1 * c_c * (2 - c_c)
        squares = np.einsum("kl,kln->kn", weights, np.square(y))
        self._variances[rows] = (
            _times(decay, self._variances[rows])
            + _times(c_1, np.square(p_c))
            + _times(c_mu, squares)
        )
        self._sigma[rows] *= np.exp(np.minimum(1, c_s / d_s * (length / chi_n - 1)))


def _times(factors: Float64, vectors: Float64) -> Float64:
    return np.asarray(factors[:, np.newaxis] * vectors)


def trial_rows(
    names: Sequence[str], functions: Sequence[int], n: int, *, instance: int, seed: int
) -> list[Row]:
    """Return the rows of all forms and functions on an instance."""
    trials = [(function, name) for function in functions for name in names]
    rows = []
    for (function, name), f in zip(trials, Searches(trials, n, instance, seed).run(), strict=True):
        member = noisy.cauchy_member(function)
        free = noisy.noise_free(noisy.problem(member, n, instance), function)
        rows += [
            dict(
                zip(
                    noisy.COLUMNS,
                    (name, function, n, instance, seed, budget, free(mean), f.reevaluations),
                    strict=True,
                )
            )
            for budget, mean in zip(BUDGETS, f.means, strict=True)
        ]
    return rows


def main(words: Sequence[str] | None = None) -> None:
    """Run the searches, and print the pairs."""
    parser = argparse.ArgumentParser("python -m benchmarks.functions.noise_forms")
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--functions", nargs="+", type=int, default=noisy.FUNCTIONS)
    parser.add_argument("--instances", nargs="+", type=int, default=noisy.TRAINING)
    parser.add_argument("--dimension", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="add the trials to this file")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    options = parser.parse_args(words)
    rows = noisy.read(options.csv) if options.csv else []
    for instance in options.instances if not options.tables else ():
        rows += trial_rows(
            options.forms,
            options.functions,
            options.dimension,
            instance=instance,
            seed=options.seed,
        )
        if options.csv:
            options.csv.write_text(noisy.csv_text(rows))
    for budget in BUDGETS:
        print(f"\n{budget} n evaluations\n")
        values = noisy.values_of(rows, options.dimension, budget)
        print("\n".join(noisy.pair_lines(values, PAIRS)))


if __name__ == "__main__":
    main()
