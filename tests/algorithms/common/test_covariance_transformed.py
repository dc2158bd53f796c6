"""Steps through a full matrix: their values, and the same bits however they are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_es.algorithms.common import covariance
from hpc_es.algorithms.common.covariance import SAMPLE_ROWS, BlockSampler
from hpc_es.core.keys import Keys
from hpc_es.noise.counter import CounterNoise

SIZE, POPULATION = 40, SAMPLE_ROWS + 6
MATRIX = np.random.default_rng(0).standard_normal((SIZE, SIZE))
NOISE = CounterNoise(Keys(1), SIZE)


def steps(of: BlockSampler, first: int, stop: int, generation: int = 3) -> bytes:
    return of.y(generation, POPULATION, range(first, stop), MATRIX).tobytes()


def test_steps_are_the_matrix_times_the_directions() -> None:
    z, y = BlockSampler(NOISE, SIZE).z_and_y(3, POPULATION, MATRIX)
    assert z.tolist() == [NOISE.direction(3, sample, 0, SIZE).tolist() for sample in range(POPULATION)]
    np.testing.assert_allclose(y, z @ MATRIX.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kept", [0, covariance.MAX_CACHED])
def test_a_sample_has_the_same_bits_in_any_company(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covariance, "MAX_CACHED", kept)
    one = BlockSampler(NOISE, SIZE)
    whole = BlockSampler(NOISE, SIZE).z_and_y(3, POPULATION, MATRIX)[1]
    for sample in reversed(range(POPULATION)):
        assert steps(one, sample, sample + 1) == whole[sample].tobytes()
    assert steps(one, SAMPLE_ROWS - 2, SAMPLE_ROWS + 3) == whole[SAMPLE_ROWS - 2 : SAMPLE_ROWS + 3].tobytes()


def test_another_generation_or_matrix_has_other_steps() -> None:
    one = BlockSampler(NOISE, SIZE)
    first, second = steps(one, 0, 4), steps(one, 0, 4, generation=4)
    assert first != second
    assert one.y(4, POPULATION, range(4), 2 * MATRIX).tobytes() == (2 * np.frombuffer(second)).tobytes()
    assert steps(one, 0, 4) == first
