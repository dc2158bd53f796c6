"""Running statistics of observations."""

from __future__ import annotations

import numpy as np

from hpc_es.tasks.observation_statistics import Moments


def of(samples: np.ndarray) -> Moments:
    return Moments(samples.sum(axis=0), np.square(samples).sum(axis=0), len(samples))


def test_before_any_observation() -> None:  # T45
    moments = Moments.initial(2)
    assert moments.mean().tolist() == [0, 0]
    assert moments.deviation().tolist() == [1, 1]


def test_running_statistics_by_hand() -> None:  # T45
    moments = Moments.initial(2).plus(Moments(np.array([6.0, 3.0]), np.array([14.0, 3.0]), 3))
    np.testing.assert_allclose(moments.mean(), [6 / 3.01, 3 / 3.01], rtol=1e-6)
    np.testing.assert_allclose(moments.deviation(), [0.825239, 0.1], rtol=1e-5)
    assert moments.mean().dtype == moments.deviation().dtype == np.float32


def test_parts_are_as_good_as_the_whole() -> None:
    samples = np.random.default_rng(0).normal(3, 2, (5000, 2))
    moments = Moments.initial(2)
    for part in np.split(samples, [10, 11, 400, 4000]):
        moments = moments.plus(of(part))
    np.testing.assert_allclose(moments.mean(), samples.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(moments.deviation(), samples.std(axis=0), rtol=1e-5)


def test_a_constant_far_from_zero_has_the_floor_not_nan() -> None:
    """squares / count - mean^2 is here a difference of two numbers near 1e12."""
    moments = Moments.initial(1).plus(of(np.full((1000, 1), 1e6 + 0.1)))
    assert np.isfinite(moments.deviation()).all()
    assert moments.deviation()[0] >= np.float32(0.1)


def test_arrays_and_back() -> None:
    moments = Moments.initial(2).plus(of(np.array([[1.0, 2.0], [3.0, 5.0]])))
    arrays = moments.arrays()
    again = Moments.from_arrays(arrays)
    assert all(isinstance(array, np.ndarray) and array.dtype == np.float64 for array in arrays.values())
    assert arrays["observation_count"].shape == ()
    assert again.count == moments.count == 2.01
    assert np.array_equal(again.total, moments.total)
    assert np.array_equal(again.squares, moments.squares)
