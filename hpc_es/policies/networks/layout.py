"""Named arrays in one flat float32 vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from hpc_es.core.data import Float32

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Which parameters lie where: the arrays of `shapes` one after the other, each in row order."""

    shapes: Mapping[str, Shape]

    @property
    def size(self) -> int:
        """Numbers in all."""
        return sum(map(prod, self.shapes.values()))

    def split(self, flat: Any, reshape: Callable[[Any, Shape], Any] = np.reshape) -> dict[str, Any]:
        """Return the arrays by name, each [..., *shape], of a vector or a stack of vectors [..., size].

        For tensors `reshape` is `tf.reshape`, and the leading axes must be static.
        """
        arrays, start = {}, 0
        for name, shape in self.shapes.items():
            stop = start + prod(shape)
            arrays[name] = reshape(flat[..., start:stop], (*flat.shape[:-1], *shape))
            start = stop
        return arrays

    def joined(self, arrays: Mapping[str, Any]) -> Float32:
        """float32[size] of arrays by name; ValueError if one has another shape."""
        for name, shape in self.shapes.items():
            if np.shape(arrays[name]) != shape:
                raise ValueError(f"{name}: expected the shape {shape}, found {np.shape(arrays[name])}")
        return np.concatenate([np.asarray(arrays[name], np.float32).ravel() for name in self.shapes])
