"""Adaptation of the learning rates of CMA-ES to the signal-to-noise ratio of its updates
(LRA-CMA-ES; Nomura, Akimoto & Ono 2025, ACM TELO, arXiv:2401.15876).

An ordinary generation leads from the mean m and the covariance Sigma = sigma^2 C to m' and Sigma'.
With its steps in the coordinates of Sigma,

    D_m = Sigma^(-1/2) (m' - m)
    D_S = vec(Sigma^(-1/2) (Sigma' - Sigma) Sigma^(-1/2)) / sqrt(2)

each of the two has moving averages of D and |D|^2, from which its signal-to-noise ratio and its
learning rate follow:

    E <- (1 - beta) E + beta D,  V <- (1 - beta) V + beta |D|^2
    SNR = (|E|^2 - beta / (2 - beta) V) / (V - |E|^2)
    eta <- min(1, eta exp(min(gamma eta, beta) clip(SNR / (alpha eta) - 1, -1, 1)))

and the search goes on from m + eta_m (m' - m) and Sigma + eta_S (Sigma' - Sigma), with a step size
that is multiplied by eta_m before / eta_m after. The diagonal form, for sep-CMA-ES, has the same
equations for diagonal matrices; it is not published.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpc_es.algorithms.common.optimizers import norm
from hpc_es.core.data import Array, Arrays, Float64
from hpc_es.core.declarations import Metric

ALPHA, GAMMA = 1.4, 0.1
BETA_MEAN, BETA_COVARIANCE = 0.1, 0.03

METRICS: Mapping[str, Metric] = {
    "rate_mean": Metric("learning rate of the mean", is_log=True, short="rate"),
    "rate_covariance": Metric("learning rate of the covariance", is_log=True),
}


@dataclass(frozen=True)
class Rate:
    """A learning rate, and the moving averages that it follows from.

    State, master:
        rate_mean: float64[], if noise_handling is learning_rate; eta_m
        rate_mean_signal: float64[normal], if noise_handling is learning_rate; E_m
        rate_mean_power: float64[], if noise_handling is learning_rate; V_m
        rate_covariance: float64[], if noise_handling is learning_rate; eta_S
        rate_covariance_signal: float64[elements], if noise_handling is learning_rate; E_S, which
            has normal^2 elements for cma_es, normal for sep_cma_es
        rate_covariance_power: float64[], if noise_handling is learning_rate; V_S
    """

    name: str  # mean or covariance
    beta: float
    value: float
    signal: Float64  # float64[size]
    power: float = 0.0

    def arrays(self) -> dict[str, Array]:
        """Return arrays of the state."""
        return {
            f"rate_{self.name}": np.array(self.value),
            f"rate_{self.name}_signal": self.signal,
            f"rate_{self.name}_power": np.array(self.power),
        }

    @classmethod
    def of(cls, name: str, beta: float, master: Arrays) -> Rate:
        """Return the rate that is stored in these arrays."""
        key = f"rate_{name}"
        value, power = float(master[key]), float(master[f"{key}_power"])
        return cls(name, beta, value, master[f"{key}_signal"], power)

    def after(self, step: Array) -> Rate:
        """Return the rate after a step D, [size]."""
        beta = self.beta
        signal = (1 - beta) * self.signal + beta * step.astype(np.float64, copy=False)
        power = (1 - beta) * self.power + beta * norm(step) ** 2
        squared = norm(signal) ** 2
        noise = power - squared
        ratio = (squared - beta / (2 - beta) * power) / noise if noise > 0 else math.inf
        relative = min(1.0, max(-1.0, ratio / (ALPHA * self.value) - 1))
        value = self.value * math.exp(min(GAMMA * self.value, beta) * relative)
        return Rate(self.name, beta, min(1.0, value), signal, power)


def first_rates(mean: int, covariance: int) -> dict[str, Array]:
    """Return the arrays of both rates before the first generation, for steps of these sizes."""
    return {
        **Rate("mean", BETA_MEAN, 1.0, np.zeros(mean)).arrays(),
        **Rate("covariance", BETA_COVARIANCE, 1.0, np.zeros(covariance)).arrays(),
    }


def after_steps(master: Arrays, mean: Array, covariance: Array) -> tuple[Rate, Rate, float]:
    """Return both rates after the steps D_m and D_S, and the factor of the step size."""
    old = Rate.of("mean", BETA_MEAN, master)
    of_mean = old.after(mean)
    of_covariance = Rate.of("covariance", BETA_COVARIANCE, master).after(covariance)
    return of_mean, of_covariance, old.value / of_mean.value


@dataclass(frozen=True)
class Slowed:
    """Mean, step size, covariance and rates after a generation with adapted rates.

    Args:
        covariance: C, float64[normal, normal], or its diagonal, dtype[normal].
    """

    mean: Array
    sigma: float
    covariance: Array
    rates: dict[str, Array]


def slowed(
    master: Arrays,
    old: tuple[Array, float, Float64],
    new: tuple[Array, float, Float64],
    inverse_root: Float64,
) -> Slowed:
    """Return the distribution between an old and a new one, (m, sigma, C) each.

    Args:
        inverse_root: C^(-1/2) of the old one, float64[size, size].
    """
    (m, sigma, C), (m_new, sigma_new, C_new) = old, new
    covariance = sigma**2 * C
    change = sigma_new**2 * C_new - covariance
    local = inverse_root / sigma
    steps = local @ (m_new - m), (local @ change @ local).ravel() / math.sqrt(2)
    of_mean, of_covariance, factor = after_steps(master, *steps)
    covariance = covariance + of_covariance.value * change
    # the lower triangle is what `covariance.root_of` reads
    eigenvalues = np.maximum(np.linalg.eigvalsh(covariance), np.finfo(np.float64).tiny)
    sigma = math.exp(float(np.log(eigenvalues).mean()) / 2)
    return Slowed(
        m + of_mean.value * (m_new - m),
        sigma * factor,
        covariance / sigma**2,
        {**of_mean.arrays(), **of_covariance.arrays()},
    )


def slowed_diagonal(
    master: Arrays, old: tuple[Array, float, Array], new: tuple[Array, float, Array]
) -> Slowed:
    """Return the same for (m, sigma, d) with the standard deviations d of a diagonal C."""
    (m, sigma, d), (m_new, sigma_new, d_new) = old, new
    scalar = d.dtype.type
    variances = np.square(scalar(sigma) * d)
    change = np.square(scalar(sigma_new) * d_new) - variances
    steps = (m_new - m) / (scalar(sigma) * d), change / variances / scalar(math.sqrt(2))
    of_mean, of_covariance, factor = after_steps(master, *steps)
    variances = variances + scalar(of_covariance.value) * change
    sigma = math.exp(float(np.log(variances, dtype=np.float64).mean()) / 2)
    return Slowed(
        m + scalar(of_mean.value) * (m_new - m),
        sigma * factor,
        variances / scalar(sigma) ** 2,
        {**of_mean.arrays(), **of_covariance.arrays()},
    )
