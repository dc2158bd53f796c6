"""The covariance I + v v^T, against the same written down with matrices."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_es.algorithms.cr_fm_nes import RankOne, dot
from hpc_es.core.data import Float64

V = np.array([0.4, -0.5, 0.45, 0.5, -0.4, 0.55])


def test_samples_have_its_covariance() -> None:
    """The sample of z is M z with M M^T = I + v v^T."""
    shape = RankOne(V)
    root = np.stack([shape.sample(z, dot(shape.axis, z)) for z in np.eye(6)], axis=1)
    np.testing.assert_allclose(root @ root.T, np.eye(6) + np.outer(V, V), atol=1e-14)
    assert shape.largest == pytest.approx(np.linalg.eigvalsh(np.eye(6) + np.outer(V, V))[-1])


def natural(v: Float64, y: Float64) -> tuple[Float64, Float64]:
    """The inverse Fisher matrix of (log D, v) of a normal distribution, times the gradient of its log density at y."""
    covariance, eye = np.eye(len(v)) + np.outer(v, v), np.eye(len(v))
    of_scales = [np.outer(e, row) + np.outer(row, e) for e, row in zip(eye, covariance, strict=True)]
    of_v = [np.outer(e, v) + np.outer(v, e) for e in eye]
    changes = [np.linalg.solve(covariance, change) for change in (*of_scales, *of_v)]
    fisher = np.array([[np.trace(a @ b) / 2 for b in changes] for a in changes])
    whitened = np.linalg.solve(covariance, y)
    gradient = np.array([(y @ change @ whitened - np.trace(change)) / 2 for change in changes])
    found = np.linalg.solve(fisher, gradient)
    return found[: len(v)], found[len(v) :]


def test_the_natural_gradient_is_that_of_the_fisher_matrix() -> None:
    shape, y = RankOne(V), np.array([0.3, -1.2, 2.0, 0.1, -0.7, 0.9])
    s, t = shape.natural(shape.gradient(y))
    of_scales, of_v = natural(V, y)
    np.testing.assert_allclose(s, of_scales, rtol=1e-10)
    np.testing.assert_allclose(t / shape.length, of_v, rtol=1e-10)


@pytest.mark.parametrize("v", [[1.0], [2.0, 0.1, 0.0], [0.01, 0.0, 0.0]])
def test_it_is_finite_where_one_coordinate_has_most_of_v(v: list[float]) -> None:
    """There the Fisher matrix is singular, and the plain inverse would be too."""
    shape = RankOne(np.array(v))
    for part in shape.natural(shape.gradient(np.full(len(v), 2.0))):
        assert np.isfinite(part).all() and np.abs(part).max() < 100


def test_sums_are_those_of_single_samples() -> None:
    shape, rng = RankOne(V), np.random.default_rng(0)
    z, w = rng.standard_normal((5, 6)), np.array([0.5, 0.25, -0.1, -0.3, -0.35])
    along = z @ V / np.linalg.norm(V)
    found = shape.summed((w * along) @ z, w @ z**2, float(w @ along**2))
    single = [shape.gradient(shape.sample(each, a)) for each, a in zip(z, along, strict=True)]
    for part, parts in zip(found, zip(*single, strict=True), strict=True):
        np.testing.assert_allclose(part, w @ np.stack(parts), atol=1e-13)
