"""The drift of weights that are perturbed and restored in place,
against hand calculations and the published size.
"""

from __future__ import annotations

import argparse

import numpy as np
import pytest

pytest.importorskip("ml_dtypes", reason="JAX and TensorFlow bring it")
import ml_dtypes

from benchmarks import drift


def test_perturbing_and_restoring_one_in_bfloat16_returns_the_number_below() -> None:
    """Around 1 the numbers of bfloat16 are 1 - 1/256, 1 and 1 + 1/128: 1.003 is rounded to 1,
    and 0.997 to 255/256.
    """
    one, change = np.ones(1, ml_dtypes.bfloat16), np.full(1, 0.003, np.float32)
    candidate = drift.added(one, change, np.float32)
    restored = drift.added(candidate, -change, np.float32)
    assert (candidate.dtype, float(candidate[0]), float(restored[0])) == (
        ml_dtypes.bfloat16,
        1.0,
        255 / 256,
    )


def test_restoring_in_bfloat16_costs_most_of_an_update_step_and_a_master_nothing() -> None:
    """The step has the root mean square alpha / sqrt(population): 9.1e-5."""
    options = argparse.Namespace(iterations=1, population=30, sigma=1e-3, alpha=5e-4)
    weights = 0.02 * drift.noise_of(0, 2**20, 20_000)
    results = {method: drift.follow(method, weights, None, options) for method in drift.METHODS}
    assert results["master"].steps[0] == pytest.approx(5e-4 / 30**0.5, rel=0.02)
    assert 0.7 < results["bf16 in place"].drifts[0] < 0.9
    assert 0.4 < results["bf16 in place, noise float32"].drifts[0] < 0.6
    assert results["float32 in place"].drifts[0] < 1e-4
    assert (results["master"].drifts, results["master"].changed) == ([0.0], 0.0)
