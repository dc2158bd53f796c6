"""Fitness shaping: from returns to weights that no outlier can dominate (Wierstra et al. 2014).

Recombination: which weight each sample of a generation has, by its rank (CMA-ES, natural evolution strategies)."""

from __future__ import annotations

import math
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


def default_population(size: int) -> int:
    """Return 4 + floor(3 ln n), the number of samples for n parameters (Hansen 2016, arXiv:1604.00772, eq. 48)."""
    return 4 + int(3 * math.log(size))


def ranking(returns: Float64) -> npt.NDArray[np.intp]:
    """Return the samples from the best to the worst, intp[samples]; failed ones (NaN) last, ties in job order."""
    return np.argsort(-returns, kind="stable")


def sample_weights(weights: Float64, returns: Float64, share_ties: bool = True) -> Float64:
    """Return the weight of each sample, float64[samples], from those of the ranks, the best first.

    Samples of equal returns have the mean of their weights if `share_ties`, and failed ones are equal.
    """
    order = ranking(returns)
    found = np.empty(len(returns))
    found[order] = weights
    in_order = returns[order]
    if share_ties and not (in_order[1:] < in_order[:-1]).all():  # there are ties, or failures
        _, inverse, counts = np.unique(returns, return_inverse=True, return_counts=True, equal_nan=True)
        means = np.bincount(inverse, found) / counts
        found = np.where(counts[inverse] > 1, means[inverse], found)
    return found


def utilities(population: int) -> Float64:
    """Return u_k = max(0, ln(population / 2 + 1) - ln k), made to sum to 1, less 1 / population; k = 1 is the best.

    From Wierstra et al. 2014 (JMLR 15, section 3.1); they sum to 0.
    """
    raw = np.maximum(0.0, math.log(population / 2 + 1) - np.log(np.arange(1, population + 1)))
    weights: Float64 = raw / raw.sum() - 1 / population
    return weights


def nothing_to_learn(returns: Float64, needed: int) -> str | None:
    """Return why a generation cannot be learned from: too few evaluations did not fail, or all are equal."""
    finite = returns[np.isfinite(returns)]
    if len(finite) < needed:
        return f"{len(finite)} of {len(returns)} evaluations did not fail, {needed} are needed: no update"
    return "all evaluations are equal: no update" if finite.min() == finite.max() == returns.min() else None
