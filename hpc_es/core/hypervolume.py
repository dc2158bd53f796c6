"""The hypervolume of a front: the volume that its members dominate within a reference point.

Costs are float64[members, objectives] and minimised. Members that do not dominate the reference
point have no volume. Two objectives are summed in the order of the first one; three are swept along
the third (Fonseca et al. 2006); more are cut into slices along the last one, as in WFG (While et
al. 2012). All sums are in a fixed order.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Float64
from hpc_es.core.domination import Indices, nondominated


def hypervolume(costs: Float64, reference: Float64) -> float:
    """Return the hypervolume of a front.

    Args:
        costs: float64[members, objectives], in any order; dominated members add nothing.
        reference: float64[objectives].

    Example:
        >>> hypervolume(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([2.0, 2.0]))
        3.0
    """
    inside = costs[(costs < reference).all(axis=1)]
    if len(inside) > 1 and inside.shape[1] > 2:
        inside = np.unique(inside[nondominated(inside)], axis=0)
    return _volume(inside, reference)


def _volume(costs: Float64, reference: Float64) -> float:
    """Return the hypervolume of members that all dominate the reference point."""
    if len(costs) == 0:
        return 0.0
    if len(costs) == 1:
        return float(np.prod(reference - costs[0]))
    if costs.shape[1] == 1:
        return float(reference[0] - costs.min())
    if costs.shape[1] == 2:
        return _area(costs, reference)
    return _swept(costs, reference) if costs.shape[1] == 3 else _sliced(costs, reference)


def _area(costs: Float64, reference: Float64) -> float:
    ordered = costs[np.lexsort((costs[:, 1], costs[:, 0]))]
    lowest = np.minimum.accumulate(ordered[:, 1])
    widths = np.append(ordered[1:, 0], reference[0]) - ordered[:, 0]
    return float((widths * (reference[1] - lowest)).sum())


def _swept(costs: Float64, reference: Float64) -> float:
    """Return the volume of three objectives: the area of the first two, which grows along the
    third.
    """
    right, top, end = (float(limit) for limit in reference)
    # The staircase of the members so far: ascending x, descending y, between two sentinels.
    xs, ys = [-math.inf, right], [top, -math.inf]
    area, volume = 0.0, 0.0
    ordered: list[list[float]] = costs[np.lexsort((costs[:, 1], costs[:, 0], costs[:, 2]))].tolist()
    level = ordered[0][2]
    for x, y, z in ordered:
        volume, level = volume + area * (z - level), z
        place = bisect_left(xs, x)
        # The step to the left, or one with the same x, may cover the member.
        if ys[place - 1] <= y or (xs[place] == x and ys[place] <= y):
            continue
        last, left, height = place, x, ys[place - 1]
        while ys[last] >= y:
            area += (xs[last] - left) * (height - y)
            left, height, last = xs[last], ys[last], last + 1
        area += (xs[last] - left) * (height - y)
        xs[place:last], ys[place:last] = [x], [y]
    return volume + area * (end - level)


def _sliced(costs: Float64, reference: Float64) -> float:
    """Return the volume of four or more objectives.

    In the descending order of the last objective, what a member adds to those after it has their
    last cost in common, so that it is a volume of one objective less, times a height.
    """
    ordered = costs[np.lexsort(costs.T)[::-1]]
    volume, inner = 0.0, reference[:-1]
    for row, member in enumerate(ordered):
        height = float(reference[-1] - member[-1])
        volume += height * exclusive(member[:-1], ordered[row + 1 :, :-1], inner)
    return volume


def exclusive(member: Float64, others: Float64, reference: Float64) -> float:
    """Return the volume that a member, float64[objectives], dominates and the others do not."""
    if (member >= reference).any():
        return 0.0
    limited = np.maximum(others, member)
    limited = limited[(limited < reference).all(axis=1)]
    if len(limited) and (limited == member).all(axis=1).any():
        return 0.0
    if len(limited) > 1 and len(member) > 2:
        limited = limited[nondominated(limited)]
    box = float(np.prod(reference - member))
    return box - _volume(limited, reference)


def contributions(costs: Float64, reference: Float64) -> Float64:
    """Return by how much the hypervolume shrinks without each member, float64[members].

    It is 0 for dominated members, which do not count, and for those that another one equals.
    """
    result = np.zeros(len(costs))
    rows = np.flatnonzero(nondominated(costs) & (costs < reference).all(axis=1))
    if costs.shape[1] == 2 and len(rows):
        result[rows] = _contributions_of_two(costs[rows], reference)
        return result
    for row in rows.tolist():
        result[row] = exclusive(costs[row], costs[rows[rows != row]], reference)
    return result


def _contributions_of_two(front: Float64, reference: Float64) -> Float64:
    order = np.lexsort((front[:, 1], front[:, 0]))
    x, y = front[order].T
    widths = np.append(x[1:], reference[0]) - x
    result = np.empty(len(front))
    result[order] = widths * (np.insert(y[:-1], 0, reference[1]) - y)
    return result


def without_least(costs: Float64, reference: Float64, kept: int) -> Indices:
    """Return the rows of `kept` members, ascending, after those with the least contributions have
    been removed one at a time; of equal ones the later goes first. The first of the best members in
    each objective stay if they can.

    A contribution only grows as others go, so that one of an earlier step is a lower bound.
    """
    bounds = contributions(costs, reference) if len(costs) > kept else np.zeros(len(costs))
    bounds[costs.argmin(axis=0)] = np.inf
    remain = _least_of_two if costs.shape[1] == 2 else _least_of_many
    return np.flatnonzero(remain(costs, reference, bounds, kept))


def _least_of_two(
    costs: Float64, reference: Float64, volumes: Float64, kept: int
) -> npt.NDArray[np.bool_]:
    """Return which members of two objectives stay: only the neighbours of one that goes change."""
    stays, left = np.ones(len(costs), np.bool_), len(costs)
    front = np.flatnonzero(nondominated(costs) & (costs < reference).all(axis=1))
    front = front[np.lexsort((costs[front, 1], costs[front, 0]))]
    ends = [len(costs), *front.tolist(), len(costs)]  # the member beyond both ends is the reference
    before, after = dict(pairwise(reversed(ends))), dict(pairwise(ends))
    x, y = (np.append(costs[:, axis], reference[axis]).tolist() for axis in (0, 1))
    heap = [(volume, -row) for row, volume in enumerate(volumes.tolist())]
    heapify(heap)
    while left > kept:
        volume, opposite = heappop(heap)
        row = -opposite
        if not stays[row] or volume != volumes[row]:
            continue  # its volume has grown
        stays[row], left = False, left - 1
        if row not in after:
            continue  # a dominated member
        low, high = before[row], after[row]
        before[high], after[low] = low, high
        for near in (low, high):
            if near < len(costs) and volumes[near] < np.inf:
                width, height = x[after[near]] - x[near], y[before[near]] - y[near]
                volumes[near] = width * height
                heappush(heap, (width * height, -near))
    return stays


def _least_of_many(
    costs: Float64, reference: Float64, bounds: Float64, kept: int
) -> npt.NDArray[np.bool_]:
    """Return which members stay: a volume is computed again when it may be the least one."""
    stays, left = np.ones(len(costs), np.bool_), len(costs)
    exact = np.full(len(costs), left)  # number of members when it was computed
    heap = [(bound, -row) for row, bound in enumerate(bounds.tolist())]
    heapify(heap)
    while left > kept:
        bound, opposite = heappop(heap)
        row, stays[-opposite] = -opposite, False
        if exact[row] == left or bound == np.inf:
            left -= 1
            continue
        bound = exclusive(costs[row], costs[stays], reference)
        stays[row], exact[row] = True, left
        heappush(heap, (bound, opposite))
    return stays


# The uncrowded hypervolume improvement of Sofomore (Toure et al. 2019).


def uncrowded_improvements(costs: Float64, front: Float64, reference: Float64) -> Float64:
    """Return the uncrowded hypervolume improvement of candidates, float64[candidates].

    It is what a candidate adds to the hypervolume, or minus its distance to the region that the
    front does not dominate and that dominates the reference point, if it is outside of it.

    Args:
        costs: float64[candidates, objectives].
        front: float64[members, objectives], in any order.
        reference: float64[objectives].
    """
    front = front[(front < reference).all(axis=1)]
    front = np.unique(front[nondominated(front)], axis=0)
    if costs.shape[1] == 2:
        gains, corners = _areas_added(costs, front, reference), _corners_of_two(front, reference)
    else:
        gains = np.array([exclusive(member, front, reference) for member in costs])
        corners = upper_bounds(front, reference)
    beyond = np.maximum(costs[:, np.newaxis] - corners, 0.0)
    distances = np.sqrt(np.square(beyond).sum(axis=2)).min(axis=1)
    return np.where(distances > 0, -distances, gains)


def _areas_added(costs: Float64, front: Float64, reference: Float64) -> Float64:
    """Return what each candidate adds to the area of a front in ascending order."""
    edges = np.concatenate([[-np.inf], front[:, 0], reference[:1]])
    heights = np.concatenate([reference[1:], front[:, 1]])
    x, y = costs[:, :1], costs[:, 1:]
    widths = np.maximum(edges[1:] - np.maximum(edges[:-1], x), 0.0)
    added: Float64 = (widths * np.maximum(heights - y, 0.0)).sum(axis=1)
    return added


def _corners_of_two(front: Float64, reference: Float64) -> Float64:
    right = np.append(front[:, 0], reference[0])
    top = np.concatenate([reference[1:], front[:, 1]])
    return np.stack([right, top], axis=1)


def upper_bounds(front: Float64, reference: Float64) -> Float64:
    """Return the local upper bounds of a front, float64[bounds, objectives] (Klamroth et al. 2015).

    A point is not dominated within the reference point if it is below one of them.
    """
    bounds = reference[np.newaxis].astype(np.float64)
    for member in front:
        above = (member < bounds).all(axis=1)
        if not above.any():
            continue
        cut = bounds[above]
        parts = np.repeat(cut[np.newaxis], len(reference), axis=0)
        for objective in range(len(reference)):
            parts[objective, :, objective] = member[objective]
        bounds = np.concatenate([bounds[~above], parts.reshape(-1, len(reference))])
        # A bound below another one bounds nothing more.
        bounds = np.unique(bounds, axis=0)
        bounds = bounds[nondominated(-bounds)]
    return bounds
