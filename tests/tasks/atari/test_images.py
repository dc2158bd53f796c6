"""Averages of areas and bilinear pictures against hand calculations and OpenCV;
stacks of images.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction

import numpy as np
import pytest

from hpc_es.tasks.atari.images import (
    A3CPicture,
    AreaResize,
    LinearResize,
    halved,
    linear_taps,
    push,
    taps,
)


def test_taps_from_5_to_2_pixels_are_their_overlaps() -> None:
    """A resized pixel covers 2.5 pixels, in units of half a pixel 2 + 2 + 1."""
    axis = taps(5, 2)
    assert axis.indices.T.tolist() == [[0, 1, 2], [2, 3, 4]]
    assert axis.overlaps.T.tolist() == [[2, 2, 1], [1, 2, 2]]
    assert axis.total == 5
    np.testing.assert_allclose(axis.weights.T, [[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]], rtol=1e-6)


@pytest.mark.parametrize(
    ("source", "size"), [(210, 84), (160, 84), (160, 42), (210, 1), (7, 7), (250, 83)]
)
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
    assert AreaResize((5, 2), (2, 1))(image[np.newaxis, :, :, np.newaxis]).tolist() == [
        [[[18]], [[42]]]
    ]


@pytest.mark.parametrize(
    ("source", "size"), [((210, 160), (84, 84)), ((30, 24), (7, 9)), ((20, 20), (10, 5))]
)
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
            assert abs(total / (height * width) - int(resized[row, column, channel])) <= Fraction(
                1, 2
            )


def test_images_of_a_group_are_resized_alike() -> None:
    """More images than are resized together."""
    images = np.random.default_rng(2).integers(0, 256, (19, 21, 16, 1), np.uint8)
    resize = AreaResize((21, 16), (9, 7))
    np.testing.assert_array_equal(
        resize(images), np.concatenate([resize(images[[i]]) for i in range(19)])
    )


# Bilinear interpolation and the picture of A3C.


def test_weights_from_80_to_42_pixels_by_hand() -> None:
    """The first centre is 80 / 84 - 1/2 = 0.45238 pixels from that of pixel 0:
    0.45238 * 2048 = 926.5 for pixel 1.
    """
    indices, weights = linear_taps(80, 42)
    assert indices[:, 0].tolist() == [0, 1] and weights[:, 0].tolist() == [1122, 926]
    assert indices[:, -1].tolist() == [79 - 1, 79] and weights[:, -1].tolist() == [926, 1122]


def test_pixels_beyond_the_edge_are_those_of_the_edge() -> None:
    """From 2 to 4 pixels the centres are -0.25, 0.25, 0.75 and 1.25: 10, 10 + 0.25 * 40 = 20,
    40 and 50.
    """
    image = np.array([[[[10], [50]]]], np.uint8)
    assert LinearResize((1, 2), (1, 4))(image).ravel().tolist() == [10, 20, 40, 50]


def test_halved_rounds_halves_up() -> None:
    """1 + 2 + 2 + 1 = 6, 6 / 4 = 1.5; 1 + 1 + 2 + 1 = 5, 5 / 4 = 1.25; 255 does not overflow."""
    image = np.array([[1, 2, 1, 1, 255, 255], [2, 1, 2, 1, 255, 255]], np.uint8)[
        np.newaxis, :, :, np.newaxis
    ]
    assert halved(image).tolist() == [[[[2], [1], [255]]]]


def test_bilinear_interpolation_is_that_of_real_numbers_within_one() -> None:
    images = np.random.default_rng(3).integers(0, 256, (3, 80, 80, 2), np.uint8)

    def interpolated(values: np.ndarray, axis: int) -> np.ndarray:
        centres = np.clip((np.arange(42) + 0.5) * 80 / 42 - 0.5, 0, 79)
        first = np.minimum(centres.astype(int), 78)
        shape = [1] * values.ndim
        shape[axis] = 42
        share = (centres - first).reshape(shape)
        return values.take(first, axis) * (1 - share) + values.take(first + 1, axis) * share

    expected = interpolated(interpolated(images.astype(float), 1), 2)
    assert np.abs(LinearResize((80, 80), (42, 42))(images) - expected).max() < 1


def test_picture_of_a3c_has_the_field_only() -> None:
    """Rows 0 to 33 and 194 to 209 are left out."""
    screen = np.full((1, 210, 160, 3), 255, np.uint8)
    screen[:, 34:194] = 7
    assert (A3CPicture((42, 42), grayscale=True)(screen) == 7).all()


def test_picture_of_a3c_is_the_mean_of_the_colours() -> None:
    """(10 + 20 + 31) / 3 = 20.3 and (10 + 20 + 32) / 3 = 20.7; luminance would be 18 (Rec. 601)."""
    for blue, mean in ((31, 20), (32, 21)):
        screen = np.broadcast_to(np.array([10, 20, blue], np.uint8), (1, 210, 160, 3))
        assert (A3CPicture((42, 42), grayscale=True)(screen) == mean).all()


def test_picture_of_a3c_has_the_bytes_of_opencv() -> None:
    """cv2.resize of frame[34:194] to (80, 80), then to (42, 42) in OpenCV 5.0.0,
    and numpy.rint of the mean.
    """
    y, x, colour = np.ogrid[:210, :160, :3]
    frame = ((y * y + 3 * x * y + 7 * x + 50 * colour) % 256).astype(np.uint8)[np.newaxis]
    grey, colours = (A3CPicture((42, 42), grayscale)(frame)[0] for grayscale in (True, False))
    assert colours[0, :3].tolist() == [[136, 138, 124], [131, 127, 126], [117, 134, 127]]
    assert hashlib.sha256(colours.tobytes()).hexdigest()[:16] == "ba7b8ac22113163a"
    assert grey[20, 28:34, 0].tolist() == [122, 126, 129, 130, 128, 127]
    assert hashlib.sha256(grey.tobytes()).hexdigest()[:16] == "c62a0a4adcafdd74"


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
