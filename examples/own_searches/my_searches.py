"""Several searches by CMA-ES in one state, whose candidates are
one generation and fill the ranks together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpc_es.extend import (
    CMAES,
    Arrays,
    BaseStrategy,
    Chunk,
    CMAOptions,
    Count,
    Explicit,
    Float64,
    Needs,
    Population,
    Positive,
    Ranked,
    Results,
    Rows,
    Search,
    State,
    option,
    options,
)

# between the numbers of the first restarts of two searches, whose initial vectors differ
DISTANCE = 1 << 20


@dataclass(frozen=True)
class Searches(BaseStrategy[Sequence[Ranked]]):
    """Independent searches with a part of the jobs each.

    State, shared:
        theta: dtype[params]; mean of the search with the best generation
        the arrays of each search, named search/0/... and so on
    """

    NEEDS = Needs(searches="vectors", noise=True, growing=True)

    @options
    class Options:
        """`algorithm:` with `kind: "my_searches:Searches"`."""

        kind: str = option("this class", "my_searches:Searches")
        searches: Count = option("number of searches", 3)
        population_size: Count = option("candidates of each search per generation", 12)
        sigma: Positive = option("initial standard deviation", 0.5)

    @cached_property
    def search(self) -> CMAES:
        """The strategy of every search; what differs is in the state."""
        settings = CMAOptions(
            population_size=self.options.population_size, sigma=self.options.sigma
        )
        return CMAES(settings, self.problem, self.noise, self.keys, self.chunk_size)

    def scope(self, state: State, number: int) -> State:
        """Return the state of a search, with random numbers of its own."""
        return state.scope(f"search/{number}/", number)

    def initial(self) -> State:
        """Return the initial states of all searches."""
        state = State(0, {"theta": self.first_theta()}, {})
        for number in range(self.options.searches):
            begun = self.search.begin(0, Search(number * DISTANCE, self.options.population_size))
            state = state.with_scope(f"search/{number}/", begun)
        return state

    def population(self, state: State) -> int:
        """Return the number of jobs of all searches."""
        return self.options.searches * self.options.population_size

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return the candidates of a chunk, which may belong to several searches."""
        size, jobs, parts = self.options.population_size, chunk.job_numbers, []
        for number in range(jobs[0] // size, jobs[-1] // size + 1):
            first, last = max(jobs[0] - number * size, 0), min(jobs[-1] - number * size, size - 1)
            own = Chunk(chunk.index, first, last - first + 1)
            parts.append(self.search.candidates(self.scope(state, number), own).stacked())
        return Explicit(self.problem.layout, np.concatenate(parts))

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Sequence[Ranked]:
        """Rank the candidates of each search."""
        parts = enumerate(zip(self._parts(rows), self._parts(fitness), strict=True))
        return [self.search.prepare(self.scope(state, number), *part) for number, part in parts]

    def _parts(self, jobs: Float64 | Rows) -> list[Float64 | Rows]:
        return np.split(jobs, self.options.searches)

    def blocks(self, state: State) -> int:
        """Return the number of blocks of all searches, which have equally many."""
        return self.options.searches * self.search.blocks(self.scope(state, 0))

    def partial_update(self, state: State, prepared: Sequence[Ranked], block: int) -> Arrays:
        """Return a block of the update of one search."""
        number, own = divmod(block, self.search.blocks(self.scope(state, 0)))
        return self.search.partial_update(self.scope(state, number), prepared[number], own)

    def tell(
        self, state: State, results: Results[Sequence[Ranked]]
    ) -> tuple[State, Mapping[str, float]]:
        """Update each search with its rows and blocks."""
        blocks, after, best = list(results.blocks), state, -np.inf
        count, metrics = len(blocks) // self.options.searches, dict[str, float]()
        parts = zip(
            self._parts(results.rows), self._parts(results.fitness), results.prepared, strict=True
        )
        for number, (rows, fitness, ranked) in enumerate(parts):
            own = Results(
                rows, (), blocks[number * count : (number + 1) * count], ranked, fitness=fitness
            )
            told, of_search = self.search.tell(self.scope(state, number), own)
            after, metrics[f"sigma_{number}"] = (
                after.with_scope(f"search/{number}/", told),
                of_search["sigma"],
            )
            reached = float(np.nanmax(fitness, initial=-np.inf))
            if reached > best:
                best, theta = reached, told.theta
        shared = {**after.shared, "theta": theta if np.isfinite(best) else state.theta}
        return State(state.generation + 1, shared, after.master), metrics
