"""sep-CMA-ES: CMA-ES with a diagonal covariance, for up to millions of parameters (Ros & Hansen 2008, PPSN).

A sample is x = m + sigma d z, coordinate by coordinate. All that the update needs are sums of w z and w z^2 in blocks
of parameters, each over all samples in their order by one rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from hpc_es.algorithms.common import distribution, stopping
from hpc_es.algorithms.common.covariance import expected_length
from hpc_es.algorithms.common.distribution import DistributionStrategy, Ranked
from hpc_es.algorithms.common.gradient import norm
from hpc_es.algorithms.common.ranking import sample_weights
from hpc_es.config.options import option, options
from hpc_es.core.data import Array, Arrays, Chunk, Float64, Rows, State
from hpc_es.core.interfaces import Needs
from hpc_es.core.population import Population

NEEDS = Needs(searches="vectors", noise=True, growing=True, presets={"noise.kind": "counter"})


@options
class Options(distribution.Options):
    """`algorithm:` with `kind: sep_cma_es`."""

    kind: Literal["sep_cma_es"] = option("name of the algorithm", "sep_cma_es")


@dataclass(frozen=True)
class Constants:
    """How fast each part of the distribution learns."""

    mu: int
    weights: Float64  # float64[population], the best first; they sum to 1
    mueff: float
    c_s: float
    d_s: float
    c_c: float
    c_1: float
    c_mu: float
    chi: float


@lru_cache(maxsize=64)
def constants(size: int, population: int) -> Constants:
    """Return the constants of the paper, table 1."""
    mu = population // 2
    raw = np.maximum(0.0, math.log(mu + 1) - np.log(np.arange(1, population + 1)))
    weights = raw / raw.sum()
    mueff = float(1 / np.square(weights).sum())
    c_s = (mueff + 2) / (size + mueff + 3)
    d_s = 1 + 2 * max(0.0, math.sqrt((mueff - 1) / (size + 1)) - 1) + c_s
    c_cov = 2 / (mueff * (size + math.sqrt(2)) ** 2)
    c_cov += (1 - 1 / mueff) * min(1.0, (2 * mueff - 1) / ((size + 2) ** 2 + mueff))
    c_cov = min(1.0, c_cov * (size + 2) / 3)
    c_1 = c_cov / mueff
    return Constants(mu, weights, mueff, c_s, d_s, 4 / (size + 4), c_1, c_cov - c_1, expected_length(size))


@dataclass(frozen=True)
class SepCMAES(DistributionStrategy):
    """The strategy.

    State, shared:
        sigma: float64[]; step size
        deviations: dtype[params]; d, the roots of the diagonal of C
    State, master:
        sigma_path: dtype[params]; p_sigma, the path of the step size
        covariance_path: dtype[params]; p_c, the path of the covariance
    """

    options: Options

    def initial_distribution(self, step: float, ratios: Float64) -> tuple[Arrays, Arrays]:
        """Return these deviations, and no paths."""
        zeros = np.zeros(len(ratios), self.problem.dtype)
        shared = {"sigma": np.array(step), "deviations": ratios.astype(self.problem.dtype)}
        return shared, {"sigma_path": zeros, "covariance_path": zeros}

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return m + sigma d z."""
        deviations = state.shared["deviations"] * self.problem.dtype.type(state.shared["sigma"])
        return self.perturbed(state, chunk, 1.0, deviations)

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Array:
        """Return the weights of z and of its square, float64[2, samples]."""
        weights = constants(self.problem.size, self.population(state)).weights
        return np.tile(sample_weights(weights, fitness, share_ties=False), (2, 1))

    def partial_update(self, state: State, prepared: Ranked, block: int) -> Arrays:
        """Return the sums of w z and of w z^2 over a block of parameters."""
        return {} if prepared.reason else {"sums": self.weighted_sums(state, prepared.weights, (1, 2), block)}

    def update(self, state: State, weights: Array, blocks: Sequence[Arrays]) -> tuple[Arrays, Arrays]:
        """Return the distribution after the equations of the paper."""
        z_w, squares = np.concatenate([block["sums"] for block in blocks], axis=1)
        old, number, deviations = state.master, self.problem.dtype.type, state.shared["deviations"]
        c, step = constants(len(z_w), self.population(state)), float(state.shared["sigma"])
        y_w = deviations * z_w
        p_s = number(1 - c.c_s) * old["sigma_path"] + number(math.sqrt(c.c_s * (2 - c.c_s) * c.mueff)) * z_w
        length, faded = norm(p_s), math.sqrt(1 - (1 - c.c_s) ** (2 * (int(old["age"]) + 1)))
        h = float(length / faded < (1.4 + 2 / (len(z_w) + 1)) * c.chi)
        p_c = number(1 - c.c_c) * old["covariance_path"] + number(h * math.sqrt(c.c_c * (2 - c.c_c) * c.mueff)) * y_w
        kept = 1 - c.c_1 - c.c_mu + c.c_1 * (1 - h) * c.c_c * (2 - c.c_c)
        variances = np.square(deviations) * (number(kept) + number(c.c_mu) * squares) + number(c.c_1) * np.square(p_c)
        shared = {
            "theta": state.theta + number(step) * y_w,
            "sigma": np.array(step * math.exp(min(1.0, c.c_s / c.d_s * (length / c.chi - 1)))),
            "deviations": np.sqrt(variances),
        }
        return shared, {"sigma_path": p_s, "covariance_path": p_c}

    def view(self, state: State) -> stopping.View:
        """Return what the criteria look at."""
        step = float(state.shared["sigma"])
        deviations, path = step * state.shared["deviations"], step * state.master["covariance_path"]
        return stopping.View(state.theta, self.first_sigma(state), step, deviations, path)

    def metrics(self, state: State) -> Mapping[str, float]:
        """Return the step size, the form of the covariance, and how long the path is to its expected length."""
        deviations = state.shared["deviations"]
        return {
            "sigma": float(state.shared["sigma"]),
            "axis_ratio": float(deviations.max() / deviations.min()),
            "path_length": norm(state.master["sigma_path"]) / expected_length(self.problem.size),
        }


build = SepCMAES
