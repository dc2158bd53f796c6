"""Named arrays as bytes: a JSON header, then the memory of each array, aligned to 8 bytes. No pickle."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array

Bytes = npt.NDArray[np.uint8]  # uint8[...]


def encode(arrays: Mapping[str, Array]) -> Bytes:
    """Return uint8[...]: the length of the header in 8 bytes, the header, and the arrays in order."""
    assert all(array.dtype.kind in "biufc" for array in arrays.values()), "only numbers can be sent"
    entries = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    header = json.dumps(entries).encode()
    coded = np.zeros(_aligned(8 + len(header)) + sum(_aligned(array.nbytes) for array in arrays.values()), np.uint8)
    coded[: 8 + len(header)] = np.frombuffer(len(header).to_bytes(8, "little") + header, np.uint8)
    start = _aligned(8 + len(header))
    for array in arrays.values():
        coded[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
        start += _aligned(array.nbytes)
    return coded


def decode(coded: Bytes) -> dict[str, Array]:
    """Return the arrays in the result of `encode`, uint8[bytes], as views of it."""
    length = 8 + int.from_bytes(coded[:8].tobytes(), "little")
    start = _aligned(length)
    arrays = {}
    for name, dtype, shape in json.loads(coded[8:length].tobytes()):
        size = math.prod(shape) * np.dtype(dtype).itemsize
        arrays[name] = coded[start : start + size].view(dtype).reshape(shape)
        start += _aligned(size)
    return arrays


def _aligned(count: int) -> int:
    return -(-count // 8) * 8


def to_words(coded: Bytes) -> npt.NDArray[np.int64]:
    """Return the bytes as int64[...], for a message: their number, then the bytes, padded with zeros."""
    words = np.zeros(1 + -(-coded.size // 8), np.int64)
    words[0] = coded.size
    words[1:].view(np.uint8)[: coded.size] = coded
    return words


def from_words(words: npt.NDArray[np.int64]) -> Bytes:
    """Return the bytes, uint8[...], in the result of `to_words`, as a view."""
    return words[1:].view(np.uint8)[: int(words[0])]
