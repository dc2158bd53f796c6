"""Sample deviations of observations, and what a network makes of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpc_es.core.data import Array, flat_observations
from hpc_es.policies.networks.heads import normalise
from hpc_es.tasks.observation_statistics import Deviations, ObservationSums
from tests.helpers.toys import batch

STATES = np.array([[1, 2, 3], [2, 2, 5], [4, 2, -1], [7, 2, 0]], np.float32)


def of(samples: Array) -> Deviations:
    """Those of a job that has seen these, float32[steps, width]."""
    sums = ObservationSums(batch([0], observe=[True], centred=True), flat_observations(samples.shape[1]))
    for seen in samples:
        sums.add(seen[np.newaxis], [0], [0])
    ((arrays,),) = sums.units(np.array([False]))
    return Deviations.from_arrays(arrays)


def test_before_two_observations() -> None:
    for seen in (Deviations.initial(2), Deviations.initial(2).plus(of(np.array([[3, 4]], np.float32)))):
        assert seen.deviation().tolist() == [1, 1]
    assert Deviations.initial(2).mean().tolist() == [0, 0]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_the_vector_of_mania(cut: int) -> None:
    """Whichever observations were another job's."""
    seen = Deviations.initial(3).plus(of(STATES[:cut])).plus(of(STATES[cut:]))
    assert seen.mean().tolist() == [3.5, 2, 1.75]
    assert seen.deviation()[[0, 2]] == pytest.approx([2.645751311, 2.753785274], rel=1e-7)
    x = normalise(np.array([[3, 2.5, 1]], np.float32), (seen.mean(), seen.deviation(), math.inf))
    assert x[0] == pytest.approx([-0.1889822358, 0, -0.2723523887], rel=1e-6)


def test_nothing_is_clipped_without_a_clip() -> None:
    normaliser = np.zeros(1, np.float32), np.full(1, 0.5, np.float32), math.inf
    assert normalise(np.array([[400]], np.float32), normaliser).tolist() == [[800]]


def test_what_never_varies_is_known_far_from_zero_and_in_many_parts() -> None:
    """ObservationSums of squares would leave a deviation of about 1e-6 times the number."""
    seen = Deviations.initial(2)
    for part in range(20):
        samples = np.full((500, 2), 8.9, np.float32)
        samples[part % 7, 1] = 9
        seen = seen.plus(of(samples))
    assert seen.deviation()[0] == np.inf
    assert seen.deviation()[1] == pytest.approx(0.1 * math.sqrt(1 / 500 * 499 / 500), rel=1e-4)


def test_parts_are_as_good_as_the_whole() -> None:
    samples = np.random.default_rng(0).normal(1e4, 1e-1, (2000, 2)).astype(np.float32)
    seen = Deviations.initial(2)
    for part in np.split(samples, [10, 11, 400]):
        seen = seen.plus(of(part))
    assert seen.deviation() == pytest.approx(samples.std(axis=0, ddof=1, dtype=np.float64), rel=1e-6)
    assert seen.mean() == pytest.approx(samples.mean(axis=0, dtype=np.float64), rel=1e-7)


def test_units_leave_failed_jobs_out() -> None:
    sums = ObservationSums(batch([0, 0, 0], observe=[True, True, True], centred=True, unit=2), flat_observations(3))
    for step in range(4):
        sums.add(np.stack([STATES[step], STATES[step] * 100, STATES[step] + 1]), [0, 1, 2], [0, 1, 2])
    first, second = (Deviations.from_arrays(arrays) for (arrays,) in sums.units(np.array([False, True, False])))
    assert (first.count, first.mean().tolist()) == (4, [3.5, 2, 1.75])
    assert (second.count, second.mean().tolist()) == (4, [4.5, 3, 2.75])


def test_arrays_and_back() -> None:
    arrays = of(STATES).arrays()
    assert all(isinstance(array, np.ndarray) and array.dtype == np.float64 for array in arrays.values())
    again = Deviations.from_arrays(arrays)
    assert (again.count, again.mean().tolist()) == (4, [3.5, 2, 1.75])
    assert again.deviation().tolist() == of(STATES).deviation().tolist()
