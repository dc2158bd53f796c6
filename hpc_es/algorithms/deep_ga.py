"""Deep GA: truncation selection and mutation only (Such et al. 2017, arXiv:1712.06567).

A generation has N children. Each is a mutation theta' = theta + sigma z of one of T parents, drawn
uniformly. Without parents (generation 0, or T = 0, which is random search), each child is a new
initial vector; if the problem has only one initial vector, it is a mutation of that. The best
children and the elite of the previous generation are validated by further episodes without noise.
The one with the best mean is the new elite; the new parents are the T best children, among them the
elite.

A genome is a chain of keys, int32[length, 2], as in the paper: the key of the initial vector, then
the key (generation, child) of each mutation. A few bytes describe a vector to every rank. Mutations
are added in the order of the chain, so that a vector that is rebuilt from its chain is
bit-identical to one computed from its parent's vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from hpc_es.algorithms.common.metrics import STEP_SIZE
from hpc_es.algorithms.common.ranking import nothing_to_learn, ranking
from hpc_es.algorithms.common.strategy import BaseStrategy, first_deviations
from hpc_es.config.options import Count, Limits, Natural, Positive, option, options, unused
from hpc_es.core.data import Array, Arrays, Chunk, Float64, Jobs, Json, Results, Rows, State, cut
from hpc_es.core.declarations import Needs
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Explicit, Noise, Population

NEEDS = Needs(
    metrics=STEP_SIZE,
    searches="vectors",
    noise=True,
    growing=True,
    presets={"noise.kind": "counter"},
)
ELITE = -1  # in place of the number of a child
VALIDATION_EPISODES = 30
# default sigma divided by the problem's spread, which is meant for strategies that adapt sigma
SPREAD_FRACTION = 0.2
KEY_BYTES = 8

Chain = npt.NDArray[np.int32]  # int32[length, 2]
Key = tuple[int, int]


@options
class Options:
    """`algorithm:` with `kind: deep_ga`."""

    kind: Literal["deep_ga"] = option("name of the algorithm", "deep_ga")
    population_size: Count = option("children per generation", 100)
    parents: Natural | None = option(
        "number of best children that become parents; null: a tenth of the population; 0: none, random search",
        None,
    )
    sigma: Positive | None = option(
        "standard deviation of a mutation; null: 0.06 of the range between the bounds, or 0.06; for policies 0.02",
        None,
    )
    sigma_decay: Annotated[float, Limits(gt=0, le=1)] = option(
        "factor of sigma per generation", 1.0
    )
    validate_top: Annotated[int, Limits(ge=2)] = option(
        "number of candidates to validate, including the elite", 10
    )
    validation_episodes: Natural | None = option(
        "validation jobs per candidate; null: 30, for objectives 1; 0: no validation, returns are exact",
        None,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        if self.parents is not None and self.parents > self.population_size:
            yield (
                "parents",
                f"is {self.parents}, but a generation has {self.population_size} children: "
                f"expected at most as many (try {self.population_size})",
            )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield options without effect: (key, text)."""
        if self.validation_episodes == 0:
            yield from unused(self, ("validate_top",), "validation_episodes is 0")


# Genomes.


def chain(*keys: Key) -> Chain:
    """Return the chain of these keys, int32[length, 2]."""
    return np.array(keys, np.int32).reshape(-1, 2)


def pack_chains(chains: Sequence[Chain]) -> dict[str, Array]:
    """Return chains as arrays of the state.

    They are int32[chains, longest, 2], padded with 0, and int64[chains] lengths.
    """
    lengths = np.array([len(keys) for keys in chains], np.int64)
    table = np.zeros((len(chains), max(lengths.tolist(), default=0), 2), np.int32)
    for row, keys in zip(table, chains, strict=True):
        row[: len(keys)] = keys
    return {"chains": table, "chain_lengths": lengths}


def unpack_chains(arrays: Arrays) -> list[Chain]:
    """Return the chains from the arrays of `pack_chains`."""
    lengths = arrays["chain_lengths"].tolist()
    return [row[:length] for row, length in zip(arrays["chains"], lengths, strict=True)]


@dataclass(frozen=True)
class Genomes:
    """The children of a generation: their chains and vectors, by the number of the child.

    Both are functions of the state.
    """

    problem: VectorProblem
    noise: Noise
    keys: Keys
    configured_sigma: float | None  # None: a fraction of the problem's spread
    sigma_decay: float  # per generation

    def sigma(self, generation: int) -> float:
        """Return the standard deviation of mutations, the geometric mean over the coordinates."""
        return self._deviations[0] * self.sigma_decay**generation

    @cached_property
    def _deviations(self) -> tuple[float, Array]:
        """The initial sigma, and each coordinate's deviation relative to it, dtype[size] or [1]."""
        sigma, ratios = first_deviations(self.configured_sigma, self.problem)
        if self.configured_sigma is None:
            sigma = sigma * SPREAD_FRACTION
        ratios = ratios.astype(self.problem.dtype)
        return sigma, ratios[:1] if (ratios == 1).all() else ratios

    def origin(self, state: State) -> Array:
        """Return the vector that all genomes begin with, dtype[size].

        It is the problem's initial vector if there is only one, or the theta of another run. If
        each genome begins with its own, the array is empty.
        """
        if state.generation:
            return state.shared["origin"]
        first_vector, is_only_one = self._first_vector
        is_common = is_only_one or not np.array_equal(state.theta, first_vector)
        return state.theta if is_common else state.shared["origin"]

    @cached_property
    def _first_vector(self) -> tuple[Array, bool]:
        """The initial vector of the first key, dtype[size], and whether all keys have the same."""
        first, second = (self.initial_vector(np.zeros(0), (0, child)) for child in (0, 1))
        return first, np.array_equal(first, second)

    def initial_vector(self, origin: Array, key: Key) -> Array:
        """Return the vector of the first key of a chain, dtype[size]: the origin, if any."""
        return (
            origin
            if len(origin)
            else self.problem.initial(self.keys.generator(Purpose.INITIAL_PARAMETERS, *key))
        )

    def mutate(self, vector: Array, key: Key) -> Array:
        """Return the vector after the mutation of this key, dtype[size]."""
        generation, child = key
        scales = vector.dtype.type(self.sigma(generation)) * self._deviations[1]
        step: Array = scales * self.noise.direction(generation, child, 0, self.problem.size)
        mutated: Array = vector + step.astype(vector.dtype, copy=False)
        return mutated

    def chain(self, state: State, child: int) -> Chain:
        """Return the chain of a child, int32[length, 2].

        It is that of a parent, drawn uniformly, and one more mutation.
        """
        parents, key = unpack_chains(state.shared), (state.generation, child)
        if not parents:
            return chain((0, 0), key) if len(self.origin(state)) else chain(key)
        rng = self.keys.generator(Purpose.GENETICS, state.generation, child)
        return np.concatenate([parents[int(rng.integers(len(parents)))], chain(key)])

    @cached_property
    def cache(self) -> VectorCache:
        """The vectors of the parents."""
        return VectorCache(self)

    def vector(self, state: State, child: int) -> Array:
        """Return the vector of a child, dtype[size]."""
        self.cache.keep(state.shared, self.origin(state))
        return self.cache.vector(self.chain(state, child))


class VectorCache:
    """Computes vectors from chains, and caches those of the parents.

    Most chains continue one of these. No result depends on what is cached. There are as many cached
    vectors as parents, and twice as many while a generation begins.
    """

    def __init__(self, genomes: Genomes) -> None:
        self._genomes = genomes
        self._vectors: dict[bytes, Array] = {}  # by the bytes of the chain
        self._chains: Array | None = None
        self._origin: Array = np.zeros(0)

    def keep(self, arrays: Arrays, origin: Array) -> None:
        """Compute the vectors of the parents, and drop all others.

        The chains of the parents are the arrays of `pack_chains`. `origin` is the vector at the
        start of all chains, dtype[size], or empty.
        """
        if arrays["chains"] is self._chains and origin is self._origin:
            return
        if not np.array_equal(origin, self._origin):
            self._vectors = {}
        self._chains, self._origin = arrays["chains"], origin
        parents = unpack_chains(arrays)
        names = [parent.tobytes() for parent in parents]
        useful = [old for old in self._vectors if any(name.startswith(old) for name in names)]
        self._vectors = {old: self._vectors[old] for old in useful}
        if not self._vectors and parents:  # after a restart: compute the common ancestor only once
            ancestor = _common_ancestor(parents)
            if len(ancestor):
                self._vectors[ancestor.tobytes()] = self.vector(ancestor)
        for name, parent in zip(names, parents, strict=True):
            self._vectors[name] = self.vector(parent)
        self._vectors = {name: self._vectors[name] for name in names}

    def vector(self, keys: Chain) -> Array:
        """Return the vector of a chain, dtype[size], read-only.

        It is computed from its nearest cached ancestor.
        """
        name = keys.tobytes()
        ancestor = max((old for old in self._vectors if name.startswith(old)), key=len, default=b"")
        path: list[Key] = [(generation, child) for generation, child in keys.tolist()]
        vector = (
            self._vectors[ancestor]
            if ancestor
            else self._genomes.initial_vector(self._origin, path[0])
        )
        for key in path[max(len(ancestor) // KEY_BYTES, 1) :]:
            vector = self._genomes.mutate(vector, key)
        return vector


def _common_ancestor(chains: Sequence[Chain]) -> Chain:
    """Return the longest chain that all of these begin with, int32[length, 2]."""
    shortest = min(map(len, chains))
    equal = [(keys[:shortest] == chains[0][:shortest]).all(axis=1) for keys in chains]
    return chains[0][: int(np.cumprod(np.all(equal, axis=0)).sum())]


# The algorithm.


@dataclass(frozen=True)
class Selected:
    """The ranking of a generation's children."""

    order: Sequence[int]  # numbers of the children that did not fail, best first, ties by number
    reason: str | None  # why there is no selection; None: there is one


@dataclass(frozen=True)
class DeepGA(BaseStrategy[Selected]):
    """Deep GA.

    State, shared:
        theta: dtype[params]; the elite
        origin: dtype[params or 0], grows; vector that all genomes begin with; empty if each has its
            own
        chains: int32[parents, keys, 2], grows; keys of each parent's initial vector and mutations,
            padded with 0
        chain_lengths: int64[parents], grows; number of keys of each parent
    State, master:
        elite_chain: int32[elite_keys, 2], grows; keys of the elite
        elite_mean: float64[]; mean fitness of the elite in its last validation; NaN before the
            first one
    """

    options: Options
    problem: VectorProblem
    noise: Noise

    def initial(self) -> State:
        """Return the first elite, which has not been validated, and no parents."""
        shared = {
            "theta": self.first_theta(),
            "origin": np.zeros(0, self.problem.dtype),
            **pack_chains([]),
        }
        return State(0, shared, {"elite_chain": chain((0, 0)), "elite_mean": np.array(np.nan)})

    @cached_property
    def genomes(self) -> Genomes:
        """The children of all generations."""
        return Genomes(
            self.problem, self.noise, self.keys, self.options.sigma, self.options.sigma_decay
        )

    # Evaluation.

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return the children, then the validation of the best of them and of the elite."""
        if round == 0:
            return cut(self.options.population_size, self.chunk_size)
        validated = self.validated(self.prepare(state, rows, fitness)) if round == 1 else []
        episodes = self._validation_episodes
        return [
            chunk
            for index, child in enumerate(validated)
            for chunk in cut(
                episodes, self.chunk_size, index * episodes, "probe", _centre_of(child)
            )
        ]

    @property
    def _validation_episodes(self) -> int:
        configured = self.options.validation_episodes
        default = 1 if self.problem.evaluation_episodes == 1 else VALIDATION_EPISODES
        return default if configured is None else configured

    def validated(self, selected: Selected) -> list[int]:
        """Return the candidates to validate: the elite, then children.

        The elite wins ties because it is the first.
        """
        return [] if selected.reason else [ELITE, *selected.order[: self.options.validate_top - 1]]

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return the vectors of the children."""
        vectors = np.stack([self.genomes.vector(state, job) for job in chunk.job_numbers])
        return Explicit(self.problem.layout, vectors)

    def centre(self, state: State, parent: int) -> Array:
        """Return the elite, or a child that is validated, dtype[size]."""
        return (
            state.theta
            if parent == _centre_of(ELITE)
            else self.genomes.vector(state, parent - _centre_of(0))
        )

    def jobs(self, state: State, chunk: Chunk) -> Jobs:
        """Return the jobs of a chunk; all validated candidates have the same seeds."""
        jobs = super().jobs(state, chunk)
        if chunk.purpose != "probe":
            return jobs
        return replace(jobs, groups=[number % self._validation_episodes for number in jobs.numbers])

    # Selection.

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Selected:
        """Rank the children."""
        order = [job for job in ranking(fitness).tolist() if not np.isnan(fitness[job])]
        return Selected(order, nothing_to_learn(fitness, 1))

    def blocks(self, state: State) -> int:
        """Return 0: selection needs no sums."""
        return 0

    def tell(self, state: State, results: Results[Selected]) -> tuple[State, Mapping[str, float]]:
        """Select the elite and the parents."""
        selected: Selected = results.prepared
        shared = {**state.shared, "origin": self.genomes.origin(state)}
        after = State(state.generation + 1, shared, state.master)
        if selected.reason is None:
            after = self._with_selection(
                after, state, selected.order, self._validation_means(state, selected, results)
            )
        lengths = after.shared["chain_lengths"]
        metrics = {
            "elite_fitness": float(after.master["elite_mean"]),
            "chain_length_mean": float(lengths.mean()) if len(lengths) else 0.0,
            "chain_length_max": float(lengths.max(initial=0)),
            "sigma": self.genomes.sigma(state.generation),
            "skipped_update": float(selected.reason is not None),
        }
        if best := selected.order[: self._parent_count]:
            metrics["parents_fitness"] = float(results.fitness[best].mean())
        return after, metrics

    def _validation_means(
        self, state: State, selected: Selected, results: Results[Selected]
    ) -> Float64:
        """Return the mean fitness of each validated candidate, float64[validated].

        Failed episodes do not count; it is NaN if all have failed. Without validation, it is the
        fitness of the generation.
        """
        validated, episodes = self.validated(selected), self._validation_episodes
        if not episodes:
            return np.array([state.master["elite_mean"], *results.fitness[validated[1:]]])
        by_candidate = results.probe_fitness.reshape(len(validated), episodes)
        succeeded = [fitness[~np.isnan(fitness)] for fitness in by_candidate]
        return np.array([fitness.mean() if len(fitness) else np.nan for fitness in succeeded])

    def _with_selection(
        self, after: State, state: State, order: Sequence[int], means: Float64
    ) -> State:
        """Return the state with the new elite and parents.

        `means` are those of the elite and the best children.
        """
        best = int(np.argmax(np.where(np.isnan(means), -np.inf, means)))  # the first of equal ones
        elite, theta = state.master["elite_chain"], state.theta
        if best:
            child = order[best - 1]
            elite, theta = self.genomes.chain(state, child), self.genomes.vector(state, child)
        count = self._parent_count
        parents = [self.genomes.chain(state, child) for child in order[:count]]
        if count and not any(np.array_equal(elite, parent) for parent in parents):
            parents = [elite, *parents[: count - 1]]
        shared = {**after.shared, "theta": theta, **pack_chains(parents)}
        return replace(
            after, shared=shared, master={"elite_chain": elite, "elite_mean": np.array(means[best])}
        )

    @property
    def _parent_count(self) -> int:
        configured = self.options.parents
        return max(1, self.options.population_size // 10) if configured is None else configured

    # Reports.

    def notices(self, state: State, results: Results[Selected], after: State) -> Sequence[str]:
        """Return why there was no selection."""
        return [results.prepared.reason] if results.prepared.reason else []

    def summary(self, state: State) -> Mapping[str, Json]:
        """Return the elite's last validation mean, its mutations, and the number of parents."""
        mean = float(state.master["elite_mean"])
        return {
            "elite_fitness": None if np.isnan(mean) else mean,
            "elite_mutations": len(state.master["elite_chain"]) - 1,
            "parents": len(state.shared["chains"]),
        }


def _centre_of(child: int) -> int:
    """Return the number of a child's centre; evaluations measure centre 0, the elite."""
    return child - ELITE


def incompatibilities(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the options: (key, text)."""
    if (problem.changing_fitness or problem.relative_fitness) and options.validation_episodes == 0:
        yield (
            "algorithm.validation_episodes",
            "is 0, so the elite keeps the fitness of an earlier generation, but with "
            "task.constraints it ranks jobs of one generation only: expected 1",
        )


build = DeepGA
