"""Sums in float32 that lose nothing worth having, over episodes of any length (Kahan 1965).

The compiler keeps them as they are written: XLA does not reorder additions unless it is told to be fast.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from hpc_es.core.data import Float64


class Total(NamedTuple):
    """A sum, and what it has too much."""

    value: Any
    excess: Any

    def plus(self, term: Any) -> Total:
        """Return the sum with a further term."""
        corrected = term - self.excess
        value = self.value + corrected
        return Total(value, (value - self.value) - corrected)

    def exactly(self) -> Float64:
        """Return the sum in float64, on the host."""
        return np.asarray(self.value, np.float64) - np.asarray(self.excess, np.float64)


class Seen(NamedTuple):
    """The observations of a play, as differences from the first of them: so that squares lose nothing either."""

    first: Any  # float32[observations]
    total: Total  # of the differences
    squares: Total

    def plus(self, observation: Any, step: Any, counts: Any) -> Seen:
        """Return this with the observation of a step, counted from 0, if it counts."""
        first = jnp.where(step == 0, observation, self.first)
        apart = jnp.where(counts, observation - first, 0)
        return Seen(first, self.total.plus(apart), self.squares.plus(apart * apart))


def nothing_seen(rows: int, width: int) -> Seen:
    """Return sums of nothing, [rows, observations]."""

    def zeros() -> Any:
        return np.zeros((rows, width), np.float32)

    return Seen(zeros(), Total(zeros(), zeros()), Total(zeros(), zeros()))
