"""Deep GA: a genetic algorithm with truncation selection and mutation alone (Such et al. 2017, arXiv:1712.06567).

A generation has N children. Each is a mutation, theta' = theta + sigma z, of one of T parents, drawn uniformly; without
parents (generation 0, or T = 0, which is random search) it begins anew, with an initial vector of its own. The best
children of a generation and the elite of the one before are validated by further episodes without noise; the one with
the best mean is the next elite. The next parents are the T best children, with the elite among them.

A genome is the chain of the keys of its mutations: a few bytes tell any rank of a vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Interval

from hpc_es.algorithms.parts.chains import chain, packed
from hpc_es.algorithms.parts.genomes import Genomes
from hpc_es.algorithms.parts.recombination import nothing_to_learn, ranking
from hpc_es.algorithms.parts.strategy import Strategy
from hpc_es.config.options import Count, Natural, Positive, option, options
from hpc_es.config.warnings import unused
from hpc_es.core.data import Array, Chunk, Float64, Jobs, Results, Rows, State, cut
from hpc_es.core.interfaces import Needs, VectorProblem
from hpc_es.core.population import Explicit, Noise, Population

NEEDS = Needs(searches="vectors", noise=True, growing=True, presets={"noise.kind": "counter"})

ELITE = -1  # among the numbers of children
VALIDATION_EPISODES = 30


@options
class Options:
    """`algorithm:` with `kind: deep_ga`."""

    kind: Literal["deep_ga"] = option("the algorithm's module in hpc_es/algorithms", "deep_ga")
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
class DeepGA(Strategy):
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

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
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

    def _means(self, state: State, selected: Selected, results: Results) -> Float64:
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

    def notices(self, state: State, results: Results, after: State) -> Sequence[str]:
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
