"""How long jobs take, estimated from their candidates, so that long jobs are handed out first.

No result depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hpc_es.core.data import Float64

MOST_REMEMBERED = 512  # candidates, the newest
NEIGHBOURS = 5  # similar candidates whose errors are averaged


class Order(NamedTuple):
    """The jobs of a generation, the longest first."""

    jobs: tuple[int, ...] = ()  # (): their durations are unknown
    longest: float = 1.0  # duration of the longest one, as a multiple of the mean


class JobDurations:
    """Estimates how long jobs take, from the candidates that were evaluated last.

    The logarithm of the seconds is fitted by a linear function of the candidate. The mean error of
    the fit for similar candidates is added.
    """

    def __init__(self, choices: Mapping[int, int]) -> None:
        self._choices = choices  # number of categories by index of the coordinate
        # of the candidates that are remembered, float64[candidates, features]
        self._known: Float64 | None = None
        self._log_seconds: Float64 = np.zeros(0)  # float64[candidates]

    def add(self, vectors: Float64, seconds: Float64) -> None:
        """Add candidates, float64[jobs, size], and their seconds, float64[jobs], NaN if unknown."""
        is_known = seconds > 0
        features = self._features(vectors[is_known])
        if self._known is not None:
            features = np.concatenate([self._known, features])
        log_seconds = np.concatenate([self._log_seconds, np.log(seconds[is_known])])
        self._known = features[-MOST_REMEMBERED:]
        self._log_seconds = log_seconds[-MOST_REMEMBERED:]

    def longest_first(self, vectors: Float64) -> Order:
        """Return the order of candidates, float64[jobs, size]."""
        if self._known is None or len(self._known) < NEIGHBOURS:
            return Order()
        mean, scale = self._known.mean(axis=0), self._known.std(axis=0)
        scale[scale == 0] = 1.0
        known, new = (self._known - mean) / scale, (self._features(vectors) - mean) / scale
        centred = self._log_seconds - self._log_seconds.mean()

        # ridge regression, unless there are so many features that it would take long
        size = known.shape[1]
        slopes = np.zeros(size)
        if size <= MOST_REMEMBERED:
            slopes = np.linalg.solve(known.T @ known + size * np.eye(size), known.T @ centred)

        # its errors for the nearest candidates, weighted by the inverse square of their distances
        errors = centred - known @ slopes
        squared_distances = (
            np.square(known).sum(axis=1)
            + np.square(new).sum(axis=1)[:, np.newaxis]
            - 2 * new @ known.T
        )
        nearest = np.argsort(squared_distances, axis=1, kind="stable")[:, :NEIGHBOURS]
        distances = np.take_along_axis(squared_distances, nearest, axis=1)
        weights = 1 / (distances.clip(min=0) + 1e-6)
        estimates = new @ slopes + (weights * errors[nearest]).sum(axis=1) / weights.sum(axis=1)
        seconds = np.exp(centred)
        longest = max(seconds.max(), np.exp(estimates.max())) / seconds.mean()
        return Order(tuple(np.argsort(-estimates, kind="stable").tolist()), float(longest))

    def _features(self, vectors: Float64) -> Float64:
        """Return numbers, and indicators of the categories of choices, float64[jobs, features]."""
        numbers = np.delete(vectors, list(self._choices), axis=1)
        indicators = [
            vectors[:, [index]] == np.arange(count) for index, count in self._choices.items()
        ]
        return np.concatenate([numbers, *indicators], axis=1, dtype=np.float64)
