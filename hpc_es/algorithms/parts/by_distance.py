"""What mirrored samples weigh by their rank, and by their distance from the centre too while it travels (CR-FM-NES).

Far samples weigh exp(alpha |z|) times as much. Samples that failed are ranked as well: the farther, the worse.
From Nomura & Ono 2022 (arXiv:2201.11422).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpc_es.algorithms.parts.pairs import Pairs
from hpc_es.algorithms.parts.recombination import of_samples, utilities
from hpc_es.core.data import Float64


def far_factor(size: int) -> float:
    """Return h > 0 of (1 + h^2) exp(h^2 / 2) = 0.24 (10 + n), which is alpha of a large population.

    By Newton's method on the logarithms of both sides: nothing overflows, and from a start above h it falls to h.
    """
    goal = math.log(0.24 * (10 + size))
    h = math.sqrt(2 * goal)
    for _ in range(20):
        h -= (math.log1p(h * h) + h * h / 2 - goal) / (2 * h / (1 + h * h) + h)
    return h


def standing(returns: Float64, lengths: Float64) -> Float64:
    """Return numbers in the order of the samples, a larger one is better, float64[samples].

    Those that failed come last, and of them the longest.
    """
    failed = ~np.isfinite(returns)
    places = np.empty(len(returns))
    places[~failed] = np.unique(returns[~failed], return_inverse=True)[1]
    places[failed] = -1.0 - np.unique(lengths[failed], return_inverse=True)[1]
    return places


def by_rank(returns: Float64, lengths: Float64) -> Float64:
    """Return the weights by rank, float64[samples]; they sum to 0, and samples of equal returns have equal ones."""
    return of_samples(utilities(len(returns)), standing(returns, lengths))


def by_distance(weights: Float64, lengths: Float64, alpha: float) -> Float64:
    """Return the weights by rank and distance of those by rank; they sum to 0."""
    far = (weights + 1 / len(weights)) * np.exp(alpha * (lengths - lengths.max()))
    found: Float64 = far / far.sum() - 1 / len(weights)
    return found


@dataclass(frozen=True)
class Weights:
    """What the samples of a generation weigh in its sums of w z, w (u . z) z and w z^2."""

    each: Float64  # float64[1 or 2, samples], by rank and perhaps by distance
    along: Float64  # float64[samples], u . z
    squares: Float64  # float64[samples], |z|^2
    feasible: int  # samples that did not fail

    @cached_property
    def of_pairs(self) -> Float64:
        """What pairs weigh in each of the sums, float64[3 or 6, pairs]; halves have opposite z."""
        pairs = Pairs(mirrored=True)
        rows = []
        for weights in self.each:
            both, parts = pairs.in_pairs(weights), pairs.in_pairs(weights * self.along)
            rows += [pairs.differences(both), pairs.differences(parts), both.sum(axis=1)]
        return np.stack(rows)

    @property
    def powers(self) -> tuple[int, ...]:
        """Those of z in each of the sums."""
        return (1, 1, 2) * len(self.each)

    def chosen(self, travels: bool, sums: Float64) -> tuple[Float64, Float64]:
        """Return the weights that hold, float64[samples], and their three sums, float64[3, size]."""
        which = len(self.each) - 1 if travels else 0
        return self.each[which], sums[3 * which : 3 * which + 3]
