"""Populations for tests, of vectors whose layout is one part unless it is given."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_es.core.data import Array, ObservationSpec
from hpc_es.core.population import Explicit, Layout, Perturbed, unperturbed


def flat(size: int) -> Layout:
    return Layout({"theta": (size,)})


def population(
    theta: Array, directions: Array, rows: Array, scales: Array, layout: Layout | None = None
) -> Perturbed:
    return Perturbed(layout or flat(len(theta)), theta[None], directions, rows, scales)


def explicit(vectors: Array) -> Explicit:
    return Explicit(flat(vectors.shape[1]), vectors)


def centre(theta: Array, jobs: int, layout: Layout | None = None) -> Perturbed:
    return unperturbed(layout or flat(len(theta)), theta, jobs)


def candidates(policy: Any, rows: int) -> Any:
    """Initial parameters of the seeds 0, 1, ..., float32[rows, params]."""
    return np.stack([policy.initial(np.random.default_rng(seed)) for seed in range(rows)])


def random_inputs(spec: ObservationSpec, steps: int, rows: int) -> Any:
    """Random observations, [steps, rows, *shape]: normal numbers, or bytes for integers."""
    rng, shape = np.random.default_rng(5), (steps, rows, *spec.shape)
    return (
        rng.integers(256, size=shape).astype(spec.dtype)
        if spec.is_integer
        else rng.normal(size=shape).astype("f4")
    )
