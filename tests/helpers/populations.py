"""Populations for tests, of vectors whose layout is one part unless it is given."""

from __future__ import annotations

from hpc_es.core.data import Array
from hpc_es.core.population import Explicit, Layout, Perturbed, unperturbed


def flat(size: int) -> Layout:
    return Layout({"theta": (size,)})


def population(theta: Array, directions: Array, rows: Array, scales: Array, layout: Layout | None = None) -> Perturbed:
    return Perturbed(layout or flat(len(theta)), theta[None], directions, rows, scales)


def explicit(vectors: Array) -> Explicit:
    return Explicit(flat(vectors.shape[1]), vectors)


def centre(theta: Array, jobs: int, layout: Layout | None = None) -> Perturbed:
    return unperturbed(layout or flat(len(theta)), theta, jobs)
