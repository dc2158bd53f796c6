"""SNES, separable natural evolution strategies, for up to millions of parameters (Wierstra et al. 2014, JMLR 15).

A sample is x = m + sigma z with a sigma for each coordinate. With the utilities u of the samples' ranks

    m     <- m + eta_m sigma * sum_i u_i z_i
    sigma <- sigma exp(eta_sigma / 2 * sum_i u_i (z_i^2 - 1))

Both sums are cut into blocks of parameters, each over all samples in their order by one rank. Samples of equal returns
have equal utilities, which sum to 0: a plateau moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hpc_es.algorithms.common import distribution, stopping
from hpc_es.algorithms.common.distribution import DistributionStrategy, Ranked
from hpc_es.algorithms.common.ranking import sample_weights, utilities
from hpc_es.config.options import Positive, option, options
from hpc_es.core.data import Array, Arrays, Chunk, Float64, Rows, State
from hpc_es.core.interfaces import Needs
from hpc_es.core.population import Population

NEEDS = Needs(searches="vectors", noise=True, growing=True, presets={"noise.kind": "counter"})


@options
class Options(distribution.Options):
    """`algorithm:` with `kind: snes`."""

    kind: Literal["snes"] = option("name of the algorithm", "snes")
    mean_learning_rate: Positive = option("eta of the mean", 1.0)
    sigma_learning_rate: Positive | None = option("eta of sigma; null: (3 + ln n) / (5 sqrt n)", None)


@dataclass(frozen=True)
class SNES(DistributionStrategy):
    """The strategy.

    State, shared:
        deviations: dtype[params]; sigma, the standard deviation of each coordinate
    """

    options: Options

    def initial_distribution(self, step: float, ratios: Float64) -> tuple[Arrays, Arrays]:
        """Return these deviations."""
        return {"deviations": (step * ratios).astype(self.problem.dtype)}, {}

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return m + sigma z."""
        return self.perturbed(state, chunk, 1.0, state.shared["deviations"])

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Array:
        """Return the utilities, for z and for its square, float64[2, samples]."""
        return np.tile(sample_weights(utilities(len(rows)), fitness), (2, 1))

    def partial_update(self, state: State, prepared: Ranked, block: int) -> Arrays:
        """Return the sums of u z and of u z^2 over a block of parameters."""
        return {} if prepared.reason else {"sums": self.weighted_sums(state, prepared.weights, (1, 2), block)}

    def update(self, state: State, weights: Array, blocks: Sequence[Arrays]) -> tuple[Arrays, Arrays]:
        """Return the natural gradient step; as the utilities sum to 0, so does their part of the -1."""
        sums, squares = np.concatenate([block["sums"] for block in blocks], axis=1)
        size, number, deviations = self.problem.size, self.problem.dtype.type, state.shared["deviations"]
        rate = self.options.sigma_learning_rate or (3 + math.log(size)) / (5 * math.sqrt(size))
        growth = np.clip(number(rate / 2) * squares, -1, 1)
        theta = state.theta + number(self.options.mean_learning_rate) * deviations * sums
        return {"theta": theta, "deviations": deviations * np.exp(growth)}, {}

    def view(self, state: State) -> stopping.View:
        """Return what the criteria look at; there is no path."""
        deviations = state.shared["deviations"]
        return stopping.View(state.theta, self.first_sigma(state), float(deviations.max()), deviations, 0 * deviations)

    def metrics(self, state: State) -> Mapping[str, float]:
        """Return the geometric mean of the deviations, and the largest by the smallest."""
        deviations = state.shared["deviations"]
        return {
            "sigma": float(np.exp(np.log(deviations, dtype=np.float64).mean())),
            "axis_ratio": float(deviations.max() / deviations.min()),
        }


build = SNES
