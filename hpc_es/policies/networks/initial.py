"""Initial weights."""

from __future__ import annotations

import numpy as np

from hpc_es.core.data import Float32


def normalised_columns(rng: np.random.Generator, shape: tuple[int, int], length: float) -> Float32:
    """Normal columns scaled to this length, float32[inputs, outputs]."""
    columns = rng.standard_normal(shape)
    scaled: Float32 = (length * columns / np.sqrt(np.square(columns).sum(axis=0))).astype(np.float32)
    return scaled


def glorot_uniform(rng: np.random.Generator, shape: tuple[int, int]) -> Float32:
    """U(-b, b) with b = sqrt(6 / (inputs + outputs)), float32[inputs, outputs]."""
    bound = np.sqrt(6.0 / sum(shape))
    return rng.uniform(-bound, bound, shape).astype(np.float32)
