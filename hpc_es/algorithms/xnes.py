"""xNES, exponential natural evolution strategies, with a full covariance (Glasmachers et al. 2010, GECCO).

A sample is x = m + sigma B z, det B = 1. With the utilities u of the samples' ranks, G = sum_i u_i (z_i z_i^T - I) and
g its trace / n

    m     <- m + eta_m sigma B * sum_i u_i z_i
    sigma <- sigma exp(eta_sigma / 2 * g)
    B     <- B expm(eta_B / 2 * (G - g I))

The exponential is computed on rank 0, in the few dimensions of the samples. Where they are more than the parameters G
is summed in blocks of rows, each by one rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from hpc_es.algorithms.common import covariance, distribution, stopping
from hpc_es.algorithms.common.covariance import Transformed
from hpc_es.algorithms.common.distribution import DistributionStrategy, Ranked
from hpc_es.algorithms.common.ranking import sample_weights, utilities
from hpc_es.config.options import Positive, option, options
from hpc_es.core.data import Arrays, Chunk, Float64, Rows, State
from hpc_es.core.interfaces import Needs, VectorProblem
from hpc_es.core.population import Explicit, Population

NEEDS = Needs(searches="vectors", noise=True, growing=True, presets={"noise.kind": "counter"})


@options
class Options(distribution.Options):
    """`algorithm:` with `kind: xnes`."""

    kind: Literal["xnes"] = option("name of the algorithm", "xnes")
    mean_learning_rate: Positive = option("eta of the mean", 1.0)
    sigma_learning_rate: Positive | None = option("eta of sigma; null: (9 + 3 ln n) / (5 n sqrt n)", None)
    shape_learning_rate: Positive | None = option("eta of B; null: (9 + 3 ln n) / (5 n sqrt n)", None)


@dataclass(frozen=True)
class XNES(DistributionStrategy):
    """The strategy.

    State, shared:
        sigma: float64[]; step size
        shape: float64[params, params]; B, with determinant 1
    State, master:
        axis_lengths: float64[params]; singular values of B, rising, computed every params / 2 generations
    """

    options: Options

    def initial_distribution(self, step: float, ratios: Float64) -> tuple[Arrays, Arrays]:
        """Return a shape along the coordinates; the geometric mean of the ratios is 1."""
        return {"sigma": np.array(step), "shape": np.diag(ratios)}, {"axis_lengths": np.sort(ratios)}

    @cached_property
    def _samples(self) -> Transformed:
        return Transformed(self.noise, self.problem.size)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return m + sigma B z."""
        jobs, theta, shape = chunk.job_numbers, state.theta, state.shared["shape"]
        steps = self._samples.steps(state.generation, self.population(state), jobs, shape)
        return Explicit(self.problem.layout, (theta + state.shared["sigma"] * steps).astype(theta.dtype, copy=False))

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Float64:
        """Return the utilities, float64[samples]."""
        return sample_weights(utilities(len(rows)), fitness)

    def blocks(self, state: State) -> int:
        """Return the blocks of rows of G, which is summed only where its rank may be full."""
        population, size = self.population(state), self.problem.size
        return covariance.blocks(population, size) if population >= max(size, covariance.SHARED) else 0

    def partial_update(self, state: State, prepared: Ranked, block: int) -> Arrays:
        """Return a block of rows of sum u z z^T."""
        if prepared.reason:
            return {}
        z, _ = self._samples.both(state.generation, self.population(state), state.shared["shape"])
        return {"rows": covariance.rows_of_sum(prepared.weights, z, block)}

    def update(self, state: State, weights: Float64, blocks: Sequence[Arrays]) -> tuple[Arrays, Arrays]:
        """Return the natural gradient step; as the utilities sum to 0, so does their part of the I."""
        n, step, shape = self.problem.size, float(state.shared["sigma"]), state.shared["shape"]
        default = (9 + 3 * math.log(n)) / (5 * n * math.sqrt(n))
        of_sigma = self.options.sigma_learning_rate or default
        of_shape = self.options.shape_learning_rate or default
        z, y = self._samples.both(state.generation, len(weights), shape)
        values, axes = _axes(weights, z, [block["rows"] for block in blocks])
        growth = float(values.sum()) / n
        along = np.exp(np.clip(of_shape / 2 * (values - growth), -1, 1))
        across = math.exp(min(1.0, max(-1.0, -of_shape / 2 * growth)))
        turned = (shape @ axes * (along - across)) @ axes.T
        turned += across * shape
        move = self.options.mean_learning_rate * step * (weights @ y)
        after = {
            "theta": (state.theta + move).astype(state.theta.dtype, copy=False),
            "sigma": np.array(step * math.exp(min(1.0, max(-1.0, of_sigma / 2 * growth)))),
            "shape": turned,
        }
        if int(state.master["age"]) % max(1, n // 2):  # B changes little in so many generations
            return after, {}
        return after, {"axis_lengths": np.sort(np.linalg.svd(turned, compute_uv=False))}

    def view(self, state: State) -> stopping.View:
        """Return what the criteria look at; there is no path."""
        step, shape = float(state.shared["sigma"]), state.shared["shape"]
        deviations = step * np.sqrt(np.einsum("ij,ij->i", shape, shape))
        return stopping.View(state.theta, self.first_sigma(state), step, deviations, 0 * deviations)

    def metrics(self, state: State) -> Mapping[str, float]:
        """Return the step size and the form of the covariance, which is computed now and then where n is large."""
        lengths = state.master["axis_lengths"]
        ratio = float(lengths[-1] / lengths[0])
        return {"sigma": float(state.shared["sigma"]), "axis_ratio": ratio, "condition_number": ratio**2}


def _axes(weights: Float64, z: Float64, rows: Sequence[Float64]) -> tuple[Float64, Float64]:
    """Return the eigenvalues of G and its eigenvectors, columns; without those across all samples, whose value is 0.

    Fewer samples than parameters have fewer dimensions than G: it is decomposed in an orthonormal basis of theirs.
    """
    if rows or len(z) >= z.shape[1]:
        return np.linalg.eigh(np.concatenate(rows) if rows else (z.T * weights) @ z)
    basis, parts = np.linalg.qr(z.T)
    values, axes = np.linalg.eigh((parts * weights) @ parts.T)
    return values, basis @ axes


def misfits(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield why this problem does not fit: (key, text)."""
    yield from covariance.too_large("xnes", problem.size)


build = XNES
