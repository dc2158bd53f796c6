"""Injected candidates of CMA-ES (Hansen 2011, arXiv:1110.4181).

Vectors from elsewhere replace the first candidates of a generation. They are evaluated as they are.
For the update, their steps y_i = (x_i - m) / sigma are shortened to the length c_y if they are
longer:

    y_i <- y_i min(1, c_y / |C^(-1/2) y_i|),  c_y = sqrt(n) + 2 n / (n + 2)

so that a distant vector moves the mean and changes the covariance no more than a rare sample does.
The change of the step size is bounded in every generation.
"""

from __future__ import annotations

import math

import numpy as np

from hpc_es.core.data import Array, Arrays, Float64
from hpc_es.core.interfaces import VectorProblem

INJECTED = "injected"


def injected_in(shared: Arrays) -> Array | None:
    """Return the injected vectors of a generation, dtype[vectors, params]; None if there are none.

    State, shared:
        injected: dtype[vectors, params], grows, if the task has initial_points; they replace the
            first candidates
    """
    vectors = shared.get(INJECTED)
    return vectors if vectors is not None and len(vectors) else None


def with_first_candidates(shared: Arrays, problem: VectorProblem, population: int) -> Arrays:
    """Return the first shared arrays, with the vectors that replace the problem's first samples."""
    vectors = problem.first_candidates(population)
    return shared if vectors is None else {**shared, INJECTED: vectors}


def without_injected(shared: Arrays) -> Arrays:
    """Return the shared arrays of the next generation, whose candidates are samples."""
    return {**shared, INJECTED: shared[INJECTED][:0]} if INJECTED in shared else shared


def with_injected(shared: Arrays, jobs: range, vectors: Array) -> Array:
    """Return the candidates of consecutive jobs, dtype[jobs, params], or injected ones."""
    injected = injected_in(shared)
    if injected is None or jobs.start >= len(injected):
        return vectors
    replaced: Array = vectors.copy()
    own = injected[jobs.start : jobs.stop]
    replaced[: len(own)] = own
    return replaced


def shortened(z: Float64) -> Float64:
    """Return the factors of the steps of injected vectors, float64[vectors].

    The argument is C^(-1/2) y_i, [vectors, normal].
    """
    n = z.shape[1]
    longest = math.sqrt(n) + 2 * n / (n + 2)
    lengths = np.sqrt(np.square(z).sum(axis=1))
    factors: Float64 = np.minimum(1.0, longest / np.maximum(lengths, 1e-300))
    return factors
