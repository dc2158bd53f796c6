"""`task.repeats`: several evaluations of each job of a generation, and how many.

All jobs of a generation are evaluated equally often, and count with the means of what succeeded.
The number follows from the reliability of one evaluation: the intraclass correlation of a one-way
analysis of variance (ICC(1, 1) of Shrout & Fleiss 1979),

    rho = (MSB - MSW) / (MSB + (k_0 - 1) MSW)

with the mean squares between and within candidates. It is computed from the ranks of all
evaluations of the generation, since strategies use ranks, and one wild value must not decide. With
several objectives it is that of the least reliable one. The mean of k evaluations has the
reliability k rho / (1 + (k - 1) rho) (Spearman-Brown), so that

    k = ceil(R / (1 - R) (1 - rho) / rho)

evaluations reach R = RELIABILITY, where half of the variance of what is ranked is noise. It is kept
within `at_least` and `at_most`; rho is averaged over generations. The first generation has two
evaluations of each job (or `at_least`). If all of them are equal in pairs, the function counts as
noiseless, and others have `at_least`. One evaluation of each job says nothing about noise, so every
PROBE_INTERVAL-th generation has two.

Everything follows from rows, so it does not depend on ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import Count, option, options
from hpc_es.core.data import Array, Arrays, Column, Float64, Rows
from hpc_es.core.declarations import Metric, NoiseReport
from hpc_es.core.quantities import OBJECTIVES, Quantities

RELIABILITY = 0.5  # of the means that are ranked
SMOOTHING = 0.3  # weight of a new reliability
PROBE_INTERVAL = 10  # generations
FEWEST = 2  # evaluations of a candidate that show noise

# of rows: successful evaluations, and the standard error of the mean of value and quantities
REPEATS = Column("repeats", "<i4")
ERROR = Column("standard_error", "<f8")
ERRORS = "standard_errors"
RECORDED = (ERROR.name, REPEATS.name)  # columns of evaluations.csv
EVALUATIONS, IS_EQUAL, RHO = "repeats_counted", "repeats_equal", "repeats_rho"  # of a unit

METRICS: Mapping[str, Metric] = {
    "repeats": Metric("evaluations of each candidate", short="repeats"),
    "reliability": Metric("reliability of one evaluation"),
    "noise_share": Metric("share of what is ranked that is noise", short="noise share"),
}
UNKNOWN, NOISELESS, NOISY = range(3)  # values of repeats_noise


@options
class RepeatOptions:
    """`task.repeats:`, the evaluations of each job of a generation."""

    at_least: Count = option("smallest number of evaluations of a candidate", 1)
    at_most: Count = option(
        "largest number of evaluations of a candidate; if it is more than at_least, the number follows from the noise",
        1,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for each mistake that involves both options."""
        if self.at_most < self.at_least:
            yield "at_most", f"is {self.at_most}: expected at least at_least, {self.at_least}"

    @property
    def are_used(self) -> bool:
        """Whether a job may be evaluated more than once."""
        return self.at_most > 1


def columns(quantities: Quantities) -> tuple[Column, ...]:
    """Return the columns of rows that are means."""
    names = len(quantities.names)
    return (REPEATS, ERROR, *([Column(ERRORS, "<f8", (names,))] if names else []))


def recorded_names(quantities: Quantities) -> tuple[str, ...]:
    """Return the names of these columns in evaluations.csv."""
    return (*RECORDED, *(f"{name}_{ERROR.name}" for name in quantities.names))


def standard_error(values: Float64) -> Float64:
    """Return the standard errors of means, float64[jobs].

    Args:
        values: float64[evaluations, jobs]; NaN: failed.

    Returns:
        float64[jobs]; NaN for means of fewer than two evaluations.

    Examples:
        >>> standard_error(np.array([[1.0, 5.0], [3.0, np.nan]]))
        array([ 1., nan])
    """
    count, mean = np.isfinite(values).sum(axis=0), _mean(values)
    squares = _sum(np.square(values - mean))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 1, np.sqrt(squares / (count - 1) / count), np.nan)


def _sum(values: Array) -> Array:
    """Return sums of what is not NaN over the first axis, in order."""
    total = np.zeros(values.shape[1:])
    for row in values:
        total = total + np.where(np.isnan(row), 0.0, row)
    return total


def _mean(values: Array) -> Array:
    """Return means of what is not NaN over the first axis; NaN if there is nothing."""
    if len(values) == 1:
        return np.array(values[0])
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Array = _sum(values) / (~np.isnan(values)).sum(axis=0)
    return mean


def combined(passes: Sequence[Rows], quantities: Quantities) -> Rows:
    """Return rows with the means of several evaluations of the same jobs.

    Args:
        passes: row_dtype[jobs] of the first evaluations, the second ones, and so on; the last ones
            may be fewer. The column `repeats` of a row is the number of evaluations that it stands
            for: 0 for an evaluation that was left out, and more for a known value.
        quantities: which columns are quantities.

    Returns:
        row_dtype[jobs]. The return of a job is NaN if all its evaluations failed.
    """
    first = passes[0]
    rows: Rows = first.copy()
    missing = np.zeros(len(first), first.dtype)
    missing["return_"] = np.nan
    whole = [np.concatenate([p, missing[len(p) :]]) for p in passes]
    succeeded = np.array(
        [~np.isnan(p["return_"]) & (p[REPEATS.name] > 0) for p in whole]
    )  # [passes, jobs]
    for name in first.dtype.names or ():
        if first.dtype[name].base.kind != "f":
            continue
        values = np.array([p[name] for p in whole], np.float64)
        values[~succeeded] = np.nan
        rows[name] = _mean(values)
    values = np.array([p["value"] for p in whole])
    values[~succeeded] = np.nan
    several = succeeded.sum(axis=0) > 1
    rows[REPEATS.name] = _sum(np.where(succeeded, [p[REPEATS.name] for p in whole], 0))
    # a known value has an error of its own
    known = _mean(np.where(succeeded, [p[ERROR.name] for p in whole], np.nan))
    rows[ERROR.name] = np.where(several, standard_error(values), known)
    if quantities.names:
        numbers = np.array([quantities.of(p) for p in whole])
        numbers[~succeeded] = np.nan
        errors = [standard_error(numbers[:, :, index]) for index in range(numbers.shape[2])]
        rows[ERRORS] = np.where(several[:, np.newaxis], np.stack(errors, axis=1), np.nan)
    return rows


def reliability(values: Float64) -> float:
    """Return rho of one evaluation, from the ranks of all evaluations.

    Args:
        values: float64[evaluations, candidates], NaN for failed ones.

    Returns:
        0 .. 1; NaN if no candidate was evaluated twice, or there is only one.

    Examples:
        >>> reliability(np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]))
        1.0
    """
    valid = ~np.isnan(values)
    ranks = np.full(values.shape, np.nan)
    ranks[valid] = _average_ranks(values[valid])
    counts = valid.sum(axis=0)
    ranks, counts = ranks[:, counts > 0], counts[counts > 0]
    candidates, total = len(counts), int(counts.sum())
    if candidates < 2 or total == candidates:
        return math.nan
    means, mean = _mean(ranks), float(_sum(_sum(ranks).reshape(-1)) / total)
    between = float((counts * np.square(means - mean)).sum()) / (candidates - 1)
    within = float(_sum(np.square(ranks - means)).sum()) / (total - candidates)
    usual = (total - float(np.square(counts).sum()) / total) / (candidates - 1)  # k_0
    power = between + (usual - 1) * within
    return min(max((between - within) / power, 0.0), 1.0) if power > 0 else 1.0


def _average_ranks(values: Float64) -> Float64:
    """Return ranks, float64[values], of equal values their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Float64 = (last - 0.5 * (counts - 1))[inverse.reshape(-1)]
    return ranks


def needed(rho: float) -> float:
    """Return the number of evaluations whose mean has RELIABILITY; infinite if rho is 0.

    Examples:
        >>> needed(0.2)
        4
    """
    if rho <= 0:
        return math.inf
    return math.ceil(round(RELIABILITY / (1 - RELIABILITY) * (1 - rho) / rho, 9))


@dataclass(frozen=True)
class Repeats:
    """How often the jobs of a generation are evaluated.

    State, shared:
        repeats: int64[], if the task has repeats; evaluations of each job of the next generation
        repeats_noise: int64[], if the task has repeats; 0: unknown, 1: there is none, 2: there is
            noise
        repeats_reliability: float64[], if the task has repeats; rho, averaged; NaN: unknown
        repeats_measured: int64[], if the task has repeats; generations since it was measured
        repeats_used: int64[], if the task has repeats; evaluations of each job of the last
            generation
    """

    options: RepeatOptions
    number: int
    noise: int = UNKNOWN
    rho: float = math.nan
    measured: int = 0
    used: int = 0

    @classmethod
    def first(cls, options: RepeatOptions) -> Repeats:
        """Return what is known before the first generation."""
        return cls(options, min(max(options.at_least, FEWEST), options.at_most))

    @classmethod
    def of(cls, options: RepeatOptions, shared: Arrays) -> Repeats:
        """Return what the arrays of a state say."""
        return cls(
            options,
            int(shared["repeats"]),
            int(shared["repeats_noise"]),
            float(shared["repeats_reliability"]),
            int(shared["repeats_measured"]),
            int(shared["repeats_used"]),
        )

    def arrays(self) -> dict[str, Array]:
        """Return arrays of the state."""
        return {
            "repeats": np.array(self.number),
            "repeats_noise": np.array(self.noise),
            "repeats_reliability": np.array(self.rho),
            "repeats_measured": np.array(self.measured),
            "repeats_used": np.array(self.used),
        }

    def after(self, units: Sequence[Arrays]) -> Repeats:
        """Return this after a generation that `unit` has described, if there was one."""
        mine = [unit for unit in units if RHO in unit]
        if not mine:
            return self
        unit = mine[0]
        rho, known = float(unit[RHO]), replace(self, measured=self.measured + 1)
        if not math.isnan(rho):
            smooth = rho if math.isnan(self.rho) else self.rho + SMOOTHING * (rho - self.rho)
            is_noisy = self.noise == NOISY or not bool(unit[IS_EQUAL])
            known = replace(self, rho=smooth, noise=NOISY if is_noisy else NOISELESS, measured=0)
        return replace(known, number=known.following(), used=int(unit[EVALUATIONS]))

    @property
    def noise_share(self) -> float:
        """The share of the variance of the last means that is noise: 1 less their reliability
        k rho / (1 + (k - 1) rho).
        """
        return 1 - self.used * self.rho / (1 + (self.used - 1) * self.rho)

    def following(self) -> int:
        """Return the number of evaluations of each job of the next generation."""
        least, most = self.options.at_least, self.options.at_most
        if self.noise == NOISELESS:
            return least
        if math.isnan(self.rho):  # too few evaluations succeeded
            return min(max(least, FEWEST), most)
        number = int(min(max(needed(self.rho), least), most))
        is_due = self.measured + 1 >= PROBE_INTERVAL
        return min(FEWEST, most) if number == 1 and is_due else number


def unit(passes: Sequence[Rows], quantities: Quantities) -> dict[str, Array]:
    """Return what a generation says about noise, for `Repeats.after`.

    Args:
        passes: as in `combined`.
        quantities: with their objectives.
    """
    several = list(passes)
    if len(quantities.objectives) > 1:
        columns = [
            [p[OBJECTIVES][:, i] for p in several] for i in range(len(quantities.objectives))
        ]
    else:
        columns = [[p["return_"] for p in several]]
    evaluated = [p[REPEATS.name] == 1 for p in several]
    tables = [_table(column, evaluated) for column in columns]
    rhos = [reliability(table) for table in tables]
    return {
        EVALUATIONS: np.array(len(passes)),
        IS_EQUAL: np.array(all(map(_is_equal, tables))),
        RHO: np.array(min(rhos) if not any(map(math.isnan, rhos)) else math.nan),
    }


def _table(values: Sequence[Float64], evaluated: Sequence[npt.NDArray[np.bool_]]) -> Float64:
    """Return the values, float64[evaluations, candidates], NaN where there was no evaluation."""
    table = np.full((len(values), len(values[0])), np.nan)
    for row, column, is_own in zip(table, values, evaluated, strict=True):
        row[: len(column)] = np.where(is_own, column, np.nan)
    return table


def _is_equal(table: Float64) -> bool:
    """Return whether all evaluations of each candidate have the same value."""
    first = table[0]
    return not any(
        bool(((row != first) & ~np.isnan(row) & ~np.isnan(first)).any()) for row in table
    )


def report(options: RepeatOptions) -> NoiseReport:
    """Return how to read what is known about noise."""

    def is_noisy(shared: Arrays) -> bool:
        return Repeats.of(options, shared).noise == NOISY

    def cost_text(shared: Arrays) -> str:
        first = Repeats.of(options, shared).number
        if options.at_least == options.at_most:
            return f"each candidate is evaluated {first} times (task.repeats)"
        return (
            f"each candidate is evaluated {first} times in the first generation; if there is noise, then {options.at_least} to "
            f"{options.at_most} times, and at least {FEWEST} times every {PROBE_INTERVAL} generations (docs/guides/noise.md)"
        )

    def rounds(population: int) -> tuple[int, ...]:
        return (population * Repeats.first(options).number,)

    return NoiseReport(is_noisy, cost_text, rounds)
