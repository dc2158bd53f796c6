"""CMA-ES with active weights and restarts (Hansen 2016, arXiv:1604.00772; equations are numbered as there).

A sample is x = m + sigma y with y = C^(1/2) z, the symmetric root: signs and order of eigenvectors do not matter, and
C^(-1/2) of the weighted mean of the y is that of the z. C is summed in blocks of rows, each whole by one rank, or in
one of few samples; its root is computed on rank 0, no more often than pays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from hpc_es.algorithms.common import covariance, distribution, stopping
from hpc_es.algorithms.common.covariance import Constants, Transformed
from hpc_es.algorithms.common.distribution import DistributionStrategy, Ranked
from hpc_es.algorithms.common.gradient import norm
from hpc_es.algorithms.common.ranking import sample_weights
from hpc_es.config.options import option, options
from hpc_es.core.data import Arrays, Chunk, Float64, Rows, State
from hpc_es.core.interfaces import Needs, VectorProblem
from hpc_es.core.population import Explicit, Population

NEEDS = Needs(searches="vectors", noise=True, growing=True, presets={"noise.kind": "counter"})


@options
class Options(distribution.Options):
    """`algorithm:` with `kind: cma_es`."""

    kind: Literal["cma_es"] = option("name of the algorithm", "cma_es")
    active: bool = option("bad samples make the covariance smaller where they lie", True)


@dataclass(frozen=True)
class CMAES(DistributionStrategy):
    """The strategy.

    State, shared:
        sigma: float64[]; step size
        root: float64[params, params]; C^(1/2), the symmetric root of the covariance
    State, master:
        covariance: float64[params, params]; C, without sigma
        axes: float64[params, params]; eigenvectors of C, one a column, when the root was last computed
        axis_lengths: float64[params]; roots of the eigenvalues of C at that time
        sigma_path: float64[params]; p_sigma, the path of the step size
        covariance_path: float64[params]; p_c, the path of the covariance
        root_age: int64[]; `age` at that time
    """

    options: Options

    def constants(self, state: State) -> Constants:
        """Return the constants of this search."""
        return covariance.constants(self.problem.size, self.population(state), self.options.active)

    def initial_distribution(self, step: float, ratios: Float64) -> tuple[Arrays, Arrays]:
        """Return a covariance along the coordinates."""
        zeros = np.zeros(len(ratios))
        return {"sigma": np.array(step), "root": np.diag(ratios)}, {
            **{"covariance": np.diag(np.square(ratios)), "axes": np.eye(len(ratios)), "axis_lengths": ratios},
            **{"sigma_path": zeros, "covariance_path": zeros, "root_age": np.array(0)},
        }

    @cached_property
    def _samples(self) -> Transformed:
        return Transformed(self.noise, self.problem.size)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return m + sigma C^(1/2) z."""
        jobs, theta, root = chunk.job_numbers, state.theta, state.shared["root"]
        steps = self._samples.steps(state.generation, self.population(state), jobs, root)
        return Explicit(self.problem.layout, (theta + state.shared["sigma"] * steps).astype(theta.dtype, copy=False))

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Float64:
        """Return the weights of the samples, float64[samples]."""
        return sample_weights(self.constants(state).weights, fitness, share_ties=False)

    def blocks(self, state: State) -> int:
        """Return the blocks of rows of the covariance."""
        return covariance.blocks(self.population(state), self.problem.size)

    def partial_update(self, state: State, prepared: Ranked, block: int) -> Arrays:
        """Return a block of rows of c_mu sum w y y^T; bad samples as if each y had its expected length (eq. 46)."""
        if prepared.reason:
            return {}
        z, y = self._samples.both(state.generation, self.population(state), state.shared["root"])
        squares = np.maximum(np.square(z).sum(axis=1), 1e-300)
        weights = np.where(prepared.weights < 0, prepared.weights * self.problem.size / squares, prepared.weights)
        return {"rows": covariance.rows_of_sum(self.constants(state).c_mu * weights, y, block)}

    def update(self, state: State, weights: Float64, blocks: Sequence[Arrays]) -> tuple[Arrays, Arrays]:
        """Return the distribution after the equations of the tutorial, in its order and names."""
        c, n, old = self.constants(state), self.problem.size, state.master
        step, age = float(state.shared["sigma"]), int(old["age"])
        z, y = self._samples.both(state.generation, len(weights), state.shared["root"])
        good = np.maximum(weights, 0.0)
        z_w, y_w = good @ z, good @ y
        theta = (state.theta + step * y_w).astype(state.theta.dtype, copy=False)  # eq. 42
        p_s = (1 - c.c_s) * old["sigma_path"] + math.sqrt(c.c_s * (2 - c.c_s) * c.mueff) * z_w  # eq. 43
        length, faded = norm(p_s), math.sqrt(1 - (1 - c.c_s) ** (2 * (age + 1)))
        h = float(length / faded < (1.4 + 2 / (n + 1)) * c.chi)
        p_c = (1 - c.c_c) * old["covariance_path"] + h * math.sqrt(c.c_c * (2 - c.c_c) * c.mueff) * y_w  # eq. 45
        kept = 1 + c.c_1 * (1 - h) * c.c_c * (2 - c.c_c) - c.c_1 - c.c_mu * float(c.weights.sum())
        matrix = covariance.updated(old["covariance"], kept, p_c, c.c_1, [block["rows"] for block in blocks])  # eq. 47
        step *= math.exp(min(1.0, c.c_s / c.d_s * (length / c.chi - 1)))  # eq. 44
        shared = {"theta": theta, "sigma": np.array(step)}
        master = {"covariance": matrix, "sigma_path": p_s, "covariance_path": p_c}
        if age + 1 - int(old["root_age"]) >= c.stale:
            shared["root"], lengths, axes = covariance.root_of(matrix)
            master |= {"axis_lengths": lengths, "axes": axes, "root_age": np.array(age + 1)}
        return shared, master

    def view(self, state: State) -> stopping.View:
        """Return what the criteria look at."""
        master, step = state.master, float(state.shared["sigma"])
        deviations = step * np.sqrt(master["covariance"].diagonal())
        axes = master["axis_lengths"], master["axes"]
        path = step * master["covariance_path"]
        return stopping.View(state.theta, self.first_sigma(state), step, deviations, path, axes)

    def metrics(self, state: State) -> Mapping[str, float]:
        """Return the step size, the form of the covariance, and how long the path is to its expected length."""
        lengths = state.master["axis_lengths"]
        ratio = float(lengths.max() / lengths.min())
        return {
            "sigma": float(state.shared["sigma"]),
            "axis_ratio": ratio,
            "condition_number": ratio**2,
            "path_length": norm(state.master["sigma_path"]) / self.constants(state).chi,
        }


def misfits(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield why this problem does not fit: (key, text)."""
    yield from covariance.too_large("cma_es", problem.size)


build = CMAES
