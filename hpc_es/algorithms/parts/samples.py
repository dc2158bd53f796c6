"""How wide the first samples of a normal distribution spread."""

from __future__ import annotations

import numpy as np

from hpc_es.core.data import Array, Float64
from hpc_es.core.interfaces import VectorProblem


def first_deviations(sigma: float | None, problem: VectorProblem) -> tuple[float, Float64]:
    """Return a step size and each coordinate's share of it, float64[size]: a config's sigma, or the problem's spread.

    The shares are 1 where all coordinates have one deviation; their geometric mean is 1 where they do not.
    """
    if sigma is not None:
        return sigma, np.ones(problem.size)
    spread: Array = problem.spread.astype(np.float64)
    if (spread == spread[0]).all():
        return float(spread[0]), np.ones(problem.size)
    step = float(np.exp(np.log(spread).mean()))
    return step, spread / step
