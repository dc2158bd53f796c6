"""Methods compared on one task: profiles of scores, probabilities of improvement, time to a target.

Each number is over the independent runs of a method, and only rank and order count, so that one
extreme run does not decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpc_es.core.data import Float64
from hpc_es.core.errors import UserError, visible
from hpc_es.core.text_table import aligned
from hpc_es.report.curves import COLUMNS, RunCurves, RunGroup, X, by_task, drawable
from hpc_es.report.statistics import Ends, bootstrap_interval, probability_of_improvement


@dataclass(frozen=True)
class Step:
    """A step function from the left: shares[i] holds from x[i] on."""

    x: Float64  # float64[points], ascending
    shares: Float64  # float64[points]


def performance_profile(scores: Float64, sign: float = 1.0) -> Step:
    """Return the share of runs whose score is better than a threshold, for any threshold.

    P(tau) = 1/n sum of 1[x_i > tau], the run-score distribution of Agarwal et al. 2021
    (arXiv:2108.13264, section 4.2); of minimised scores, x_i < tau.

    Args:
        scores: float64[n]; infinite for runs without a usable result, the worse end.
        sign: -1 if lower scores are better.

    Returns:
        The shares at the scores themselves, the ones just beyond them: of maximised scores the
        share above each, of minimised ones the share up to and including it.

    Examples:
        >>> performance_profile(np.array([1.0, 3.0, 3.0, 4.0])).shares
        array([0.75, 0.25, 0.  ])
    """
    x = np.unique(scores[np.isfinite(scores)])
    beyond = scores[:, None] > x if sign > 0 else scores[:, None] <= x
    return Step(x, beyond.mean(axis=0))


def reached_by(times: Float64, reached: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Step:
    """Return the estimated share of runs that have reached a target by a time.

    A run that ended without it is censored: it says only that its time is longer. The estimator is
    that of Kaplan and Meier 1958 (J. Am. Stat. Assoc. 53), 1 - prod over t_i <= t of
    (1 - d_i / n_i), with d_i runs that reach the target at t_i, and n_i that have not reached it
    and not ended before.

    Args:
        times: float64[runs], at which the target was reached or the run ended.
        reached: bool[runs].

    Examples:
        >>> reached_by(np.array([2.0, 3.0, 5.0]), np.array([True, False, True])).shares
        array([0.33333333, 1.        ])
    """
    x = np.unique(times[reached])
    at_risk = (times[:, None] >= x).sum(axis=0)
    events = (times[reached][:, None] == x).sum(axis=0)
    return Step(x, 1.0 - np.cumprod(1.0 - events / np.maximum(at_risk, 1)))


def expected_running_time(
    times: Float64, reached: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
) -> float:
    """Return the expected time to the target with restarts: that of all runs, per success.

    ERT = sum of times / number of runs that reached it (Auger and Hansen 2005, CEC); infinite if
    no run did.

    Examples:
        >>> expected_running_time(np.array([2.0, 10.0, 6.0]), np.array([True, False, True]))
        9.0
    """
    count = int(reached.sum())
    return float(times.sum()) / count if count else math.inf


@dataclass(frozen=True)
class Method:
    """The runs of one configuration, as what is compared."""

    label: str
    scores: Float64  # float64[runs]; infinite: no usable answer
    sign: float
    times: Float64 | None = None  # float64[runs], to the target or the end
    reached: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None = None
    unit: str = "score"  # what scores are, such as "return per episode"

    def better_than(self, other: Method) -> tuple[float, Ends | None]:
        """Return the probability that a run is better than one of another method.

        With its bootstrap interval. Equal scores count one half (Agarwal et al. 2021).
        """
        first, second = other.sign * other.scores, self.sign * self.scores
        value = float(probability_of_improvement(first, second))
        interval = bootstrap_interval(probability_of_improvement, first.tolist(), second.tolist())
        return value, interval


def methods_of(groups: Sequence[RunGroup], x: X, target: float | None) -> list[Method]:
    """Return the methods of groups on one task.

    Args:
        groups: of `curves.grouped`.
        x: in which the time to the target is measured.
        target: a return or value; None: none is looked at.

    Raises:
        UserError: they have several tasks or measures.
    """
    if len(tasks := by_task(groups)) > 1:
        raise UserError(
            f"the runs have {len(tasks)} tasks, {', '.join(tasks)}: expected methods on one task"
        )
    if len({group.measure.label for group in groups}) > 1:
        raise UserError("the runs have different measures: expected methods with one measure")
    return [_method(group, x, target) for group in groups]


def _method(group: RunGroup, x: X, target: float | None) -> Method:
    sign = group.runs[0].found.sign
    scores = np.array([_score(run) for run in group.runs])
    method = Method(visible(group.label), scores, sign, unit=group.measure.label)
    if target is None:
        return method
    found = [_time_to(run, x, target) for run in group.runs]
    times = np.array([time for time, _ in found])
    return replace(method, times=times, reached=np.array([is_reached for _, is_reached in found]))


def _score(run: RunCurves) -> float:
    """Return the answer of a run; the worst possible one if there is none, or it is infeasible or
    beyond what a picture can show.
    """
    answer = run.found.answer
    if not answer.is_comparable or math.isnan(value := drawable(answer.value)):
        return -run.found.sign * math.inf
    return value


def _time_to(run: RunCurves, x: X, target: float) -> tuple[float, bool]:
    """Return when a run reached a target, or how long it took without reaching it.

    Of a policy, evaluations of the centre count, if there are any, as for `stop.target_return`.
    """
    measure = run.measure
    has_centre = np.isfinite(run.columns.get(measure.centre, np.array([np.nan]))).any()
    is_best = measure.y.startswith("best")
    column = measure.centre if has_centre and not is_best else measure.y
    at, values = run.series(COLUMNS[x], column)
    ends = run.columns[COLUMNS[x]]
    good = np.flatnonzero(run.found.sign * values >= run.found.sign * target)
    if len(good):
        return float(at[good[0]]), True
    return float(np.nanmax(ends)), False


def methods_text(methods: Sequence[Method], x: X, target: float | None) -> str:
    """Return the comparison as a table, each method beside the first one."""
    head = ["method", "runs", f"better than {methods[0].label}"]
    if target is not None:
        head += [f"reached {target:g}", f"{x} to it (ERT)"]
    rows = []
    for method in methods:
        cells = [method.label, str(len(method.scores)), "-"]
        if method is not methods[0]:
            value, ends = method.better_than(methods[0])
            cells[2] = f"{value:.2f}" + (f" ({ends[0]:.2f} to {ends[1]:.2f})" if ends else "")
        if method.times is not None and method.reached is not None:
            time = expected_running_time(method.times, method.reached)
            cells += [
                f"{int(method.reached.sum())} of {len(method.reached)}",
                f"{time:,.4g}" if math.isfinite(time) else "-",
            ]
        rows.append(cells)
    return "".join(f"{line}\n" for line in aligned([head, *rows]))


def read_methods(runs: Sequence[Path], x: X | None, target: float | None) -> tuple[list[Method], X]:
    """Return the methods of run directories or directories of repetitions, and their x axis."""
    from hpc_es.report.plot import groups_of

    groups = groups_of(runs)
    axis = x or groups[0].measure.panels[0]
    return methods_of(groups, axis, target), axis
