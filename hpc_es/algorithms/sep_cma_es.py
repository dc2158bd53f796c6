"""sep-CMA-ES: CMA-ES with a diagonal covariance, for up to millions of parameters (Ros & Hansen
2008, PPSN).

A sample is x = m + sigma d z with z from N(0, I) and a factor d for each coordinate, where d^2 is
the diagonal of C. The update is that of `cma_es.py` for the diagonal, with z_w = sum_i w_i z_i and
y_w = d z_w:

    m       <- m + sigma y_w
    p_sigma <- (1 - c_sigma) p_sigma + sqrt(c_sigma (2 - c_sigma) mu_eff) z_w
    p_c     <- (1 - c_c) p_c + h_sigma sqrt(c_c (2 - c_c) mu_eff) y_w
    d^2     <- (1 + c_1 delta(h_sigma) - c_1 - c_mu) d^2 + c_1 p_c^2 + c_mu d^2 sum_i w_i z_i^2
    sigma   <- sigma exp(c_sigma / d_sigma (|p_sigma| / chi_n - 1))

Both sums are divided into blocks of parameters; one rank sums a block over all samples in order.

Discrete coordinates have a margin, and choices a distribution of their own: see `common/mixed.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from hpc_es.algorithms.common import distribution, learning_rates, noise_options, stopping
from hpc_es.algorithms.common.covariance import expected_length
from hpc_es.algorithms.common.distribution import DistributionStrategy, Ranked
from hpc_es.algorithms.common.injection import injected_in, shortened, with_injected
from hpc_es.algorithms.common.metrics import WITH_PATH
from hpc_es.algorithms.common.noise_handling import Chosen, Mode
from hpc_es.algorithms.common.noise_options import mismatches, needs_of_handling
from hpc_es.algorithms.common.optimizers import norm
from hpc_es.algorithms.common.ranking import sample_weights
from hpc_es.config.options import option, options
from hpc_es.core.data import Array, Arrays, Chunk, Float64, Rows, State
from hpc_es.core.declarations import Needs
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.population import Directions, Explicit, Population

NEEDS = Needs(
    metrics=WITH_PATH,
    searches="vectors",
    noise=True,
    growing=True,
    mixed=True,
    injects=True,
    presets={"noise.kind": "counter"},
    presets_if_noisy={"noise_handling": "auto"},
)


@options
class Options(noise_options.Options):
    """`algorithm:` with `kind: sep_cma_es`."""

    kind: Literal["sep_cma_es"] = option("name of the algorithm", "sep_cma_es")


@dataclass(frozen=True)
class SepCmaConstants:
    """Strategy parameters, named as in the CMA-ES tutorial."""

    mu: int  # number of samples with a positive weight
    weights: Float64  # float64[population], best first; they sum to 1
    mu_eff: float
    c_sigma: float
    d_sigma: float
    c_c: float
    c_1: float
    c_mu: float
    chi_n: float  # E|N(0, I)|


@lru_cache(maxsize=64)
def constants(n: int, population: int) -> SepCmaConstants:
    """Return the constants of the paper (table 1) for n parameters;
    c_cov is divided into c_1 and c_mu.
    """
    mu = population // 2
    raw = np.maximum(0.0, math.log(mu + 1) - np.log(np.arange(1, population + 1)))
    weights = raw / raw.sum()
    mu_eff = float(1 / np.square(weights).sum())
    c_sigma = (mu_eff + 2) / (n + mu_eff + 3)
    d_sigma = 1 + 2 * max(0.0, math.sqrt((mu_eff - 1) / (n + 1)) - 1) + c_sigma
    c_cov = 2 / (mu_eff * (n + math.sqrt(2)) ** 2)
    c_cov += (1 - 1 / mu_eff) * min(1.0, (2 * mu_eff - 1) / ((n + 2) ** 2 + mu_eff))
    c_cov = min(1.0, c_cov * (n + 2) / 3)  # faster than in CMA-ES: only the diagonal is learned
    c_1 = c_cov / mu_eff
    return SepCmaConstants(
        mu, weights, mu_eff, c_sigma, d_sigma, 4 / (n + 4), c_1, c_cov - c_1, expected_length(n)
    )


@dataclass(frozen=True)
class SepCMAES(DistributionStrategy):
    """sep-CMA-ES.

    The normal distribution covers all parameters except choices.

    State, shared:
        sigma: float64[]; step size
        deviations: dtype[normal]; d, square roots of the diagonal of C
        those of `hpc_es.algorithms.common.mixed.MixedVector`
        those of `hpc_es.algorithms.common.injection.injected_in`
        those of `hpc_es.algorithms.common.noise_handling.Noise`
    State, master:
        those of `hpc_es.algorithms.common.learning_rates.Rate`
        sigma_path: dtype[normal]; p_sigma, evolution path of the step size
        covariance_path: dtype[normal]; p_c, evolution path of the covariance
    """

    options: Options

    adapts_mixed = True
    injects = True

    @property
    def noise_mode(self) -> Mode:
        """The option `noise_handling`."""
        return self.options.noise_handling

    @property
    def reevaluated(self) -> Chosen:
        """The option `reevaluated`."""
        return self.options.reevaluated

    def constants(self, state: State) -> SepCmaConstants:
        """Return the constants of the current search."""
        return constants(max(1, self.normal_size), self.population(state))

    def initial_distribution(self, sigma: float, ratios: Float64) -> tuple[Arrays, Arrays]:
        """Return the initial standard deviations and paths of 0."""
        zeros = np.zeros(len(ratios), self.problem.dtype)
        shared = {"sigma": np.array(sigma), "deviations": ratios.astype(self.problem.dtype)}
        master = {"sigma_path": zeros, "covariance_path": zeros}
        if self.adapts_rates:
            size = len(ratios)
            master |= learning_rates.first_rates(size, size)
        return shared, master

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return m + sigma d z."""
        deviations = state.shared["deviations"] * self.problem.dtype.type(state.shared["sigma"])
        if self.mixed is not None:
            jobs = chunk.job_numbers
            z = Directions(self.noise, state.generation, jobs).elements(0, self.problem.size)
            steps = deviations * z[:, self.mixed.normal]
            vectors = self.mixed.candidates(state.shared, state.generation, jobs, steps)
            return Explicit(self.problem.layout, with_injected(state.shared, jobs, vectors))
        samples = self.perturbed(state, chunk, 1.0, deviations)
        if injected_in(state.shared) is None:
            return samples
        return Explicit(
            self.problem.layout, with_injected(state.shared, chunk.job_numbers, samples.stacked())
        )

    def _injected_sums(self, state: State, weights: Float64) -> tuple[Array, Array]:
        """Return the parts of both sums that belong to injected candidates, dtype[normal];
        weights are [2, samples].
        """
        injected = injected_in(state.shared)
        assert injected is not None
        steps = (injected - state.theta) / self.problem.dtype.type(state.shared["sigma"])
        y = (
            steps
            if self.mixed is None
            else self.mixed.unscaled(state.shared, steps[:, self.mixed.normal])
        )
        z = y / state.shared["deviations"]
        z = (shortened(z)[:, np.newaxis] * z).astype(self.problem.dtype)
        first, second = weights[:, : len(injected)].astype(self.problem.dtype)
        return first @ z, second @ np.square(z)

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Float64:
        """Return the weight of each sample, once for z and once for z^2, float64[2, samples]."""
        return np.tile(
            sample_weights(self.constants(state).weights, fitness, share_ties=False), (2, 1)
        )

    def partial_update(self, state: State, prepared: Ranked, block: int) -> Arrays:
        """Return sum_i w_i z_i and sum_i w_i z_i^2 over a block of parameters, dtype[2, block]."""
        if prepared.reason:
            return {}
        weights = prepared.weights
        if (injected := injected_in(state.shared)) is not None:
            weights = weights.copy()
            weights[:, : len(injected)] = 0  # see `update`
        return {"sums": self.weighted_sums(state, weights, (1, 2), block)}

    def update(
        self, state: State, weights: Float64, blocks: Iterable[Arrays]
    ) -> tuple[Arrays, Arrays]:
        """Return mean, step size, paths and standard deviations after a generation."""
        z_w, sum_z2 = np.concatenate([block["sums"] for block in blocks], axis=1)
        c, old, n, scalar = (
            self.constants(state),
            state.master,
            self.normal_size,
            self.problem.dtype.type,
        )
        if self.mixed is not None:
            z_w, sum_z2 = z_w[self.mixed.normal], sum_z2[self.mixed.normal]
        if not n:
            assert self.mixed is not None
            return self.mixed.after_update(state, weights[0], state.theta, np.empty(0))
        if injected_in(state.shared) is not None:
            more_w, more_z2 = self._injected_sums(state, weights)
            z_w, sum_z2 = z_w + more_w, sum_z2 + more_z2
        d, sigma = state.shared["deviations"], float(state.shared["sigma"])
        y_w = d * z_w
        mu_eff = self.variance_effective(state, weights[0], c.mu_eff)
        gain_sigma = math.sqrt(c.c_sigma * (2 - c.c_sigma) * mu_eff)
        p_sigma = scalar(1 - c.c_sigma) * old["sigma_path"] + scalar(gain_sigma) * z_w
        length, bias = norm(p_sigma), math.sqrt(1 - (1 - c.c_sigma) ** (2 * (int(old["age"]) + 1)))
        h_sigma = float(length / bias < (1.4 + 2 / (n + 1)) * c.chi_n)
        gain_c = h_sigma * math.sqrt(c.c_c * (2 - c.c_c) * mu_eff)
        p_c = scalar(1 - c.c_c) * old["covariance_path"] + scalar(gain_c) * y_w
        decay = 1 - c.c_1 - c.c_mu + c.c_1 * (1 - h_sigma) * c.c_c * (2 - c.c_c)
        variances = np.square(d) * (scalar(decay) + scalar(c.c_mu) * sum_z2) + scalar(
            c.c_1
        ) * np.square(p_c)
        step = scalar(sigma) * y_w
        shared: dict[str, Array] = {
            "theta": state.theta + step
            if self.mixed is None
            else self.mixed.stepped(state.theta, step),
            "sigma": np.array(
                sigma * math.exp(min(1.0, c.c_sigma / c.d_sigma * (length / c.chi_n - 1)))
            ),
            "deviations": np.sqrt(variances),
        }
        master: dict[str, Array] = {"sigma_path": p_sigma, "covariance_path": p_c}
        if self.adapts_rates:
            after = shared["theta"], float(shared["sigma"]), shared["deviations"]
            slowed = learning_rates.slowed_diagonal(old, (state.theta, sigma, d), after)
            shared = {
                "theta": slowed.mean,
                "sigma": np.array(slowed.sigma),
                "deviations": np.sqrt(slowed.covariance),
            }
            master |= slowed.rates
        if self.mixed is not None:
            deviations = float(shared["sigma"]) * shared["deviations"]
            discrete = self.mixed.after_update(state, weights[0], shared["theta"], deviations)
            shared, master = {**shared, **discrete[0]}, {**master, **discrete[1]}
        return shared, master

    def view(self, state: State) -> stopping.View:
        """Return the quantities that the stopping criteria test."""
        sigma = float(state.shared["sigma"])
        deviations, path = (
            sigma * state.shared["deviations"],
            sigma * state.master["covariance_path"],
        )
        return stopping.View(state.theta, self.first_sigma(state), sigma, deviations, path)

    def metrics(self, state: State) -> Mapping[str, float]:
        """Return the step size, the axis ratio of C, and |p_sigma| / chi_n."""
        deviations = state.shared["deviations"] if self.normal_size else np.ones(1)
        return {
            **self.rate_metrics(state),
            "sigma": float(state.shared["sigma"]),
            "axis_ratio": float(deviations.max() / deviations.min()),
            "path_length": norm(state.master["sigma_path"])
            / expected_length(max(1, self.normal_size)),
        }


def needs(options: Options) -> Needs:
    """Return the requirements under these options."""
    return needs_of_handling(distribution.needs_of_searches(NEEDS, options), options)


def incompatibilities(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the options: (key, text)."""
    yield from mismatches(options, problem)


build = SepCMAES
