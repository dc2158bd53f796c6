"""xNES, exponential natural evolution strategies, with a full covariance (Glasmachers et al. 2010, GECCO).

A sample is x = m + sigma B z, det B = 1. With the utilities u of the samples' ranks, G = sum_i u_i (z_i z_i^T - I) and
g its trace / n

    m     <- m + eta_m sigma B * sum_i u_i z_i
    sigma <- sigma exp(eta_sigma / 2 * g)
    B     <- B expm(eta_B / 2 * (G - g I))

G is summed in blocks of rows, each by one rank; its exponential is computed on rank 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hpc_es.algorithms.parts import covariance, distribution, stopping
from hpc_es.algorithms.parts.distribution import DistributionStrategy, Ranked
from hpc_es.algorithms.parts.recombination import of_samples, utilities
from hpc_es.algorithms.parts.samples import directions
from hpc_es.config.options import Positive, option, options
from hpc_es.core.data import Array, Arrays, Candidates, Chunk, Float64, Rows, State, Vectors
from hpc_es.core.interfaces import Needs, VectorProblem

NEEDS = Needs(searches="vectors", noise=True, growing=True, presets={"noise.kind": "counter"})


@options
class Options(distribution.Options):
    """`algorithm:` with `kind: xnes`."""

    kind: Literal["xnes"] = option("the algorithm's module in hpc_es/algorithms", "xnes")
    mean_learning_rate: Positive = option("eta of the mean", 1.0)
    sigma_learning_rate: Positive | None = option("eta of sigma; null: (9 + 3 ln n) / (5 n sqrt n)", None)
    shape_learning_rate: Positive | None = option("eta of B; null: (9 + 3 ln n) / (5 n sqrt n)", None)


@dataclass(frozen=True)
class XNES(DistributionStrategy):
    """The strategy."""

    options: Options

    def begun(self, step: float, ratios: Float64) -> tuple[Arrays, Arrays]:
        """Return a shape along the coordinates; the geometric mean of the ratios is 1."""
        return {"sigma": np.array(step), "shape": np.diag(ratios)}, {"axis_lengths": np.sort(ratios)}

    def candidates(self, state: State, chunk: Chunk) -> Candidates:
        """Return m + sigma B z."""
        jobs, theta = chunk.job_numbers, state.theta
        drawn = directions(self.noise, state.generation, jobs, len(theta))
        steps = covariance.products(drawn, jobs.start, state.shared["shape"].T)
        return Vectors((theta + state.shared["sigma"] * steps).astype(theta.dtype, copy=False))

    def weights(self, state: State, rows: Rows) -> tuple[Float64, Array]:
        """Return the utilities, float64[samples], and z, [samples, size]."""
        drawn = directions(self.noise, state.generation, range(len(rows)), self.problem.size)
        return of_samples(utilities(len(rows)), rows["return_"]), drawn.astype(np.float64)

    def blocks(self, state: State) -> int:
        """Return the blocks of rows of G."""
        return covariance.blocks(self.problem.size)

    def contribute(self, state: State, prepared: Ranked, block: int) -> Arrays:
        """Return a block of rows of sum u z z^T."""
        if prepared.reason:
            return {}
        utility, drawn = prepared.weights
        return {"rows": covariance.rows_of_sum(utility, drawn, block)}

    def moved(self, state: State, weights: tuple[Float64, Array], blocks: Sequence[Arrays]) -> tuple[Arrays, Arrays]:
        """Return the natural gradient step; as the utilities sum to 0, so does their part of the I."""
        utility, drawn = weights
        n, step, shape = self.problem.size, float(state.shared["sigma"]), state.shared["shape"]
        default = (9 + 3 * math.log(n)) / (5 * n * math.sqrt(n))
        of_sigma = self.options.sigma_learning_rate or default
        of_shape = self.options.shape_learning_rate or default
        gradient = np.concatenate([block["rows"] for block in blocks])
        growth = float(np.trace(gradient)) / n
        values, vectors = np.linalg.eigh((gradient + gradient.T) / 2 - growth * np.eye(n))
        exponential = (vectors * np.exp(np.clip(of_shape / 2 * values, -1, 1))) @ vectors.T
        move = self.options.mean_learning_rate * step * (shape @ (utility @ drawn))
        after = {
            "theta": (state.theta + move).astype(state.theta.dtype, copy=False),
            "sigma": np.array(step * math.exp(min(1.0, max(-1.0, of_sigma / 2 * growth)))),
            "shape": shape @ exponential,
        }
        if int(state.master["age"]) % max(1, n // 50):
            return after, {}
        return after, {"axis_lengths": np.sort(np.linalg.svd(after["shape"], compute_uv=False))}

    def view(self, state: State) -> stopping.View:
        """Return what the criteria look at; there is no path."""
        step = float(state.shared["sigma"])
        deviations = step * np.sqrt(np.square(state.shared["shape"]).sum(axis=1))
        return stopping.View(state.theta, self.first_sigma(state), step, deviations, 0 * deviations)

    def shown(self, state: State) -> Mapping[str, float]:
        """Return the step size and the form of the covariance, which is computed now and then where n is large."""
        lengths = state.master["axis_lengths"]
        ratio = float(lengths[-1] / lengths[0])
        return {"sigma": float(state.shared["sigma"]), "axis_ratio": ratio, "condition_number": ratio**2}


def misfits(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield why this problem does not fit: (key, text)."""
    yield from covariance.too_large("xnes", problem.size)


build = XNES
