"""Constants of CMA-ES as in pycma; roots, sums and perturbations of a full covariance, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpc_es.algorithms.cma_es import constants
from hpc_es.algorithms.common import covariance
from hpc_es.algorithms.common.covariance import (
    BLOCK_ROWS,
    CACHE_ROWS,
    MIN_SHARED_SAMPLES,
    SAMPLE_ROWS,
    BlockSampler,
    root_of,
    rows_of_sum,
)
from hpc_es.core.keys import Keys
from hpc_es.noise.counter import CounterNoise

CONSTANTS = {  # size, population: mueff, c_s, d_s, c_c, c_1, c_mu, chi, of pycma's equations
    (2, 6): (
        2.028611465,
        0.4462049874,
        1.446204987,
        0.624554539,
        0.1548153999,
        0.08559277943,
        1.254272743,
    ),
    (3, 7): (
        2.254815082,
        0.4149090011,
        1.414909001,
        0.5588013229,
        0.09640963258,
        0.06958846923,
        1.59687753,
    ),
    (10, 10): (
        3.167299281,
        0.2844285879,
        1.284428588,
        0.294990383,
        0.01528382452,
        0.02355177665,
        3.084726565,
    ),
    (40, 15): (
        4.540915209,
        0.1320305687,
        1.132030569,
        0.09300921663,
        0.001169432725,
        0.003405219644,
        6.28521508,
    ),
}


@pytest.mark.parametrize(("size", "population"), CONSTANTS)
def test_cma_es_constants_equal_those_of_the_tutorial(size: int, population: int) -> None:
    c = constants(size, population, True)
    result = (c.mu_eff, c.c_sigma, c.d_sigma, c.c_c, c.c_1, c.c_mu, c.chi_n)
    assert result == pytest.approx(CONSTANTS[size, population], rel=1e-8)
    assert c.mu == population // 2


def test_weights_of_six_and_seven_samples() -> None:
    six = [0.6370425712, 0.2845702574, 0.07838717132, -0.2863837826, -0.7649580941, -1.155981778]
    seven = [
        0.5856451065,
        0.2928225533,
        0.1215323402,
        0,
        -0.4241269418,
        -0.7706638857,
        -1.063656697,
    ]
    assert constants(2, 6, True).weights == pytest.approx(six, rel=1e-8)
    assert constants(3, 7, True).weights == pytest.approx(seven, rel=1e-8, abs=1e-15)
    assert constants(3, 7, False).weights[4:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("size", [1, 2, 50])
@pytest.mark.parametrize("population", [2, 3, 4, 1000])
def test_constants_of_any_population_keep_the_covariance_positive(
    size: int, population: int
) -> None:
    """The remaining share 1 - c_1 - c_mu sum w exceeds the largest subtraction, n c_mu |w-|."""
    c = constants(size, population, True)
    bad = float(np.minimum(c.weights, 0).sum())
    assert np.maximum(c.weights, 0).sum() == pytest.approx(1)
    assert c.c_1 > 0 and c.c_mu > 0 and c.c_1 + c.c_mu <= 1
    assert 1 - c.c_1 - c.c_mu + size * c.c_mu * bad >= -1e-12


def test_root_is_recomputed_less_often_with_many_parameters() -> None:
    """1000 parameters, 24 samples: c_1 + c_mu is about 1.3e-5, 1 / (10 * 1000 * 1.3e-5) is 7.7:
    8, as in pycma.
    """
    assert constants(40, 15, True).root_interval == 1
    assert constants(100, 17, True).root_interval == 2
    assert constants(1000, 24, True).root_interval == 8


def test_square_root_of_a_2_by_2_covariance_by_hand() -> None:
    """[[2, 1], [1, 2]] has the lengths 1 and sqrt 3 along (1, -1) and (1, 1)."""
    root, lengths, axes = root_of(np.array([[2.0, 1], [1, 2]]))
    half = math.sqrt(3) / 2
    assert root == pytest.approx(np.array([[half + 0.5, half - 0.5], [half - 0.5, half + 0.5]]))
    assert lengths == pytest.approx([1, math.sqrt(3)])
    assert np.abs(axes) == pytest.approx(np.full((2, 2), math.sqrt(0.5)))


def test_eigenvalues_of_zero_are_raised_to_the_smallest_allowed() -> None:
    _, lengths, _ = root_of(np.array([[4.0, 0], [0, -1e-9]]))
    assert lengths == pytest.approx([2 * math.sqrt(np.finfo(np.float64).eps), 2])


def test_root_is_symmetric_and_squares_to_the_covariance() -> None:
    covariance = np.cov(np.random.default_rng(0).standard_normal((40, 60)))
    root = root_of(np.tril(covariance))[0]
    assert (root == root.T).all()
    np.testing.assert_allclose(root @ root, covariance, rtol=1e-12, atol=1e-12)


def test_rows_of_a_weighted_sum_of_squares() -> None:
    """2 (1, 3)(1, 3)^T - (2, 0)(2, 0)^T."""
    result = rows_of_sum(np.array([2.0, -1]), np.array([[1.0, 3], [2, 0]]), 0)
    assert result.tolist() == [[2 - 4, 6], [6, 18]]


def test_number_of_blocks_grows_with_the_number_of_samples() -> None:
    assert covariance.blocks(MIN_SHARED_SAMPLES - 1, 2000) == 1
    assert [
        covariance.blocks(MIN_SHARED_SAMPLES, size) for size in (1, BLOCK_ROWS, BLOCK_ROWS + 1)
    ] == [1, 1, 2]


@pytest.mark.parametrize("samples", [4, MIN_SHARED_SAMPLES])
def test_blocks_of_rows_cover_the_covariance_once(samples: int) -> None:
    steps = np.random.default_rng(1).standard_normal((samples, BLOCK_ROWS + 3))
    parts = [
        rows_of_sum(np.ones(samples), steps, block)
        for block in range(covariance.blocks(*steps.shape))
    ]
    np.testing.assert_allclose(np.concatenate(parts), steps.T @ steps, rtol=1e-12, atol=1e-12)


def test_covariance_update_by_path_and_blocks_equals_the_whole_formula() -> None:
    """Sizes larger than a cache, and not a multiple of the blocks."""
    rng = np.random.default_rng(2)
    size = 2 * CACHE_ROWS + 5
    old, rows, path = (
        rng.standard_normal((size, size)),
        rng.standard_normal((size, size)),
        rng.standard_normal(size),
    )
    result = covariance.updated(old, 0.5, path, 0.25, [rows[:40], rows[40:]])
    np.testing.assert_allclose(
        result, 0.5 * old + 0.25 * np.outer(path, path) + rows, rtol=1e-12, atol=1e-12
    )


def test_covariance_of_too_many_parameters_is_refused() -> None:
    assert not list(covariance.too_large("xnes", 2000))
    ((key, text),) = covariance.too_large("xnes", 2001)
    assert (
        key == "algorithm.kind"
        and "'xnes'" in text
        and "2,001 parameters: expected at most 2,000" in text
    )


SIZE, POPULATION = 40, SAMPLE_ROWS + 6
MATRIX = np.random.default_rng(0).standard_normal((SIZE, SIZE))
NOISE = CounterNoise(Keys(1), SIZE)


def steps(of: BlockSampler, first: int, stop: int, generation: int = 3) -> bytes:
    return of.y(generation, POPULATION, range(first, stop), MATRIX).tobytes()


def test_transformed_perturbations_are_matrix_times_noise() -> None:
    z, y = BlockSampler(NOISE, SIZE).z_and_y(3, POPULATION, MATRIX)
    assert z.tolist() == [
        NOISE.direction(3, sample, 0, SIZE).tolist() for sample in range(POPULATION)
    ]
    np.testing.assert_allclose(y, z @ MATRIX.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kept", [0, covariance.MAX_CACHED])
def test_sample_does_not_depend_on_the_others(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covariance, "MAX_CACHED", kept)
    one = BlockSampler(NOISE, SIZE)
    whole = BlockSampler(NOISE, SIZE).z_and_y(3, POPULATION, MATRIX)[1]
    for sample in reversed(range(POPULATION)):
        assert steps(one, sample, sample + 1) == whole[sample].tobytes()
    assert (
        steps(one, SAMPLE_ROWS - 2, SAMPLE_ROWS + 3)
        == whole[SAMPLE_ROWS - 2 : SAMPLE_ROWS + 3].tobytes()
    )
    # all of them, from those that were computed before, and again
    for _ in range(2):
        assert one.z_and_y(3, POPULATION, MATRIX)[1].tobytes() == whole.tobytes()
    assert steps(one, 1, POPULATION) == whole[1:].tobytes()


def test_transformed_perturbations_differ_by_generation_and_matrix() -> None:
    one = BlockSampler(NOISE, SIZE)
    first, second = steps(one, 0, 4), steps(one, 0, 4, generation=4)
    assert first != second
    assert (
        one.y(4, POPULATION, range(4), 2 * MATRIX).tobytes()
        == (2 * np.frombuffer(second)).tobytes()
    )
    assert steps(one, 0, 4) == first
