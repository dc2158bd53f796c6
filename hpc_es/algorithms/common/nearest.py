"""Nearest of many centres: exact, the first of equally near ones, and without a library for trees.

With one or two coordinates centres are sorted into square buckets, about two in each, and a point
is compared with those of the nine buckets around it. If its nearest centre there is farther away
than a bucket is wide, another one might be nearer, and the point is compared with all.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Float64

Int64 = npt.NDArray[np.int64]

PAIRS = 1 << 20  # distances that are computed at once, 8 MB
FEW = 64  # centres up to which buckets save nothing
PER_BUCKET = 2
NONE = -1  # in place of a centre


def nearest_of(points: Float64, centres: Float64) -> tuple[Int64, Float64]:
    """Return the nearest centre of each point, int64[points], of equally near ones the first, and
    its distance.

    Points and centres are float64[.., coordinates].
    """
    if len(centres) <= FEW or centres.shape[1] > 2:
        return _among_all(points, centres)
    nearest, squares, width = _among_near(points, centres)
    far = np.flatnonzero(~(squares < width**2))
    distances: Float64 = np.sqrt(squares)
    nearest[far], distances[far] = _among_all(points[far], centres)
    return nearest, distances


def _among_all(points: Float64, centres: Float64) -> tuple[Int64, Float64]:
    nearest, squares = np.empty(len(points), np.int64), np.empty(len(points))
    step = max(1, PAIRS // max(len(centres), 1))
    for start in range(0, len(points), step):
        part = points[start : start + step]
        to_each = np.zeros((len(part), len(centres)))
        for mine, theirs in zip(part.T, centres.T, strict=True):
            to_each += np.square(mine[:, np.newaxis] - theirs)
        found = to_each.argmin(axis=1)
        nearest[start : start + step] = found
        squares[start : start + step] = to_each[np.arange(len(part)), found]
    return nearest, np.sqrt(squares)


def _among_near(points: Float64, centres: Float64) -> tuple[Int64, Float64, float]:
    """Return the nearest centre in the buckets around each point, or NONE, its squared distance,
    infinite if there is none, and the width of a bucket.
    """
    low, axes = centres.min(axis=0), centres.shape[1]
    per_axis = max(1, int((len(centres) / PER_BUCKET) ** (1 / axes)))
    width = max(float(np.ptp(centres, axis=0).max()) / per_axis, 1e-300)
    table = _buckets(_places(centres, low, width, per_axis), centres, per_axis)
    places = _places(points, low, width, per_axis) + 1
    nearest, squares = np.empty(len(points), np.int64), np.empty(len(points))
    around = list(product((-1, 0, 1), repeat=axes))
    step = max(1, PAIRS // (len(around) * table.shape[-1]))
    for start in range(0, len(points), step):
        part, at = points[start : start + step], places[start : start + step]
        near = np.concatenate([table[tuple((at + shift).T)] for shift in around], axis=1)
        to_each = np.zeros(near.shape)
        for mine, theirs in zip(part.T, centres.T, strict=True):
            to_each += np.square(mine[:, np.newaxis] - theirs[near])
        to_each[near == NONE] = np.inf
        least = to_each.min(axis=1)
        # the first of equally near ones
        first = np.where(to_each == least[:, np.newaxis], near, len(centres)).min(axis=1)
        nearest[start : start + step], squares[start : start + step] = first, least
    return nearest, squares, width


def _places(points: Float64, low: Float64, width: float, per_axis: int) -> Int64:
    """Return the bucket of each point along each axis, int64[points, axes]."""
    return np.clip((points - low) / width, 0, per_axis - 1).astype(np.int64)


def _buckets(places: Int64, centres: Float64, per_axis: int) -> Int64:
    """Return the centres in each bucket, int64[per_axis + 2, ..., most], padded with NONE; there is
    an empty bucket beyond each end.
    """
    axes = places.shape[1]
    shape = (per_axis + 2,) * axes
    flat = np.ravel_multi_index(tuple((places + 1).T), shape)
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered, side="left")
    table = np.full((int(np.prod(shape)), int(rank.max()) + 1), NONE, np.int64)
    table[ordered, rank] = order
    return table.reshape(*shape, -1)
