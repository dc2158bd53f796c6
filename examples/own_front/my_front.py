"""NSGA-II (Deb et al. 2002) of one's own, with SBX crossover and Gaussian mutation,
for any number of objectives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpc_es.extend import (
    Array,
    Arrays,
    BaseStrategy,
    Chunk,
    Count,
    Elites,
    Explicit,
    Float64,
    Needs,
    NonNegative,
    Population,
    Purpose,
    Results,
    State,
    option,
    options,
    violations,
)


def ranks_and_crowding(costs: Float64, violation: Float64) -> tuple[Array, Float64]:
    """Return the front, int64[members] from 0, and the crowding distance of each member;
    costs are [members, m].
    """
    better = (costs[:, np.newaxis] <= costs).all(axis=2) & (costs[:, np.newaxis] < costs).any(
        axis=2
    )
    better = np.where(
        violation[:, np.newaxis] == violation, better, violation[:, np.newaxis] < violation
    )
    ranks, crowding, left = (
        np.full(len(costs), -1),
        np.zeros(len(costs)),
        np.ones(len(costs), np.bool_),
    )
    while left.any():
        front = np.flatnonzero(left & ~better[left].any(axis=0))
        ranks[front], left[front] = ranks.max() + 1, False
        for column in costs[front].T:
            order = np.argsort(column, kind="stable")
            span = float(column[order[-1]] - column[order[0]]) or 1.0
            crowding[front[order[[0, -1]]]] = np.inf
            crowding[front[order[1:-1]]] += (column[order[2:]] - column[order[:-2]]) / span
    return ranks, crowding


@dataclass(frozen=True)
class NSGA2(BaseStrategy[None]):
    """NSGA-II.

    State, shared:
        theta: dtype[params]; the initial vector
        vectors: dtype[members, params], grows; the parents, the best first
        order: int64[members], grows; their positions in that order, equal for equal members
    State, master:
        objectives: float64[members, objectives], grows
        constraints: float64[members, constraints], grows
        made: int64[members, 2], grows; generation and job of their evaluations
    """

    NEEDS = Needs(searches="vectors", noise=True, growing=True, objectives=True, incumbent="front")

    @options
    class Options:
        """`algorithm:` with `kind: "my_front:NSGA2"`."""

        kind: str = option("this class", "my_front:NSGA2")
        population_size: Count = option("parents, and children per generation", 64)
        eta: NonNegative = option("distribution index of the crossover", 15.0)
        sigma: NonNegative = option("standard deviation of the mutations", 0.02)
        bounds: tuple[float, float] = option(
            "of every coordinate; 0 and 1 for named parameters", (-1e9, 1e9)
        )

    def initial(self) -> State:
        """Return no parents: the first children are samples around the initial vector."""
        quantities = self.problem.quantities
        shared = {
            "theta": self.first_theta(),
            "vectors": np.zeros((0, self.problem.size)),
            "order": np.zeros(0),
        }
        empty = {
            name: np.zeros((0, len(quantities.groups.get(name, ()))))
            for name in ("objectives", "constraints")
        }
        return State(0, shared, {**empty, "made": np.zeros((0, 2), np.int64)})

    def sorted(self, master: Arrays) -> tuple[Array, Float64]:
        """Return front and crowding distance of these members."""
        return ranks_and_crowding(
            -self.problem.quantities.signs * master["objectives"], violations(master["constraints"])
        )

    def child(self, state: State, job: int) -> Array:
        """Return a child of two parents that won tournaments, dtype[params]."""
        vectors, order = state.shared["vectors"], state.shared["order"]
        noise = self.noise.direction(state.generation, job, 0, self.problem.size)
        if not len(vectors):
            return np.clip(state.theta + self.problem.spread * noise, *self.options.bounds)
        rng = self.keys.generator(Purpose.GENETICS, state.generation, job)
        pairs = rng.integers(len(vectors), size=(2, 2))
        first, second = (vectors[pair[np.argmin(order[pair])]] for pair in pairs)
        u = rng.random(self.problem.size)
        beta = np.where(u < 0.5, 2 * u, 1 / (2 - 2 * u)) ** (1 / (self.options.eta + 1))
        mutated = rng.random(self.problem.size) < 1 / self.problem.size
        crossed = 0.5 * ((1 + beta) * first + (1 - beta) * second)
        child: Array = np.clip(crossed + self.options.sigma * noise * mutated, *self.options.bounds)
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
        """Keep the best of parents and children, by front, then by crowding distance."""
        succeeded, generation = (
            np.flatnonzero(np.isfinite(results.rows["return_"])).tolist(),
            state.generation,
        )
        children = [self.child(state, job) for job in succeeded]
        vectors = (
            np.stack([*state.shared["vectors"], *children]) if children else state.shared["vectors"]
        )
        rows, made = (
            results.rows[succeeded],
            np.array([[generation, job] for job in succeeded], np.int64),
        )
        new = {
            "objectives": rows["objectives"],
            "made": made.reshape(-1, 2),
            "constraints": np.zeros((len(rows), 0)),
        }
        if "constraints" in self.problem.quantities.groups:
            new["constraints"] = rows["constraints"]
        union = {name: np.concatenate([old, new[name]]) for name, old in state.master.items()}
        ranks, crowding = self.sorted(union)
        kept = np.lexsort((-crowding, ranks))[: self.options.population_size]
        shared = {
            **state.shared,
            "vectors": vectors[kept],
            "order": np.arange(len(kept), dtype=np.float64),
        }
        master = {name: array[kept] for name, array in union.items()}
        return State(generation + 1, shared, master), {
            "front_size": float((ranks[kept] == 0).sum())
        }

    def elites(self, state: State) -> Elites:
        """Return the first front."""
        front = np.flatnonzero(self.sorted(state.master)[0] == 0)
        found = {name: array[front] for name, array in state.master.items()}
        return Elites(state.shared["vectors"][front], *found.pop("made").T, found)
