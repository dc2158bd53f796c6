"""Novelty against numbers worked out apart, and an archive of limited length."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_es.algorithms.novelty import extended, novelties, novelty, selection_probabilities

ARCHIVE = np.array([[0, 0], [3, 4], [1, 0], [0, 2]], np.float32)


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [  # with 1, 2 and 10 neighbours, of which there are 4
        ((0, 1), (1, 1, 1.914213562)),
        ((2, 2), (2, 2.118033989, 2.32514077)),
        ((0, 0), (0, 0.5, 2)),
    ],
)
def test_novelty_is_the_mean_distance_to_the_nearest(behaviour: tuple[int, int], expected: tuple[float, ...]) -> None:
    found = [novelty(np.array(behaviour, np.float32), ARCHIVE, k) for k in (1, 2, 10)]
    assert found == pytest.approx(expected, rel=1e-9)


def test_novelties_of_a_batch_equal_single_ones() -> None:
    rng = np.random.default_rng(0)
    behaviours, archive = rng.standard_normal((9, 3)), rng.standard_normal((50, 3)).astype(np.float32)
    assert novelties(behaviours, archive, 10).tolist() == [novelty(each, archive, 10) for each in behaviours]


def test_novelty_against_an_empty_archive_is_zero() -> None:
    assert novelties(np.ones((2, 3)), np.zeros((0, 3)), 10).tolist() == [0, 0]


def test_selection_probabilities_are_proportional_to_novelty() -> None:
    assert selection_probabilities(np.array([2.0, 1.0, 5.0])).tolist() == [0.25, 0.125, 0.625]
    assert selection_probabilities(np.zeros(4)).tolist() == [0.25] * 4


def test_a_full_archive_keeps_the_newest_entries() -> None:
    longer = extended(ARCHIVE, np.array([[9, 9]], np.float32), None)
    assert longer.tolist() == [*ARCHIVE.tolist(), [9, 9]]
    assert extended(ARCHIVE, np.array([[9, 9]], np.float32), 2).tolist() == [[0, 2], [9, 9]]
    assert longer.dtype == np.float32
