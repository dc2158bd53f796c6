"""Averages of areas against hand calculations and exact fractions; stacks of images."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hpc_es.tasks.atari.images import AreaResize, push, taps


def test_taps_from_5_to_2_pixels_are_their_overlaps() -> None:
    """A resized pixel covers 2.5 pixels, in units of half a pixel 2 + 2 + 1."""
    axis = taps(5, 2)
    assert axis.indices.T.tolist() == [[0, 1, 2], [2, 3, 4]]
    assert axis.overlaps.T.tolist() == [[2, 2, 1], [1, 2, 2]]
    assert axis.total == 5
    np.testing.assert_allclose(axis.weights.T, [[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]], rtol=1e-6)


@pytest.mark.parametrize(("source", "size"), [(210, 84), (160, 84), (160, 42), (210, 1), (7, 7), (250, 83)])
def test_overlaps_add_up_and_weights_are_their_fractions(source: int, size: int) -> None:
    axis = taps(source, size)
    assert (axis.overlaps.sum(axis=0) == axis.total).all()
    np.testing.assert_allclose(axis.weights, axis.overlaps / axis.total, atol=1e-6)
    used = np.zeros(source)
    np.add.at(used, axis.indices, axis.overlaps)
    assert np.ptp(used) == 0  # every source pixel counts the same


def test_resize_by_hand() -> None:
    """(2 * 10 + 2 * 20 + 30) / 5 = 18 and (30 + 2 * 40 + 2 * 50) / 5 = 42."""
    image = np.repeat(np.array([[10], [20], [30], [40], [50]], np.uint8), 2, axis=1)
    assert AreaResize((5, 2), (2, 1))(image[np.newaxis, :, :, np.newaxis]).tolist() == [[[[18]], [[42]]]]


@pytest.mark.parametrize(("source", "size"), [((210, 160), (84, 84)), ((30, 24), (7, 9)), ((20, 20), (10, 5))])
def test_means_are_those_of_exact_fractions(source: tuple[int, int], size: tuple[int, int]) -> None:
    """A mean halfway between two integers may become either."""
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (*source, 2))
    resized = AreaResize(source, size)(image[np.newaxis].astype(np.uint8))[0]
    assert resized.shape == (*size, 2) and resized.dtype == np.uint8
    height, width = Fraction(source[0], size[0]), Fraction(source[1], size[1])
    for row, column in rng.integers(0, size, (20, 2)).tolist():
        for channel in (0, 1):
            total = Fraction(0)
            for y in range(int(row * height), -int(-(row + 1) * height // 1)):
                for x in range(int(column * width), -int(-(column + 1) * width // 1)):
                    tall = min(y + 1, (row + 1) * height) - max(y, row * height)
                    wide = min(x + 1, (column + 1) * width) - max(x, column * width)
                    total += int(image[y, x, channel]) * tall * wide
            assert abs(total / (height * width) - int(resized[row, column, channel])) <= Fraction(1, 2)


def test_images_of_a_group_are_resized_alike() -> None:
    """More images than are resized together."""
    images = np.random.default_rng(2).integers(0, 256, (19, 21, 16, 1), np.uint8)
    resize = AreaResize((21, 16), (9, 7))
    np.testing.assert_array_equal(resize(images), np.concatenate([resize(images[[i]]) for i in range(19)]))


def test_push_keeps_the_newest_images_last() -> None:
    stack = np.zeros((2, 1, 3), np.uint8)
    for number in (1, 2, 3, 4):
        push(stack, np.array([[[number]], [[10 * number]]], np.uint8))
    assert stack.tolist() == [[[2, 3, 4]], [[20, 30, 40]]]


def test_push_moves_all_channels_of_an_image() -> None:
    stack = np.zeros((1, 2, 4), np.uint8)
    push(stack, np.array([[[1, 2], [3, 4]]], np.uint8))
    push(stack, np.array([[[5, 6], [7, 8]]], np.uint8))
    assert stack.tolist() == [[[1, 2, 5, 6], [3, 4, 7, 8]]]
