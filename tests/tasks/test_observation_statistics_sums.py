"""ObservationSums of observations, by hand: per element of flat ones, per channel of images."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_es.core.data import Array, ObservationSpec, flat_observations
from hpc_es.core.policy import Batch
from hpc_es.tasks.observation_statistics import ADDED_DEVIATION, Deviations, Moments, ObservationSums

IMAGE = ObservationSpec((1, 2, 3), np.dtype(np.uint8))
FIRST, SECOND = [[[200, 0, 7], [250, 4, 7]]], [[[210, 8, 7], [220, 0, 7]]]  # of one job: two pixels, three channels
OTHER = [[[1, 2, 3], [1, 2, 3]]]  # of a job that is not observed


def batch(jobs: int, observed: list[int], centred: bool = False, unit: int | None = None) -> Batch:
    observe = np.isin(np.arange(jobs), observed)
    seeds = np.zeros((jobs, 1), np.int64)
    return Batch(seeds, True, observe, 0.0, np.random.default_rng, unit=unit, centred=centred)


def summed(sums: ObservationSums, *steps: list[Array], jobs: int) -> dict[str, Array]:
    for step in steps:
        sums.add(np.array(step, np.uint8), list(range(jobs)), list(range(jobs)))
    ((arrays,),) = sums.units(np.zeros(jobs, bool))
    return dict(arrays)


def test_sums_of_an_image_are_of_each_channel_over_its_pixels() -> None:
    """Channel 0: 200 + 250 + 210 + 220 = 880; squares in float64, which do not fit uint8 or int32 of many pixels."""
    arrays = summed(ObservationSums(batch(2, [0]), IMAGE), [FIRST, OTHER], [SECOND, OTHER], jobs=2)
    assert arrays["observation_sum"].tolist() == [880, 12, 28]
    assert arrays["observation_squares"].tolist() == [200**2 + 250**2 + 210**2 + 220**2, 16 + 64, 4 * 49]
    assert arrays["observation_count"] == 4
    moments = Moments.from_arrays(arrays)
    np.testing.assert_allclose(moments.mean(), [220, 3, 7])
    # Channel 0: differences -20, 30, -10, 0; channel 1: -3, 1, 5, -3; channel 2 has the floor.
    np.testing.assert_allclose(moments.deviation(), [np.sqrt(1400 / 4), np.sqrt(44 / 4), 0.1], rtol=1e-6)


def test_sample_deviations_of_an_image_are_of_each_channel() -> None:
    """Divided by one less than the 4 pixels; what never varies is infinite."""
    arrays = summed(ObservationSums(batch(2, [0], centred=True), IMAGE), [FIRST, OTHER], [SECOND, OTHER], jobs=2)
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
def test_statistics_are_of_elements_or_of_channels(spec: ObservationSpec, statistics: int) -> None:
    """The mean has a shape that broadcasts against observations, and all elements count."""
    assert spec.statistics == statistics
    observations = np.random.default_rng(0).integers(100, size=(2, *spec.shape)).astype(spec.dtype)
    for centred in (False, True):
        sums = ObservationSums(batch(2, [0, 1], centred), spec)
        sums.add(observations, [0, 1], [0, 1])
        ((arrays,),) = sums.units(np.zeros(2, bool))
        kind = Deviations if centred else Moments
        assert arrays["observation_count"] == 2 * spec.size / statistics
        expected = observations.reshape(-1, statistics).mean(axis=0, dtype=np.float64)
        np.testing.assert_allclose(kind.from_arrays(arrays).mean(), expected, rtol=1e-6)
        assert np.broadcast_shapes(kind.from_arrays(arrays).mean().shape, observations.shape) == observations.shape


def test_a_job_has_the_same_sums_beside_others_and_alone() -> None:
    """As chunks are cut anew for other numbers of ranks: also of float images, whose sums are rounded."""
    spec = ObservationSpec((8, 8, 3))
    observations = np.random.default_rng(1).normal(size=(5, *spec.shape)).astype(np.float32)
    for centred in (False, True):
        together = ObservationSums(batch(5, [0, 1, 2, 3, 4], centred, unit=1), spec)
        together.add(observations, list(range(5)), list(range(5)))
        units = together.units(np.zeros(5, bool))
        for job in range(5):
            alone = ObservationSums(batch(1, [0], centred, unit=1), spec)
            alone.add(observations[job : job + 1], [0], [0])
            ((expected,),) = alone.units(np.zeros(1, bool))
            assert all(units[job][0][name].tobytes() == array.tobytes() for name, array in expected.items())
