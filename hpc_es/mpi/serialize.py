"""Named arrays as bytes and back: a JSON header, then the arrays' memory. No pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def encode(arrays: Mapping[str, npt.NDArray[Any]]) -> Bytes:
    """uint8[...]: 8 bytes of header length, the header, the arrays in their order."""
    assert all(array.dtype.kind in "biufc" for array in arrays.values()), "only numbers travel"
    entries = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    header = json.dumps(entries).encode()
    pieces = [len(header).to_bytes(8, "little"), header, *(np.ascontiguousarray(a).tobytes() for a in arrays.values())]
    return np.frombuffer(b"".join(pieces), np.uint8)


def to_words(coded: Bytes) -> npt.NDArray[np.int64]:
    """The bytes as a message of int64: their number, then themselves with zeros up to the next multiple of eight."""
    words = np.zeros(1 + -(-coded.size // 8), np.int64)
    words[0] = coded.size
    words[1:].view(np.uint8)[: coded.size] = coded
    return words


def from_words(words: npt.NDArray[np.int64]) -> Bytes:
    """Return what `to_words` was given."""
    return words[1:].view(np.uint8)[: int(words[0])]


def decode(coded: Bytes) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that `encode` was given."""
    memory = coded.tobytes()
    start = 8 + int.from_bytes(memory[:8], "little")
    arrays = {}
    for name, dtype, shape in json.loads(memory[8:start]):
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(memory, dtype, count, start).reshape(shape)
        start += arrays[name].nbytes
    return arrays
