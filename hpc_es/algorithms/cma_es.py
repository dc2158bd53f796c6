"""CMA-ES with cumulative step-size adaptation and active covariance update (Hansen 2016,
arXiv:1604.00772).

Terms and equation numbers are those of the tutorial. With z_k from N(0, I), ranked samples and
weights w_i, a generation is

    x_k = m + sigma y_k,  y_k = C^(1/2) z_k                                    (eqs. 38 to 40)
    m       <- m + sigma y_w,  y_w = sum_{i <= mu} w_i y_i                     (eqs. 41, 42)
    p_sigma <- (1 - c_sigma) p_sigma + sqrt(c_sigma (2 - c_sigma) mu_eff) C^(-1/2) y_w     (eq. 43)
    sigma   <- sigma exp(c_sigma / d_sigma (|p_sigma| / chi_n - 1)),  chi_n = E|N(0, I)|   (eq. 44)
    p_c     <- (1 - c_c) p_c + h_sigma sqrt(c_c (2 - c_c) mu_eff) y_w          (eq. 45)
    C       <- (1 + c_1 delta(h_sigma) - c_1 - c_mu sum_j w_j) C
               + c_1 p_c p_c^T + c_mu sum_i w_i' y_i y_i^T                     (eqs. 46, 47)

C^(1/2) is symmetric, so C^(-1/2) y_w = sum_i w_i z_i. The rank-mu sum is divided into blocks of
rows, each computed by one rank; C^(1/2) is computed on rank 0, and not in every generation, because
it changes slowly.

Discrete coordinates have a margin, and choices a distribution of their own: see `common/mixed.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from hpc_es.algorithms.common import (
    covariance,
    distribution,
    learning_rates,
    noise_options,
    stopping,
)
from hpc_es.algorithms.common.covariance import BlockSampler, expected_length
from hpc_es.algorithms.common.distribution import DistributionStrategy, Ranked
from hpc_es.algorithms.common.injection import injected_in, shortened, with_injected
from hpc_es.algorithms.common.metrics import WITH_PATH
from hpc_es.algorithms.common.noise_handling import Chosen, Mode
from hpc_es.algorithms.common.noise_options import mismatches, needs_of_handling
from hpc_es.algorithms.common.optimizers import norm
from hpc_es.algorithms.common.ranking import sample_weights
from hpc_es.config.options import option, options
from hpc_es.core.data import Arrays, Chunk, Float64, Rows, State
from hpc_es.core.declarations import Needs
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.population import Explicit, Population

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
    """`algorithm:` with `kind: cma_es`."""

    kind: Literal["cma_es"] = option("name of the algorithm", "cma_es")
    active: bool = option(
        "active update: bad samples, with negative weights, reduce the covariance", True
    )


@dataclass(frozen=True)
class CmaConstants:
    """Strategy parameters of the tutorial (table 1)."""

    n: int  # number of parameters
    mu: int  # number of samples with a positive weight
    weights: Float64  # float64[population], best first; negative or 0 after the first mu
    mu_eff: float
    c_sigma: float
    d_sigma: float
    c_c: float
    c_1: float
    c_mu: float
    chi_n: float  # E|N(0, I)|

    @property
    def root_interval(self) -> int:
        """Generations between two computations of C^(1/2), as in pycma."""
        return math.ceil(1 / (10 * self.n * (self.c_1 + self.c_mu)))


@lru_cache(maxsize=64)
def constants(n: int, population: int, active: bool) -> CmaConstants:
    """Return the constants for n parameters; no weight is negative unless `active`."""
    raw = math.log((population + 1) / 2) - np.log(np.arange(1, population + 1))  # eq. 49
    mu = population // 2
    good, bad = raw[:mu], raw[mu:]
    mu_eff, mu_eff_bad = (
        float(part.sum() ** 2 / np.square(part).sum()) if part.any() else 0.0
        for part in (good, bad)
    )
    c_sigma = (mu_eff + 2) / (n + mu_eff + 5)  # eq. 55
    d_sigma = 1 + 2 * max(0.0, math.sqrt((mu_eff - 1) / (n + 1)) - 1) + c_sigma
    c_c = (4 + mu_eff / n) / (n + 4 + 2 * mu_eff / n)  # eq. 56
    # eq. 57, reduced for tiny populations as in pycma
    c_1 = 2 / ((n + 1.3) ** 2 + mu_eff) * min(1.0, population / 6)
    c_mu = min(1 - c_1, 2 * (0.25 + mu_eff + 1 / mu_eff - 2) / ((n + 2) ** 2 + mu_eff))  # eq. 58
    # eqs. 50 to 52
    limits = (1 + c_1 / c_mu, 1 + 2 * mu_eff_bad / (mu_eff + 2), (1 - c_1 - c_mu) / (n * c_mu))
    sum_of_bad = min(limits) if active else 0.0
    negative = bad * (sum_of_bad / -bad.sum()) if bad.any() else bad
    weights = np.concatenate([good / good.sum(), negative])  # eq. 53
    return CmaConstants(
        n, mu, weights, mu_eff, c_sigma, d_sigma, c_c, c_1, c_mu, expected_length(n)
    )


def of_mean_and_covariance(weights: Float64) -> Float64:
    """Return the weights for the mean, which are at least 0, and for the covariance, float64[2,
    samples].
    """
    return np.stack([np.maximum(weights, 0.0), weights])


@dataclass(frozen=True)
class CMAES(DistributionStrategy):
    """CMA-ES.

    The normal distribution covers all parameters except choices.

    State, shared:
        sigma: float64[]; step size
        root: float64[normal, normal]; C^(1/2), the symmetric square root of the covariance
        those of `hpc_es.algorithms.common.mixed.MixedVector`
        those of `hpc_es.algorithms.common.injection.injected_in`
        those of `hpc_es.algorithms.common.noise_handling.Noise`
    State, master:
        those of `hpc_es.algorithms.common.learning_rates.Rate`
        covariance: float64[normal, normal]; C, without sigma
        axes: float64[normal, normal]; eigenvectors of C as columns, when the root was last computed
        axis_lengths: float64[normal]; square roots of the eigenvalues of C at that time, ascending
        sigma_path: float64[normal]; p_sigma, evolution path of the step size
        covariance_path: float64[normal]; p_c, evolution path of the covariance
        root_age: int64[]; `age` at that time
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

    def constants(self, state: State) -> CmaConstants:
        """Return the constants of the current search."""
        return constants(max(1, self.normal_size), self.population(state), self.options.active)

    def initial_distribution(self, sigma: float, ratios: Float64) -> tuple[Arrays, Arrays]:
        """Return a diagonal covariance and paths of 0."""
        zeros = np.zeros(len(ratios))
        shared = {"sigma": np.array(sigma), "root": np.diag(ratios)}
        master = {
            "covariance": np.diag(np.square(ratios)),
            "axes": np.eye(len(ratios)),
            "axis_lengths": ratios,
            "sigma_path": zeros,
            "covariance_path": zeros,
            "root_age": np.array(0),
        }
        if self.adapts_rates:
            master |= learning_rates.first_rates(len(ratios), len(ratios) ** 2)
        return shared, master

    @cached_property
    def _sampler(self) -> BlockSampler:
        return BlockSampler(self.noise, self.normal_size)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return x = m + sigma C^(1/2) z (eqs. 38 to 40)."""
        m, sigma, root = state.theta, state.shared["sigma"], state.shared["root"]
        jobs = chunk.job_numbers
        y = self._sampler.y(state.generation, self.population(state), jobs, root)
        if self.mixed is not None:
            vectors = self.mixed.candidates(state.shared, state.generation, jobs, sigma * y)
        else:
            vectors = (m + sigma * y).astype(m.dtype, copy=False)
        return Explicit(self.problem.layout, with_injected(state.shared, jobs, vectors))

    def _z_and_y(self, state: State) -> tuple[Float64, Float64]:
        """Return z and y of all candidates, each float64[population, normal];
        those of injected ones are shortened.
        """
        root = state.shared["root"]
        z, y = self._sampler.z_and_y(state.generation, self.population(state), root)
        injected = injected_in(state.shared)
        if injected is None or not self.normal_size:
            return z, y
        steps = (injected - state.theta).astype(np.float64) / float(state.shared["sigma"])
        own_y = (
            steps
            if self.mixed is None
            else self.mixed.unscaled(state.shared, steps[:, self.mixed.normal])
        )
        own_z = np.linalg.solve(root, own_y.T).T
        factors = shortened(own_z)[:, np.newaxis]
        z, y = z.copy(), y.copy()
        z[: len(injected)], y[: len(injected)] = factors * own_z, factors * own_y
        return z, y

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Float64:
        """Return the weights w_i of each sample by its rank, float64[2, samples]: for the mean, at
        least 0, and for the covariance.

        Noise handling takes means over several rankings. If they were of positive and negative
        weights together, a sample that is among the best in some rankings and among the worst in
        others would count little, steps would get short, and the step size would shrink.
        """
        ranks = self.constants(state).weights
        return of_mean_and_covariance(sample_weights(ranks, fitness, share_ties=False))

    def blocks(self, state: State) -> int:
        """Return the number of blocks of rows of the covariance."""
        return self.normal_size and covariance.blocks(self.population(state), self.normal_size)

    def partial_update(self, state: State, prepared: Ranked, block: int) -> Arrays:
        """Return a block of rows of c_mu sum_i w_i' y_i y_i^T, float64[rows, params]."""
        if prepared.reason:
            return {}
        z, y = self._z_and_y(state)
        n, w = self.normal_size, prepared.weights[1]
        if self.options.active:
            squared_lengths = np.maximum(np.square(z).sum(axis=1), 1e-300)
            w = np.where(w < 0, w * n / squared_lengths, w)  # eq. 46
        return {"rows": covariance.rows_of_sum(self.constants(state).c_mu * w, y, block)}

    def update(
        self, state: State, weights: Float64, blocks: Iterable[Arrays]
    ) -> tuple[Arrays, Arrays]:
        """Return mean, step size, paths and covariance after a generation."""
        c, m, old = self.constants(state), state.theta, state.master
        if not self.normal_size:
            assert self.mixed is not None
            return self.mixed.after_update(state, weights[0], m, np.empty(0))
        sigma, age = float(state.shared["sigma"]), int(old["age"]) + 1
        z, y = self._z_and_y(state)
        positive = weights[0]
        z_w, y_w = positive @ z, positive @ y  # eq. 41
        step = sigma * y_w
        # eq. 42
        m = (
            (m + step).astype(m.dtype, copy=False)
            if self.mixed is None
            else self.mixed.stepped(m, step)
        )
        mu_eff = self.variance_effective(state, positive, c.mu_eff)
        gain_sigma = math.sqrt(c.c_sigma * (2 - c.c_sigma) * mu_eff)
        p_sigma = (1 - c.c_sigma) * old["sigma_path"] + gain_sigma * z_w  # eq. 43
        length, bias = norm(p_sigma), math.sqrt(1 - (1 - c.c_sigma) ** (2 * age))
        h_sigma = float(length / bias < (1.4 + 2 / (c.n + 1)) * c.chi_n)
        gain_c = h_sigma * math.sqrt(c.c_c * (2 - c.c_c) * mu_eff)
        p_c = (1 - c.c_c) * old["covariance_path"] + gain_c * y_w  # eq. 45
        decay = (
            1
            + c.c_1 * (1 - h_sigma) * c.c_c * (2 - c.c_c)
            - c.c_1
            - c.c_mu * float(c.weights.sum())
        )
        # eq. 47
        C = covariance.updated(
            old["covariance"], decay, p_c, c.c_1, [block["rows"] for block in blocks]
        )
        # eq. 44, bounded as in pycma
        sigma *= math.exp(min(1.0, c.c_sigma / c.d_sigma * (length / c.chi_n - 1)))
        master = {"sigma_path": p_sigma, "covariance_path": p_c}
        if self.adapts_rates:
            inverse_root = (old["axes"] / old["axis_lengths"]) @ old["axes"].T
            before = state.theta, float(state.shared["sigma"]), old["covariance"]
            slowed = learning_rates.slowed(old, before, (m, sigma, C), inverse_root)
            m, sigma, C = slowed.mean.astype(m.dtype, copy=False), slowed.sigma, slowed.covariance
            master |= slowed.rates
        shared = {"theta": m, "sigma": np.array(sigma)}
        master |= {"covariance": C}
        if self.adapts_rates or age - int(old["root_age"]) >= c.root_interval:
            shared["root"], lengths, axes = covariance.root_of(C)
            master |= {"axis_lengths": lengths, "axes": axes, "root_age": np.array(age)}
        if self.mixed is not None:
            discrete = self.mixed.after_update(state, positive, m, sigma * np.sqrt(C.diagonal()))
            shared, master = {**shared, **discrete[0]}, {**master, **discrete[1]}
        return shared, master

    def view(self, state: State) -> stopping.View:
        """Return the quantities that the stopping criteria test."""
        master, sigma = state.master, float(state.shared["sigma"])
        deviations = sigma * np.sqrt(master["covariance"].diagonal())
        axes = master["axis_lengths"], master["axes"]
        return stopping.View(
            state.theta,
            self.first_sigma(state),
            sigma,
            deviations,
            sigma * master["covariance_path"],
            axes,
        )

    def metrics(self, state: State) -> Mapping[str, float]:
        """Return the step size, the axis ratio and the condition of C, and |p_sigma| / chi_n."""
        lengths = state.master["axis_lengths"] if self.normal_size else np.ones(1)
        ratio = float(lengths.max() / lengths.min())
        return {
            **self.rate_metrics(state),
            "sigma": float(state.shared["sigma"]),
            "axis_ratio": ratio,
            "condition_number": ratio**2,
            "path_length": norm(state.master["sigma_path"]) / self.constants(state).chi_n,
        }


def needs(options: Options) -> Needs:
    """Return the requirements under these options."""
    return needs_of_handling(distribution.needs_of_searches(NEEDS, options), options)


def incompatibilities(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the options: (key, text)."""
    yield from mismatches(options, problem)
    yield from covariance.too_large(
        "cma_es", problem.size - len(problem.mixed.choices if problem.mixed else ())
    )


build = CMAES
