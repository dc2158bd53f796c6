"""Crossover and mutation of real, ordered and categorical coordinates (Deb & Agrawal 1995; Deb &
Goyal 1996), in the bounded form of Deb's NSGA-II program.

Children are computed together, element by element, so that the bits of one do not depend on which
others are computed with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpc_es.core.data import Array, Float64
from hpc_es.core.interfaces import HasBounds, MixedCoordinates, VectorProblem

SPREAD = 0.3  # initial standard deviations as a share of a coordinate's range
CROSSED = 0.5  # share of the coordinates that a crossover changes
SAME = 1e-14  # parents that are closer are equal


@dataclass(frozen=True)
class SearchSpace:
    """The coordinates of candidates."""

    low: Float64  # float64[size]; -infinity: no bound, or a choice
    high: Float64  # float64[size]
    width: Float64  # float64[size], finite: the range to which mutations are relative
    mixed: MixedCoordinates | None = None

    @staticmethod
    def of(problem: VectorProblem, sigma: float | None) -> SearchSpace:
        """Return the space of a problem; without bounds a range is the initial standard deviation,
        `sigma` or the problem's, divided by 0.3.
        """
        spread = np.asarray(problem.spread, np.float64) if sigma is None else np.float64(sigma)
        infinite = np.full(problem.size, np.inf)
        low, high = -infinite, infinite
        if isinstance(problem, HasBounds):
            low, high = (np.asarray(end, np.float64) for end in problem.search_bounds())
        bounded = np.isfinite(low) & np.isfinite(high)
        width = np.where(
            bounded, np.where(bounded, high, 1) - np.where(bounded, low, 0), spread / SPREAD
        )
        return SearchSpace(low, high, width, problem.mixed)

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return len(self.low)

    @cached_property
    def _choices(self) -> Mapping[int, int]:
        return {} if self.mixed is None else self.mixed.choices

    @cached_property
    def _is_choice(self) -> Array:
        return np.isin(np.arange(self.size), list(self._choices))

    def level(self, index: int, number: float) -> float:
        """Return the number that stands for the level of an ordered coordinate: its middle."""
        assert self.mixed is not None
        low, high = self.mixed.thresholds(index, number)
        return (max(low, float(self.low[index])) + min(high, float(self.high[index]))) / 2

    def snapped(self, vectors: Float64) -> Float64:
        """Return vectors, float64[..., size], within the bounds, with one number for each level and
        category, so that equal candidates have equal vectors.
        """
        result = vectors.clip(self.low, self.high)
        for index, count in self._choices.items():
            result[..., index] = np.rint(result[..., index]).clip(0, count - 1) + 0.0  # no -0
        for index in () if self.mixed is None else self.mixed.ordered:
            column = result[..., index]
            levels = [self.level(index, number) for number in np.ravel(column).tolist()]
            result[..., index] = np.reshape(levels, column.shape)
        return result

    def sampled(self, rng: np.random.Generator, centre: Array, sigma: float | None) -> Float64:
        """Return a first candidate: with `sigma`, or without bounds, around the centre; else
        uniform between the bounds. Categories are equally likely.
        """
        uniform, normal = rng.random(self.size), rng.standard_normal(self.size)
        spread = SPREAD * self.width if sigma is None else np.float64(sigma)
        around = np.asarray(centre, np.float64) + spread * normal
        bounded = np.isfinite(self.low) & np.isfinite(self.high) & (sigma is None)
        low = np.where(bounded, self.low, 0.0)
        vector = np.where(bounded, low + uniform * self.width, around)
        for index, count in self._choices.items():
            vector[index] = min(int(uniform[index] * count), count - 1)
        return self.snapped(vector)

    def crossed(
        self,
        draws: Float64,
        first: Array,
        second: Array,
        which: Array,
        *,
        probability: float,
        eta: float,
    ) -> Float64:
        """Return a child of each pair by simulated binary crossover; without a crossover a parent.

        Half of the coordinates are recombined; those of choices change places.

        Args:
            draws: float64[pairs, 1 + 3 size], uniform.
            first: [pairs, size].
            second: [pairs, size].
            which: int64[pairs], 0 or 1, of the two children.
            probability: of a crossover.
            eta: distribution index.
        """
        happens = draws[:, :1] < probability
        recombined, u, changes = draws[:, 1:].reshape(len(draws), 3, self.size).swapaxes(0, 1)
        a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
        left, right = np.minimum(a, b), np.maximum(a, b)
        distance = right - left
        takes_part = (recombined < CROSSED) & (distance > SAME) & happens
        real = takes_part & ~self._is_choice
        if real.any():
            apart, sum_ = distance[real], left[real] + right[real]
            room = np.stack([(left - self.low)[real], (self.high - right)[real]])
            below, above = _spread_factors(u[real], 1 + 2 * room / apart, eta)
            left[real], right[real] = (sum_ - below * apart) / 2, (sum_ + above * apart) / 2
        is_first = (which == 0)[:, np.newaxis]
        children = np.where((changes < 0.5) == is_first, left, right)
        return self.snapped(np.where(takes_part, children, np.where(is_first, a, b)))

    def mutated(
        self, draws: Float64, vectors: Float64, *, probability: float, eta: float
    ) -> Float64:
        """Return vectors after polynomial mutation of each coordinate with this probability.

        An ordered coordinate changes by at least one level, and a choice to another category.

        Args:
            draws: float64[vectors, 2 size], uniform.
            vectors: float64[vectors, size].
            probability: of a coordinate.
            eta: distribution index.
        """
        chosen, u = draws[:, : self.size] < probability, draws[:, self.size :]
        result = vectors.copy()
        real = chosen & ~self._is_choice
        if real.any():
            x, width = vectors[real], np.broadcast_to(self.width, real.shape)[real]
            room = np.stack([(vectors - self.low)[real], (self.high - vectors)[real]])
            result[real] = x + width * _mutation_steps(u[real], room / width, eta)
        result = self.snapped(result)
        for index in () if self.mixed is None else self.mixed.ordered:
            before = vectors[:, index]
            for row in np.flatnonzero(chosen[:, index] & (result[:, index] == before)).tolist():
                downwards = bool(u[row, index] < 0.5)
                result[row, index] = self._next_level(index, float(before[row]), downwards)
        for index, count in self._choices.items():
            rows = chosen[:, index]
            others = np.minimum((u[rows, index] * (count - 1)).astype(np.int64), count - 2)
            result[rows, index] = others + (others >= vectors[rows, index])
        return result

    def _next_level(self, index: int, number: float, downwards: bool) -> float:
        """Return the neighbour of a level, the other one at an end."""
        assert self.mixed is not None
        low, high = self.mixed.thresholds(index, number)
        if (downwards or np.isinf(high)) and np.isfinite(low):
            return self.level(index, low)
        return number if np.isinf(high) else self.level(index, float(np.nextafter(high, np.inf)))


def _spread_factors(u: Float64, beta: Float64, eta: float) -> Float64:
    """Return the spread factors of simulated binary crossover towards both bounds, float64[2, k].

    `beta`, float64[2, k], are the largest ones that stay within the bounds.
    """
    alpha = 2 - beta ** -(eta + 1)
    inside = u * alpha
    factors: Float64 = np.where(inside <= 1, inside, 1 / (2 - inside)) ** (1 / (eta + 1))
    return factors


def _mutation_steps(u: Float64, room: Float64, eta: float) -> Float64:
    """Return the steps of polynomial mutation as shares of the range, float64[k]; `room`, [2, k],
    are the distances to the bounds as such shares.
    """
    downwards = u <= 0.5
    rest = np.maximum(1 - np.where(downwards, room[0], room[1]), 0.0) ** (eta + 1)
    tail = np.where(downwards, 2 * u, 2 * (1 - u))
    size = 1 - (tail + (1 - tail) * rest) ** (1 / (eta + 1))
    steps: Float64 = np.where(downwards, -size, size)
    return steps
