"""MAP-Elites (Mouret & Clune 2015, arXiv:1504.04909) of one's own:
the best solution of each cell of a grid.
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
    Elites,
    Explicit,
    Metric,
    Needs,
    Population,
    Positive,
    Purpose,
    Results,
    State,
    measures_of,
    merits,
    option,
    options,
)

METRICS = {"coverage": Metric("share of filled cells", short="coverage")}


@dataclass(frozen=True)
class MapElites(BaseStrategy[None]):
    """MAP-Elites on a grid over the measures of the task.

    State, shared:
        theta: dtype[params]; the best member
        vectors: dtype[members, params], grows; the members
    State, master:
        cells: int64[members, measures], grows; their cells
        merits: float64[members, 2], grows; minus the violation of constraints, and the value
        measures: float64[members, measures], grows
        made: int64[members, 2], grows; generation and job of their evaluations
    """

    NEEDS = Needs(
        searches="vectors",
        noise=True,
        growing=True,
        measures=True,
        incumbent="cells",
        metrics=METRICS,
    )

    @options
    class Options:
        """`algorithm:` with `kind: "my_archive:MapElites"`."""

        kind: str = option("this class", "my_archive:MapElites")
        population_size: Count = option("children per generation", 64)
        sigma: Positive = option("standard deviation of the mutations", 0.1)
        cells: tuple[Count, ...] = option("number of cells along each measure", (10, 10))

    def initial(self) -> State:
        """Return an empty archive."""
        axes = len(self.problem.quantities.measures)
        shared = {
            "theta": self.first_theta(),
            "vectors": np.zeros((0, self.problem.size), self.problem.dtype),
        }
        whole, real = np.zeros((0, axes), np.int64), np.zeros((0, axes))
        merit, made = np.zeros((0, 2)), np.zeros((0, 2), np.int64)
        return State(0, shared, {"cells": whole, "merits": merit, "measures": real, "made": made})

    def child(self, state: State, job: int) -> Array:
        """Return a member of the archive, drawn uniformly, with a mutation, dtype[params]."""
        vectors = (
            state.shared["vectors"] if len(state.shared["vectors"]) else state.theta[np.newaxis]
        )
        rng = self.keys.generator(Purpose.GENETICS, state.generation, job)
        mutation = self.noise.direction(state.generation, job, 0, self.problem.size)
        child: Array = (vectors[rng.integers(len(vectors))] + self.options.sigma * mutation).astype(
            vectors.dtype
        )
        return child

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return the children of a chunk."""
        return Explicit(
            self.problem.layout, np.stack([self.child(state, job) for job in chunk.job_numbers])
        )

    def blocks(self, state: State) -> int:
        """Return 0: nothing is summed on the ranks."""
        return 0

    def tell(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Put each child into its cell if it is better than the member there,
        in the order of the jobs.
        """
        measures, counts = measures_of(results.rows), np.array(self.options.cells)
        low, high = self.problem.quantities.ranges
        children = np.clip((measures - low) / (high - low) * counts, 0, counts - 1)
        master = state.master
        cells = {tuple(cell): row for row, cell in enumerate(master["cells"].tolist())}
        vectors, best = list(state.shared["vectors"]), master["merits"].tolist()
        members, made = list(master["measures"]), master["made"].tolist()
        # The fitness ranks jobs of one generation only, if there are constraints.
        reached = merits(self.problem.quantities, results.rows).tolist()
        for job in np.flatnonzero(np.isfinite(results.rows["return_"])).tolist():
            cell = tuple(children[job].astype(np.int64).tolist())
            row = cells.setdefault(cell, len(vectors))
            if row < len(vectors) and not reached[job] > best[row]:
                continue
            for items, item in (
                (vectors, self.child(state, job)),
                (best, reached[job]),
                (members, measures[job]),
            ):
                items[row : row + 1] = [item]
            made[row : row + 1] = [[state.generation, job]]
        if not vectors:
            return State(state.generation + 1, state.shared, master), {"coverage": 0.0}
        stored = {
            "cells": np.array(list(cells), np.int64),
            "merits": np.array(best),
            "measures": np.array(members),
            "made": np.array(made, np.int64),
        }
        shared = {"theta": vectors[best.index(max(best))].copy(), "vectors": np.stack(vectors)}
        coverage = len(vectors) / float(np.prod(counts))
        return State(state.generation + 1, shared, stored), {"coverage": coverage}

    def elites(self, state: State) -> Elites:
        """Return the members, in the order in which their cells were found."""
        master = state.master
        generations, jobs = master["made"].T
        columns = {"return_": master["merits"][:, 1], "measures": master["measures"]}
        return Elites(state.shared["vectors"], generations, jobs, columns, master["cells"])
