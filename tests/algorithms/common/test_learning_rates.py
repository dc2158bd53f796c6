"""Learning-rate adaptation: against the package cmaes, by hand, and the diagonal form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.algorithms.common.learning_rates import Rate, first_rates, slowed, slowed_diagonal
from hpc_es.core.data import Array, Float64

cmaes = pytest.importorskip("cmaes")  # with hpc_es[oracles]

SIZE = 5


class Recorded(cmaes.CMA):
    """LRA-CMA-ES of cmaes that keeps what its adaptation is given and what it makes of it."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.calls: list[tuple[Any, ...]] = []

    def _lr_adaptation(self, *old: Any) -> None:
        new = self._mean.copy(), float(self._sigma), self._C.copy()
        super()._lr_adaptation(*old)
        after = self._mean.copy(), float(self._sigma), self._C.copy()
        self.calls.append((old, new, after, float(self._eta_mean), float(self._eta_Sigma)))


def noisy(x: Float64, rng: np.random.Generator) -> float:
    return float((np.arange(1, SIZE + 1) * x * x).sum() + 3 * rng.standard_normal())


def test_adaptation_equals_that_of_cmaes_over_many_generations() -> None:
    rng = np.random.default_rng(0)
    oracle = Recorded(mean=np.full(SIZE, 2.0), sigma=1.5, lr_adapt=True, seed=4)
    master: dict[str, Array] = first_rates(SIZE, SIZE**2)
    for _ in range(80):
        asked = [oracle.ask() for _ in range(oracle.population_size)]
        oracle.tell([(x, noisy(x, rng)) for x in asked])
        (m, sigma, covariance, inverse), new, after, eta_mean, eta_covariance = oracle.calls[-1]
        found = slowed(master, (m, sigma, covariance / sigma**2), new, inverse)
        master = found.rates
        assert found.mean == pytest.approx(after[0], rel=1e-9)
        assert found.sigma == pytest.approx(after[1], rel=1e-9)
        assert found.covariance == pytest.approx(after[2], rel=1e-8, abs=1e-12)
        assert master["rate_mean"] == pytest.approx(eta_mean, rel=1e-9)
        assert master["rate_covariance"] == pytest.approx(eta_covariance, rel=1e-9)
    assert eta_mean < 0.5 and eta_covariance < 0.5  # there was something to adapt


def test_rate_after_one_step_by_hand() -> None:
    """E = 0.1 D and V = 0.1 |D|^2 = 0.9 for D = (3, 0): |E|^2 = 0.09,
    SNR = (0.09 - 0.9 / 19) / (0.9 - 0.09), and eta = exp(0.1 clip(SNR / 1.4 - 1)).
    """
    rate = Rate("mean", 0.1, 1.0, np.zeros(2)).after(np.array([3.0, 0.0]))
    ratio = (0.09 - 0.9 / 19) / 0.81
    assert rate.signal == pytest.approx([0.3, 0]) and rate.power == pytest.approx(0.9)
    assert rate.value == pytest.approx(math.exp(0.1 * (ratio / 1.4 - 1)))


def test_steps_in_one_direction_keep_the_rate_at_1() -> None:
    rate = Rate("mean", 0.1, 0.5, np.zeros(2))
    for _ in range(200):
        rate = rate.after(np.array([1.0, 2.0]))
    assert rate.value == 1.0


def test_diagonal_form_equals_the_full_one_for_diagonal_matrices() -> None:
    rng = np.random.default_rng(3)
    full, diagonal = first_rates(SIZE, SIZE**2), first_rates(SIZE, SIZE)
    for _ in range(20):
        m, m_new = rng.standard_normal((2, SIZE))
        d, d_new = np.exp(0.1 * rng.standard_normal((2, SIZE)))
        of_full = slowed(
            full, (m, 0.7, np.diag(d**2)), (m_new, 0.8, np.diag(d_new**2)), np.diag(1 / d)
        )
        of_diagonal = slowed_diagonal(diagonal, (m, 0.7, d), (m_new, 0.8, d_new))
        full, diagonal = of_full.rates, of_diagonal.rates
        assert of_diagonal.mean == pytest.approx(of_full.mean)
        assert of_diagonal.sigma == pytest.approx(of_full.sigma)
        assert of_diagonal.covariance == pytest.approx(of_full.covariance.diagonal())


@pytest.mark.parametrize("kind", ["cma_es", "sep_cma_es"])
def test_rates_fall_on_a_noisy_function_and_the_search_goes_on(kind: str) -> None:
    """A plain search of the noisy sphere stops far away at once; rates that fall let it come
    closer.
    """
    found = {}
    for mode in ("none", "learning_rate"):
        rng = np.random.default_rng(1)
        es = hpc_es.Strategy(kind, x0=np.full(10, 3.0), sigma0=2.0, seed=1, noise_handling=mode)
        while es.evaluations < 20_000:
            es.tell([float((x * x).sum() + rng.standard_normal()) for x in es.ask()])
        found[mode] = float(np.square(es.theta).sum())
    assert float(es._state.master["rate_mean"]) < 0.3
    assert found["learning_rate"] < 0.2 * found["none"]


@pytest.mark.parametrize("kind", ["cma_es", "sep_cma_es"])
def test_sphere_without_noise_is_solved(kind: str) -> None:
    es = hpc_es.Strategy(
        kind, x0=np.full(10, 3.0), sigma0=2.0, seed=1, noise_handling="learning_rate"
    )
    while es.evaluations < 30_000 and not es.stop():
        es.tell([float((x * x).sum()) for x in es.ask()])
        if es.best is not None and es.best.f < 1e-8:
            return
    assert es.best is not None and es.best.f < 1e-8
