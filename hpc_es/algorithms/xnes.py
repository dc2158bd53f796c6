"""xNES, exponential natural evolution strategies, with a full covariance.

Glasmachers et al. 2010, GECCO. A sample is x = m + sigma B z with z from N(0, I) and det B = 1.
With the utility u_i of each sample's rank, G = sum_i u_i (z_i z_i^T - I) and g = trace(G) / n
(algorithm 1),

    m     <- m + eta_m sigma B sum_i u_i z_i
    sigma <- sigma exp(eta_sigma / 2 g)
    B     <- B expm(eta_B / 2 (G - g I))

The matrix exponential is computed on rank 0 from the eigenvectors of G. With fewer samples than
parameters, G is decomposed in the subspace of the samples; otherwise it is summed in blocks of
rows, each by one rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from hpc_es.algorithms.common import covariance, distribution, stopping
from hpc_es.algorithms.common.covariance import BlockSampler
from hpc_es.algorithms.common.distribution import DistributionStrategy, Ranked
from hpc_es.algorithms.common.metrics import DISTRIBUTION
from hpc_es.algorithms.common.ranking import sample_weights, utilities
from hpc_es.config.options import Positive, option, options
from hpc_es.core.data import Arrays, Chunk, Float64, Rows, State
from hpc_es.core.declarations import Needs
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.population import Explicit, Population

NEEDS = Needs(
    metrics=DISTRIBUTION,
    searches="vectors",
    noise=True,
    growing=True,
    presets={"noise.kind": "counter"},
)


@options
class Options(distribution.Options):
    """`algorithm:` with `kind: xnes`."""

    kind: Literal["xnes"] = option("name of the algorithm", "xnes")
    mean_learning_rate: Positive = option("learning rate of the mean, eta_m", 1.0)
    sigma_learning_rate: Positive | None = option(
        "learning rate of the step size, eta_sigma; null: (9 + 3 ln n) / (5 n sqrt n)", None
    )
    shape_learning_rate: Positive | None = option(
        "learning rate of the shape, eta_B; null: (9 + 3 ln n) / (5 n sqrt n)", None
    )


@dataclass(frozen=True)
class XNES(DistributionStrategy):
    """xNES.

    State, shared:
        sigma: float64[]; step size
        shape: float64[params, params]; B, with determinant 1
    State, master:
        axis_lengths: float64[params]; singular values of B, ascending, computed every params / 2
            generations
    """

    options: Options

    def initial_distribution(self, sigma: float, ratios: Float64) -> tuple[Arrays, Arrays]:
        """Return a diagonal shape.

        Its determinant is 1, since the geometric mean of the ratios is.
        """
        return {"sigma": np.array(sigma), "shape": np.diag(ratios)}, {
            "axis_lengths": np.sort(ratios)
        }

    @cached_property
    def _sampler(self) -> BlockSampler:
        return BlockSampler(self.noise, self.problem.size)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return m + sigma B z."""
        m, sigma, B = state.theta, state.shared["sigma"], state.shared["shape"]
        y = self._sampler.y(state.generation, self.population(state), chunk.job_numbers, B)
        return Explicit(self.problem.layout, (m + sigma * y).astype(m.dtype, copy=False))

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Float64:
        """Return the utility of each sample, float64[samples]."""
        return sample_weights(utilities(len(rows)), fitness)

    def blocks(self, state: State) -> int:
        """Return the number of blocks of rows of G.

        It is 0 if there are fewer samples than parameters, or few samples.
        """
        population, n = self.population(state), self.problem.size
        return (
            covariance.blocks(population, n)
            if population >= max(n, covariance.MIN_SHARED_SAMPLES)
            else 0
        )

    def partial_update(self, state: State, prepared: Ranked, block: int) -> Arrays:
        """Return a block of rows of sum_i u_i z_i z_i^T, float64[rows, params]."""
        if prepared.reason:
            return {}
        z, _ = self._sampler.z_and_y(
            state.generation, self.population(state), state.shared["shape"]
        )
        return {"rows": covariance.rows_of_sum(prepared.weights, z, block)}

    def update(
        self, state: State, weights: Float64, blocks: Iterable[Arrays]
    ) -> tuple[Arrays, Arrays]:
        """Take a natural gradient step; G = sum_i u_i z_i z_i^T, since the utilities sum to 0."""
        m, sigma, B = state.theta, float(state.shared["sigma"]), state.shared["shape"]
        n = self.problem.size
        default = (9 + 3 * math.log(n)) / (5 * n * math.sqrt(n))
        eta_m = self.options.mean_learning_rate
        eta_sigma = self.options.sigma_learning_rate or default
        eta_B = self.options.shape_learning_rate or default
        z, y = self._sampler.z_and_y(state.generation, len(weights), B)
        eigenvalues, axes = _eigen(weights, z, [block["rows"] for block in blocks])
        g = float(eigenvalues.sum()) / n
        # expm(eta_B / 2 (G - g I)) has the factor `along` along each axis and `across` in all other
        # directions.
        along = np.exp(np.clip(eta_B / 2 * (eigenvalues - g), -1, 1))
        across = math.exp(min(1.0, max(-1.0, -eta_B / 2 * g)))
        new_B = (B @ axes * (along - across)) @ axes.T
        new_B += across * B
        shift = eta_m * sigma * (weights @ y)
        shared = {
            "theta": (m + shift).astype(m.dtype, copy=False),
            "sigma": np.array(sigma * math.exp(min(1.0, max(-1.0, eta_sigma / 2 * g)))),
            "shape": new_B,
        }
        if int(state.master["age"]) % max(1, n // 2):  # B changes little in n / 2 generations
            return shared, {}
        return shared, {"axis_lengths": np.sort(np.linalg.svd(new_B, compute_uv=False))}

    def view(self, state: State) -> stopping.View:
        """Return the quantities that the stopping criteria test; there is no evolution path."""
        sigma, B = float(state.shared["sigma"]), state.shared["shape"]
        deviations = sigma * np.sqrt(np.einsum("ij,ij->i", B, B))
        return stopping.View(
            state.theta, self.first_sigma(state), sigma, deviations, 0 * deviations
        )

    def metrics(self, state: State) -> Mapping[str, float]:
        """Return the step size, and axis ratio and condition number of the last `axis_lengths`."""
        lengths = state.master["axis_lengths"]
        ratio = float(lengths[-1] / lengths[0])
        return {
            "sigma": float(state.shared["sigma"]),
            "axis_ratio": ratio,
            "condition_number": ratio**2,
        }


def _eigen(u: Float64, z: Float64, rows: Sequence[Float64]) -> tuple[Float64, Float64]:
    """Return the eigenvalues of G, and the eigenvectors as columns.

    The eigenvalues 0 outside the samples' span are left out. `rows` are blocks of rows of G, if it
    was summed by all ranks. With fewer samples than parameters, G is decomposed in an orthonormal
    basis of the samples.
    """
    if rows or len(z) >= z.shape[1]:
        return np.linalg.eigh(np.concatenate(rows) if rows else (z.T * u) @ z)
    basis, coordinates = np.linalg.qr(z.T)
    eigenvalues, axes = np.linalg.eigh((coordinates * u) @ coordinates.T)
    return eigenvalues, basis @ axes


def needs(options: Options) -> Needs:
    """Return the requirements under these options."""
    return distribution.needs_of_searches(NEEDS, options)


def incompatibilities(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the options: (key, text)."""
    yield from covariance.too_large("xnes", problem.size)


build = XNES
