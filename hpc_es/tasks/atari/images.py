"""Frames of the emulator as observations: reduced by averaging areas, and stacked.

`AreaResize` gives the bytes of OpenCV's INTER_AREA on x86-64, which computes with float32: a mean that is not halfway
between two integers is rounded exactly, and the few that are halfway follow OpenCV's rounding errors.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float32

GROUP = 8  # images that are resized together; more would leave the cache of the processor


class Taps(NamedTuple):
    """The source pixels of each resized pixel along one axis."""

    indices: npt.NDArray[np.intp]  # [taps, size]
    overlaps: Array  # integers [taps, size]: the overlaps of a resized pixel with its source pixels
    total: int  # their sum, the same for each resized pixel
    weights: Float32  # OpenCV's weights, [taps, size]


def taps(source: int, size: int) -> Taps:
    """Return the taps from `source` to `size` pixels, at most as many.

    A resized pixel covers source / size source pixels. In units of common / size of a source pixel, with `common` the
    greatest common divisor, all overlaps are integers.
    """
    common = math.gcd(source, size)
    length, unit = source // common, size // common  # of a resized and of a source pixel
    count = max(-(-(start + length) // unit) - start // unit for start in range(0, size * length, length))
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
    """Resizes images uint8[n, source height, source width, channels] to uint8[n, height, width, channels]."""

    def __init__(self, source: tuple[int, int], size: tuple[int, int]) -> None:
        self._rows, self._columns = taps(source[0], size[0]), taps(source[1], size[1])
        self._is_same = source == size
        self._is_integer = source[0] % size[0] == 0 and source[1] % size[1] == 0
        self._total = self._rows.total * self._columns.total
        self._dtype: Any = np.uint16 if 255 * self._total + self._total // 2 < 2**16 else np.uint32
        self._row_overlaps = [taps[:, np.newaxis, np.newaxis] for taps in self._rows.overlaps.astype(self._dtype)]
        self._column_overlaps = [
            taps[:, np.newaxis, np.newaxis, np.newaxis] for taps in self._columns.overlaps.astype(self._dtype)
        ]

    def __call__(self, images: Array) -> Array:
        """Return the resized images, uint8[n, height, width, channels] of uint8[n, source height, ...]."""
        if self._is_same:
            return images
        return np.concatenate([self._resized(images[start : start + GROUP]) for start in range(0, len(images), GROUP)])

    def _resized(self, images: Array) -> Array:
        rows, columns = self._rows.indices, self._columns.indices
        sums = images[:, rows[0]] * self._row_overlaps[0]
        for index, overlap in zip(rows[1:], self._row_overlaps[1:], strict=True):
            sums += images[:, index] * overlap
        by_column = np.ascontiguousarray(sums.transpose(2, 0, 1, 3))  # so that columns are copied as blocks
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
        if self._is_integer:  # a sum of integers times 1 / area in float32; of 2 x 2 pixels (sum + 2) >> 2
            if self._rows.total == self._columns.total == 2:
                halves_up: Array = totals // self._dtype(self._total)
                return halves_up
            sums = (totals - self._total // 2).astype(np.float32)
            means: Array = np.rint(sums * np.float32(1.0 / self._total))
            return means
        rows, columns = self._rows, self._columns
        pixels = images[image, rows.indices[:, np.newaxis, row], columns.indices[np.newaxis, :, column], channel]
        values = _weighted_sum(pixels.astype(np.float32).swapaxes(0, 1), columns.weights[:, column])
        rounded: Array = np.rint(_weighted_sum(values, rows.weights[:, row]))
        return rounded


def _weighted_sum(values: Float32, weights: Float32) -> Float32:
    """Return the sum over taps, added in order; values float32[taps, ..., pixels], weights float32[taps, pixels]."""
    total: Float32 = values[0] * weights[0]
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total += value * weight
    return total


def push(stack: Array, image: Array) -> None:
    """Append an image uint8[height, width, channels] to a stack [height, width, images * channels], in place.

    The last channels are those of the newest image, and the oldest image is dropped.
    """
    channels = image.shape[-1]
    flat = stack.reshape(-1)
    flat[:-channels] = flat[channels:].copy()
    stack[:, :, -channels:] = image
