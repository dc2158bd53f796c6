"""A custom hill climber: the best perturbed vector becomes
the next centre if it is the best so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hpc_es.extend import (
    Array,
    Arrays,
    BaseStrategy,
    Chunk,
    Count,
    Float64,
    Needs,
    Population,
    Positive,
    Results,
    Rows,
    State,
    VectorProblem,
    option,
    options,
)


@dataclass(frozen=True)
class Hill(BaseStrategy[Array]):
    """Hill climber; all methods are pure functions of their arguments, the options and the keys.

    State, shared:
        theta: dtype[params]; the centre
    State, master:
        best: float64[]; best return so far
    """

    NEEDS = Needs(searches="vectors", noise=True)

    @options
    class Options:
        """`algorithm:` with `kind: "my_search:Hill"`."""

        kind: str = option("this class", "my_search:Hill")
        population_size: Count = option("vectors evaluated per generation", 32)
        sigma: Positive = option("standard deviation of the perturbations", 0.5)

    def initial(self) -> State:
        """Return the initial centre and best fitness."""
        return State(0, {"theta": self.first_theta()}, {"best": np.array(-np.inf)})

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return theta + sigma * eps for the jobs of a chunk."""
        return self.perturbed(state, chunk, self.options.sigma)

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Array:
        """Return weights, float64[1, jobs]: 1 for the best fitness, otherwise 0;
        failed jobs have the fitness NaN.
        """
        best = np.argmax(np.nan_to_num(fitness, nan=-np.inf))
        return (np.arange(len(rows)) == best)[np.newaxis].astype(np.float64)

    def partial_update(self, state: State, prepared: Array, block: int) -> Arrays:
        """Return the direction of the best job in one block of parameters."""
        return {"direction": self.weighted_sums(state, prepared, (1,), block)[0]}

    def tell(self, state: State, results: Results[Array]) -> tuple[State, Mapping[str, float]]:
        """Move to the best job if its fitness is the best so far."""
        reached, best = (
            float(results.fitness[results.prepared.argmax()]),
            float(state.master["best"]),
        )
        theta = state.theta
        if reached > best:
            direction = np.concatenate([block["direction"] for block in results.blocks])
            theta = (theta + self.options.sigma * direction).astype(theta.dtype)
        best = max(reached, best)
        return State(state.generation + 1, {"theta": theta}, {"best": np.array(best)}), {
            "best_so_far": best
        }

    @staticmethod
    def incompatibilities(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for a problem whose fitness ranks jobs of one generation only,
        as with constraints.
        """
        if problem.relative_fitness:
            yield (
                "algorithm.kind",
                "is a hill climber, which compares generations: expected 'es' for constraints",
            )
