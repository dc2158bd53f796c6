"""Emitters: searches by CMA-ES that fill one archive together (Fontaine et al. 2020,
arXiv:1912.02400).

The candidates of all emitters are one generation. Each emitter ranks its own candidates by what
they do to the archive, and adapts its normal distribution like `cma_es`:

    improvement        solutions of empty cells first, then improvements, both by their value, the
                       difference between objective and threshold
    random_direction   the same, but by the projection of their measures on a random direction
    optimising         by their objective
    value              by their value alone

An emitter that has converged, or whose candidates did not enter the archive, starts again at an
elite, which is drawn uniformly. One rank computes the whole update of an emitter, so that the
square roots of the covariances are computed at the same time.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hpc_es.algorithms import cma_es
from hpc_es.algorithms.cma_es import CMAES, CmaConstants, of_mean_and_covariance
from hpc_es.algorithms.common.archive import (
    METRICS,
    REJECTED,
    Archive,
    ArchiveOptions,
    Batch,
    archive_mistakes,
)
from hpc_es.algorithms.common.covariance import too_large
from hpc_es.algorithms.common.distribution import Ranked
from hpc_es.algorithms.common.noise_handling import Mode
from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.config.options import Count, Positive, option, options
from hpc_es.core.data import SCOPED, Array, Arrays, Chunk, Float64, Results, Rows, State
from hpc_es.core.declarations import Metric, Needs
from hpc_es.core.elites import Elites
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.keys import Purpose
from hpc_es.core.machine import memory_bytes
from hpc_es.core.population import Explicit, Noise, Population

Ranking = Literal["improvement", "random_direction", "optimising", "value"]
Order = npt.NDArray[np.intp]

NEEDS = Needs(
    searches="vectors",
    noise=True,
    growing=True,
    measures=True,
    incumbent="cells",
    metrics={
        **METRICS,
        "sigma": Metric("mean step size of the emitters", is_log=True),
        "restarts": Metric("restarts of emitters so far"),
    },
    presets={"noise.kind": "counter"},
)
PREFIX = "emitter_"
MATRICES = 4  # of an emitter in memory: covariance and its root, before and after an update
# parameters with which a square root takes as long as the rest of the update of an emitter
PARAMETERS_PER_ROOT = 40
DIRECTION, RESTART = 2, 3  # blocks of random numbers of an emitter
# An emitter starts again beyond these, as in pyribs.
MAX_CONDITION = 1e14
MIN_DEVIATION = 1e-11  # longest standard deviation
MIN_RANGE = 1e-12  # of the numbers that rank the candidates


@options
class EmitterOptions:
    """Options of the algorithms with emitters."""

    population_size: Count = option("candidates of each emitter per generation", 36)
    sigma: Positive | None = option(
        "initial step size of an emitter; null: 0.3 of the range between the bounds, or 0.3", None
    )
    active: bool = option(
        "active update: bad candidates, with negative weights, reduce the covariance", False
    )


@dataclass(frozen=True)
class EmitterConstants(CmaConstants):
    """Constants of CMA-ES with less frequent square roots, as in the code of its tutorial."""

    @property
    def root_interval(self) -> int:
        """Generations between two computations of C^(1/2)."""
        return math.ceil(0.5 / (self.n * (self.c_1 + self.c_mu)))


@lru_cache(maxsize=256)
def emitter_constants(n: int, parents: int, active: bool) -> EmitterConstants:
    """Return the constants for n parameters, and twice as many samples as parents."""
    return EmitterConstants(**vars(cma_es.constants(n, 2 * parents, active)))


@dataclass(frozen=True)
class EmitterSearch(CMAES):
    """The search of an emitter, whose state has the number of parents, `parents`.

    Its options are those of `EmitterOptions`.
    """

    @property
    def noise_mode(self) -> Mode:
        """None: the archive ranks the candidates of an emitter."""
        return "none"

    options: Any

    adapts_mixed = False
    injects = False

    def constants(self, state: State) -> EmitterConstants:
        """Return the constants for the parents of a generation."""
        return emitter_constants(
            self.problem.size, int(state.shared["parents"]), self.options.active
        )

    def after(self, state: State, order: Order) -> tuple[Arrays, Arrays]:
        """Return the arrays (shared, master) that an update changes.

        `order` has the numbers of the candidates, best first, at least as many as parents.
        """
        weights, ranks = np.zeros(self.population(state)), self.constants(state).weights
        if not self.options.active:
            ranks = ranks[: int(state.shared["parents"])]
        weights[order[: len(ranks)]] = ranks[: len(order)]
        ranked = Ranked(weights, None, of_mean_and_covariance(weights))
        blocks = [self.partial_update(state, ranked, block) for block in range(self.blocks(state))]
        return self.update(state, ranked.weights, blocks)


class Emitted(NamedTuple):
    """What the candidates of a generation do to the archive and to their emitters."""

    batch: Batch
    orders: Sequence[Order]  # of each emitter: its candidates that did not fail, best first
    parents: Sequence[int]  # of each emitter: the number of parents; 0: it starts again
    is_flat: Sequence[bool]  # of each emitter: whether its candidates are equally good


class Roots:
    """The square roots of the covariances of a generation as separate arrays, which the sampler
    of each emitter recognises.
    """

    def __init__(self) -> None:
        self._stack: Array | None = None
        self._roots: list[Array] = []

    def of(self, stack: Array) -> list[Array]:
        """Return the roots in float64[emitters, params, params]."""
        if stack is not self._stack:
            self._stack, self._roots = stack, list(stack)
        return self._roots


@dataclass(frozen=True)
class EmitterStrategy(BaseStrategy[Emitted]):
    """Base class of algorithms with emitters, which define `archive` and `rankings`.

    State, shared:
        theta: dtype[params]; the best elite; the initial vector before there is one
        emitter_theta: dtype[emitters, params]; means of the normal distributions
        emitter_sigma: float64[emitters]; step sizes
        emitter_root: float64[emitters, params, params]; C^(1/2), symmetric
        emitter_covariance: float64[emitters, params, params]; C, without sigma
        emitter_axis_lengths: float64[emitters, params]; square roots of the eigenvalues of C when
            the root was last computed, ascending
        emitter_sigma_path: float64[emitters, params]; p_sigma, evolution paths of the step sizes
        emitter_covariance_path: float64[emitters, params]; p_c, evolution paths of the covariances
        emitter_age: int64[emitters]; generations of these searches
        emitter_root_age: int64[emitters]; their age when the root was last computed
        emitter_restarts: int64[emitters]; earlier searches of each emitter
        those of `hpc_es.algorithms.common.archive.Archive`
    """

    options: Any
    problem: VectorProblem
    noise: Noise

    @property
    @abstractmethod
    def archive(self) -> Archive:
        """The archive."""

    @property
    @abstractmethod
    def rankings(self) -> Sequence[Ranking]:
        """How each emitter ranks its candidates."""

    def judge(self, state: State, rows: Rows) -> Batch:
        """Compare the candidates with the archive; on every rank."""
        return self.archive.batch(state, rows)

    def parents(self, added: int, ranked: int, ranking: Ranking) -> int:
        """Return the number of parents of an emitter, 0 if it starts again.

        Args:
            added: number of its candidates that entered the archive.
            ranked: number of its candidates that did not fail.
            ranking: how it ranks them.
        """
        best_half: int = max(self.options.population_size // 2, 1)
        return min(ranked, best_half)

    # The state of emitters.

    @cached_property
    def searches(self) -> Sequence[EmitterSearch]:
        """The search of each emitter; what else differs is in the state."""
        return [
            EmitterSearch(self.options, self.problem, self.noise, self.keys, self.chunk_size)
            for _ in self.rankings
        ]

    @cached_property
    def _roots(self) -> Roots:
        return Roots()

    def scope(self, state: State, number: int, parents: int = 1) -> State:
        """Return the state of an emitter's search, with random numbers of its own."""
        of = {name: state.shared[PREFIX + name] for name in self._first}
        shared = {
            "theta": self._theta(state, number),
            "sigma": of["sigma"][number],
            "root": self._roots.of(of["root"])[number],
            "population": np.array(self.options.population_size),
            "parents": np.array(parents),
        }
        master = {name: array[number] for name, array in of.items() if name not in shared}
        return State(state.generation + number * SCOPED, shared, master)

    def _theta(self, state: State, number: int) -> Array:
        """Return the mean of an emitter, dtype[size]; the first may be the theta of another run."""
        own: Array = state.shared[PREFIX + "theta"][number]
        if state.generation or np.array_equal(state.theta, self._first_theta):
            return own
        return state.theta

    @cached_property
    def _first_theta(self) -> Array:
        return self.first_theta()

    @cached_property
    def _first(self) -> Arrays:
        """The arrays of a new search, apart from its mean; an algorithm must not change them."""
        shared, master = self.searches[0].initial_distribution(
            *self.searches[0]._first_deviations()
        )
        arrays = {**shared, **master, "age": np.array(0)}
        return {name: array for name, array in arrays.items() if name != "axes"}

    @property
    def _names(self) -> Sequence[str]:
        """The arrays of a search."""
        return ("theta", *self._first)

    def initial(self) -> State:
        """Return new searches and an empty archive."""
        count = len(self.rankings)
        thetas = [self.first_theta(number) for number in range(count)]
        own = {"theta": thetas[0].copy(), PREFIX + "theta": np.stack(thetas)}
        own |= {PREFIX + name: np.stack([array] * count) for name, array in self._first.items()}
        own[PREFIX + "restarts"] = np.zeros(count, np.int64)
        shared, master = self.archive.initial()
        return State(0, {**own, **shared}, master)

    # A generation.

    def population(self, state: State) -> int:
        """Return the number of candidates of all emitters."""
        size: int = self.options.population_size
        return len(self.rankings) * size

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return the candidates of a chunk, which may belong to several emitters."""
        return Explicit(self.problem.layout, self._vectors(state, chunk.job_numbers))

    def _vectors(self, state: State, jobs: range) -> Array:
        """Return consecutive candidates, dtype[jobs, size]."""
        size, parts = self.options.population_size, []
        for number in range(jobs[0] // size, jobs[-1] // size + 1):
            first, last = max(jobs[0] - number * size, 0), min(jobs[-1] - number * size, size - 1)
            own = Chunk(0, first, last - first + 1)
            candidates = self.searches[number].candidates(self.scope(state, number), own)
            parts.append(candidates.stacked())
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Emitted:
        """Rank the candidates of each emitter."""
        batch, size = self.judge(state, rows), self.options.population_size
        orders, parents, is_flat = [], [], []
        for number, ranking in enumerate(self.rankings):
            part = slice(number * size, (number + 1) * size)
            numbers = self.ranked_by(state, number, batch, part)
            order = ranked(batch, part, numbers, by_status=ranking not in ("optimising", "value"))
            added = int((batch.status[part] > REJECTED).sum())
            parents.append(self.parents(added, len(order), ranking))
            is_flat.append(len(order) > 1 and float(np.ptp(numbers[order])) < MIN_RANGE)
            orders.append(order)
        return Emitted(batch, orders, parents, is_flat)

    def ranked_by(self, state: State, number: int, batch: Batch, part: slice) -> Float64:
        """Return the numbers that rank the candidates of an emitter, float64[candidates]."""
        match self.rankings[number]:
            case "optimising":
                return batch.objective[part]
            case "random_direction":
                restarts = int(state.shared[PREFIX + "restarts"][number])
                direction = self._direction(number, restarts)
                projections: Float64 = (batch.measures[part] * direction).sum(axis=1)
                return projections
            case _:
                return batch.value[part]

    def _direction(self, number: int, restarts: int) -> Float64:
        """Return the random direction of an emitter's search, float64[measures]."""
        known, direction = self._directions.get(number, (-1, np.zeros(0)))
        if known != restarts:
            rng = self.keys.generator(Purpose.GENETICS, restarts, number, DIRECTION)
            low, high = self.problem.quantities.ranges
            direction = rng.standard_normal(len(low)) * (high - low)
            self._directions[number] = restarts, direction
        return direction

    @cached_property
    def _directions(self) -> dict[int, tuple[int, Float64]]:
        """The last direction of each emitter that needed one, after the number of its restarts."""
        return {}

    def blocks(self, state: State) -> int:
        """Return the number of emitters, each of which is updated by one rank."""
        return len(self.rankings)

    def block_costs(self, state: State, prepared: Emitted) -> Sequence[float]:
        """Return the costs of the emitters, which differ if only some compute a root."""
        size, active = self.problem.size, self.options.active
        ages = state.shared[PREFIX + "age"] + 1 - state.shared[PREFIX + "root_age"]
        has_root = [
            parents > 0 and age >= emitter_constants(size, parents, active).root_interval
            for parents, age in zip(prepared.parents, ages.tolist(), strict=True)
        ]
        return [1.0 + size / PARAMETERS_PER_ROOT * has for has in has_root]

    def partial_update(self, state: State, prepared: Emitted, block: int) -> Arrays:
        """Return what an update changes in the search of an emitter, the new elites among its
        candidates, and whether it starts again.
        """
        size, parents = self.options.population_size, prepared.parents[block]
        winners = prepared.batch.winners_among(block * size, (block + 1) * size)
        arrays: dict[str, Array] = {"again": np.array(True)}
        if winners:
            vectors = self._vectors(state, range(block * size, (block + 1) * size))
            arrays["vectors"] = vectors[[job - block * size for job in winners]]
        if not parents:
            return arrays
        search, scope = self.searches[block], self.scope(state, block, parents)
        shared, master = search.after(scope, prepared.orders[block])
        before = {**scope.shared, **scope.master}
        after = {**before, **shared, **master, "age": scope.master["age"] + 1}
        lengths, sigma = after["axis_lengths"], float(after["sigma"])
        again = (
            prepared.is_flat[block]
            or float(lengths[-1] / lengths[0]) ** 2 > MAX_CONDITION
            or not MIN_DEVIATION < sigma * float(lengths[-1]) < math.inf
            or not np.isfinite(after["theta"]).all()
        )
        if again:
            return arrays
        changed = {name: after[name] for name in self._names if after[name] is not before[name]}
        new = {PREFIX + name: np.asarray(array) for name, array in changed.items()}
        return {**arrays, **new, "again": np.array(False)}

    def tell(self, state: State, results: Results[Emitted]) -> tuple[State, Mapping[str, float]]:
        """Add the candidates to the archive, and begin new searches where one has ended."""
        batch, blocks = results.prepared.batch, list(results.blocks)
        vectors = [block["vectors"] for block in blocks if "vectors" in block]
        after = self.archive.added(
            state,
            batch,
            results.rows,
            np.concatenate(vectors) if vectors else state.shared[PREFIX + "theta"][:0],
            overwrite=results.overwrite,
        )
        after = State(state.generation + 1, after.shared, after.master)
        restarts = after.shared[PREFIX + "restarts"].copy()
        searches: list[Arrays] = []
        for number, block in enumerate(blocks):
            again = bool(block["again"])
            restarts[number] += again
            searches.append(self._begun(after, number) if again else block)
        own = self._with_changes(after.shared, searches)
        shared = {**after.shared, **own, PREFIX + "restarts": restarts}
        metrics = {
            **self.archive.metrics(after, batch),
            "sigma": float(np.exp(np.log(own[PREFIX + "sigma"]).mean())),
            "restarts": float(restarts.sum()),
        }
        return State(after.generation, shared, after.master), metrics

    def _with_changes(self, shared: Arrays, searches: Sequence[Arrays]) -> Arrays:
        """Return the arrays of all emitters after the changes of each.

        One that no emitter changes, such as the roots in most generations, stays the same object:
        read-only, it is not sent again.
        """
        arrays: dict[str, Array] = {}
        for name in (PREFIX + name for name in self._names):
            arrays[name] = shared[name]
            if any(name in search for search in searches):
                rows = [
                    search.get(name, old)
                    for search, old in zip(searches, shared[name], strict=True)
                ]
                arrays[name] = np.stack(rows)
                arrays[name].flags.writeable = False
        return arrays

    def _begun(self, state: State, number: int) -> Arrays:
        """Return a new search of an emitter, from an elite, or from an initial vector."""
        arrays = {PREFIX + name: array for name, array in self._first.items()}
        rng = self.keys.generator(Purpose.GENETICS, state.generation, number, RESTART)
        if not self.archive.members(state.master):
            theta = self.first_theta(state.generation * len(self.rankings) + number)
        else:
            row = self.archive.drawn(state.master, rng, 1)[0]
            theta = state.master["elite_vectors"][row]
        return {**arrays, PREFIX + "theta": theta}

    # Reports.

    def elites(self, state: State) -> Elites:
        """Return the members of the archive."""
        return self.archive.elites(state)

    def summary(self, state: State) -> Mapping[str, int | float]:
        """Return the size of the archive."""
        return self.archive.summary(state)


def ranked(batch: Batch, part: slice, numbers: Float64, by_status: bool) -> Order:
    """Return the candidates of an emitter that did not fail, best first, as indices in `part`.

    Feasible ones come first, by status if `by_status`, then by their numbers, higher first, then
    in job order; the others follow by their violation.
    """
    violation = batch.violation[part]
    status = batch.status[part] if by_status else np.zeros(len(violation), np.int64)
    is_infeasible = np.isnan(batch.objective[part])
    keys = (violation, np.where(is_infeasible, 0.0, -numbers), -status, is_infeasible)
    order: Order = np.lexsort(keys)
    return order[~np.isnan(violation[order])]


def emitter_mistakes(
    kind: str, emitters: int, archive: ArchiveOptions, problem: VectorProblem
) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit an algorithm with emitters: (key, text)."""
    yield from archive_mistakes(archive, problem)
    yield from too_large(kind, problem.size)
    needed = MATRICES * emitters * problem.size**2 * np.dtype(np.float64).itemsize
    memory = memory_bytes()
    if needed > memory:
        yield (
            "algorithm.emitters",
            f"are {emitters:,} with {problem.size:,} parameters, whose covariances need "
            f"{needed:,} bytes, but this machine has {memory:,}: expected fewer emitters, or "
            "algorithm.kind: map_elites",
        )
