"""NSGA-II (Deb et al. 2002, "A fast and elitist multiobjective genetic algorithm: NSGA-II"): a
genetic algorithm for several objectives.

A generation has as many children as there are parents. Two parents win binary tournaments, by front
and then by crowding distance, and have two children by simulated binary crossover and polynomial
mutation. As in Deb's program, permutations of the parents are divided into tournaments, so that
none is left out by chance. Of parents and children together the best remain: whole fronts, and of
the last front the least crowded. Feasible candidates are before infeasible ones (section VI).

Children that equal a parent are drawn again, and of equal children one remains. All feasible
non-dominated candidates are in an archive, which is the result: see `common/front.py`.

A child follows from the parents and its number alone. With `delay` the parents are those of an
earlier generation, and survivors are selected as soon as a generation is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Annotated, Literal

import numpy as np

from hpc_es.algorithms.common.delay import OverlapOptions, needs_of_delayed
from hpc_es.algorithms.common.front import (
    OF_FRONT,
    Front,
    FrontOptions,
    costs_of,
    violations_of,
)
from hpc_es.algorithms.common.injection import (
    injected_in,
    with_first_candidates,
    without_injected,
)
from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.algorithms.common.variation import SearchSpace
from hpc_es.config.options import Limits, NonNegative, Positive, Probability, option, options
from hpc_es.core.data import Array, Arrays, Chunk, Float64, Json, Results, Rows, State
from hpc_es.core.declarations import Needs
from hpc_es.core.domination import Indices, constrained_ranks, crowding_by_front
from hpc_es.core.elites import Elites
from hpc_es.core.interfaces import StartsFromPoints, VectorProblem
from hpc_es.core.keys import Purpose
from hpc_es.core.population import Explicit, Population
from hpc_es.core.quantities import OBJECTIVES

ATTEMPTS = 20  # to draw a child that equals no parent
MOST_TOGETHER = (
    1 << 20
)  # numbers of children that are drawn at once, of which there are some copies
MOST_KNOWN = 1 << 24  # numbers of the children of a generation that are kept
TOURNAMENTS = (1 << 64) - 1  # index of their random numbers; those of children are their numbers

NEEDS = Needs(
    metrics=OF_FRONT,
    searches="vectors",
    growing=True,
    mixed=True,
    injects=True,
    objectives=True,
    incumbent="front",
)


@options
class Options(FrontOptions, OverlapOptions):
    """`algorithm:` with `kind: nsga2`."""

    kind: Literal["nsga2"] = option("name of the algorithm", "nsga2")
    population_size: Annotated[int, Limits(ge=4)] = option(
        "number of parents, and of children per generation", 100
    )
    sigma: Positive | None = option(
        "standard deviation of the first generation around the initial vector; null: uniform between the bounds, without "
        "them 0.3, for policies 0.1",
        None,
    )
    crossover_probability: Probability = option("share of pairs of children by crossover", 0.9)
    crossover_eta: NonNegative = option(
        "distribution index of the crossover; larger: children are closer to their parents", 15.0
    )
    mutation_probability: Probability | None = option(
        "probability with which a coordinate mutates; null: 1 / parameters", None
    )
    mutation_eta: NonNegative = option(
        "distribution index of mutations; larger: they are smaller", 20.0
    )


class Newest:
    """What was computed for the newest state, whose children are needed more than once."""

    def __init__(self) -> None:
        self._shared: Arrays = {}
        self.parents: frozenset[bytes] = frozenset()  # bytes of each vector
        self.children: dict[int, Array] = {}  # by job

    def of(self, state: State) -> Newest:
        """Return this, emptied if the state is another one than before."""
        if state.shared is not self._shared:
            self._shared, self.children = state.shared, {}
            self.parents = frozenset(row.tobytes() for row in state.shared["vectors"])
        return self


@dataclass(frozen=True)
class NSGA2(BaseStrategy[State]):
    """NSGA-II.

    State, shared:
        theta: dtype[params]; knee of the front; the initial vector before there is one
        vectors: dtype[parents, params], grows; the parents, the best first
        order: int64[parents], grows; their places by front and crowding, equal for equal ones
        those of `hpc_es.algorithms.common.injection.injected_in`
    State, master:
        objectives: float64[parents, objectives], grows; what their evaluations returned
        violation: float64[parents], grows; sum of their positive constraint values
        those of `hpc_es.algorithms.common.front.Front`
    """

    options: Options
    problem: VectorProblem

    @cached_property
    def front(self) -> Front:
        """The archive."""
        return Front(self.options, self.problem)

    @cached_property
    def space(self) -> SearchSpace:
        """The coordinates of candidates."""
        return SearchSpace.of(self.problem, self.options.sigma)

    @cached_property
    def _newest(self) -> Newest:
        return Newest()

    @cached_property
    def _mutation_probability(self) -> float:
        given = self.options.mutation_probability
        return 1 / self.problem.size if given is None else given

    def initial(self) -> State:
        """Return no parents: the first children are samples."""
        size, objectives = self.problem.size, len(self.problem.quantities.objectives)
        shared: Arrays = {
            "theta": self.first_theta(),
            "vectors": np.zeros((0, size), self.problem.dtype),
            "order": np.zeros(0, np.int64),
        }
        shared = with_first_candidates(shared, self.problem, self.options.population_size)
        parents = {"objectives": np.zeros((0, objectives)), "violation": np.zeros(0)}
        return State(0, shared, {**parents, **self.front.initial()})

    # Children.

    def drawn(self, state: State, jobs: Sequence[int]) -> Array:
        """Return the children of jobs, dtype[jobs, params]; equals of parents are drawn again."""
        children = np.zeros((len(jobs), self.problem.size), self.problem.dtype)
        most = max(1, MOST_TOGETHER // self.problem.size)
        for start in range(0, len(jobs), most):
            part = slice(start, start + most)
            self._draw(state, np.array(jobs[part], np.int64), children[part])
        return children

    def _draw(self, state: State, jobs: Indices, children: Array) -> None:
        """Write the children of jobs to `children`, dtype[jobs, params]."""
        parents, left = self._newest.of(state).parents, np.arange(len(jobs))
        for attempt in range(ATTEMPTS):
            if not len(left):
                break
            children[left] = self._attempt(state, jobs[left], attempt)
            left = np.array([row for row in left if children[row].tobytes() in parents], np.int64)

    def _attempt(self, state: State, jobs: Indices, attempt: int) -> Float64:
        """Return children, float64[jobs, params]: 2 i and 2 i + 1 have the same parents."""
        vectors, options, size = state.shared["vectors"], self.options, self.problem.size
        draws = partial(self.keys.borrowed, Purpose.GENETICS, state.generation)
        if not len(vectors):
            samples = [
                self.space.sampled(draws(job, attempt), state.theta, options.sigma)
                for job in jobs.tolist()
            ]
            return np.array(samples)
        pairs, own = np.unique(jobs // 2, return_inverse=True)
        of_pairs = [draws(pair, 2 * attempt).random(1 + 3 * size) for pair in pairs.tolist()]
        parents = self._parents(state, attempt)[jobs // 2]
        children = self.space.crossed(
            np.array(of_pairs)[own],
            vectors[parents[:, 0]],
            vectors[parents[:, 1]],
            jobs % 2,
            probability=options.crossover_probability,
            eta=options.crossover_eta,
        )
        return self.space.mutated(
            np.array([draws(job, 2 * attempt + 1).random(2 * size) for job in jobs.tolist()]),
            children,
            probability=self._mutation_probability,
            eta=options.mutation_eta,
        )

    def _parents(self, state: State, attempt: int) -> Indices:
        """Return the rows of the winners of the tournaments, int64[pairs of children, 2]."""
        rows = self._tournaments(state.generation, attempt, len(state.shared["vectors"]))
        winners = state.shared["order"][rows].argmin(axis=2)
        parents: Indices = np.take_along_axis(rows, winners[:, :, np.newaxis], axis=2)[:, :, 0]
        return parents

    @cached_property
    def _tournaments(self) -> Callable[[int, int, int], Array]:
        """The tournaments of a generation, int64[pairs of children, parents of each, 2]: each
        parent takes part in equally many, up to one.
        """
        pairs = -(-self.options.population_size // 2)

        def drawn(generation: int, attempt: int, parents: int) -> Array:
            rng = self.keys.generator(Purpose.GENETICS, generation, TOURNAMENTS, attempt)
            count = -(-4 * pairs // parents)
            rows = np.concatenate([rng.permutation(parents) for _ in range(count)])
            return rows[: 4 * pairs].reshape(pairs, 2, 2)

        return lru_cache(maxsize=4)(drawn)

    def children(self, state: State, jobs: Sequence[int]) -> Array:
        """Return the candidates of ascending jobs, dtype[jobs, params]."""
        vectors = np.zeros((len(jobs), self.problem.size), self.problem.dtype)
        is_small = self.options.population_size * self.problem.size <= MOST_KNOWN
        known = self._newest.of(state).children if is_small else {}
        given = injected_in(state.shared)
        injected = vectors[:0] if given is None else given
        missing = [job for job in jobs if job not in known]
        drawn = [job for job in missing if job >= len(injected)]
        known |= zip(drawn, self.drawn(state, drawn), strict=True)
        known |= {job: self.snapped(injected[job]) for job in missing if job < len(injected)}
        for row, job in enumerate(jobs):
            vectors[row] = known[job]
        return vectors

    def snapped(self, vector: Array) -> Array:
        """Return a vector from elsewhere as a candidate, dtype[params]."""
        snapped: Array = self.space.snapped(vector.astype(np.float64)).astype(self.problem.dtype)
        return snapped

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return the children of a chunk."""
        return Explicit(self.problem.layout, self.children(state, chunk.job_numbers))

    # The update.

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> State:
        """Return the state that the children were drawn from: with a delay it is not the newest."""
        return state

    def blocks(self, state: State) -> int:
        """Return 0: nothing is summed."""
        return 0

    def tell(self, state: State, results: Results[State]) -> tuple[State, Mapping[str, float]]:
        """Return the survivors of parents and children, and the archive with the children."""
        rows, drawn = results.rows, results.prepared
        succeeded = np.flatnonzero(np.isfinite(rows["return_"]))
        children = self.children(drawn, succeeded.tolist())
        vectors = np.concatenate([state.shared["vectors"], children])
        violation = violations_of(self.problem, rows, len(rows))[succeeded]
        union: Arrays = {
            "objectives": np.concatenate([state.master["objectives"], rows[OBJECTIVES][succeeded]]),
            "violation": np.concatenate([state.master["violation"], violation]),
        }
        kept, order = self._survivors(vectors, union)
        shared = {**without_injected(state.shared), "vectors": vectors[kept], "order": order}

        def of_jobs(jobs: Sequence[int]) -> Array:
            return children[np.searchsorted(succeeded, jobs)]

        archive = self.front.after(state.master, drawn.generation, rows, of_jobs)
        archive = self.front.measured(archive, state.generation)
        knee = self.front.knee(archive)
        shared["theta"] = state.theta if knee is None else knee
        master = {**state.master, **{name: union[name][kept] for name in union}, **archive}
        return State(state.generation + 1, shared, master), self.metrics(master, rows)

    def _survivors(self, vectors: Array, union: Arrays) -> tuple[Array, Array]:
        """Return the rows that survive, the best first, and their places."""
        _, first = np.unique(vectors, axis=0, return_index=True)
        rows = np.sort(first)
        costs = costs_of(self.problem, union["objectives"][rows])
        ranks = constrained_ranks(costs, union["violation"][rows])
        crowding = crowding_by_front(costs, ranks)
        order = np.lexsort((-crowding, ranks))[: self.options.population_size]
        ranks, crowding = ranks[order], crowding[order]
        is_new = (ranks[1:] != ranks[:-1]) | (crowding[1:] != crowding[:-1])
        return rows[order], np.cumsum(np.insert(is_new, 0, False)[: len(order)])

    def metrics(self, master: Arrays, rows: Rows) -> dict[str, float]:
        """Return those of the front, and the share of feasible children."""
        metrics = self.front.metrics(master)
        if self.problem.quantities.constraints:
            succeeded = rows[np.isfinite(rows["return_"])]
            feasible = violations_of(self.problem, succeeded, len(succeeded)) == 0
            metrics["feasible_share"] = float(feasible.mean()) if len(feasible) else np.nan
        return metrics

    def recorded(self, state: State, results: Results[State]) -> tuple[State, Mapping[str, float]]:
        """Return the state with what the children of a generation that was cut short have found."""
        drawn = state if results.prepared is None else results.prepared
        archive = self.front.after(
            state.master, drawn.generation, results.rows, lambda jobs: self.children(drawn, jobs)
        )
        archive = self.front.measured(archive, state.generation)
        master = {**state.master, **archive}
        return State(state.generation, state.shared, master), self.metrics(master, results.rows)

    def elites(self, state: State) -> Elites:
        """Return the archive."""
        return self.front.elites(state.master)

    def summary(self, state: State) -> Mapping[str, Json]:
        """Return `front`: its size, hypervolume, ends and knee."""
        return self.front.summary(state.master)


def needs(options: Options) -> Needs:
    """Return the requirements under these options."""
    return needs_of_delayed(NEEDS, options)


def incompatibilities(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the options: (key, text)."""
    yield from too_many_points(options.population_size, problem)


def too_many_points(population: int, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield (key, text) if not all initial points without a value are candidates."""
    unknown = problem.unknown_points() if isinstance(problem, StartsFromPoints) else None
    if unknown is not None and unknown > population:
        yield (
            "task.initial_points",
            f"has {unknown:,} points without a value, but the first generation has "
            f"{population:,} candidates: remove points, or raise algorithm.population_size",
        )


build = NSGA2
