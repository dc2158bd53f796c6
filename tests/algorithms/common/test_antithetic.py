"""Antithetic pairs by hand: shared directions, signs, and failures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms.common.antithetic import Pairs
from hpc_es.core.keys import Keys
from hpc_es.core.population import Directions
from hpc_es.noise.counter import CounterNoise
from tests.helpers.populations import flat


class Ramp:
    """The direction of pair p is (p + 1, 10 (p + 1))."""

    edges = (0,)

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Any:
        return np.array([pair + 1, 10 * (pair + 1)], np.float32)[start:stop]


THETA = np.array([0.5, 0], np.float32)


def perturbed(
    pairs: Pairs, theta: Any, noise: Any, generation: int, jobs: range, sigma: float, ratios: Any = None
) -> Any:
    directions = Directions(noise, generation, pairs.among(jobs), ratios)
    return pairs.along(flat(len(theta)), theta, directions, jobs, sigma)


def test_consecutive_jobs_form_an_antithetic_pair() -> None:
    assert [Pairs(True).of(job) for job in range(5)] == [0, 0, 1, 1, 2]
    assert [Pairs(False).of(job) for job in range(3)] == [0, 1, 2]
    assert (Pairs(True).size, Pairs(False).size) == (2, 1)


def test_even_jobs_add_the_perturbation_and_odd_jobs_subtract_it() -> None:
    """Also if the chunk starts with the second half of pair 1, (2, 20)."""
    made = perturbed(Pairs(True), THETA, Ramp(), 0, range(3, 6), 0.5)
    assert made.stacked().tolist() == [[-0.5, -10], [2, 15], [-1, -15]]
    assert list(made.directions.pairs) == [1, 2], "halves share theirs"
    alone = perturbed(Pairs(False), THETA, Ramp(), 0, range(3, 5), 0.5)
    assert alone.stacked().tolist() == [[2.5, 20], [3, 25]]


@pytest.mark.parametrize("ratios", [None, np.linspace(0.5, 2, 25_000, dtype=np.float32)])
def test_blocks_of_a_large_vector_equal_the_whole_vector(ratios: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Theta + 0.1 eps, or theta + 0.1 (ratios eps), with two blocks of 8,192 elements and a shorter one."""
    noise, theta = CounterNoise(Keys(1), 25_000), np.linspace(-1, 1, 25_000, dtype=np.float32)
    made = perturbed(Pairs(True), theta, noise, 3, range(1, 4), 0.1, ratios)
    directions = np.stack([noise.direction(3, pair, 0, 25_000) for pair in (0, 1, 1)])
    directions = directions if ratios is None else directions * ratios
    expected = theta + directions * np.array([[-0.1], [0.1], [-0.1]], np.float32)
    assert made.stacked().tobytes() == expected.tobytes()
    monkeypatch.setattr("hpc_es.core.population.MAX_STEP_ELEMENTS", 3 * 2 * 8192)
    assert made.stacked().tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_candidates_have_the_dtype_of_theta(dtype: type[np.floating]) -> None:
    theta = np.array([1, 1], dtype)
    made = perturbed(Pairs(True), theta, Ramp(), 0, range(2), 0.1)
    assert made.stacked().dtype == made.scales.dtype == dtype
    assert made.stacked()[0, 0] == dtype(1) + dtype(0.1)


def test_pair_is_valid_if_neither_half_failed() -> None:
    fitness = np.array([1, 2, np.nan, 3, 4, np.nan])
    assert Pairs(True).whole(fitness).tolist() == [True, False, False]
    assert Pairs(False).whole(fitness).tolist() == [True, True, False, True, True, False]


def test_pair_differences_subtract_the_second_half_from_the_first() -> None:
    values = np.array([5.0, 3, -1, 4])
    assert Pairs(True).differences(Pairs(True).in_pairs(values)).tolist() == [2, -5]
    assert Pairs(False).differences(Pairs(False).in_pairs(values)).tolist() == [5, 3, -1, 4]
