"""Perturbations of low rank: their moments, and the sums of an update,
which are computed from factors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_es.core.data import Float32
from hpc_es.core.keys import Keys
from hpc_es.core.population import Factorisation, Layout
from hpc_es.noise import BlockNoise, low_rank
from hpc_es.noise.counter import CounterNoise
from hpc_es.noise.low_rank import LowRankNoise, blocks_of

LAYOUT = Layout(
    {"first": (40, 30), "bias": (30,), "conv": (3, 3, 8, 16), "small": (2, 2), "scale": ()}
)
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def noise(rank: int, layout: Layout = LAYOUT) -> LowRankNoise:
    factorisation = Factorisation(layout, rank)
    return LowRankNoise(CounterNoise(Keys(1), factorisation.compact.size), factorisation)


class Fixed(BlockNoise):
    """left (2, -1), right (1, 0, -2); left (1, 3), right (0, 1, 1);
    biases (1, 2, 3) and (4, 5, 6).
    """

    def __init__(self) -> None:
        super().__init__(8, 8)

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        return np.array([[2, -1, 1, 0, -2, 1, 2, 3], [1, 3, 0, 1, 1, 4, 5, 6]], np.float32)[
            pair, start:stop
        ]


def test_weighted_sums_and_sums_of_squares_by_hand() -> None:
    """Weights 0.25 and -0.5; of squares 1 and 2: (4, 1)^T (1, 0, 4) + 2 (1, 9)^T (0, 1, 1)."""
    source = LowRankNoise(Fixed(), Factorisation(Layout({"kernel": (2, 3), "bias": (3,)}), 1))
    sums = source.weighted_sums(0, np.array([[0.25, -0.5], [1, 2]]), (1, 2), 0, FLOAT64)
    assert sums.tolist() == [
        [0.5, -0.5, -1.5, -0.25, -1.5, -1, -1.75, -2, -2.25],
        [4, 2, 18, 1, 18, 22, 33, 54, 81],
    ]


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_elements_of_a_perturbation_have_the_moments_of_the_rank(rank: int) -> None:
    """Mean 0, variance 1 and fourth moment 3 + 6 / rank,
    within 5 standard errors of independent pairs.
    """
    source = noise(rank, Layout({"kernel": (12, 10)}))
    means = np.stack([source.direction(0, pair, 0, 120).astype(np.float64) for pair in range(4000)])
    for power, expected in ((1, 0.0), (2, 1.0), (4, 3 + 6 / rank)):
        of_pairs = (means**power).mean(axis=1)
        assert abs(of_pairs.mean() - expected) < 5 * of_pairs.std() / np.sqrt(len(of_pairs)), power


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("rank", [1, 3])
def test_sums_of_blocks_equal_sums_over_formed_perturbations(
    rank: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 500 parameters, which cut matrices between rows; products of 3 of the 8 pairs."""
    for name, value in (("BLOCK", 500), ("GROUP", 3), ("WHOLE", 10)):
        monkeypatch.setattr(low_rank, name, value)
    source, rng = noise(rank), np.random.default_rng(0)
    weights = rng.standard_normal((1, 8))
    weights[0, 4] = 0
    assert len(source.edges) > 4 and all(
        isinstance(edge, int) and 0 < edge < LAYOUT.size for edge in source.edges[1:]
    )
    blocks = [
        source.weighted_sums(2, weights, (1,), block, dtype) for block in range(len(source.edges))
    ]
    assert [block.shape[1] for block in blocks] == np.diff([*source.edges, LAYOUT.size]).tolist()
    formed = np.stack([source.direction(2, pair, 0, LAYOUT.size) for pair in range(8)]).astype(
        np.float64
    )
    sums = np.concatenate(blocks, axis=1)
    assert sums.dtype == dtype
    np.testing.assert_allclose(sums, weights @ formed, rtol=1e-4, atol=1e-5)


def test_squares_are_summed_with_rank_1() -> None:
    source = noise(1)
    weights = np.random.default_rng(0).standard_normal((2, 6))
    formed = np.stack([source.direction(2, pair, 0, LAYOUT.size) for pair in range(6)]).astype(
        np.float64
    )
    sums = np.concatenate(
        [source.weighted_sums(2, weights, (1, 2), b, FLOAT64) for b in range(len(source.edges))], 1
    )
    np.testing.assert_allclose(
        sums, [weights[0] @ formed, weights[1] @ formed**2], rtol=1e-4, atol=1e-5
    )
    with pytest.raises(AssertionError):
        noise(2).weighted_sums(0, weights, (1, 2), 0, FLOAT64)


def test_other_ranks_compute_the_same_sums_of_a_block() -> None:
    weights = np.random.default_rng(0).standard_normal((1, 6))
    here, there = noise(2), noise(2)
    here.numbers(5, range(6))  # the candidates of a rank that evaluates: their numbers are cached
    for block in range(len(here.edges)):
        sums = [
            source.weighted_sums(5, weights, (1,), block, FLOAT32).tobytes()
            for source in (here, there)
        ]
        assert sums[0] == sums[1]


def test_large_vectors_have_at_most_about_64_blocks() -> None:
    layout = Layout({"embedding": (1_000_000, 100), "kernel": (100, 100)})
    blocks = blocks_of(Factorisation(layout, 1))
    assert 60 < len(blocks) < 70
    assert sum(piece.width for block in blocks for piece in block) == layout.size
