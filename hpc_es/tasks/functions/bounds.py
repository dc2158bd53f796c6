"""Bounds of a search vector, and three ways to keep to them.

What is evaluated is always inside the bounds. A vector that is inside already is kept to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hpc_es.core.data import Float64

Keep = Literal["clip", "reflect", "penalty"]


@dataclass(frozen=True)
class Bounds:
    """Each coordinate's limits, minus and plus infinity where there is none."""

    low: Float64  # float64[size]
    high: Float64  # float64[size]

    def clipped(self, vectors: Float64) -> Float64:
        """Return the nearest vectors inside, float64[..., size]."""
        nearest: Float64 = np.clip(vectors, self.low, self.high)
        return nearest

    def reflected(self, vectors: Float64) -> Float64:
        """Return the vectors folded at the bounds, as a ray between two mirrors, float64[..., size]."""
        closed = np.isfinite(self.low) & np.isfinite(self.high)
        width = np.where(closed, self.high - self.low, 1.0)
        way = np.mod(vectors - np.where(closed, self.low, 0.0), 2 * width)
        folded = np.where(closed, self.low, 0.0) + np.minimum(way, 2 * width - way)
        open_side = np.where(vectors < self.low, 2 * self.low - vectors, 2 * self.high - vectors)
        inside = (vectors >= self.low) & (vectors <= self.high)
        return self.clipped(np.where(inside, vectors, np.where(closed, folded, open_side)))

    def excess(self, vectors: Float64) -> Float64:
        """Return the squared distance to the nearest vector inside, float64[...]; 0 inside."""
        beyond: Float64 = vectors - self.clipped(vectors)
        return np.asarray((beyond * beyond).sum(axis=-1))

    def middle(self) -> Float64:
        """Return the middle where both limits are there, else the number nearest to 0 that is inside."""
        closed = np.isfinite(self.low) & np.isfinite(self.high)
        with np.errstate(invalid="ignore"):
            return np.where(closed, self.low + (self.high - self.low) / 2, self.clipped(np.zeros(len(self.low))))


def kept(bounds: Bounds | None, how: Keep, vectors: Float64, weight: float = 1.0) -> tuple[Float64, Float64]:
    """Return the vectors as they are evaluated, and what is added to the cost of each, float64[vectors].

    `penalty` evaluates the nearest vector inside and adds `weight` times the squared distance to it. That is the form
    of pycma's BoundPenalty; its weights follow the spread of the costs so far, here the weight is a constant, so that a
    job's value depends on nothing but the job.
    """
    nothing = np.zeros(len(vectors))
    if bounds is None:
        return vectors, nothing
    if how == "reflect":
        return bounds.reflected(vectors), nothing
    return bounds.clipped(vectors), weight * bounds.excess(vectors) if how == "penalty" else nothing
