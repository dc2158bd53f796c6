"""SNES, separable natural evolution strategies, for up to millions of parameters (Wierstra et al.
2014, JMLR 15).

A sample is x = m + sigma z with z from N(0, I) and a standard deviation sigma for each coordinate.
With the utility u_i of each sample's rank (algorithm 6),

    m     <- m + eta_m sigma sum_i u_i z_i
    sigma <- sigma exp(eta_sigma / 2 sum_i u_i (z_i^2 - 1))

Both sums are divided into blocks of parameters; one rank sums a block over all samples in order.
Samples of equal fitness share their utilities. The utilities sum to 0, so that a plateau changes
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hpc_es.algorithms.common import distribution, stopping
from hpc_es.algorithms.common.distribution import DistributionStrategy, Ranked
from hpc_es.algorithms.common.metrics import DISTRIBUTION
from hpc_es.algorithms.common.ranking import sample_weights, utilities
from hpc_es.config.options import Positive, option, options
from hpc_es.core.data import Array, Arrays, Chunk, Float64, Rows, State
from hpc_es.core.declarations import Needs
from hpc_es.core.population import Population

NEEDS = Needs(
    searches="vectors",
    noise=True,
    max_rank=1,
    growing=True,
    presets={"noise.kind": "counter"},
    metrics=DISTRIBUTION,
)


@options
class Options(distribution.Options):
    """`algorithm:` with `kind: snes`."""

    kind: Literal["snes"] = option("name of the algorithm", "snes")
    mean_learning_rate: Positive = option("learning rate of the mean, eta_m", 1.0)
    sigma_learning_rate: Positive | None = option(
        "learning rate of the standard deviations, eta_sigma; null: (3 + ln n) / (5 sqrt n)", None
    )


@dataclass(frozen=True)
class SNES(DistributionStrategy):
    """A search with one standard deviation for each coordinate.

    State, shared:
        deviations: dtype[params]; sigma, standard deviation of each coordinate
    """

    options: Options

    def initial_distribution(self, sigma: float, ratios: Float64) -> tuple[Arrays, Arrays]:
        """Return the initial standard deviations."""
        return {"deviations": (sigma * ratios).astype(self.problem.dtype)}, {}

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return m + sigma z."""
        return self.perturbed(state, chunk, 1.0, state.shared["deviations"])

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Float64:
        """Return the utility of each sample, once for z and once for z^2, float64[2, samples]."""
        return np.tile(sample_weights(utilities(len(rows)), fitness), (2, 1))

    def partial_update(self, state: State, prepared: Ranked, block: int) -> Arrays:
        """Return sum_i u_i z_i and sum_i u_i z_i^2 over a block of parameters, dtype[2, block]."""
        if prepared.reason:
            return {}
        return {"sums": self.weighted_sums(state, prepared.weights, (1, 2), block)}

    def update(
        self, state: State, weights: Float64, blocks: Iterable[Arrays]
    ) -> tuple[Arrays, Arrays]:
        """Take a natural gradient step.

        sum_i u_i (z_i^2 - 1) = sum_i u_i z_i^2, since the utilities sum to 0.
        """
        sum_z, sum_z2 = np.concatenate([block["sums"] for block in blocks], axis=1)
        sigma, n = state.shared["deviations"], self.problem.size
        eta_m = self.options.mean_learning_rate
        eta_sigma = self.options.sigma_learning_rate or (3 + math.log(n)) / (5 * math.sqrt(n))
        # learning rates are cast, so that a policy's float32 arrays do not become float64
        scalar = self.problem.dtype.type
        # not in the paper: one generation changes a standard deviation by a factor of at most e
        log_growth = np.clip(scalar(eta_sigma / 2) * sum_z2, -1, 1)
        m = state.theta + scalar(eta_m) * sigma * sum_z
        return {"theta": m, "deviations": sigma * np.exp(log_growth)}, {}

    def view(self, state: State) -> stopping.View:
        """Return the quantities that the stopping criteria test."""
        deviations: Array = state.shared["deviations"]
        return stopping.View(
            theta=state.theta,
            first_sigma=self.first_sigma(state),
            sigma=float(deviations.max()),
            deviations=deviations,
            path=np.zeros_like(deviations),  # there is no evolution path
        )

    def metrics(self, state: State) -> Mapping[str, float]:
        """Return the geometric mean of the standard deviations, and the ratio of the extremes."""
        deviations = state.shared["deviations"]
        return {
            "sigma": float(np.exp(np.log(deviations, dtype=np.float64).mean())),
            "axis_ratio": float(deviations.max() / deviations.min()),
        }


def needs(options: Options) -> Needs:
    """Return the requirements under these options."""
    return distribution.needs_of_searches(NEEDS, options)


build = SNES
