"""A search of one's own: the best of some perturbed vectors is the next centre, if it is better than the centre."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpc_es.algorithms.parts.strategy import Strategy
from hpc_es.config.options import Count, Positive, option, options
from hpc_es.core.data import Array, Arrays, Chunk, Results, Rows, State, cut
from hpc_es.core.interfaces import Needs, VectorProblem
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Noise, Population


@options
class HillOptions:
    """`algorithm:` with `kind: "my_search:Hill"`."""

    kind: str = option("this class", "my_search:Hill")
    population_size: Count = option("vectors tried in a generation", 32)
    sigma: Positive = option("standard deviation of the perturbations", 0.5)


@dataclass(frozen=True)
class Hill(Strategy):
    """The strategy; all of its methods are pure functions of their arguments, the options and the keys."""

    Options, NEEDS = HillOptions, Needs(searches="vectors", noise=True)  # with `build`, what makes this class a kind

    @staticmethod
    def build(options: HillOptions, problem: VectorProblem, noise: Noise, keys: Keys, chunk_size: int) -> Hill:
        """Return the algorithm."""
        return Hill(options, problem, noise, keys, chunk_size)

    def initial(self) -> State:
        """Return the centre, and the best return so far."""
        theta = self.problem.initial(self.keys.generator(Purpose.INITIAL_PARAMETERS))
        return State(0, {"theta": theta}, {"best": np.array(-np.inf)})

    def ask(self, state: State, round: int, rows: Rows) -> Sequence[Chunk]:
        """Return one round of jobs."""
        return [] if round else cut(self.options.population_size, self.chunk_size)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return theta + sigma * eps of a chunk's jobs."""
        return self.perturbed(state, chunk, self.options.sigma)

    def prepare(self, state: State, rows: Rows) -> Array:
        """Return the weights of the jobs, [1, jobs]: 1 for the one with the greatest return; failed ones have NaN."""
        best = np.argmax(np.nan_to_num(rows["return_"], nan=-np.inf))
        return (np.arange(len(rows)) == best)[np.newaxis].astype(np.float64)

    def contribute(self, state: State, prepared: Array, block: int) -> Arrays:
        """Return the direction of that job in one block of parameters."""
        return {"direction": self.weighted_sums(state, prepared, (1,), block)[0]}

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
        """Go there, where it is better than anything before."""
        found, best = float(results.rows["return_"][results.prepared.argmax()]), float(state.master["best"])
        theta = state.theta
        if found > best:
            direction = np.concatenate([block["direction"] for block in results.blocks])
            theta = (theta + self.options.sigma * direction).astype(theta.dtype)
        master = {"best": np.array(max(found, best))}
        return State(state.generation + 1, {"theta": theta}, master), {"best_so_far": max(found, best)}
