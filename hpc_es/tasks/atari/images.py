"""Frames of the emulator as observations: reduced in size, and stacked.

`AreaResize` gives the bytes of OpenCV's INTER_AREA on x86-64, which computes with float32: a mean
that is not halfway between two integers is rounded exactly, and the few that are halfway follow
OpenCV's rounding errors. `LinearResize` gives the bytes of OpenCV's INTER_LINEAR, which computes
with integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float32

# From frames uint8[n, source height, source width, channels] to images uint8[n, height, width,
# channels].
Resize: TypeAlias = Callable[[Array], Array]

GROUP = 8  # images that are resized together; more would leave the cache of the processor


class Taps(NamedTuple):
    """The source pixels of each resized pixel along one axis."""

    indices: npt.NDArray[np.intp]  # [taps, size]
    overlaps: Array  # integers [taps, size]: the overlaps of a resized pixel with its source pixels
    total: int  # their sum, the same for each resized pixel
    weights: Float32  # OpenCV's weights, [taps, size]


def taps(source: int, size: int) -> Taps:
    """Return the taps from `source` to `size` pixels, at most as many.

    A resized pixel covers source / size source pixels. In units of common / size of a source pixel,
    with `common` the greatest common divisor, all overlaps are integers.
    """
    common = math.gcd(source, size)
    length, unit = source // common, size // common  # of a resized and of a source pixel
    count = max(
        -(-(start + length) // unit) - start // unit for start in range(0, size * length, length)
    )
    indices, overlaps = np.zeros((count, size), np.intp), np.zeros((count, size), np.int64)
    for pixel in range(size):
        start, end = pixel * length, (pixel + 1) * length
        first, last = start // unit, -(-end // unit) - 1
        for tap in range(count):
            index = min(first + tap, last)
            indices[tap, pixel] = index
            if first + tap <= last:
                overlaps[tap, pixel] = min(end, (index + 1) * unit) - max(start, index * unit)
    return Taps(indices, overlaps, length, _opencv_weights(indices, source, size))


def _opencv_weights(indices: npt.NDArray[np.intp], source: int, size: int) -> Float32:
    """Return the weights of `computeResizeAreaTab`, whose float64 arithmetic is repeated here."""
    weights, scale = np.zeros(indices.shape, np.float32), source / size
    for pixel in range(size):
        start = pixel * scale
        end = start + scale
        width = min(scale, source - start)
        last = min(math.floor(end), source - 1)
        first = min(math.ceil(start), last)
        parts = [(first - 1, first - start)] if first - start > 1e-3 else []
        parts += [(index, 1.0) for index in range(first, last)]
        parts += [(last, min(end - last, 1.0, width))] if end - last > 1e-3 else []
        for tap, (index, part) in enumerate(parts):
            assert indices[tap, pixel] == index
            weights[tap, pixel] = part / width
    return weights


class AreaResize:
    """Resizes images uint8[n, source height, source width, channels] by areas.

    The result is uint8[n, height, width, channels].
    """

    def __init__(self, source: tuple[int, int], size: tuple[int, int]) -> None:
        self._rows, self._columns = taps(source[0], size[0]), taps(source[1], size[1])
        self._is_same = source == size
        self._is_integer = source[0] % size[0] == 0 and source[1] % size[1] == 0
        self._total = self._rows.total * self._columns.total
        self._dtype: Any = np.uint16 if 255 * self._total + self._total // 2 < 2**16 else np.uint32
        self._row_overlaps = [
            taps[:, np.newaxis, np.newaxis] for taps in self._rows.overlaps.astype(self._dtype)
        ]
        self._column_overlaps = [
            taps[:, np.newaxis, np.newaxis, np.newaxis]
            for taps in self._columns.overlaps.astype(self._dtype)
        ]

    def __call__(self, images: Array) -> Array:
        """Return the resized images, uint8[n, height, width, channels].

        They are of images uint8[n, source height, ...].
        """
        if self._is_same:
            return images
        return np.concatenate(
            [self._resized(images[start : start + GROUP]) for start in range(0, len(images), GROUP)]
        )

    def _resized(self, images: Array) -> Array:
        rows, columns = self._rows.indices, self._columns.indices
        sums = images[:, rows[0]] * self._row_overlaps[0]
        for index, overlap in zip(rows[1:], self._row_overlaps[1:], strict=True):
            sums += images[:, index] * overlap
        # so that columns are copied as blocks
        by_column = np.ascontiguousarray(sums.transpose(2, 0, 1, 3))
        totals = by_column[columns[0]] * self._column_overlaps[0]
        for index, overlap in zip(columns[1:], self._column_overlaps[1:], strict=True):
            totals += by_column[index] * overlap
        totals += self._dtype(self._total // 2)
        rounded = totals // self._dtype(self._total)  # halves are rounded up
        resized = rounded.astype(np.uint8)
        if self._total % 2 == 0:
            halves = np.nonzero(rounded * self._dtype(self._total) == totals)
            if len(halves[0]):
                resized[halves] = self._opencv_rounding(images, totals[halves], *halves)
        transposed: Array = resized.transpose(1, 2, 0, 3)
        return transposed

    def _opencv_rounding(
        self, images: Array, totals: Array, column: Array, image: Array, row: Array, channel: Array
    ) -> Array:
        """Return the values of pixels that are halfway between two integers, [pixels]."""
        # a sum of integers times 1 / area in float32; of 2 x 2 pixels (sum + 2) >> 2
        if self._is_integer:
            if self._rows.total == self._columns.total == 2:
                halves_up: Array = totals // self._dtype(self._total)
                return halves_up
            sums = (totals - self._total // 2).astype(np.float32)
            means: Array = np.rint(sums * np.float32(1.0 / self._total))
            return means
        rows, columns = self._rows, self._columns
        pixels = images[
            image, rows.indices[:, np.newaxis, row], columns.indices[np.newaxis, :, column], channel
        ]
        values = _weighted_sum(pixels.astype(np.float32).swapaxes(0, 1), columns.weights[:, column])
        rounded: Array = np.rint(_weighted_sum(values, rows.weights[:, row]))
        return rounded


# weights of a bilinear interpolation are integers, whose sum along an axis is about this
LINEAR_ONE = 2048


class LinearResize:
    """Resizes images by bilinear interpolation between pixel centres.

    Images are uint8[n, source height, source width, channels]. Each axis has two source pixels for
    each resized pixel, with weights rounded to 1 / LINEAR_ONE. Columns are interpolated first.
    Pixels beyond the edge are those of the edge.
    """

    def __init__(self, source: tuple[int, int], size: tuple[int, int]) -> None:
        self._rows, self._columns = linear_taps(source[0], size[0]), linear_taps(source[1], size[1])

    def __call__(self, images: Array) -> Array:
        """Return the resized images, uint8[n, height, width, channels].

        They are of images uint8[n, source height, ...].
        """
        count, height, _, channels = images.shape
        lines = images.reshape(count, height, -1)
        (columns, widths), (rows, heights) = self._columns, self._rows
        left, right = (columns[:, :, np.newaxis] * channels + np.arange(channels)).reshape(2, -1)
        wide_left, wide_right = np.repeat(widths, channels, axis=1)
        across = lines.take(left, axis=2) * wide_left
        across += lines.take(right, axis=2) * wide_right
        across >>= 4  # as OpenCV does, so that products fit 32 bits
        total = across.take(rows[0], axis=1) * heights[0][:, np.newaxis] >> 16
        total += across.take(rows[1], axis=1) * heights[1][:, np.newaxis] >> 16
        total += 2
        total >>= 2
        resized: Array = total.astype(np.uint8).reshape(count, -1, widths.shape[1], channels)
        return resized


def linear_taps(source: int, size: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int32]]:
    """Return indices of the two source pixels and their weights along one axis.

    They are intp[2, size] and int32[2, size]. The centre of pixel i is at (i + 1/2) * source / size
    - 1/2 in source pixels.
    """
    centres = ((np.arange(size) + 0.5) * (source / size) - 0.5).astype(np.float32)
    first = np.floor(centres)
    fractions = centres - first
    weights = np.rint(np.stack([np.float32(1) - fractions, fractions]) * np.float32(LINEAR_ONE))
    return np.clip(np.stack([first, first + 1]), 0, source - 1).astype(np.intp), weights.astype(
        np.int32
    )


class A3CPicture:
    """The picture of OpenAI's universe-starter-agent, from screens uint8[n, height, 160, 3].

    Rows 34 to 193 are reduced to 80 x 80 by means of 2 x 2 pixels, then to the size by bilinear
    interpolation. With `grayscale` the three colours become their mean, rounded to the nearest
    integer.
    """

    ROWS, HALF = slice(34, 194), 80

    def __init__(self, size: tuple[int, int], grayscale: bool) -> None:
        self._resize, self._grayscale = LinearResize((self.HALF, self.HALF), size), grayscale

    def __call__(self, screens: Array) -> Array:
        """Return the pictures, uint8[n, height, width, 1], or three channels without grayscale."""
        images = self._resize(halved(screens[:, self.ROWS]))
        if not self._grayscale:
            return images
        totals = images[..., :1].astype(np.uint16) + images[..., 1:2] + images[..., 2:]
        means: Array = ((totals + 1) // 3).astype(np.uint8)
        return means


def halved(images: Array) -> Array:
    """Return the means of 2 x 2 pixels, halves rounded up:
    uint8[n, height / 2, width / 2, channels].
    """
    count, height, width, channels = images.shape
    rows = images[:, ::2].astype(np.uint16)
    rows += images[:, 1::2]
    pairs = rows.reshape(count, height // 2, width // 2, 2 * channels)
    sums = np.empty((*pairs.shape[:3], channels), np.uint16)
    # much faster than one sum, whose inner loop would have three elements
    for channel in range(channels):
        np.add(pairs[..., channel], pairs[..., channels + channel], out=sums[..., channel])
    sums += 2
    sums >>= 2
    return sums.astype(np.uint8)


def _weighted_sum(values: Float32, weights: Float32) -> Float32:
    """Return the sum over taps, added in order.

    Values are float32[taps, ..., pixels], weights float32[taps, pixels].
    """
    total: Float32 = values[0] * weights[0]
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total += value * weight
    return total


def push(stack: Array, image: Array) -> None:
    """Append an image uint8[height, width, channels] to a stack of images, in place.

    The stack is [height, width, images * channels]. The last channels are those of the newest
    image, and the oldest image is dropped.
    """
    channels = image.shape[-1]
    flat = stack.reshape(-1)
    flat[:-channels] = flat[channels:].copy()
    stack[:, :, -channels:] = image
