"""Pareto domination of costs, float64[members, objectives], which are minimised: fronts, crowding
distances and the knee of a front.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Float64

KNEE = "knee"
LARGE = 500  # rows from which those that are not dominated are found one by one
BLOCK = 1 << 22  # comparisons that are in memory at the same time

Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


def dominates(first: Float64, second: Float64) -> Flags:
    """Return whether each row of `first` dominates each row of `second`, bool[first, second]."""
    first = first[:, np.newaxis]
    no_worse, better = (first <= second).all(axis=2), (first < second).any(axis=2)
    return np.logical_and(no_worse, better)


def nondominated(costs: Float64) -> Flags:
    """Return which rows no other row dominates, bool[members]; equal rows are all kept."""
    if not len(costs):
        return np.zeros(0, np.bool_)
    if len(costs) < LARGE or costs.shape[1] == 2:
        return pareto_ranks(costs) == 0 if costs.shape[1] == 2 else ~_beaten(costs)
    return _nondominated_of_many(costs)


def _nondominated_of_many(costs: Float64) -> Flags:
    """Return the same for many rows: in lexicographic order the first row that is left is dominated
    by none, and those that it dominates are left out.
    """
    kept = np.zeros(len(costs), np.bool_)
    left = np.lexsort(costs.T[::-1])
    while len(left):
        kept[left[0]] = True
        rest = left[1:]
        left = rest[~dominates(costs[left[:1]], costs[rest])[0]]
    return kept


def pareto_ranks(costs: Float64) -> Indices:
    """Return the front of each row, int64[members]: 0 is dominated by none, 1 by members of front 0
    only, and so on.
    """
    if not len(costs):
        return np.zeros(0, np.int64)
    if costs.shape[1] == 2:
        return _ranks_of_two(costs)
    ranks, left = np.full(len(costs), -1, np.int64), np.arange(len(costs))
    front = 0
    while len(left):
        beaten = _beaten(costs[left])
        ranks[left[~beaten]] = front
        left, front = left[beaten], front + 1
    return ranks


def _beaten(costs: Float64) -> Flags:
    """Return which rows another one dominates, in blocks of limited size."""
    step = max(1, BLOCK // costs.size)
    parts = [
        dominates(costs, costs[start : start + step]).any(axis=0)
        for start in range(0, len(costs), step)
    ]
    return np.concatenate(parts)


def _ranks_of_two(costs: Float64) -> Indices:
    """Return the fronts of two objectives in one sweep (Jensen 2003).

    In the order of the first objective a front dominates a row if the second cost of its last
    member is not higher.
    """
    ranks = np.zeros(len(costs), np.int64)
    ends: list[float] = []  # second cost of the last member of each front, ascending
    before: tuple[list[float], int] = [], 0  # the last row and its front
    for row in np.lexsort((costs[:, 1], costs[:, 0])).tolist():
        pair = costs[row].tolist()
        front = before[1] if pair == before[0] else bisect_right(ends, pair[1])
        ends[front : front + 1] = [pair[1]]
        ranks[row], before = front, (pair, front)
    return ranks


def constrained_ranks(costs: Float64, violation: Float64) -> Indices:
    """Return the front of each row, int64[members]; infeasible ones follow in the order of their
    violation, float64[members] (Deb et al. 2002, section VI).
    """
    feasible = violation == 0
    ranks = np.zeros(len(costs), np.int64)
    ranks[feasible] = pareto_ranks(costs[feasible])
    fronts = int(ranks[feasible].max()) + 1 if feasible.any() else 0
    _, order = np.unique(violation[~feasible], return_inverse=True)
    ranks[~feasible] = fronts + order.reshape(-1)
    return ranks


def crowding_distances(costs: Float64) -> Float64:
    """Return the crowding distance of each member of one front, float64[members] (Deb et al. 2002).

    It is the sum over the objectives of the distance between the two neighbours, as a share of the
    front's range; infinite at the ends.
    """
    crowding = np.zeros(len(costs))
    for column in costs.T:
        order = np.argsort(column, kind="stable")
        ordered = column[order]
        span = float(ordered[-1] - ordered[0]) or 1.0
        crowding[order[1:-1]] += (ordered[2:] - ordered[:-2]) / span
        crowding[order[[0, -1]]] = np.inf
    return crowding


def crowding_by_front(costs: Float64, ranks: Indices) -> Float64:
    """Return the crowding distance of each row within its front, float64[members]."""
    crowding = np.zeros(len(costs))
    for front in np.unique(ranks):
        members = ranks == front
        crowding[members] = crowding_distances(costs[members])
    return crowding


def without_crowded(costs: Float64, kept: int) -> Indices:
    """Return the rows of `kept` members of a front, ascending, after the most crowded ones have
    been removed one at a time; of equal ones the later goes first.
    """
    rows = np.arange(len(costs))
    while len(rows) > kept:
        crowding = crowding_distances(costs[rows])
        least = np.flatnonzero(crowding == crowding.min())[-1]
        rows = np.delete(rows, least)
    return rows


def normalised(costs: Float64) -> Float64:
    """Return the costs of a front with its ideal point at 0 and its nadir at 1; an objective
    without a range is 0.
    """
    low = costs.min(axis=0)
    span = costs.max(axis=0) - low
    scaled: Float64 = (costs - low) / np.where(span > 0, span, 1.0)
    return scaled


def choices(costs: Float64, names: Sequence[str]) -> list[str]:
    """Return what speaks for each member of a front: "knee", "best NAME" of an objective, or "".

    Of equal ones the first is named. `costs` are float64[members, objectives].
    """
    texts: list[list[str]] = [[] for _ in costs]
    if len(costs):
        texts[knee(costs)].append(KNEE)
        for row, name in zip(costs.argmin(axis=0).tolist(), names, strict=True):
            texts[row].append(f"best {name}")
    return [", ".join(parts) for parts in texts]


def knee(costs: Float64) -> int:
    """Return the row of the knee of a front: the member whose worst normalised cost is the lowest,
    of equal ones the one with the lowest sum, then the first.

    On a convex front it is close to the bend, and on a concave one in the middle, whereas the
    member farthest below the plane through the ends is then one of the ends.
    """
    scaled = normalised(costs)
    return int(np.lexsort((scaled.sum(axis=1), scaled.max(axis=1)))[0])
