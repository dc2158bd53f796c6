"""Stopping criteria of a search by CMA-ES or a related strategy, named as in pycma.

Defaults are those of pycma, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpc_es.config.options import Natural, NonNegative, option, options
from hpc_es.core.data import Array, Arrays, Float64

MIN_HISTORY = 10  # generations before tolfun and tolfunhist are tested
HISTORY_INTERVAL = 5  # generations between two entries of the long histories
MAX_HISTORY = 20_000  # entries of the long histories


@options
class Options:
    """`algorithm.stops:`; a tolerance of 0 turns its criterion off."""

    tolfun: NonNegative | None = option(
        "minimum range of the current returns and of recent best returns; null: 1e-11 for objectives, off for policies",
        None,
    )
    tolfunhist: NonNegative | None = option(
        "minimum range of recent best returns; null: 1e-12 for objectives, off for policies", None
    )
    tolfunrel: NonNegative = option(
        "minimum range of the current returns, as a fraction of the total improvement of the median",
        0.0,
    )
    tolx: NonNegative = option(
        "minimum standard deviation and evolution path, over all coordinates", 1e-11
    )
    tolxstagnation: NonNegative = option(
        "minimum change of the mean in 20 generations plus a tenth of the generations so far", 1e-9
    )
    tolfacupx: NonNegative = option(
        "maximum growth factor of a standard deviation (divergence)", 1e3
    )
    tolupsigma: NonNegative = option(
        "maximum growth factor of sigma relative to the longest axis", 1e20
    )
    tolconditioncov: NonNegative = option("maximum condition number of the covariance", 1e14)
    tolflatfitness: Natural | None = option(
        "maximum number of consecutive flat generations; null: 1 for objectives, 3 + 30 times the share of discrete "
        "parameters if there are any, unlimited for policies",
        None,
    )
    tolstagnation: Natural | None = option(
        "maximum number of generations without a better median; null: 100 + 100 n^1.5 / population, 0: unlimited",
        None,
    )
    max_generations: Natural | None = option(
        "maximum number of generations per search; null: 100 + 150 (n + 3)^2 / sqrt(population), 0: unlimited",
        None,
    )
    noeffect: bool = option(
        "end of a search when a fifth of a standard deviation no longer changes a coordinate of the mean",
        True,
    )


NAMES = (
    "tolfun",
    "tolfunhist",
    "tolfunrel",
    "tolx",
    "tolxstagnation",
    "tolfacupx",
    "tolupsigma",
    "tolconditioncov",
    "tolflatfitness",
    "tolstagnation",
    "max_generations",
    "noeffectcoord",
    "noeffectaxis",
    "run_limit",
)


@dataclass(frozen=True)
class View:
    """Quantities that the criteria test after a generation."""

    theta: Array  # dtype[size], the mean
    first_sigma: float  # initial step size of this search
    sigma: float  # step size
    deviations: Float64  # float64[size], standard deviations of the coordinates, including sigma
    path: Float64  # float64[size], evolution path of the covariance, including sigma
    # lengths, ascending, and axes as columns; None: the coordinates
    axes: tuple[Float64, Float64] | None = None
    # initial standard deviations divided by first_sigma, float64[size] or 1
    ratios: Float64 | float = 1.0
    condition: float | None = None  # condition number of the covariance, if the axes are not known
    is_objective: bool = True  # false for the returns of a policy
    changing_fitness: bool = False  # whether fitness of different generations cannot be compared
    # maximum number of consecutive flat generations of an objective, by default
    flat_generations: float = 1.0
    population: int = 0
    age: int = 0  # generations of this search


def initial_history(size: int) -> Arrays:
    """Return the arrays that the criteria need, before the first generation of a search.

    Costs are the fitness with the opposite sign.

    State, master:
        stopped: int64[]; criteria that ended the search, one bit each in the order of
            `stopping.NAMES`
        history: float64[recent], grows; best cost of each recent generation
        history_best: float64[fifths], grows; best cost of every fifth generation, at most 20,000
        history_median: float64[fifths], grows; median cost of the same generations
        median_first: float64[]; median cost of the first generation; NaN before
        median_least: float64[]; lowest median cost so far; infinity before
        least_cost: float64[]; lowest cost so far; infinity before
        least_age: int64[]; `age` at which it was reached
        flat_generations: int64[]; consecutive generations in which three quarters of the costs were
            equal
        still_theta: float64[normal]; the mean after its last change; NaN before
        still_generations: int64[]; generations since then
    """
    return {
        "stopped": np.array(0),
        "history": np.zeros(0),
        "history_best": np.zeros(0),
        "history_median": np.zeros(0),
        "median_first": np.array(np.nan),
        "median_least": np.array(np.inf),
        "least_cost": np.array(np.inf),
        "least_age": np.array(0),
        "flat_generations": np.array(0),
        "still_theta": np.full(size, np.nan),
        "still_generations": np.array(0),
    }


HISTORY_NAMES = tuple(initial_history(0))


def update_history(options: Options, view: View, fitness: Float64, old: Arrays) -> dict[str, Array]:
    """Return the arrays of `initial_history` after a generation, `stopped` among them.

    `fitness` is float64[samples].
    """
    costs = np.sort(-fitness[np.isfinite(fitness)])
    new = {name: old[name] for name in HISTORY_NAMES}
    if len(costs):
        lowest, median = float(costs[0]), _median(costs)
        new["history"] = np.append(old["history"], lowest)[
            -int(11 + 30 * len(view.theta) / view.population) :
        ]
        if view.age % HISTORY_INTERVAL == 0:
            new["history_best"] = np.append(old["history_best"], lowest)[-MAX_HISTORY:]
            new["history_median"] = np.append(old["history_median"], median)[-MAX_HISTORY:]
        if lowest < old["least_cost"]:
            new["least_cost"], new["least_age"] = np.array(lowest), np.array(view.age)
        if np.isnan(old["median_first"]):
            new["median_first"] = np.array(median)
        new["median_least"] = np.minimum(old["median_least"], median)
        is_flat = len(costs) > 1 and costs[0] >= costs[int(0.75 * len(costs))]
        new["flat_generations"] = old["flat_generations"] + 1 if is_flat else np.array(0)
    # equal costs give no update, so that an unchanged mean means nothing
    if len(costs) and costs[0] < costs[-1]:
        is_still = np.abs(view.theta - old["still_theta"]).max() < options.tolxstagnation
        new["still_theta"] = old["still_theta"] if is_still else view.theta.astype(np.float64)
        new["still_generations"] = old["still_generations"] + 1 if is_still else np.array(0)
    met = criteria(options, view, costs, new)
    new["stopped"] = np.array(sum(bit(name) for name, is_met in met.items() if is_met))
    return {name: np.asarray(array) for name, array in new.items()}


def criteria(options: Options, view: View, costs: Float64, history: Arrays) -> Mapping[str, bool]:
    """Return whether each criterion is met.

    `costs` are float64[samples] of the generation, without NaN, ascending.
    """
    size, recent_best = len(view.theta), history["history"]
    cost_range = float(costs[-1] - costs[0]) if len(costs) else np.inf
    recent_range = float(np.ptp(recent_best)) if len(recent_best) else np.inf
    # For policies these are off by default: returns may stay equal for long, as at the maximum
    # length of an episode.
    tolfun, tolfunhist = options.tolfun, options.tolfunhist
    tolflatfitness: float | None = options.tolflatfitness
    if tolfun is None:
        tolfun = 1e-11 if view.is_objective else 0.0
    if tolfunhist is None:
        tolfunhist = 1e-12 if view.is_objective else 0.0
    if tolflatfitness is None and view.is_objective:
        tolflatfitness = view.flat_generations
    max_generations = options.max_generations
    if max_generations is None:
        max_generations = int(100 + 150 * (size + 3) ** 2 // view.population**0.5)
    widest = float(view.deviations.max())
    widest_ratio = (
        widest if isinstance(view.ratios, float) else float((view.deviations / view.ratios).max())
    )
    met: dict[str, bool] = {
        "tolfun": len(recent_best) >= MIN_HISTORY and max(cost_range, recent_range) < tolfun,
        "tolfunhist": len(recent_best) >= MIN_HISTORY and recent_range < tolfunhist,
        "tolfunrel": cost_range
        < options.tolfunrel * float(history["median_first"] - history["median_least"]),
        "tolx": bool(widest < options.tolx and np.abs(view.path).max() < options.tolx),
        "tolxstagnation": int(history["still_generations"]) > 20 + 0.1 * view.age,
        "tolfacupx": 0 < options.tolfacupx < widest_ratio / view.first_sigma,
        "tolflatfitness": tolflatfitness is not None
        and int(history["flat_generations"]) > tolflatfitness,
        "tolstagnation": _stagnates(options, view, history),
        "max_generations": 0 < max_generations <= view.age,
        "noeffectcoord": options.noeffect
        and bool((view.theta == _added(view.theta, 0.2 * view.deviations)).any()),
    }
    condition = view.condition
    if view.axes is not None:
        lengths, columns = view.axes
        condition = float(lengths[-1] / lengths[0]) ** 2
        index = view.age % len(lengths)
        step = 0.1 * view.sigma * lengths[index] * columns[:, index]
        growth = view.sigma / float(lengths[-1]) / view.first_sigma
        met["tolupsigma"] = 0 < options.tolupsigma < growth
        met["noeffectaxis"] = options.noeffect and bool(
            (view.theta == _added(view.theta, step)).all()
        )
    if condition is not None:
        met["tolconditioncov"] = 0 < options.tolconditioncov < condition
    return met


def _added(theta: Array, step: Float64) -> Array:
    result: Array = theta + step.astype(theta.dtype, copy=False)
    return result


def _stagnates(options: Options, view: View, history: Arrays) -> bool:
    """Whether neither best nor median costs of a long period improve on the period before."""
    size, population, best = len(view.theta), view.population, history["history_best"]
    tolerance = options.tolstagnation
    if tolerance is None:
        tolerance = int(100 + 100 * size**1.5 / population)
    count = int(max(tolerance / HISTORY_INTERVAL / 2, len(best) / 10))
    if (
        not tolerance
        or view.changing_fitness
        or view.age <= size * (5 + 100 / population)
        or len(best) <= max(100, 2 * count)
    ):
        return False
    if view.age - int(history["least_age"]) <= tolerance / 2:
        return False
    return all(
        _median(np.sort(costs[-count:])) >= _median(np.sort(costs[-2 * count : -count]))
        for costs in (best, history["history_median"])
    )


def _median(ordered: Float64) -> float:
    """Return the median of sorted numbers; `np.median` takes ten times as long."""
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def bit(name: str) -> int:
    """Return the bit of a criterion in `stopped`."""
    return 1 << NAMES.index(name)


def names(stopped: int) -> str:
    """Return the names of the criteria that are set in `stopped`, separated by commas."""
    return ", ".join(name for name in NAMES if stopped & bit(name))
