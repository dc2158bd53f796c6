"""A normal distribution with the covariance I + v v^T: its samples, and its natural gradient in v and the scales D.

The covariance of a strategy is D (I + v v^T) D with a diagonal D. With u = v / |v|, V = |v|^2 and g = 1 + V a sample is

    y = z + (sqrt(g) - 1) (u . z) u

All of it costs as much as a few vectors. From CR-FM-NES (Nomura & Ono 2022, arXiv:2201.11422). A gradient is (s, t):
the step of log D is s, and that of v is t / |v|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpc_es.algorithms.parts.gradient import norm
from hpc_es.core.data import Array, Float64

Gradient = tuple[Float64, Float64]  # s and t, each float64[size]


def dot(a: Array, b: Array) -> float:
    """Return a . b, summed in float64 in an order that no library chooses."""
    return float((a * b).sum(dtype=np.float64))


@dataclass(frozen=True)
class RankOne:
    """The covariance I + v v^T."""

    v: Array  # [size]

    @cached_property
    def length(self) -> float:
        """|v|."""
        return norm(self.v)

    @cached_property
    def axis(self) -> Array:
        """The direction of v, u."""
        unit: Array = self.v / self.v.dtype.type(self.length)
        return unit

    @property
    def largest(self) -> float:
        """The largest eigenvalue, g."""
        return 1 + self.length**2

    def sample(self, z: Array, along: float) -> Array:
        """Return y of a standard normal z, or of a weighted sum of some; `along` is u . z."""
        stretched: Array = self.axis * self.axis.dtype.type((math.sqrt(self.largest) - 1) * along)
        stretched += z
        return stretched

    def gradient(self, y: Float64) -> Gradient:
        """Return what a sample gives `natural` to make its natural gradient of."""
        u, p = self.axis, dot(self.axis, y)
        return y * y - self.length**2 / self.largest * p * u * y - 1, p * y - (p * p + self.largest) / 2 * u

    def summed(self, along_z: Float64, squares: Float64, along_squared: float) -> Gradient:
        """Return the weighted sum of the gradients of some samples, whose weights sum to 0.

        They need no sample but the sums of w (u . z) z, of w z^2 and of w (u . z)^2.
        """
        u, g, root = self.axis, self.largest, math.sqrt(self.largest)
        of_scales = squares + (root - 1) ** 2 / root * u * (along_z - along_squared * u)
        return of_scales, root * along_z + (g / 2 - root) * along_squared * u

    def natural(self, gradient: Gradient) -> Gradient:
        """Return the natural gradient of the log density, damped where few coordinates have most of v: alpha < 1.

        It is 0 where v has degenerated.
        """
        (s, t), u, big, g = gradient, self.axis, self.length**2, self.largest
        o = u * u
        alpha = min(1.0, math.sqrt(big**2 + (2 * g - math.sqrt(g)) / float(o.max())) / (2 + big))
        b = 2 * alpha**2 - (1 - alpha**2) * big**2 / g
        diagonal = 2 - (b + 2 * alpha**2) * o
        s = s - alpha / g * ((2 + big) * t * u - big * dot(u, t) * o)
        shared = o / diagonal
        determinant = 1 + b * dot(o, shared)
        if not (determinant > 0 and diagonal.min() > 0):  # so large a |v| that no digit of them is right
            return np.zeros_like(s), np.zeros_like(t)
        s = s / diagonal - b * dot(shared, s) / determinant * shared
        return s, t - alpha * ((2 + big) * s * u - dot(o, s) * u)
