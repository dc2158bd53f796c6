"""The benchmark of forms of noise handling: its figures by hand, and as in hpc_es."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.functions.noise_forms import FORMS, Memory, clipped_scale, trial_rows
from hpc_es.algorithms.common.noise_handling import Noise


def test_clipped_scale_is_the_line_of_least_squares_without_negative_coefficients() -> None:
    sizes = np.array([0.0, 1.0, 2.0, 3.0])
    assert clipped_scale(sizes, 2 + 0.5 * sizes) == pytest.approx([2, 0.5])
    assert clipped_scale(sizes, 9 - 2 * sizes) == pytest.approx([9, 0])
    assert clipped_scale(sizes, -1 + 2 * sizes) == pytest.approx([0, 2])


def test_memory_learns_what_the_handling_of_hpc_es_learns() -> None:
    rng, memory, known = np.random.default_rng(0), Memory(FORMS["auto"]), Noise()
    for _ in range(3):
        values, residuals = rng.normal(50, 20, 4), rng.normal(0, 3, 4)
        memory.learn(values, residuals)
        known = known.with_residuals(np.tile(values, 2), np.concatenate([residuals, -residuals]))
    assert memory.scale == pytest.approx(known.scale)
    assert memory.pool[: memory.added] == pytest.approx(known.pool)


def test_expected_weights_are_those_of_the_ranking_if_the_noise_is_0() -> None:
    memory, weights = Memory(FORMS["auto"]), np.array([0.6, 0.4, 0.0])
    memory.learn(np.ones(4), np.zeros(4))
    draws = np.arange(12).reshape(4, 3)
    found = memory.expected(weights, np.array([2.0, 3.0, 1.0]), np.zeros(3, bool), draws)
    assert found.tolist() == [0.4, 0.0, 0.6]


def test_residuals_of_candidates_with_one_value_have_the_scale_of_the_form() -> None:
    """Noise of 2 sqrt(2) swaps values 2.5 apart, and that of 2 does not."""
    draws, weights, values = np.array([[0, 1]]), np.array([1.0, 0.0]), np.array([0.0, 2.5])
    for name, expected in (("larger residuals", [0.0, 1.0]), ("auto", [1.0, 0.0])):
        memory = Memory(FORMS[name], scale=np.array([2.0, 0.0]), added=2)
        memory.pool[:2] = 1.0, 0.0
        found = memory.expected(weights, values, np.zeros(2, bool), draws)
        assert found.tolist() == expected, name


def test_searches_evaluate_again_where_noise_misranks() -> None:
    pytest.importorskip("cocoex")  # with hpc_es[oracles]
    rows = trial_rows(["none", "auto"], (113,), 5, instance=16, seed=0)
    assert [(row["contender"], row["budget"]) for row in rows] == [
        ("none", 200),
        ("none", 500),
        ("auto", 200),
        ("auto", 500),
    ]
    assert [row["reevaluations"] > 0 for row in rows] == [False, False, True, True]
