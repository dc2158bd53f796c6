"""How the weight of returns follows progress: a trace worked out by hand."""

from __future__ import annotations

import math

import pytest

from hpc_es.algorithms.novelty import SearchProgress


def test_the_return_weight_rises_after_a_new_best_and_falls_otherwise() -> None:
    """Steps of 0.05, patience 3; the first return is a best one, and the weight is 1 already."""
    progress, weights = SearchProgress(1.0), []
    for return_ in (1, 1, 0, 1, 1, 1, 1, 2, 3, 2, 2, 2):
        progress = SearchProgress.from_arrays(progress.after(return_, 0.05, 3).arrays())
        weights.append(progress.weight)
    assert weights == pytest.approx([1, 1, 1, 0.95, 0.95, 0.95, 0.9, 0.95, 1, 1, 1, 0.95])


def test_a_return_of_minus_infinity_is_no_progress_and_the_weight_stops_at_0() -> None:
    progress = SearchProgress(0.04)
    for _ in range(3):
        progress = progress.after(-math.inf, 0.05, 2)
    assert (progress.weight, progress.stagnant) == (0.0, 1)
