"""Random search for vectors: every candidate is an initial vector of the task, drawn anew.

It is the baseline of a comparison (Bergstra & Bengio 2012): what a search does not find sooner than
this is not worth its cost. For functions `task.initial: random` draws from the bounds, ranges and
categories; the vectors of a policy are networks with random initial weights. Known points take the
first places, as in the searches that it is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hpc_es.algorithms.common.injection import (
    with_first_candidates,
    with_injected,
    without_injected,
)
from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.config.options import Count, option, options
from hpc_es.core.data import Array, Chunk, Results, State
from hpc_es.core.declarations import Needs
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Purpose
from hpc_es.core.population import Explicit, Population
from hpc_es.core.quantities import merits

NEEDS = Needs(searches="vectors", noise=False, mixed=True, injects=True, growing=True)


@options
class Options:
    """`algorithm:` with `kind: random`."""

    kind: Literal["random"] = option("name of the algorithm", "random")
    population_size: Count = option("candidates per generation", 64)


@dataclass(frozen=True)
class Random(BaseStrategy[None]):
    """Random search.

    State, shared:
        theta: dtype[params]; the best vector so far
        those of `hpc_es.algorithms.common.injection.injected_in`
    State, master:
        merit: float64[2]; minus its violation of the constraints, and its return
    """

    options: Options

    def __post_init__(self) -> None:
        first, second = (self._vector(0, job) for job in (0, 1))
        if np.array_equal(first, second):
            raise ConfigError(
                [
                    (
                        "algorithm.kind",
                        "is random, but each initial vector of the task is the same: expected "
                        "task.initial: random, so that the candidates differ, or of a model "
                        "parameters that are a function of a seed",
                    )
                ]
            )

    def initial(self) -> State:
        """Return the state before the first candidate."""
        theta, candidates = self.first_theta(), self.options.population_size
        shared = with_first_candidates({"theta": theta}, self.problem, candidates)
        return State(0, shared, {"merit": np.full(2, -np.inf)})

    def _vectors(self, state: State, jobs: range) -> Array:
        drawn = np.stack([self._vector(state.generation, job) for job in jobs])
        return with_injected(state.shared, jobs, drawn)

    def _vector(self, generation: int, job: int) -> Array:
        rng = self.keys.generator(Purpose.GENETICS, generation, job)
        vector: Array = self.problem.initial(rng).astype(self.problem.dtype)
        if self.problem.mixed is not None:
            for index, categories in self.problem.mixed.choices.items():
                vector[index] = rng.integers(categories)
        return vector

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return the vectors of a chunk."""
        return Explicit(self.problem.layout, self._vectors(state, chunk.job_numbers))

    def blocks(self, state: State) -> int:
        """Return 0: nothing is summed on the ranks."""
        return 0

    def tell(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Keep the best vector; of equal ones, the first."""
        reached = merits(self.problem.quantities, results.rows)
        valid = np.flatnonzero(np.isfinite(results.rows["return_"]))
        theta, merit = state.theta, state.master["merit"]
        if valid.size:
            best = max(valid.tolist(), key=lambda job: (*reached[job].tolist(), -job))
            if tuple(reached[best]) > tuple(merit):
                theta, merit = self._vectors(state, range(best, best + 1))[0], reached[best]
        shared = {**without_injected(state.shared), "theta": theta}
        return State(state.generation + 1, shared, {"merit": merit}), {}


def needs(options: Options) -> Needs:
    """Return the requirements under these options: at most as many points as candidates."""
    return replace(NEEDS, jobs=options.population_size)


build = Random
