"""Statistics over independent runs, as of Agarwal et al. 2021 (arXiv:2108.13264).

The interquartile mean leaves out the lowest and the highest quarter of the scores. Intervals are
percentile bootstraps: 95 % of the statistics of RESAMPLES samples with replacement, with a fixed
seed, so that the same runs always have the same interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from hpc_es.core.data import Float64

RESAMPLES = 2000
LEVEL = 0.95
LEVEL_ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
FEW = 10  # runs below which bootstrap intervals are clearly too short
FEWEST = 3  # runs from which on there is a bootstrap interval
MOST_AT_ONCE = 1 << 22  # numbers of a part of the samples
CentreName: TypeAlias = Literal["mean", "median", "iqm"]
IntervalName: TypeAlias = Literal["bootstrap", "std", "iqr", "range"]
Ends: TypeAlias = tuple[float, float]


def interquartile_mean(scores: Float64) -> Float64:
    """Return the mean of float64[..., n] without its smallest and largest scores.

    It is over the last axis; floor(n / 4) scores are left out at either end.
    """
    count = scores.shape[-1]
    cut = count // 4
    return np.asarray(np.sort(scores, axis=-1)[..., cut : count - cut].mean(axis=-1), np.float64)


SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


def probability_of_improvement(first: Float64, second: Float64) -> Float64:
    """Return the probability that a score of `second` is higher than one of `first`.

    They are float64[..., m] and float64[..., n]. Equal scores count one half.
    """
    firsts = np.sort(first, axis=-1).reshape(-1, first.shape[-1])
    seconds = second.reshape(-1, second.shape[-1])
    # twice the number of scores that are lower, and equal ones once: exact
    counts = [
        sum(int(one.searchsorted(other, side).sum()) for side in SIDES)
        for one, other in zip(firsts, seconds, strict=True)
    ]
    pairs = 2.0 * first.shape[-1] * second.shape[-1]
    return np.asarray(np.reshape(counts, first.shape[:-1]) / pairs, np.float64)


def bootstrap_interval(statistic: Callable[..., Float64], *samples: Sequence[float]) -> Ends | None:
    """Return the interval of a statistic of samples, which are drawn independently.

    None if one has under 3 scores. The statistic maps float64[RESAMPLES, n] for each sample to
    float64[RESAMPLES].
    """
    if min(map(len, samples)) < FEWEST:
        return None
    generator = np.random.default_rng(0)
    drawn = []
    for sample in samples:
        scores = np.asarray(sample, np.float64)
        drawn.append(scores[_resamples(generator, len(scores))])
    low, high = np.quantile(statistic(*drawn), LEVEL_ENDS)
    return float(low), float(high)


def _resamples(
    generator: np.random.Generator, count: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return the indices of all samples with replacement, int64[RESAMPLES, count]."""
    return generator.integers(0, count, (RESAMPLES, count))


def _mean(scores: Float64) -> Float64:
    return np.asarray(scores.mean(axis=-1), np.float64)


def _median(scores: Float64) -> Float64:
    return np.asarray(np.median(scores, axis=-1), np.float64)


CENTRES: Mapping[CentreName, Callable[[Float64], Float64]] = {
    "mean": _mean,
    "median": _median,
    "iqm": interquartile_mean,
}
CENTRE_WORDS: Mapping[CentreName, str] = {
    "mean": "mean",
    "median": "median",
    "iqm": "interquartile mean",
}
INTERVAL_WORDS: Mapping[IntervalName, str] = {
    "bootstrap": "95 % bootstrap interval",
    "std": "± std",
    "iqr": "quartiles",
    "range": "smallest to largest",
}


@dataclass(frozen=True)
class Summary:
    """Which number stands for several runs, and which interval is drawn around it.

    Examples:
        >>> import numpy as np
        >>> values = np.array([[1.0, 2.0, 3.0, 10.0]])
        >>> Summary("iqm", "range").of(values)
        (array([2.5]), array([1.]), array([10.]))
    """

    centre: CentreName = "mean"
    interval: IntervalName = "bootstrap"

    def of(self, values: Float64) -> tuple[Float64, Float64, Float64]:
        """Return the centre and both ends of the interval.

        Args:
            values: float64[points, runs].

        Returns:
            Three arrays float64[points]. The ends are NaN without an interval: that of one run,
            or a bootstrap of under 3 runs.
        """
        centre = CENTRES[self.centre](values)
        low, high = self._ends(values, centre)
        return centre, low, high

    def _ends(self, values: Float64, centre: Float64) -> tuple[Float64, Float64]:
        runs = values.shape[-1]
        if runs < 2 or (self.interval == "bootstrap" and runs < FEWEST):
            return np.full_like(centre, np.nan), np.full_like(centre, np.nan)
        if self.interval == "std":
            # n - 1, around the centre that is drawn
            spread = values.std(axis=-1, ddof=1)
            return centre - spread, centre + spread
        if self.interval == "iqr":
            low, high = np.quantile(values, (0.25, 0.75), axis=-1)
            return low, high
        if self.interval == "range":
            return values.min(axis=-1), values.max(axis=-1)
        return self._bootstrap(values)

    def _bootstrap(self, values: Float64) -> tuple[Float64, Float64]:
        """Return the ends of the bootstrap interval; each sample takes the same runs everywhere."""
        points, runs = values.shape
        indices = _resamples(np.random.default_rng(0), runs)
        ends = np.empty((2, points))
        step = max(MOST_AT_ONCE // indices.size, 1)
        for start in range(0, points, step):
            part = slice(start, start + step)
            drawn = CENTRES[self.centre](values[part][:, indices])
            ends[:, part] = np.quantile(drawn, LEVEL_ENDS, axis=-1)
        return ends[0], ends[1]

    def centre_text(self) -> str:
        """Return the centre in words, as for a legend."""
        return CENTRE_WORDS[self.centre]

    def interval_text(self) -> str:
        """Return the interval in words, as for a legend."""
        return INTERVAL_WORDS[self.interval]


DEFAULT = Summary()
