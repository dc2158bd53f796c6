"""When a search by CMA-ES or a relative has ended: the criteria of pycma, under its names and with its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpc_es.config.options import Natural, NonNegative, option, options
from hpc_es.core.data import Array, Arrays, Float64

SHORT = 10  # generations whose best costs say that a search has ended
SPARSE = 5  # generations between two entries of the long histories
LONGEST = 20_000  # entries of them


@options
class Options:
    """`algorithm.stops:`; a tolerance of 0 is never met."""

    tolfun: NonNegative | None = option(
        "range of a generation's returns and of the best of recent ones; null: 1e-11 of an objective, 0 of a policy",
        None,
    )
    tolfunhist: NonNegative | None = option(
        "range of the best of recent generations; null: 1e-12 of an objective, 0 of a policy", None
    )
    tolfunrel: NonNegative = option("range of returns, as a share of how far the median has come", 0.0)
    tolx: NonNegative = option("standard deviation and path of every coordinate", 1e-11)
    tolxstagnation: NonNegative = option(
        "movement of the centre in 20 generations and a tenth of those since the begin", 1e-9
    )
    tolfacupx: NonNegative = option("growth of a standard deviation: a search that diverges", 1e3)
    tolupsigma: NonNegative = option("growth of sigma beyond that of the longest axis", 1e20)
    tolconditioncov: NonNegative = option("condition number of the covariance", 1e14)
    tolflatfitness: Natural | None = option(
        "flat generations in a row that are tolerated; null: 1 of an objective, any number of a policy", None
    )
    tolstagnation: Natural | None = option(
        "generations without better medians; null: 100 + 100 n^1.5 / population, 0: any number", None
    )
    max_generations: Natural | None = option(
        "of one search; null: 100 + 150 (n + 3)^2 / sqrt(population), 0: any number", None
    )
    noeffect: bool = option("whether a search ends where a fifth of a deviation no longer changes a coordinate", True)


NAMES = (
    *("tolfun", "tolfunhist", "tolfunrel", "tolx", "tolxstagnation", "tolfacupx", "tolupsigma", "tolconditioncov"),
    *("tolflatfitness", "tolstagnation", "max_generations", "noeffectcoord", "noeffectaxis", "run_limit"),
)


@dataclass(frozen=True)
class View:
    """What the criteria look at after a generation."""

    theta: Array
    first_sigma: float
    sigma: float
    deviations: Float64  # float64[size], of the coordinates, with sigma
    path: Float64  # float64[size], the covariance path, with sigma
    axes: tuple[Float64, Float64] | None = None  # lengths, in rising order, and columns; None: the coordinates
    ratios: Float64 | float = 1.0  # of the first deviations to first_sigma
    condition: float | None = None  # number of the covariance, where the axes are not known
    is_objective: bool = True  # not a policy's return
    population: int = 0
    age: int = 0  # generations of this search


def nothing(size: int) -> Arrays:
    """Return what is remembered before the first generation of a search; costs are returns with the other sign.

    State, master:
        stopped: int64[]; criteria that have ended the search, a bit each in the order of `stopping.NAMES`
        history: float64[recent], grows; best cost of each recent generation
        history_best: float64[fifths], grows; best cost of every fifth generation, at most 20,000
        history_median: float64[fifths], grows; median cost of the same generations
        median_first: float64[]; median cost of the first generation; NaN before
        median_least: float64[]; least median cost so far; infinity before
        least_cost: float64[]; least cost so far; infinity before
        least_age: int64[]; `age` when it was found
        flat_generations: int64[]; consecutive generations in which three quarters of the costs were equal
        still_theta: float64[params]; the mean when it last moved; NaN before
        still_generations: int64[]; generations since then
    """
    return {
        "stopped": np.array(0),  # bits by NAMES
        "history": np.zeros(0),  # the best costs of recent generations
        "history_best": np.zeros(0),  # of every SPARSE-th generation
        "history_median": np.zeros(0),
        "median_first": np.array(np.nan),
        "median_least": np.array(np.inf),
        "least_cost": np.array(np.inf),
        "least_age": np.array(0),
        "flat_generations": np.array(0),
        "still_theta": np.full(size, np.nan),  # where the centre was when it last moved
        "still_generations": np.array(0),
    }


REMEMBERED = tuple(nothing(0))


def updated(options: Options, view: View, returns: Float64, old: Arrays) -> dict[str, Array]:
    """Return what is remembered after a generation, with `stopped` for the criteria that are met."""
    costs = np.sort(-returns[np.isfinite(returns)])
    new = {name: old[name] for name in REMEMBERED}
    if len(costs):
        new |= _histories(view, costs, old)
        flat = len(costs) > 1 and costs[0] >= costs[int(0.75 * len(costs))]
        new["flat_generations"] = old["flat_generations"] + 1 if flat else np.array(0)
    if len(costs) and costs[0] < costs[-1]:  # else it was not to move
        moved = not np.abs(view.theta - old["still_theta"]).max() < options.tolxstagnation
        new["still_theta"] = view.theta.astype(np.float64) if moved else old["still_theta"]
        new["still_generations"] = np.array(0) if moved else old["still_generations"] + 1
    met = criteria(options, view, costs, new)
    new["stopped"] = np.array(sum(bit(name) for name, is_met in met.items() if is_met))
    return {name: np.asarray(array) for name, array in new.items()}


def _histories(view: View, costs: Float64, old: Arrays) -> dict[str, Array]:
    least, median, size = float(costs[0]), _median(costs), len(view.theta)
    better = least < old["least_cost"]
    new: dict[str, Array] = {
        "history": np.append(old["history"], least)[-int(11 + 30 * size / view.population) :],
        "least_cost": np.array(least) if better else old["least_cost"],
        "least_age": np.array(view.age) if better else old["least_age"],
        "median_first": np.array(median) if np.isnan(old["median_first"]) else old["median_first"],
        "median_least": np.minimum(old["median_least"], median),
    }
    if view.age % SPARSE == 0:
        new["history_best"] = np.append(old["history_best"], least)[-LONGEST:]
        new["history_median"] = np.append(old["history_median"], median)[-LONGEST:]
    return new


def criteria(options: Options, view: View, costs: Float64, seen: Arrays) -> Mapping[str, bool]:
    """Return which criteria are met; `costs` are those of the generation in rising order, without failures."""
    size, history = len(view.theta), seen["history"]
    spread = float(costs[-1] - costs[0]) if len(costs) else np.inf
    recent = float(np.ptp(history)) if len(history) else np.inf
    widest = float(view.deviations.max())
    grown = widest if isinstance(view.ratios, float) else float((view.deviations / view.ratios).max())
    generations = options.max_generations
    if generations is None:
        generations = int(100 + 150 * (size + 3) ** 2 // view.population**0.5)
    met: dict[str, bool] = {
        "tolfun": len(history) >= SHORT and max(spread, recent) < _tolerance(options.tolfun, view, 1e-11),
        "tolfunhist": len(history) >= SHORT and recent < _tolerance(options.tolfunhist, view, 1e-12),
        "tolfunrel": spread < options.tolfunrel * float(seen["median_first"] - seen["median_least"]),
        "tolx": bool(widest < options.tolx and np.abs(view.path).max() < options.tolx),
        "tolxstagnation": int(seen["still_generations"]) > 20 + 0.1 * view.age,
        "tolfacupx": _above(grown / view.first_sigma, options.tolfacupx),
        "tolflatfitness": _is_flat(options, view, int(seen["flat_generations"])),
        "tolstagnation": _stagnates(options, view, seen),
        "max_generations": 0 < generations <= view.age,
        "noeffectcoord": options.noeffect and bool((view.theta == _added(view.theta, 0.2 * view.deviations)).any()),
    }
    return {**met, **_of_axes(options, view)}


def _above(value: float, limit: float) -> bool:
    return 0 < limit < value


def _tolerance(given: float | None, view: View, of_objectives: float) -> float:
    """Return a tolerance; a policy's returns may be equal for long, as at the limit of an episode's length."""
    return given if given is not None else of_objectives if view.is_objective else 0.0


def _is_flat(options: Options, view: View, generations: int) -> bool:
    if options.tolflatfitness is None:
        return view.is_objective and generations > 1
    return generations > options.tolflatfitness


def _added(theta: Array, step: Float64) -> Array:
    moved: Array = theta + step.astype(theta.dtype, copy=False)
    return moved


def _of_axes(options: Options, view: View) -> Mapping[str, bool]:
    if view.axes is None:
        return {} if view.condition is None else {"tolconditioncov": _above(view.condition, options.tolconditioncov)}
    lengths, columns = view.axes
    index = view.age % len(lengths)
    step = 0.1 * view.sigma * lengths[index] * columns[:, index]
    return {
        "tolupsigma": _above(view.sigma / float(lengths[-1]) / view.first_sigma, options.tolupsigma),
        "tolconditioncov": _above(float(lengths[-1] / lengths[0]) ** 2, options.tolconditioncov),
        "noeffectaxis": options.noeffect and bool((view.theta == _added(view.theta, step)).all()),
    }


def _stagnates(options: Options, view: View, seen: Arrays) -> bool:
    """Return whether neither the best nor the median of a long time is better than that of the time before."""
    size, population, best = len(view.theta), view.population, seen["history_best"]
    tolerance = options.tolstagnation
    if tolerance is None:
        tolerance = int(100 + 100 * size**1.5 / population)
    count = int(max(tolerance / SPARSE / 2, len(best) / 10))
    if not tolerance or view.age <= size * (5 + 100 / population) or len(best) <= max(100, 2 * count):
        return False
    if view.age - int(seen["least_age"]) <= tolerance / 2:
        return False
    return all(
        _median(np.sort(history[-count:])) >= _median(np.sort(history[-2 * count : -count]))
        for history in (best, seen["history_median"])
    )


def _median(ordered: Float64) -> float:
    """Return the median of ordered numbers; `np.median` takes ten times as long."""
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def bit(name: str) -> int:
    """Return the bit of a criterion in `stopped`."""
    return 1 << NAMES.index(name)


def names(stopped: int) -> str:
    """Return the names of the criteria that are met."""
    return ", ".join(name for name in NAMES if stopped & bit(name))
