"""SNES against independent implementations; equal and failed samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers.stepping import D4, after, following, strategy

MEAN, DEVIATIONS = np.array([0.1, -0.2, 0.3]), np.array([0.5, 0.4, 0.2])


def snes(returns: list[float], dtype: Any = np.float64, **options: Any) -> Any:
    """A strategy with these returns, from the mean and deviations of the test vectors."""
    costs = [-item for item in returns]
    created = strategy("snes", costs, MEAN.astype(dtype), D4, population_size=4, **options)
    created.problem.spread = DEVIATIONS
    return created


@pytest.mark.parametrize(("dtype", "rel"), [(np.float64, 1e-8), (np.float32, 1e-5)])
def test_snes_update_equals_the_published_one(dtype: Any, rel: float) -> None:
    state = after(snes([2, -1, 4, 3], dtype), 1)
    assert state.theta == pytest.approx([-0.2198414836, -0.08478864485, 0.4345634065], rel=rel)
    assert state.shared["deviations"] == pytest.approx(
        [0.4363523528, 0.3761757585, 0.2347732011], rel=rel
    )
    assert state.theta.dtype == state.shared["deviations"].dtype == dtype


def test_snes_uses_the_learning_rates_of_the_config() -> None:
    """Half of the mean's step, and a growth by exp of half the default's:
    eta is (3 + ln 3) / (5 sqrt 3).
    """
    state = after(
        snes([2, -1, 4, 3], mean_learning_rate=0.5, sigma_learning_rate=0.4732669816 / 2), 1
    )
    whole = np.array([-0.2198414836, -0.08478864485, 0.4345634065]) - MEAN
    assert state.theta - MEAN == pytest.approx(whole / 2, rel=1e-8)
    growth = np.array([0.4363523528, 0.3761757585, 0.2347732011]) / DEVIATIONS
    assert state.shared["deviations"] == pytest.approx(DEVIATIONS * np.sqrt(growth), rel=1e-8)


def test_equal_samples_share_their_utilities() -> None:
    """Returns 1, 1, 0, 0: u = .25, .25, -.25, -.25; sum u z = (.8125, 0, -.5)."""
    state = after(snes([1, 1, 0, 0]), 1)
    assert state.theta == pytest.approx(MEAN + DEVIATIONS * [0.8125, 0, -0.5], abs=1e-12)


def test_failed_samples_share_the_worst_utilities() -> None:
    """u(4) = .4804, .0196, -.25, -.25 for samples 1, 3 and the failures 0, 2."""
    state = after(snes([np.nan, 2, np.nan, 1]), 1)
    z = np.array(D4._directions)
    expected = 0.4804227103 * z[1] + 0.01957728969 * z[3] - 0.25 * (z[0] + z[2])
    assert state.theta == pytest.approx(MEAN + DEVIATIONS * expected, rel=1e-8)


def test_deviation_grows_by_a_factor_of_at_most_e() -> None:
    """With a learning rate that is far too large."""
    state = after(snes([2, -1, 4, 3], sigma_learning_rate=1e4), 1)
    assert state.shared["deviations"] == pytest.approx(
        DEVIATIONS * [np.exp(-1), np.exp(-1), np.exp(1)]
    )


def test_snes_is_invariant_under_scaling_of_coordinates() -> None:
    """f(x / units) from units * x, with these deviations: powers of two change no digit."""
    units = np.array([1.0, 1024, 2**-20])

    def cost(x: Any) -> float:
        return float((x**2).sum() + x[0] * x[1])

    here, there = (
        strategy("snes", cost, np.ones(3)),
        strategy("snes", lambda x: cost(x / units), units),
    )
    here.problem.spread, there.problem.spread = DEVIATIONS, DEVIATIONS * units
    one, other = here.initial(), there.initial()
    for _ in range(20):
        one, other = following(here, one), following(there, other)
    assert other.theta / units == pytest.approx(one.theta, rel=1e-12)
    assert other.shared["deviations"] / units == pytest.approx(one.shared["deviations"], rel=1e-12)
