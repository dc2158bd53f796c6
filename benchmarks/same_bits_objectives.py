"""Objectives for `same_bits`: one that evaluates batches, one that fails in part of the space."""

from __future__ import annotations

from typing import Any

import numpy as np


def batch(x: Any) -> Any:
    """Return the sum of squares of each row of x, float64[rows, dimension], weighted by 1, 2,
    ...
    """
    return (np.arange(1, x.shape[1] + 1) * x**2).sum(axis=1)


def partial(x: Any) -> float:
    """Return the sum of squares of x, float64[dimension];
    raise ValueError if the first coordinate is above 0.2.
    """
    if x[0] > 0.2:
        raise ValueError("a failure, on purpose")
    return float((x**2).sum())
