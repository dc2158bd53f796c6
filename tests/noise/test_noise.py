"""Perturbations are standard normal, computed from their keys, and identical on every rank."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_es.core.data import Float32
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys
from hpc_es.core.population import DrawsSeveral, Noise
from hpc_es.mpi.world import World
from hpc_es.noise import BlockNoise, portable
from hpc_es.noise import table as table_noise
from hpc_es.noise.counter import BLOCK, CounterNoise
from hpc_es.noise.table import FILL_BLOCK, TableNoise, check_size, fill


def table(keys: Keys, size: int, workers: int = 1) -> Float32:
    """A table filled by this number of workers, in reverse order."""
    filled = np.full(size, np.nan, np.float32)
    for worker in reversed(range(workers)):
        fill(filled, keys, worker, workers)
    return filled


def noise(kind: str, size: int, seed: int = 1, repetition: int = 0) -> Noise:
    keys = Keys(seed, repetition)
    if kind == "table":
        return TableNoise(table(keys, 200_000), keys, size)
    return (
        CounterNoise(keys, size) if kind == "counter" else CounterNoise(keys, size, portable.fill)
    )


KINDS = ("table", "counter", "portable")


@pytest.mark.parametrize("kind", KINDS)
# T49, T54
def test_pairs_generations_repetitions_and_seeds_draw_different_directions(kind: str) -> None:
    drawn = [
        noise(kind, 20, seed, repetition).direction(generation, pair, 0, 20).tobytes()
        for seed in (0, 1)
        for repetition in (0, 1)
        for generation in (0, 1)
        for pair in (0, 1)
    ]
    assert len(set(drawn)) == 16


@pytest.mark.parametrize("kind", KINDS)
def test_any_rank_recomputes_a_perturbation_bit_for_bit(kind: str) -> None:  # T49
    here, there = noise(kind, 50), noise(kind, 50)
    order = [(g, p) for g in range(3) for p in range(5)]
    drawn = {key: here.direction(*key, 0, 50).copy() for key in order}
    assert all(np.array_equal(there.direction(*key, 0, 50), drawn[key]) for key in reversed(order))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, BLOCK, BLOCK + 1, 3 * BLOCK - 5])
def test_blocks_of_noise_are_slices_of_the_whole(kind: str, size: int) -> None:
    whole = noise(kind, size).direction(2, 3, 0, size)
    assert whole.dtype == np.float32
    starts = range(0, size, BLOCK)
    blocks = [
        noise(kind, size).direction(2, 3, start, min(start + BLOCK, size)) for start in starts
    ]
    assert np.array_equal(np.concatenate(blocks), whole)
    assert not np.isnan(whole).any()


@pytest.mark.parametrize("kind", KINDS)
def test_directions_are_standard_normal_and_uncorrelated(kind: str) -> None:
    """Mean 0, variance 1, fourth moment 3, each within 5 standard errors;
    so are the products of two pairs.
    """
    source, size = noise(kind, 2 * BLOCK), 2 * BLOCK
    x = np.stack([source.direction(0, pair, 0, size).astype(np.float64) for pair in range(8)])
    x = table(Keys(1), 8 * size).reshape(8, size).astype(np.float64) if kind == "table" else x
    n = x.size
    assert abs(x.mean()) < 5 / np.sqrt(n)
    assert abs(np.square(x).mean() - 1) < 5 * np.sqrt(2 / n)
    assert abs((x**4).mean() - 3) < 5 * np.sqrt(96 / n)
    correlation = np.corrcoef(x) - np.eye(8)
    assert np.abs(correlation).max() < 5 / np.sqrt(size)
    halves = np.corrcoef(x[:, :BLOCK].ravel(), x[:, BLOCK:].ravel())[0, 1]
    assert abs(halves) < 5 / np.sqrt(n / 2)


def test_blocks_of_the_counter_begin_at_block_edges() -> None:
    with pytest.raises(AssertionError):
        noise("counter", 100).direction(0, 0, 5, 10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [7, BLOCK, BLOCK + 5])
def test_several_directions_are_those_of_one_after_the_other(kind: str, size: int) -> None:
    drawn, one = noise(kind, size), noise(kind, size)
    assert isinstance(drawn, DrawsSeveral)
    for generation, pairs in ((3, range(4)), (3, [9, 2, 5]), (4, range(2, 5)), (3, [2])):
        expected = [one.direction(generation, pair, 0, size) for pair in pairs]
        found = drawn.stacked_directions(generation, pairs, 0, size)
        np.testing.assert_array_equal(found, np.stack(expected))
        # as updates read them after the evaluation
        np.testing.assert_array_equal(
            drawn.direction(generation, 2, 0, size)[-3:], one.direction(generation, 2, 0, size)[-3:]
        )


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_table_does_not_depend_on_the_number_of_ranks(workers: int) -> None:
    size = 3 * FILL_BLOCK + 17
    assert np.array_equal(table(Keys(4), size, workers), table(Keys(4), size))


def test_repetitions_share_a_table_and_seeds_do_not() -> None:
    assert np.array_equal(table(Keys(4, 0), 1000), table(Keys(4, 1), 1000))
    assert not np.array_equal(table(Keys(4), 1000), table(Keys(5), 1000))


def test_offsets_are_uniform_with_both_ends() -> None:  # T42: table 10, dim 4 -> 0 .. 6
    source = TableNoise(np.zeros(10, np.float32), Keys(1), 4)
    counts = np.bincount(
        [source.offset(generation, pair) for generation in range(70) for pair in range(100)]
    )
    assert len(counts) == 7
    # chi-square of 6 degrees of freedom, p = 0.001
    assert np.square(counts - 1000).sum() / 1000 < 22.46


def test_direction_is_a_slice_of_the_table() -> None:
    source = TableNoise(np.arange(10, dtype=np.float32), Keys(1), 4)
    offset = source.offset(3, 8)
    assert source.direction(3, 8, 0, 4).tolist() == [offset, offset + 1, offset + 2, offset + 3]
    assert source.direction(3, 8, 2, 4).tolist() == [offset + 2, offset + 3]


def test_table_of_the_policys_size_has_one_direction() -> None:
    source = TableNoise(np.arange(4, dtype=np.float32), Keys(1), 4)
    assert {source.offset(0, pair) for pair in range(20)} == {0}


def test_too_small_table_is_refused_with_the_required_size() -> None:
    with pytest.raises(
        ConfigError, match=r"noise.table_size: is 3, .* 4 parameters: expected at least 4 .*try 400"
    ):
        check_size(3, 4)


# Weighted sums.


class Fixed(BlockNoise):
    """Directions (1, -2), (3, 0.5) and (NaN, NaN)."""

    def __init__(self, width: int = 2) -> None:
        super().__init__(2, width)

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        return np.array([[1, -2], [3, 0.5], [np.nan, np.nan]], np.float32)[pair, start:stop]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weighted_sums_and_sums_of_squares_by_hand(dtype: type[np.floating]) -> None:
    """2 (1, -2) - (3, .5) and, of squares, 4 (1, 4) + 10 (9, .25);
    a pair with weight 0 is not generated.
    """
    weights = np.array([[2.0, -1, 0], [4, 10, 0]])
    result = Fixed().weighted_sums(0, weights, (1, 2), 0, np.dtype(dtype))
    assert (result.tolist(), result.dtype) == ([[-1, -4.5], [94, 18.5]], dtype)
    part = Fixed(width=1).weighted_sums(0, weights, (1, 2), 1, np.dtype(dtype))
    assert part.tolist() == [[-4.5], [18.5]]


def test_several_sums_have_their_own_weights() -> None:
    result = Fixed().weighted_sums(
        0, np.array([[0.0, 2, 0], [3, 0, 0]]), (1, 1), 0, np.dtype(np.float64)
    )
    assert result.tolist() == [[6, 1], [3, -6]]


def test_sums_of_float64_have_its_precision() -> None:
    """1 + 3 * 2^-40: the second term is less than half of the last place of float32."""
    weights = np.array([[1.0, 2.0**-40, 0]])
    for dtype, expected in ((np.float64, 1 + 3 * 2.0**-40), (np.float32, 1.0)):
        assert Fixed(width=1).weighted_sums(0, weights, (1,), 0, np.dtype(dtype)).tolist() == [
            [expected]
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_sums_equal_sums_over_the_directions(kind: str) -> None:
    """One block in another generation, against a plain sum in float64."""
    size = BLOCK + 5
    source, weights = noise(kind, size), np.random.default_rng(0).standard_normal((2, 4))
    for block, (start, stop) in enumerate(((0, BLOCK), (BLOCK, size))):
        drawn = np.stack([source.direction(3, pair, start, stop) for pair in range(4)]).astype(
            np.float64
        )
        result = source.weighted_sums(3, weights, (1, 2), block, np.dtype(np.float64))
        # squares are taken in float32, the noise's own precision
        np.testing.assert_allclose(
            result, [weights[0] @ drawn, weights[1] @ np.square(drawn)], rtol=1e-6, atol=1e-5
        )


def test_only_powers_1_and_2_are_supported() -> None:
    with pytest.raises(AssertionError):
        Fixed().weighted_sums(0, np.ones((1, 1)), (3,), 0, np.dtype(np.float64))


class Counting(BlockNoise):
    """Element i of pair p is i + 5 p."""

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        return np.arange(start, stop, dtype=np.float32) + 5 * pair


def test_blocks_of_noise_can_have_any_widths() -> None:
    """Elements 0 and 1 of size 5, then 2 .. 4:
    sums of a block are the part of the whole sums there.
    """
    whole, cut = Counting(5, 5), Counting(5, [0, 2])
    weights = np.array([[1.0, -2]])
    one = whole.weighted_sums(0, weights, (1,), 0, np.dtype(np.float64))
    assert one.tolist() == [[-10, -11, -12, -13, -14]]
    parts = [cut.weighted_sums(0, weights, (1,), block, np.dtype(np.float64)) for block in range(2)]
    assert np.concatenate(parts, axis=1).tolist() == one.tolist() and parts[0].shape == (1, 2)


@pytest.mark.parametrize(
    ("numbers", "said"), [(99, "filling the noise table, 0.0 GB per node ...\n"), (100, "")]
)
def test_filling_a_large_table_is_announced(
    numbers: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table_noise, "ANNOUNCED_NUMBERS", numbers)
    table_noise.share(table_noise.Options(table_size=100), Keys(1), World("none"))
    assert capsys.readouterr().out == said
