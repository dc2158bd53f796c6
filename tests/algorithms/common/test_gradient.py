"""Descent along summed gradients, with values by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_es.algorithms.common.optimizers import GRADIENT, Options, descend
from hpc_es.core.data import Arrays, Float32
from hpc_es.core.errors import RunError

PLAIN = Options(kind="none", learning_rate=1.0)


def vector(*values: float) -> Float32:
    return np.array(values, np.float32)


def moved(clip: float | None, *gradients: Float32) -> tuple[Float32, dict[str, float]]:
    """How far theta moved, and the metrics."""
    slots: Arrays = {"optimizer_steps": np.zeros((), np.int64)}
    descent = descend(PLAIN, vector(0, 0), slots, [{GRADIENT: gradient} for gradient in gradients], clip)
    return descent.theta, dict(descent.metrics)


@pytest.mark.parametrize(
    ("clip", "gradient", "expected"),
    [
        (40, [30, 40], [24, 32]),  # T10
        (50, [30, 40], [30, 40]),
        (40, [-3, 4], [-3, 4]),
        (None, [3000, 4000], [3000, 4000]),
    ],
)
def test_gradients_are_clipped_by_the_global_norm(
    clip: float | None, gradient: list[float], expected: list[float]
) -> None:
    theta, metrics = moved(clip, vector(*gradient))
    np.testing.assert_allclose(-theta, expected, rtol=1e-6)
    assert metrics["gradient_norm"] == pytest.approx(np.hypot(*gradient))
    assert metrics["theta_norm"] == pytest.approx(np.hypot(*expected))


def test_the_sum_of_chunk_gradients_is_clipped_not_its_terms() -> None:
    np.testing.assert_allclose(-moved(5, vector(300, 0), vector(-300, 4))[0], [0, 4])


def test_chunk_gradients_are_summed_in_chunk_order() -> None:
    """1e8 + 1 is 1e8 in float32: the order decides."""
    assert moved(None, vector(1e8, 0), vector(1, 0), vector(-1e8, 0))[0].tolist() == [0, 0]
    assert moved(None, vector(1e8, 0), vector(-1e8, 0), vector(1, 0))[0].tolist() == [-1, 0]


def test_a_gradient_that_is_not_finite_ends_the_run() -> None:
    with pytest.raises(RunError, match="lower learning rate"):
        moved(5, vector(np.nan, 1))
