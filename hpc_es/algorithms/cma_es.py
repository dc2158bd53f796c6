"""CMA-ES with active weights and restarts (Hansen 2016, arXiv:1604.00772; equations are numbered as there).

A sample is x = m + sigma y with y = C^(1/2) z, the symmetric root: signs and order of eigenvectors do not matter, and
C^(-1/2) of the weighted mean of the y is that of the z. C is summed in blocks of rows, each whole by one rank; its
root is computed on rank 0, no more often than pays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from hpc_es.algorithms.parts import covariance, distribution, stopping
from hpc_es.algorithms.parts.covariance import Constants
from hpc_es.algorithms.parts.distribution import DistributionStrategy, Ranked
from hpc_es.algorithms.parts.gradient import norm
from hpc_es.algorithms.parts.recombination import of_samples
from hpc_es.algorithms.parts.samples import directions
from hpc_es.config.options import option, options
from hpc_es.core.data import Array, Arrays, Candidates, Chunk, Float64, Rows, State, Vectors
from hpc_es.core.interfaces import Needs, VectorProblem

NEEDS = Needs(searches="vectors", noise=True, growing=True, presets={"noise.kind": "counter"})


@options
class Options(distribution.Options):
    """`algorithm:` with `kind: cma_es`."""

    kind: Literal["cma_es"] = option("the algorithm's module in hpc_es/algorithms", "cma_es")
    active: bool = option("bad samples make the covariance smaller where they lie", True)


@dataclass(frozen=True)
class Samples:
    """The samples of a generation, as any rank makes them anew, and their weights."""

    strategy: CMAES
    state: State
    weights: Float64  # float64[samples]

    @cached_property
    def directions(self) -> Array:
        """z, float32[samples, size]."""
        samples, strategy = range(len(self.weights)), self.strategy
        return directions(strategy.noise, self.state.generation, samples, strategy.problem.size)

    def rows(self, block: int) -> Float64:
        """Return a block of rows of sum w y y^T; weights below 0 as if each y were of the same length (eq. 46)."""
        squares = np.square(self.directions, dtype=np.float64).sum(axis=1)
        shrunk = self.weights * self.strategy.problem.size / np.maximum(squares, 1e-300)
        return covariance.rows_of_sum(np.where(self.weights < 0, shrunk, self.weights), self._steps, block)

    @cached_property
    def _steps(self) -> Float64:
        return covariance.products(self.directions, 0, self.state.shared["root"])


@dataclass(frozen=True)
class CMAES(DistributionStrategy):
    """The strategy."""

    options: Options

    def constants(self, state: State) -> Constants:
        """Return the constants of this search."""
        return covariance.constants(self.problem.size, self.population(state), self.options.active)

    def begun(self, step: float, ratios: Float64) -> tuple[Arrays, Arrays]:
        """Return a covariance along the coordinates."""
        zeros = np.zeros(len(ratios))
        return {"sigma": np.array(step), "root": np.diag(ratios)}, {
            **{"covariance": np.diag(np.square(ratios)), "axes": np.eye(len(ratios)), "axis_lengths": ratios},
            **{"sigma_path": zeros, "covariance_path": zeros, "root_age": np.array(0)},
        }

    def candidates(self, state: State, chunk: Chunk) -> Candidates:
        """Return m + sigma C^(1/2) z."""
        jobs, theta = chunk.job_numbers, state.theta
        drawn = directions(self.noise, state.generation, jobs, len(theta))
        steps = covariance.products(drawn, jobs.start, state.shared["root"])
        return Vectors((theta + state.shared["sigma"] * steps).astype(theta.dtype, copy=False))

    def weights(self, state: State, rows: Rows) -> Samples:
        """Return the weights of the samples."""
        return Samples(self, state, of_samples(self.constants(state).weights, rows["return_"], share_ties=False))

    def blocks(self, state: State) -> int:
        """Return the blocks of rows of the covariance."""
        return covariance.blocks(self.problem.size)

    def contribute(self, state: State, prepared: Ranked, block: int) -> Arrays:
        """Return a block of rows of sum w y y^T."""
        return {} if prepared.reason else {"rows": prepared.weights.rows(block)}

    def moved(self, state: State, weights: Samples, blocks: Sequence[Arrays]) -> tuple[Arrays, Arrays]:
        """Return the distribution after the equations of the tutorial, in its order and names."""
        c, n, old = self.constants(state), self.problem.size, state.master
        step, age = float(state.shared["sigma"]), int(old["age"])
        z_w = np.maximum(weights.weights, 0.0) @ weights.directions.astype(np.float64)
        y_w = covariance.products(z_w[np.newaxis], 0, state.shared["root"])[0]
        theta = (state.theta + step * y_w).astype(state.theta.dtype, copy=False)  # eq. 42
        p_s = (1 - c.c_s) * old["sigma_path"] + math.sqrt(c.c_s * (2 - c.c_s) * c.mueff) * z_w  # eq. 43
        length, faded = norm(p_s), math.sqrt(1 - (1 - c.c_s) ** (2 * (age + 1)))
        h = float(length / faded < (1.4 + 2 / (n + 1)) * c.chi)
        p_c = (1 - c.c_c) * old["covariance_path"] + h * math.sqrt(c.c_c * (2 - c.c_c) * c.mueff) * y_w  # eq. 45
        kept = 1 + c.c_1 * (1 - h) * c.c_c * (2 - c.c_c) - c.c_1 - c.c_mu * float(c.weights.sum())
        matrix = kept * old["covariance"] + c.c_1 * np.outer(p_c, p_c)  # eq. 47
        matrix += c.c_mu * np.concatenate([block["rows"] for block in blocks])
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
        deviations = step * np.sqrt(np.diag(master["covariance"]))
        axes = master["axis_lengths"], master["axes"]
        path = step * master["covariance_path"]
        return stopping.View(state.theta, self.first_sigma(state), step, deviations, path, axes)

    def shown(self, state: State) -> Mapping[str, float]:
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
