"""Genomes as chains of keys: how a vector began, and each of its mutations (Such et al. 2017, arXiv:1712.06567).

A chain is int32[length, 2]. Its first key is that of the vector it began with, each further one, (generation, child),
that of a mutation. Mutations are added in the order of the chain, so that a vector that is rebuilt from its chain has
the bits of one that was made from its parent's.


Children as mutations of parents, theta' = theta + sigma z, with z of the noise's (generation, child); no crossover.

The parents' chains are in the state. Without parents each child begins anew, with an initial vector of its own; where
all genomes begin with the same vector, it is a mutation of that.


Deep GA: a genetic algorithm with truncation selection and mutation alone (Such et al. 2017, arXiv:1712.06567).

A generation has N children. Each is a mutation, theta' = theta + sigma z, of one of T parents, drawn uniformly; without
parents (generation 0, or T = 0, which is random search) it begins anew, with an initial vector of its own. The best
children of a generation and the elite of the one before are validated by further episodes without noise; the one with
the best mean is the next elite. The next parents are the T best children, with the elite among them.

A genome is the chain of the keys of its mutations: a few bytes tell any rank of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Interval

from hpc_es.algorithms.common.ranking import nothing_to_learn, ranking
from hpc_es.algorithms.common.strategy import Strategy, first_deviations
from hpc_es.config.options import Count, Natural, Positive, option, options, unused
from hpc_es.core.data import Array, Arrays, Chunk, Float64, Jobs, Results, Rows, State, cut
from hpc_es.core.interfaces import Needs, VectorProblem
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Explicit, Noise, Population

Chain = npt.NDArray[np.int32]

KEY_BYTES = 8


def chain(*keys: tuple[int, int]) -> Chain:
    """Return the chain of these keys."""
    return np.array(keys, np.int32).reshape(-1, 2)


def longer(parent: Chain, key: tuple[int, int]) -> Chain:
    """Return the chain of a child: its parent's, and one mutation more."""
    return np.concatenate([parent, chain(key)])


def packed(chains: Sequence[Chain]) -> dict[str, Array]:
    """Return chains as a part of the state: int32[chains, longest, 2], zeros behind the end, and their lengths."""
    lengths = np.array([len(each) for each in chains], np.int64)
    table = np.zeros((len(chains), max(lengths.tolist(), default=0), 2), np.int32)
    for row, each in zip(table, chains, strict=True):
        row[: len(each)] = each
    return {"chains": table, "chain_lengths": lengths}


def unpacked(arrays: Arrays) -> list[Chain]:
    """Return the chains that `packed` gave."""
    lengths = arrays["chain_lengths"].tolist()
    return [row[:length] for row, length in zip(arrays["chains"], lengths, strict=True)]


class Rebuilder:
    """Makes vectors of chains; those of the parents are kept, since most chains to come go on from one of them.

    `begun(origin, key)` gives the vector of a first key, `mutated(vector, key)` that of a child. No bit depends on what
    is kept: as many vectors as there are parents, and twice that while a generation begins.
    """

    def __init__(
        self,
        begun: Callable[[Array, tuple[int, int]], Array],
        mutated: Callable[[Array, tuple[int, int]], Array],
    ) -> None:
        self._begun, self._mutated = begun, mutated
        self._kept: dict[bytes, Array] = {}  # by the bytes of the chain
        self._arrays: Array | None = None
        self._origin: Array = np.zeros(0)

    def keep(self, arrays: Arrays, origin: Array) -> None:
        """Have the vectors of the parents ready, `arrays` as `packed` gives them, and forget all others."""
        if arrays["chains"] is self._arrays and origin is self._origin:
            return
        if not np.array_equal(origin, self._origin):
            self._kept = {}
        self._arrays, self._origin = arrays["chains"], origin
        parents = unpacked(arrays)
        names = [each.tobytes() for each in parents]
        self._kept = {old: self._kept[old] for old in self._kept if any(name.startswith(old) for name in names)}
        if not self._kept and parents:  # after a restart: what all of them share is rebuilt once
            ancestor = _shared(parents)
            if len(ancestor):
                self._kept[ancestor.tobytes()] = self.vector(ancestor)
        for name, parent in zip(names, parents, strict=True):
            self._kept[name] = self.vector(parent)
        self._kept = {name: self._kept[name] for name in names}

    def vector(self, wanted: Chain) -> Array:
        """Return the vector of a chain, [size], not to be written to; from its nearest ancestor among those kept."""
        name = wanted.tobytes()
        known = max((old for old in self._kept if name.startswith(old)), key=len, default=b"")
        keys: list[tuple[int, int]] = [(generation, child) for generation, child in wanted.tolist()]
        vector = self._kept[known] if known else self._begun(self._origin, keys[0])
        for key in keys[max(len(known) // KEY_BYTES, 1) :]:
            vector = self._mutated(vector, key)
        return vector


def _shared(chains: Sequence[Chain]) -> Chain:
    """Return what all chains begin with."""
    shortest = min(map(len, chains))
    equal = [(each[:shortest] == chains[0][:shortest]).all(axis=1) for each in chains]
    return chains[0][: int(np.cumprod(np.all(equal, axis=0)).sum())]


SHARE = 0.2  # of the problem's spread, which is meant for a search that adapts its steps


@dataclass(frozen=True)
class Genomes:
    """The children of every generation, each a function of the state and its number."""

    problem: VectorProblem
    noise: Noise
    keys: Keys
    given_sigma: float | None  # None: a share of the problem's spread
    sigma_decay: float  # of each generation

    def origin(self, state: State) -> Array:
        """Return the vector that all genomes begin with, [size]; an empty one where each begins with its own.

        That is the problem's initial vector where it has but one, or the theta of another run.
        """
        if state.generation:
            return state.shared["origin"]
        first, is_only = self._first
        is_given = is_only or not np.array_equal(state.theta, first)
        return state.theta if is_given else state.shared["origin"]

    @cached_property
    def _first(self) -> tuple[Array, bool]:
        """The initial vector of the first key, and whether those of all others are equal to it."""
        nothing = np.zeros(0)
        first = self._begun(nothing, (0, 0))
        return first, np.array_equal(first, self._begun(nothing, (0, 1)))

    def _begun(self, origin: Array, key: tuple[int, int]) -> Array:
        if len(origin):
            return origin
        return self.problem.initial(self.keys.generator(Purpose.INITIAL_PARAMETERS, *key))

    def sigma(self, generation: int) -> float:
        """Return the standard deviation of a generation's mutations, the geometric mean over the coordinates."""
        return self._deviations[0] * self.sigma_decay**generation

    @cached_property
    def _deviations(self) -> tuple[float, Array]:
        """The first sigma, and the share of each coordinate in it, [size] or [1]."""
        sigma, ratios = first_deviations(self.given_sigma, self.problem)
        typed = ratios.astype(self.problem.dtype)
        return sigma * (SHARE if self.given_sigma is None else 1), typed[:1] if (typed == 1).all() else typed

    def _mutated(self, vector: Array, key: tuple[int, int]) -> Array:
        generation, child = key
        scales = vector.dtype.type(self.sigma(generation)) * self._deviations[1]
        step: Array = scales * self.noise.direction(generation, child, 0, self.problem.size)
        mutated: Array = vector + step.astype(vector.dtype, copy=False)
        return mutated

    def chain(self, state: State, child: int) -> Chain:
        """Return the chain of a child: that of a parent, drawn uniformly, and its own mutation."""
        parents, key = unpacked(state.shared), (state.generation, child)
        if not parents:
            return chain((0, 0), key) if len(self.origin(state)) else chain(key)
        rng = self.keys.generator(Purpose.GENETICS, state.generation, child)
        return longer(parents[int(rng.integers(len(parents)))], key)

    @cached_property
    def _rebuilder(self) -> Rebuilder:
        return Rebuilder(self._begun, self._mutated)

    def vector(self, state: State, child: int) -> Array:
        """Return the vector of a child, [size]."""
        self._rebuilder.keep(state.shared, self.origin(state))
        return self._rebuilder.vector(self.chain(state, child))


NEEDS = Needs(searches="vectors", noise=True, growing=True, presets={"noise.kind": "counter"})

ELITE = -1  # among the numbers of children
VALIDATION_EPISODES = 30


@options
class Options:
    """`algorithm:` with `kind: deep_ga`."""

    kind: Literal["deep_ga"] = option("name of the algorithm", "deep_ga")
    population_size: Count = option("children of a generation", 100)
    parents: Natural | None = option(
        "how many of the best have children; null: a tenth of the population; 0: none, which is random search", None
    )
    sigma: Positive | None = option(
        "standard deviation of a mutation; null: 0.06 of the range between the bounds, or 0.06; of a policy 0.02", None
    )
    sigma_decay: Annotated[float, Interval(gt=0, le=1)] = option("sigma is multiplied by it each generation", 1.0)
    validate_top: Annotated[int, Ge(2)] = option("how many are validated, the elite among them", 10)
    validation_episodes: Natural | None = option(
        "jobs that validate each of them; null: 30, of an objective 1; 0: none, returns are taken as exact", None
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single field shows: (key, text)."""
        if self.parents is not None and self.parents > self.population_size:
            text = f"is {self.parents}, but a generation has {self.population_size} children"
            yield "parents", f"{text}: expected at most as many (try {self.population_size})"

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Options that do nothing: (key, text)."""
        if self.validation_episodes == 0:
            yield from unused(self, ("validate_top",), "validation_episodes is 0")


@dataclass(frozen=True)
class Selected:
    """What a generation's fitness says of its children."""

    order: Sequence[int]  # those that did not fail, the best first, ties by number
    reason: str | None  # why nothing can be learned from them


@dataclass(frozen=True)
class DeepGA(Strategy[Selected]):
    """The strategy.

    State, shared:
        theta: dtype[params]; the elite
        origin: dtype[params or 0], grows; vector that all genomes begin with; empty if each has its own
        chains: int32[parents, keys, 2], grows; keys of each parent's initial vector and mutations, then zeros
        chain_lengths: int64[parents], grows; number of keys of each parent
    State, master:
        elite_chain: int32[elite_keys, 2], grows; keys of the elite
        elite_mean: float64[]; mean fitness of the elite in its last validation; NaN before the first one
    """

    options: Options
    problem: VectorProblem
    noise: Noise

    def initial(self) -> State:
        """Return the elite to begin with, which is not validated yet, and no parents."""
        shared = {"theta": self.first_theta(), "origin": np.zeros(0, self.problem.dtype), **packed([])}
        return State(0, shared, {"elite_chain": chain((0, 0)), "elite_mean": np.array(np.nan)})

    @cached_property
    def genomes(self) -> Genomes:
        """The children."""
        return Genomes(self.problem, self.noise, self.keys, self.options.sigma, self.options.sigma_decay)

    # Evaluation.

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return the children, then the validation of the best of them and of the elite."""
        if round == 0:
            return cut(self.options.population_size, self.chunk_size)
        validated = self.validated(self.prepare(state, rows, fitness)) if round == 1 else []
        episodes = self._validation_episodes
        return [
            chunk
            for place, child in enumerate(validated)
            for chunk in cut(episodes, self.chunk_size, place * episodes, "probe", _centre_of(child))
        ]

    @property
    def _validation_episodes(self) -> int:
        given = self.options.validation_episodes
        usual = 1 if self.problem.evaluation_episodes == 1 else VALIDATION_EPISODES
        return usual if given is None else given

    def validated(self, selected: Selected) -> list[int]:
        """Return who is validated: the elite, which so stays where it is as good as the best, then children."""
        return [] if selected.reason else [ELITE, *selected.order[: self.options.validate_top - 1]]

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return children."""
        vectors = np.stack([self.genomes.vector(state, job) for job in chunk.job_numbers])
        return Explicit(self.problem.layout, vectors)

    def centre(self, state: State, parent: int) -> Array:
        """Return the elite, or a child that is validated."""
        return state.theta if parent == _centre_of(ELITE) else self.genomes.vector(state, parent - _centre_of(0))

    def jobs(self, state: State, chunk: Chunk) -> Jobs:
        """Return the jobs of a chunk; all who are validated meet the same episodes."""
        jobs = super().jobs(state, chunk)
        if chunk.purpose != "probe":
            return jobs
        return replace(jobs, groups=[number % self._validation_episodes for number in jobs.numbers])

    # Selection.

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Selected:
        """Return the order of the children."""
        order = [job for job in ranking(fitness).tolist() if not np.isnan(fitness[job])]
        return Selected(order, nothing_to_learn(fitness, 1))

    def blocks(self, state: State) -> int:
        """Return 0: parents are chosen, not summed."""
        return 0

    def tell(self, state: State, results: Results[Selected]) -> tuple[State, Mapping[str, float]]:
        """Choose the elite and the parents."""
        selected: Selected = results.prepared
        shared = {**state.shared, "origin": self.genomes.origin(state)}
        after = State(state.generation + 1, shared, state.master)
        if selected.reason is None:
            after = self._following(state, selected.order, after, self._means(state, selected, results))
        lengths = after.shared["chain_lengths"]
        metrics = {
            "elite_return_mean": float(after.master["elite_mean"]),
            "chain_length_mean": float(lengths.mean()) if len(lengths) else 0.0,
            "chain_length_max": float(lengths.max(initial=0)),
            "sigma": self.genomes.sigma(state.generation),
            "skipped_update": float(selected.reason is not None),
        }
        if chosen := selected.order[: self._parents_wanted]:
            metrics["parents_return_mean"] = float(results.rows["return_"][chosen].mean())
        return after, metrics

    def _means(self, state: State, selected: Selected, results: Results[Selected]) -> Float64:
        """Return the mean fitness of each who was validated, without failed episodes; NaN where all have failed."""
        validated, episodes = self.validated(selected), self._validation_episodes
        if not episodes:
            return np.array([state.master["elite_mean"], *results.fitness[validated[1:]]])
        measured = results.probe_fitness.reshape(len(validated), episodes)
        finished = [each[~np.isnan(each)] for each in measured]
        return np.array([each.mean() if len(each) else np.nan for each in finished])

    def _following(self, state: State, order: Sequence[int], after: State, means: Float64) -> State:
        best = int(np.argmax(np.where(np.isnan(means), -np.inf, means)))  # the first of several
        elite, theta = state.master["elite_chain"], state.theta
        if best:
            child = order[best - 1]
            elite, theta = self.genomes.chain(state, child), self.genomes.vector(state, child)
        wanted = self._parents_wanted
        parents = [self.genomes.chain(state, child) for child in order[:wanted]]
        if wanted and not any(np.array_equal(elite, parent) for parent in parents):
            parents = [elite, *parents[: wanted - 1]]
        shared = {**after.shared, "theta": theta, **packed(parents)}
        return replace(after, shared=shared, master={"elite_chain": elite, "elite_mean": np.array(means[best])})

    @property
    def _parents_wanted(self) -> int:
        given = self.options.parents
        return max(1, self.options.population_size // 10) if given is None else given

    def notices(self, state: State, results: Results[Selected], after: State) -> Sequence[str]:
        """Return why there was no update."""
        return [results.prepared.reason] if results.prepared.reason else []

    def summary(self, state: State) -> Mapping[str, Any]:
        """Return how good the elite was when it was last validated, and how it came about."""
        mean = float(state.master["elite_mean"])
        return {
            "elite_return_mean": None if np.isnan(mean) else mean,
            "elite_mutations": len(state.master["elite_chain"]) - 1,
            "parents": len(state.shared["chains"]),
        }


def _centre_of(child: int) -> int:
    """Return the number of a centre: evaluations measure 0, which is the elite."""
    return child - ELITE


build = DeepGA
