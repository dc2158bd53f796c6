"""Self-adaptation of the step size: the (mu/mu, lambda)-sigma-SA-ES of Beyer and Schwefel (2002),
"Evolution strategies: a comprehensive introduction".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpc_es.extend import (
    Array,
    BaseStrategy,
    Chunk,
    Count,
    Explicit,
    Metric,
    Needs,
    Population,
    Positive,
    Results,
    State,
    option,
    options,
)
from own_package.extension import Purpose


@dataclass(frozen=True)
class SigmaSA(BaseStrategy[None]):
    """Every child has a mutated step size; the best children are averaged, steps and all.

    State, shared:
        theta: dtype[params]; the centre
        sigma: float64[]; its step size
    """

    NEEDS = Needs(searches="vectors", metrics={"sigma": Metric("step size", is_log=True)})

    @options
    class Options:
        """`algorithm:` with `kind: sigma_sa`."""

        kind: str = option("name of the algorithm", "sigma_sa")
        population_size: Count = option("children per generation", 40)
        parents: Count = option("children that are averaged", 10)
        sigma: Positive = option("initial step size", 0.3)

    def initial(self) -> State:
        """Return the initial centre and step size."""
        return State(0, {"theta": self.first_theta(), "sigma": np.array(self.options.sigma)}, {})

    def child(self, state: State, job: int) -> tuple[float, Array]:
        """Return step size and vector of a child, the same on every rank."""
        rng = self.keys.generator(Purpose.MUTATION, state.generation, job)
        tau = 1 / np.sqrt(2 * self.problem.size)
        sigma = float(state.shared["sigma"]) * np.exp(tau * rng.standard_normal())
        step = sigma * rng.standard_normal(self.problem.size)
        return sigma, (state.theta + step).astype(state.theta.dtype)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return the children of a chunk."""
        vectors = [self.child(state, job)[1] for job in chunk.job_numbers]
        return Explicit(self.problem.layout, np.stack(vectors))

    def blocks(self, state: State) -> int:
        """Return 0: nothing is summed on the ranks."""
        return 0

    def tell(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Average the best children, which are computed again from their keys."""
        fitness = np.nan_to_num(results.fitness, nan=-np.inf)
        best = np.argsort(-fitness, kind="stable")[: self.options.parents]
        steps, vectors = zip(*(self.child(state, job) for job in best.tolist()), strict=True)
        sigma = np.exp(np.mean(np.log(steps)))
        theta = np.mean(vectors, axis=0).astype(state.theta.dtype)
        shared = {"theta": theta, "sigma": np.array(sigma)}
        return State(state.generation + 1, shared, {}), {"sigma": float(sigma)}
