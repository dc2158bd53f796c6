"""Fitness shaping: from returns to weights that no outlier can dominate (Wierstra et al. 2014)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Float64

Shaping = Literal["centered_rank", "sign", "centered_sign_rank", "none"]
BY_SIGNS = ("sign", "centered_sign_rank")  # those that need the sums of the rewards' signs


def centered_ranks(values: npt.ArrayLike) -> Float64:
    """Ranks scaled to [-0.5, 0.5], in the shape of `values`; ties share their average rank, NaN ranks last.

    Equal values get equal weights, so that a population of ties moves nothing; a single value gets 0.
    """
    array = np.asarray(values, np.float64)
    flat = np.nan_to_num(array.ravel(), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    if flat.size < 2:
        return np.zeros(array.shape)
    _, inverse, counts = np.unique(flat, return_inverse=True, return_counts=True)
    average_ranks = np.cumsum(counts) - (counts + 1) / 2  # of 0 .. n - 1
    ranks: Float64 = average_ranks[inverse.ravel()] / (flat.size - 1) - 0.5
    return ranks.reshape(array.shape)


def shaped(shaping: Shaping, returns: Float64, sign_returns: Float64) -> Float64:
    """Return the fitness that each return is turned into, in its shape."""
    match shaping:
        case "centered_rank":
            return centered_ranks(returns)
        case "centered_sign_rank":
            return centered_ranks(sign_returns)
        case "sign":
            return sign_returns
        case _:
            return returns
