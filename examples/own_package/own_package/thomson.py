"""The problem of J. J. Thomson (1904): electrons on a sphere, where their energy is smallest."""

from __future__ import annotations

import numpy as np

from hpc_es.extend import (
    Array,
    Count,
    Float64,
    Jobs,
    Layout,
    Offers,
    Outcome,
    Poll,
    Population,
    ProblemState,
    VectorProblemDefaults,
    VectorTask,
    option,
    options,
    row_dtype,
)

OFFERS = Offers(problems=("vectors",), any_chunks=True)


@options
class Options:
    """`task:` with `kind: thomson`."""

    kind: str = option("name of the task", "thomson")
    electrons: Count = option("number of electrons", 12)


def energy(positions: Array) -> float:
    """Return the sum of 1 / distance over all pairs.

    Args:
        positions: float64[electrons, 3], of any lengths but 0; they are moved onto the sphere.
    """
    on_sphere = positions / np.linalg.norm(positions, axis=1, keepdims=True)
    first, second = np.triu_indices(len(on_sphere), 1)
    return float((1 / np.linalg.norm(on_sphere[first] - on_sphere[second], axis=1)).sum())


class Thomson(VectorProblemDefaults):
    """Positions as a vector, float64[electrons * 3]; the return is minus the energy."""

    def __init__(self, options: Options) -> None:
        self.layout = Layout({"positions": (options.electrons, 3)})

    def initial(self, rng: np.random.Generator) -> Float64:
        """Return random positions."""
        return rng.standard_normal(self.size)

    def evaluate(
        self, population: Population, jobs: Jobs, carried: ProblemState, poll: Poll
    ) -> Outcome:
        """Evaluate a chunk, calling `poll` between jobs so that rank 0 can answer other ranks."""
        rows = np.zeros(len(jobs), row_dtype(self.columns))
        rows["length"] = 1
        for row, positions in enumerate(population.part("positions")):
            rows["return_"][row] = -energy(positions)
            poll()
        return Outcome(rows)


def build(options: Options, repetition: int = 0) -> VectorTask:
    """Return the task."""
    return VectorTask(f"{options.electrons} electrons", lambda keys: Thomson(options))
