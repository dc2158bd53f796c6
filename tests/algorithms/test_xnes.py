"""xNES against numbers of independent implementations, and its invariance to rotations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms.common.covariance import MIN_SHARED_SAMPLES
from hpc_es.algorithms.common.ranking import utilities
from hpc_es.core.data import State
from tests.helpers.stepping import D4, Rotated, after, elli, following, rotation, sphere, strategy

SHAPE = np.array([[1.0, 0, 0], [0.5, 1, 0], [0, 0, 1]])
MEAN = [0.1, -0.2, 0.3]


def started(created: Any) -> State:
    """The initial state with the shape of the test vectors."""
    state: State = created.initial()
    return replace(state, shared={**state.shared, "shape": SHAPE})


def test_xnes_equals_the_package_cmaes() -> None:
    created = strategy("xnes", [-2, 1, -4, -3], MEAN, D4, population_size=4, sigma=0.5)
    state = following(created, started(created))
    assert state.theta == pytest.approx([-0.2198414836, -0.2159065479, 0.6364085164], rel=1e-8)
    assert float(state.shared["sigma"]) == pytest.approx(0.493827825, rel=1e-8)
    expected = [
        [0.8846465471, -0.04392464251, -0.003438974802],
        [0.398398631, 0.9370970068, 0.1118592477],
        [-0.003438974802, 0.1135787351, 1.194790432],
    ]
    assert state.shared["shape"] == pytest.approx(np.array(expected), rel=1e-8)
    assert np.linalg.det(state.shared["shape"]) == pytest.approx(1)


def test_samples_are_transformed_by_the_shape_matrix() -> None:
    """x = m + sigma B z of the first direction: B (.5, -1, .25) = (.5, -.75, .25)."""
    created = strategy("xnes", [-2, 1, -4, -3], MEAN, D4, population_size=4, sigma=0.5)
    following(created, started(created))
    assert created.problem.evaluated[0][0] == pytest.approx([0.1 + 0.25, -0.2 - 0.375, 0.3 + 0.125])


def test_xnes_uses_the_learning_rates_of_the_config() -> None:
    """Half of each exponent: eta is (9 + 3 ln 3) / (15 sqrt 3)."""
    eta = 0.4732669816
    rates = {
        "mean_learning_rate": 0.5,
        "sigma_learning_rate": eta / 2,
        "shape_learning_rate": 1e-12,
    }
    created = strategy("xnes", [-2, 1, -4, -3], MEAN, D4, population_size=4, sigma=0.5, **rates)
    state = following(created, started(created))
    whole = np.array([-0.2198414836, -0.2159065479, 0.6364085164]) - MEAN
    assert state.theta - MEAN == pytest.approx(whole / 2, rel=1e-8)
    assert float(state.shared["sigma"]) == pytest.approx(0.5 * np.sqrt(0.493827825 / 0.5), rel=1e-8)
    assert state.shared["shape"] == pytest.approx(SHAPE, abs=1e-10)


def test_few_samples_use_the_exact_matrix_exponential() -> None:
    """B expm(eta / 2 (G - g I)) by all eigenvectors of G,
    although the samples span 6 of 40 dimensions.
    """
    size, eta = 40, 0.05
    created = strategy(
        "xnes", [3, 1, 4, 1.5, 9, 2.6], np.ones(size), population_size=6, shape_learning_rate=eta
    )
    shape = np.eye(size) + 0.1 * np.random.default_rng(5).standard_normal((size, size))
    begin = created.initial()
    state = following(created, replace(begin, shared={**begin.shared, "shape": shape}))
    z = np.stack([created.noise.direction(0, sample, 0, size) for sample in range(6)]).astype(
        np.float64
    )
    order = np.argsort(np.argsort([3, 1, 4, 1.5, 9, 2.6]))
    gradient = (z.T * utilities(6)[order]) @ z
    values, axes = np.linalg.eigh(gradient - np.trace(gradient) / size * np.eye(size))
    expected = shape @ (axes * np.exp(eta / 2 * values)) @ axes.T
    np.testing.assert_allclose(state.shared["shape"], expected, rtol=1e-9, atol=1e-12)


def test_many_samples_are_summed_in_blocks() -> None:
    created = strategy("xnes", sphere, np.ones(3), population_size=MIN_SHARED_SAMPLES)
    assert created.blocks(created.initial()) == 1
    assert sphere(after(created, 30).theta) < 1e-3


def test_xnes_is_invariant_under_rotation() -> None:
    """f(R^T x) from R x, with rotated directions, gives R m."""
    turn = rotation(4)
    plain = after(strategy("xnes", elli, np.ones(4), Rotated(np.eye(4)), sigma=0.3), 30)
    turned = after(
        strategy("xnes", lambda x: elli(turn.T @ x), turn @ np.ones(4), Rotated(turn), sigma=0.3),
        30,
    )
    assert turned.theta == pytest.approx(turn @ plain.theta, rel=1e-6, abs=1e-8)
    assert float(turned.shared["sigma"]) == pytest.approx(float(plain.shared["sigma"]), rel=1e-6)
    assert elli(plain.theta) < elli(np.ones(4)) / 10
