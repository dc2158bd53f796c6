"""Statistics of observations: running moments, sample deviations,
and sums per element or channel, by hand.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hpc_es.core.data import Array, ObservationSpec, flat_observations
from hpc_es.core.policy import Batch
from hpc_es.policies.networks.heads import normalise
from hpc_es.tasks.observation_statistics import (
    ADDED_DEVIATION,
    Deviations,
    Moments,
    ObservationSums,
    not_finite,
)
from hpc_es.tasks.problems import statistics_state
from tests.helpers.toys import batch


def moments_of(samples: np.ndarray) -> Moments:
    return Moments(samples.sum(axis=0), np.square(samples).sum(axis=0), len(samples))


def test_moments_before_any_observation() -> None:  # T45
    moments = Moments.initial(2)
    assert moments.mean().tolist() == [0, 0]
    assert moments.deviation().tolist() == [1, 1]


def test_running_moments_by_hand() -> None:  # T45
    moments = Moments.initial(2).plus(Moments(np.array([6.0, 3.0]), np.array([14.0, 3.0]), 3))
    np.testing.assert_allclose(moments.mean(), [6 / 3.01, 3 / 3.01], rtol=1e-6)
    np.testing.assert_allclose(moments.deviation(), [0.825239, 0.1], rtol=1e-5)
    assert moments.mean().dtype == moments.deviation().dtype == np.float32


def test_moments_of_parts_equal_those_of_the_whole() -> None:
    samples = np.random.default_rng(0).normal(3, 2, (5000, 2))
    moments = Moments.initial(2)
    for part in np.split(samples, [10, 11, 400, 4000]):
        moments = moments.plus(moments_of(part))
    np.testing.assert_allclose(moments.mean(), samples.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(moments.deviation(), samples.std(axis=0), rtol=1e-5)


def test_constant_far_from_zero_has_the_floor_not_nan() -> None:
    """squares / count - mean^2 is a difference of two numbers near 1e12."""
    moments = Moments.initial(1).plus(moments_of(np.full((1000, 1), 1e6 + 0.1)))
    assert np.isfinite(moments.deviation()).all()
    assert moments.deviation()[0] >= np.float32(0.1)


def test_moments_are_stored_and_restored() -> None:
    moments = Moments.initial(2).plus(moments_of(np.array([[1.0, 2.0], [3.0, 5.0]])))
    arrays = moments.arrays()
    again = Moments.from_arrays(arrays)
    assert all(
        isinstance(array, np.ndarray) and array.dtype == np.float64 for array in arrays.values()
    )
    assert arrays["observation_count"].shape == ()
    assert again.count == moments.count == 2.01
    assert np.array_equal(again.total, moments.total)
    assert np.array_equal(again.squares, moments.squares)


STATES = np.array([[1, 2, 3], [2, 2, 5], [4, 2, -1], [7, 2, 0]], np.float32)


def deviations_of(samples: Array) -> Deviations:
    """Sums of a job with these observations, float32[steps, width]."""
    sums = ObservationSums(
        batch([0], observe=[True], centred=True), flat_observations(samples.shape[1])
    )
    for recorded in samples:
        sums.add(recorded[np.newaxis], [0], [0])
    ((arrays,),) = sums.units(np.array([False]))
    return Deviations.from_arrays(arrays)


def test_sample_deviations_before_two_observations() -> None:
    for recorded in (
        Deviations.initial(2),
        Deviations.initial(2).plus(deviations_of(np.array([[3, 4]], np.float32))),
    ):
        assert recorded.deviation().tolist() == [1, 1]
    assert Deviations.initial(2).mean().tolist() == [0, 0]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_sample_deviations_do_not_depend_on_how_observations_are_split(cut: int) -> None:
    """For any division of the observations among jobs."""
    recorded = (
        Deviations.initial(3).plus(deviations_of(STATES[:cut])).plus(deviations_of(STATES[cut:]))
    )
    assert recorded.mean().tolist() == [3.5, 2, 1.75]
    assert recorded.deviation()[[0, 2]] == pytest.approx([2.645751311, 2.753785274], rel=1e-7)
    x = normalise(
        np.array([[3, 2.5, 1]], np.float32), (recorded.mean(), recorded.deviation(), math.inf)
    )
    assert x[0] == pytest.approx([-0.1889822358, 0, -0.2723523887], rel=1e-6)


def test_observations_are_not_clipped_without_a_clip() -> None:
    normaliser = np.zeros(1, np.float32), np.full(1, 0.5, np.float32), math.inf
    assert normalise(np.array([[400]], np.float32), normaliser).tolist() == [[800]]


def test_constant_inputs_are_recognised_far_from_zero_and_in_many_parts() -> None:
    """Sums of squares would give a deviation of about 1e-6 times the number."""
    recorded = Deviations.initial(2)
    for part in range(20):
        samples = np.full((500, 2), 8.9, np.float32)
        samples[part % 7, 1] = 9
        recorded = recorded.plus(deviations_of(samples))
    assert recorded.deviation()[0] == np.inf
    assert recorded.deviation()[1] == pytest.approx(0.1 * math.sqrt(1 / 500 * 499 / 500), rel=1e-4)


def test_sample_deviations_of_parts_equal_those_of_the_whole() -> None:
    samples = np.random.default_rng(0).normal(1e4, 1e-1, (2000, 2)).astype(np.float32)
    recorded = Deviations.initial(2)
    for part in np.split(samples, [10, 11, 400]):
        recorded = recorded.plus(deviations_of(part))
    assert recorded.deviation() == pytest.approx(
        samples.std(axis=0, ddof=1, dtype=np.float64), rel=1e-6
    )
    assert recorded.mean() == pytest.approx(samples.mean(axis=0, dtype=np.float64), rel=1e-7)


def test_sums_of_units_exclude_failed_jobs() -> None:
    sums = ObservationSums(
        batch([0, 0, 0], observe=[True, True, True], centred=True, unit=2), flat_observations(3)
    )
    for step in range(4):
        sums.add(
            np.stack([STATES[step], STATES[step] * 100, STATES[step] + 1]), [0, 1, 2], [0, 1, 2]
        )
    first, second = (
        Deviations.from_arrays(arrays) for (arrays,) in sums.units(np.array([False, True, False]))
    )
    assert (first.count, first.mean().tolist()) == (4, [3.5, 2, 1.75])
    assert (second.count, second.mean().tolist()) == (4, [4.5, 3, 2.75])


def test_sample_deviations_are_stored_and_restored() -> None:
    arrays = deviations_of(STATES).arrays()
    assert all(
        isinstance(array, np.ndarray) and array.dtype == np.float64 for array in arrays.values()
    )
    again = Deviations.from_arrays(arrays)
    assert (again.count, again.mean().tolist()) == (4, [3.5, 2, 1.75])
    assert again.deviation().tolist() == deviations_of(STATES).deviation().tolist()


IMAGE = ObservationSpec((1, 2, 3), np.dtype(np.uint8))
# of one job: two pixels, three channels
FIRST, SECOND = [[[200, 0, 7], [250, 4, 7]]], [[[210, 8, 7], [220, 0, 7]]]
OTHER = [[[1, 2, 3], [1, 2, 3]]]  # of a job that is not observed


def observed_batch(
    jobs: int, observed: list[int], centred: bool = False, unit: int | None = None
) -> Batch:
    observe = np.isin(np.arange(jobs), observed)
    seeds = np.zeros((jobs, 1), np.int64)
    return Batch(seeds, True, observe, 0.0, np.random.default_rng, unit=unit, centred=centred)


def summed(sums: ObservationSums, *steps: list[Array], jobs: int) -> dict[str, Array]:
    for step in steps:
        sums.add(np.array(step, np.uint8), list(range(jobs)), list(range(jobs)))
    ((arrays,),) = sums.units(np.zeros(jobs, bool))
    return dict(arrays)


def test_image_sums_are_per_channel_over_all_pixels() -> None:
    """Channel 0: 200 + 250 + 210 + 220 = 880; squares in float64,
    because uint8 or int32 would overflow.
    """
    arrays = summed(
        ObservationSums(observed_batch(2, [0]), IMAGE), [FIRST, OTHER], [SECOND, OTHER], jobs=2
    )
    assert arrays["observation_sum"].tolist() == [880, 12, 28]
    assert arrays["observation_squares"].tolist() == [
        200**2 + 250**2 + 210**2 + 220**2,
        16 + 64,
        4 * 49,
    ]
    assert arrays["observation_count"] == 4
    moments = Moments.from_arrays(arrays)
    np.testing.assert_allclose(moments.mean(), [220, 3, 7])
    # Channel 0: differences -20, 30, -10, 0; channel 1: -3, 1, 5, -3; channel 2 has the floor.
    np.testing.assert_allclose(
        moments.deviation(), [np.sqrt(1400 / 4), np.sqrt(44 / 4), 0.1], rtol=1e-6
    )


def test_image_deviations_are_per_channel() -> None:
    """Divided by 4 pixels minus one; that of a constant channel is infinite."""
    arrays = summed(
        ObservationSums(observed_batch(2, [0], centred=True), IMAGE),
        [FIRST, OTHER],
        [SECOND, OTHER],
        jobs=2,
    )
    deviations = Deviations.from_arrays(arrays)
    assert arrays["observation_centre"].tolist() == [220, 3, 7]
    assert arrays["observation_scatter"].tolist() == [1400, 44, 0]
    expected = [np.sqrt(1400 / 3) + ADDED_DEVIATION, np.sqrt(44 / 3) + ADDED_DEVIATION, np.inf]
    np.testing.assert_allclose(deviations.deviation(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("spec", "statistics"),
    [
        (flat_observations(4), 4),
        (ObservationSpec((16, 16, 3), np.dtype(np.uint8)), 3),
        (ObservationSpec((16, 16), np.dtype(np.uint8)), 1),  # as GrayscaleObservation gives it
        (ObservationSpec((16, 16, 1), np.dtype(np.uint8)), 1),
        (ObservationSpec((5, 3)), 3),  # points in space
        (ObservationSpec((1, 1, 3), np.dtype(np.uint8)), 3),
    ],
)
def test_statistics_are_per_element_or_per_channel(spec: ObservationSpec, statistics: int) -> None:
    """The mean broadcasts against observations, and the count includes all pixels."""
    assert spec.statistics == statistics
    observations = np.random.default_rng(0).integers(100, size=(2, *spec.shape)).astype(spec.dtype)
    for centred in (False, True):
        sums = ObservationSums(observed_batch(2, [0, 1], centred), spec)
        sums.add(observations, [0, 1], [0, 1])
        ((arrays,),) = sums.units(np.zeros(2, bool))
        kind = Deviations if centred else Moments
        assert arrays["observation_count"] == 2 * spec.size / statistics
        expected = observations.reshape(-1, statistics).mean(axis=0, dtype=np.float64)
        np.testing.assert_allclose(kind.from_arrays(arrays).mean(), expected, rtol=1e-6)
        assert (
            np.broadcast_shapes(kind.from_arrays(arrays).mean().shape, observations.shape)
            == observations.shape
        )


def test_sums_of_a_job_do_not_depend_on_other_jobs() -> None:
    """Chunks depend on the number of ranks; also for float images, whose sums are rounded."""
    spec = ObservationSpec((8, 8, 3))
    observations = np.random.default_rng(1).normal(size=(5, *spec.shape)).astype(np.float32)
    for centred in (False, True):
        together = ObservationSums(observed_batch(5, [0, 1, 2, 3, 4], centred, unit=1), spec)
        together.add(observations, list(range(5)), list(range(5)))
        units = together.units(np.zeros(5, bool))
        for job in range(5):
            alone = ObservationSums(observed_batch(1, [0], centred, unit=1), spec)
            alone.add(observations[job : job + 1], [0], [0])
            ((expected,),) = alone.units(np.zeros(1, bool))
            assert all(
                units[job][0][name].tobytes() == array.tobytes() for name, array in expected.items()
            )


# Statistics that are not finite.


@pytest.mark.parametrize("kind", [Moments, Deviations])
def test_statistics_are_finite_before_and_after_observations(kind: Any) -> None:
    """The deviation of an input that has never varied is infinite for `Deviations`."""
    statistics = kind.initial(2).plus(kind.from_sums(np.ones(2), np.ones(2), 1.0, np.zeros(2)))
    for state in (statistics_state(kind.initial(2)), statistics_state(statistics)):
        assert not_finite(state.shared, state.master) == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("observation_mean", np.inf),
        ("observation_std", np.nan),
        ("observation_sum", np.inf),
        ("observation_count", np.nan),
    ],
)
@pytest.mark.parametrize("prefix", ["", "delayed/1/"])
def test_name_of_statistics_that_are_not_finite(name: str, value: float, prefix: str) -> None:
    state = statistics_state(Moments.initial(2))
    arrays = {
        f"{prefix}{key}": np.array(array) for key, array in {**state.shared, **state.master}.items()
    }
    assert not_finite(arrays) == ""
    arrays[prefix + name].flat[-1] = value
    assert not_finite({"theta": np.array([np.nan])}, arrays) == prefix + name
