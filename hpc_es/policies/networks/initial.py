"""Initial weights."""

from __future__ import annotations

import numpy as np

from hpc_es.core.data import Float32, Float64

AT_ONCE = 1 << 20  # numbers of a large matrix that are drawn together, in float64; no bit depends on it


def normalised_columns(rng: np.random.Generator, shape: tuple[int, int], length: float) -> Float32:
    """Normal columns scaled to this length, float32[inputs, outputs].

    Large ones are drawn twice, once for the lengths of the columns, so that they are never there in float64.
    """
    if shape[0] * shape[1] <= AT_ONCE:
        columns = rng.standard_normal(shape)
        return _scaled(columns, np.square(columns).sum(axis=0), length)
    rows = max(AT_ONCE // shape[1], 1)
    parts = [(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows)]
    begin, squares = rng.bit_generator.state, np.zeros((1, shape[1]))
    for start, stop in parts:
        drawn = np.square(rng.standard_normal((stop - start, shape[1])))
        squares = np.concatenate([squares, drawn]).sum(axis=0, keepdims=True)  # row after row, as of the whole matrix
    rng.bit_generator.state = begin
    scaled = np.empty(shape, np.float32)
    for start, stop in parts:
        scaled[start:stop] = _scaled(rng.standard_normal((stop - start, shape[1])), squares, length)
    return scaled


def _scaled(columns: Float64, squares: Float64, length: float) -> Float32:
    scaled: Float32 = (length * columns / np.sqrt(squares)).astype(np.float32)
    return scaled


def glorot_uniform(rng: np.random.Generator, shape: tuple[int, int]) -> Float32:
    """U(-b, b) with b = sqrt(6 / (inputs + outputs)), float32[inputs, outputs]."""
    bound = np.sqrt(6.0 / sum(shape))
    return rng.uniform(-bound, bound, shape).astype(np.float32)
