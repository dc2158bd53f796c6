"""Fitness shaping and recombination weights: functions of the ranks of a population."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Float64

# see `shaped`
Shaping = Literal["centered_rank", "sign", "centered_sign_rank", "advantage", "none"]
BY_SIGNS = ("sign", "centered_sign_rank")  # shapings that need the sum of the signs of the rewards


def centered_ranks(values: npt.ArrayLike) -> Float64:
    """Return ranks scaled to [-0.5, 0.5]; the highest value gets 0.5.

    Ties share their average rank, so that a population of equal values gets weights of 0. NaN ranks
    last. A single value gets 0.

    Args:
        values: numbers of any shape.

    Returns:
        float64 in the shape of `values`.

    Examples:
        >>> from hpc_es.extend import centered_ranks
        >>> centered_ranks([10.0, 30.0, 20.0])
        array([-0.5,  0.5,  0. ])
    """
    array = np.asarray(values, np.float64)
    flat = np.nan_to_num(array.ravel(), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    if flat.size < 2:
        return np.zeros(array.shape)
    _, inverse, counts = np.unique(flat, return_inverse=True, return_counts=True)
    average_ranks = np.cumsum(counts) - (counts + 1) / 2  # 0 to n - 1
    ranks: Float64 = average_ranks[inverse.ravel()] / (flat.size - 1) - 0.5
    return ranks.reshape(array.shape)


def shaped(shaping: Shaping, returns: Float64, sign_returns: Float64) -> Float64:
    """Return the shaped fitness of each job.

    Args:
        shaping: "none" leaves the returns as they are, "advantage" subtracts their mean,
            "centered_rank" ranks them, "sign" takes the sums of signs, "centered_sign_rank" ranks
            these.
        returns: float64 of any shape.
        sign_returns: sums of the signs of the rewards, in the same shape.

    Returns:
        float64 in this shape.
    """
    match shaping:
        case "centered_rank":
            return centered_ranks(returns)
        case "centered_sign_rank":
            return centered_ranks(sign_returns)
        case "sign":
            return sign_returns
        case "advantage":
            advantages: Float64 = returns - returns.mean()
            return advantages
        case _:
            return returns


def default_population(size: int) -> int:
    """Return the default population size for this number of parameters.

    It is 4 + floor(3 ln size) (Hansen 2016, arXiv:1604.00772, eq. 48).

    Examples:
        >>> from hpc_es.extend import default_population
        >>> default_population(10)
        10
    """
    return 4 + int(3 * math.log(size))


def ranking(returns: Float64) -> npt.NDArray[np.intp]:
    """Return the indices of the samples from best to worst, NaN last, ties in job order.

    Args:
        returns: float64[samples], higher is better.

    Returns:
        intp[samples].

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import ranking
        >>> ranking(np.array([1.0, np.nan, 3.0, 2.0]))
        array([2, 3, 0, 1])
    """
    return np.argsort(-returns, kind="stable")


def sample_weights(weights: Float64, returns: Float64, share_ties: bool = True) -> Float64:
    """Return the weight of each sample from the weights of the ranks.

    Args:
        weights: float64[samples], those of the ranks, best first.
        returns: float64[samples], higher is better; NaN ranks last.
        share_ties: whether samples of equal returns get the mean of their weights, and failed
            samples likewise.

    Returns:
        float64[samples].

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import sample_weights
        >>> sample_weights(np.array([0.75, 0.25, 0.0]), np.array([1.0, 3.0, 3.0]))
        array([0. , 0.5, 0.5])
    """
    order = ranking(returns)
    result = np.empty(len(returns))
    result[order] = weights
    sorted_returns = returns[order]
    # there are ties or failures
    if share_ties and not (sorted_returns[1:] < sorted_returns[:-1]).all():
        _, inverse, counts = np.unique(
            returns, return_inverse=True, return_counts=True, equal_nan=True
        )
        means = np.bincount(inverse, result) / counts
        result = np.where(counts[inverse] > 1, means[inverse], result)
    return result


def utilities(population: int) -> Float64:
    """Return the utilities of the ranks, best first; they sum to 0.

    u_k = max(0, ln(population / 2 + 1) - ln k) / sum_j max(0, ...) - 1 / population (Wierstra et
    al. 2014, JMLR 15, section 3.1).

    Args:
        population: number of samples.

    Returns:
        float64[population].
    """
    raw = np.maximum(0.0, math.log(population / 2 + 1) - np.log(np.arange(1, population + 1)))
    weights: Float64 = raw / raw.sum() - 1 / population
    return weights


def nothing_to_learn(returns: Float64, needed: int) -> str | None:
    """Return why these jobs give no update, or None.

    Fewer than `needed` are finite, or all are equal.

    Args:
        returns: float64[jobs], NaN for failed jobs.
        needed: number of jobs that an update requires.
    """
    finite = returns[np.isfinite(returns)]
    if len(finite) < needed:
        return f"{len(finite)} of {len(returns)} evaluations did not fail, {needed} are needed: no update"
    return (
        "all evaluations are equal: no update"
        if finite.min() == finite.max() == returns.min()
        else None
    )
