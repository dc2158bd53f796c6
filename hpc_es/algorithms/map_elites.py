"""MAP-Elites: mutations of the elites of an archive (Mouret & Clune 2015, arXiv:1504.04909).

A generation has N children of elites that are drawn uniformly. With z from N(0, I) and u from
N(0, 1), a child is

    x = x_1 + sigma z                            operator: gaussian
    x = x_1 + sigma z + sigma_line u (x_2 - x_1)      operator: iso_line

The second one (Vassiliades & Mouret 2018, arXiv:1804.03906) also moves along the line to another
elite, since elites of different cells are often similar. Without elites, as in the first
generation, children are mutations of initial vectors. All children are then added to the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from hpc_es.algorithms.common.archive import (
    METRICS,
    Archive,
    ArchiveOptions,
    Batch,
    archive_mistakes,
)
from hpc_es.algorithms.common.strategy import BaseStrategy, first_deviations
from hpc_es.config.options import Count, NonNegative, Positive, option, options, unused
from hpc_es.core.data import Array, Arrays, Chunk, Float64, Results, Rows, State
from hpc_es.core.declarations import Needs
from hpc_es.core.elites import Elites
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.keys import Purpose
from hpc_es.core.population import Directions, Noise, Perturbed, Population

NEEDS = Needs(
    searches="vectors",
    noise=True,
    growing=True,
    measures=True,
    incumbent="cells",
    metrics=METRICS,
    presets={"noise.kind": "counter"},
)
BLOCK_JOBS = 32  # at least, whose elites one rank computes again for the archive
BLOCK_NUMBERS = 1 << 16  # of these jobs, if they are short: a message takes longer
PARENTS, LINE = 0, 1  # blocks of random numbers of a generation
# default sigma divided by the problem's spread, which is meant for strategies that adapt sigma
SPREAD_FRACTION = 0.2


@options
class Options:
    """`algorithm:` with `kind: map_elites`."""

    kind: Literal["map_elites"] = option("name of the algorithm", "map_elites")
    population_size: Count = option("children per generation", 128)
    operator: Literal["iso_line", "gaussian"] = option(
        "mutation, with or without a step along the line to another elite", "iso_line"
    )
    sigma: Positive | None = option(
        "standard deviation of a mutation; null: 0.06 of the range between the bounds, or 0.06; for policies 0.02",
        None,
    )
    sigma_line: NonNegative = option(
        "standard deviation of the step along the line, relative to its length", 0.2
    )
    archive: ArchiveOptions = option("cells of the archive", default_factory=ArchiveOptions)

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield options without effect: (key, text)."""
        if self.operator == "gaussian":
            yield from unused(self, ("sigma_line",), "operator is gaussian")


@dataclass(frozen=True)
class MapElites(BaseStrategy[Batch]):
    """MAP-Elites.

    State, shared:
        theta: dtype[params]; the best elite; the initial vector before there is one
        parents: dtype[parents, params], grows; the elites that the next children are made from
        parent_of: int64[2, children], grows; rows of `parents` of the first and second parent of
            each child
        those of `hpc_es.algorithms.common.archive.Archive`
    """

    options: Options
    problem: VectorProblem
    noise: Noise

    @cached_property
    def archive(self) -> Archive:
        """The archive."""
        return Archive(self.options.archive, self.problem, self.keys)

    def initial(self) -> State:
        """Return an empty archive."""
        shared, master = self.archive.initial()
        own = {
            "theta": self.first_theta(),
            "parents": np.zeros((0, self.problem.size), self.problem.dtype),
            "parent_of": np.zeros((2, 0), np.int64),
        }
        return State(0, {**own, **shared}, master)

    # Children.

    @cached_property
    def _deviations(self) -> tuple[float, Array | None]:
        """Sigma, and the ratio of each coordinate's standard deviation to it, dtype[size];
        None: 1.
        """
        sigma, ratios = first_deviations(self.options.sigma, self.problem)
        if self.options.sigma is None:
            sigma *= SPREAD_FRACTION
        return sigma, None if (ratios == 1).all() else ratios.astype(self.problem.dtype)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return the children of a chunk."""
        return self.children(state, chunk.job_numbers)

    def children(self, state: State, jobs: Sequence[int]) -> Population:
        """Return the children with these numbers."""
        centres = self._centres(state, jobs)
        sigma, ratios = self._deviations
        directions = Directions(self.noise, state.generation, jobs, ratios)
        rows = np.arange(len(jobs), dtype=np.intp)
        scales = np.full(len(jobs), sigma, centres.dtype)
        return Perturbed(self.problem.layout, centres, directions, rows, scales, rows)

    def _centres(self, state: State, jobs: Sequence[int]) -> Array:
        """Return what is mutated, dtype[jobs, size]: parents, or points on the lines between
        them.
        """
        if not len(state.shared["parents"]):
            return np.stack([self._initial_vector(state, job) for job in jobs])
        # NumPy reads a range one by one
        wanted = slice(jobs.start, jobs.stop) if isinstance(jobs, range) else jobs
        parents, (first, second) = state.shared["parents"], state.shared["parent_of"][:, wanted]
        centres: Array = parents[first]
        if self.options.operator == "iso_line":
            steps = self._steps(state.generation)[wanted, np.newaxis].astype(centres.dtype)
            line = parents[second]
            line -= centres
            line *= steps
            centres += line
        return centres

    @cached_property
    def _steps(self) -> Callable[[int], Float64]:
        """The steps along lines of a generation, float64[children]: drawn once, for all chunks."""

        def drawn(generation: int) -> Float64:
            rng = self.keys.generator(Purpose.GENETICS, generation, LINE)
            return self.options.sigma_line * rng.standard_normal(self.options.population_size)

        return lru_cache(maxsize=1)(drawn)

    def _initial_vector(self, state: State, job: int) -> Array:
        """Return an initial vector for a child, dtype[size]; the theta of another run, if it begins
        there.
        """
        if not np.array_equal(state.theta, self._first_theta):
            return state.theta
        number = state.generation * self.options.population_size + job
        vector: Array = self.problem.initial(
            self.keys.generator(Purpose.INITIAL_PARAMETERS, number)
        )
        return vector

    @cached_property
    def _first_theta(self) -> Array:
        return self.first_theta()

    # The update.

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Batch:
        """Compare the children with the archive."""
        return self.archive.batch(state, rows)

    def blocks(self, state: State) -> int:
        """Return the number of parts in which the new elites are computed."""
        return -(-self.options.population_size // self._block_jobs)

    @property
    def _block_jobs(self) -> int:
        return max(BLOCK_JOBS, BLOCK_NUMBERS // self.problem.size)

    def partial_update(self, state: State, prepared: Batch, block: int) -> Arrays:
        """Return the new elites among the children of a block, dtype[winners, size]."""
        size = self._block_jobs
        winners = prepared.winners_among(block * size, (block + 1) * size)
        if not winners:
            return {}
        return {"vectors": self.children(state, winners).stacked()}

    def tell(self, state: State, results: Results[Batch]) -> tuple[State, Mapping[str, float]]:
        """Add the children to the archive, and draw the next parents."""
        batch = results.prepared
        vectors = [block["vectors"] for block in results.blocks if block]
        after = self.archive.added(
            state,
            batch,
            results.rows,
            np.concatenate(vectors) if vectors else state.shared["parents"][:0],
            overwrite=results.overwrite,
        )
        after = State(state.generation + 1, after.shared, after.master)
        return self._with_parents(after), self.archive.metrics(after, batch)

    def _with_parents(self, state: State) -> State:
        """Return the state with the parents of its generation."""
        if not self.archive.members(state.master):
            return state
        rng = self.keys.generator(Purpose.GENETICS, state.generation, PARENTS)
        count = self.options.population_size
        drawn = self.archive.drawn(state.master, rng, 2 * count)
        if self.options.operator == "gaussian":
            drawn[count:] = drawn[:count]
        rows, parent_of = np.unique(drawn, return_inverse=True)
        shared = {
            **state.shared,
            "parents": state.master["elite_vectors"][rows],
            "parent_of": parent_of.reshape(2, count).astype(np.int64),
        }
        return State(state.generation, shared, state.master)

    def elites(self, state: State) -> Elites:
        """Return the members of the archive."""
        return self.archive.elites(state)

    def summary(self, state: State) -> Mapping[str, int | float]:
        """Return the size of the archive."""
        return self.archive.summary(state)


def incompatibilities(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the options: (key, text)."""
    yield from archive_mistakes(options.archive, problem)


build = MapElites
