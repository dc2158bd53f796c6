"""Restarts of a search that has ended: with larger populations (IPOP), or with small ones between them (BIPOP).

Auger & Hansen 2005 (CEC), Hansen 2009 (BBOB workshop). A search begins anew, at the problem's initial vector, which is
another one where that is random.


What CMA-ES and its relatives share: one search after the other by a normal distribution that ranks of samples move.

A search samples a generation, ranks it, and moves its distribution; when it has ended, the next begins or the run ends.
Its state is what the strategy has, and `population`, `age`, what `stopping` remembers, and the `Run`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt

from hpc_es.algorithms.common import stopping
from hpc_es.algorithms.common.ranking import default_population, nothing_to_learn
from hpc_es.algorithms.common.strategy import Strategy, first_deviations
from hpc_es.config.options import Natural, Positive, option, options
from hpc_es.config.warnings import unused
from hpc_es.core.data import Array, Arrays, Float64, Results, Rows, State
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Noise

Kind = Literal["none", "ipop", "bipop"]


@dataclass(frozen=True)
class Search:
    """One search.

    State, master:
        run_restart: int64[]; number of the search; 0: the first
        run_population: int64[]; samples of a generation
        run_large: bool[]; whether it is one of the searches whose population grows
        run_sigma_factor: float64[]; first step size of this search to that of the first one
        run_growths: int64[]; how often the population has grown so far
        run_limit: int64[]; most evaluations of this search; 0: any number
        run_evaluations: int64[]; evaluations of this search so far
        run_of_small: int64[]; evaluations of earlier searches with small populations, the first one among them
        run_of_large: int64[]; evaluations of earlier searches with large populations
        run_ended_by: int64[]; criteria that ended the search before, as `stopped` has them
    """

    restart: int  # 0: the first
    population: int
    large: bool = False
    sigma_factor: float = 1.0  # of the first sigma
    growths: int = 0  # how often the population has grown so far
    limit: int = 0  # evaluations; 0: no limit
    evaluations: int = 0  # so far
    of_small: int = 0  # evaluations of the searches before, the first one among them
    of_large: int = 0
    ended_by: int = 0  # the criteria that have ended the search before

    def arrays(self) -> dict[str, Array]:
        """Return it as a part of the state."""
        return {f"run_{name}": np.array(value) for name, value in vars(self).items()}

    @classmethod
    def of(cls, arrays: Arrays) -> Search:
        """Return the search that `arrays` gave."""
        return cls(**{name: arrays[f"run_{name}"].item() for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class RestartPlan:
    """What follows a search."""

    kind: Kind
    first_population: int
    factor: float  # of a population to the one before
    growths: int  # at most
    pair: int = 1  # of which populations are multiples

    def whole(self, population: float) -> int:
        """Return a population in whole pairs."""
        return -(-int(population) // self.pair) * self.pair


def following(plan: RestartPlan, keys: Keys, run: Search, ended_by: int) -> Search | None:
    """Return the search after one that has ended; None, where that was the last."""
    if plan.kind == "none":
        return None
    of_small = run.of_small + (0 if run.large else run.evaluations)
    of_large = run.of_large + (run.evaluations if run.large else 0)
    new = replace(run, restart=run.restart + 1, of_small=of_small, of_large=of_large, ended_by=ended_by, evaluations=0)
    grown = int(plan.first_population * plan.factor**run.growths)
    if plan.kind == "bipop" and of_small < of_large:
        rng = keys.generator(Purpose.RESTARTS, run.restart + 1)
        ratio = max(1.0, grown / (plan.factor * plan.first_population))
        population = plan.whole(plan.first_population * ratio ** (rng.random() ** 2))
        limit = (run.evaluations if run.large else 2 * run.limit) // 2
        step = float(10 ** (-2 * rng.random()))
        return replace(new, population=population, large=False, sigma_factor=step, limit=limit)
    if run.growths >= plan.growths:
        return None
    larger = plan.whole(plan.first_population * plan.factor ** (run.growths + 1))
    return replace(new, population=larger, large=True, sigma_factor=1.0, growths=run.growths + 1, limit=0)


PopulationSize = Annotated[int, Ge(2)]


@options
class Options:
    """The options that all of them have."""

    kind: str = option("name of the algorithm")
    population_size: PopulationSize | None = option("jobs of a generation; null: 4 + 3 ln(parameters)", None)
    sigma: Positive | None = option(
        "standard deviation to begin with; null: 0.3 of the range between the bounds, or 0.3; of a policy 0.1", None
    )
    restarts: Kind = option(
        "what follows when a search has ended: nothing; ipop: one with a larger population; bipop: small ones and "
        "short steps too, for as many evaluations",
        "none",
    )
    max_restarts: Natural = option("how often the population grows", 9)
    population_factor: Annotated[float, Gt(1)] = option("how much larger it is then", 2.0)
    stops: stopping.Options = option("when a search has ended", default_factory=stopping.Options)

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Options of restarts without restarts: (key, text)."""
        if self.restarts == "none":
            yield from unused(self, ("max_restarts", "population_factor"), "restarts is none")


@dataclass(frozen=True)
class Ranked:
    """What a generation's fitness says of its samples."""

    fitness: Float64
    reason: str | None  # why nothing can be learned from them
    weights: Any = None  # what the strategy makes of the fitness, where something can


@dataclass(frozen=True)
class DistributionStrategy(Strategy, ABC):
    """A strategy writes `initial_distribution`, `candidates`, `weights`, `partial_update`, `update` and `view`.

    Its options are those above, and what is its own.

    State, shared:
        theta: dtype[params]; m, the mean of the samples
        population: int64[]; samples of a generation of this search
    State, master:
        age: int64[]; generations of this search
        those of `hpc_es.algorithms.common.stopping.nothing`
        those of `hpc_es.algorithms.common.distribution.Search`
    """

    problem: VectorProblem
    noise: Noise

    # What a strategy writes.

    @abstractmethod
    def initial_distribution(self, step: float, ratios: Float64) -> tuple[Arrays, Arrays]:
        """Return the arrays (shared, master) of a search that begins with the deviations step * ratios."""

    def needed(self, population: int) -> int:
        """Return how many evaluations must not have failed, for an update."""
        return population // 2

    @abstractmethod
    def weights(self, state: State, rows: Rows, fitness: Float64) -> Any:
        """Return what `partial_update` and `update` need of the rows and of the fitness, float64[samples]."""

    @abstractmethod
    def update(self, state: State, weights: Any, blocks: Sequence[Arrays]) -> tuple[Arrays, Arrays]:
        """Return the arrays (shared, master) of the strategy after an update."""

    @abstractmethod
    def view(self, state: State) -> stopping.View:
        """Return what the criteria look at."""

    def metrics(self, state: State) -> Mapping[str, float]:
        """Return metrics of the distribution."""
        return {"sigma": float(state.shared["sigma"])}

    # What they share.

    @property
    def first_population(self) -> int:
        """Samples of a generation of the first search."""
        default = default_population(self.problem.size)
        return self.options.population_size or -(-default // self.pairs.size) * self.pairs.size

    def population(self, state: State) -> int:
        """Return the samples of a generation of this search."""
        return int(state.shared["population"])

    def first_sigma(self, state: State) -> float:
        """Return the step size with which this search has begun."""
        return first_deviations(self.options.sigma, self.problem)[0] * float(state.master["run_sigma_factor"])

    @cached_property
    def _first_ratios(self) -> Float64 | float:
        """The shares of the first step size that the coordinates have, or 1 where all are equal."""
        _, ratios = first_deviations(self.options.sigma, self.problem)
        return 1.0 if (ratios == 1).all() else ratios

    def initial(self) -> State:
        """Return the begin of the first search."""
        return self._begin(0, Search(0, self.first_population))

    def _begin(self, generation: int, run: Search) -> State:
        step, ratios = first_deviations(self.options.sigma, self.problem)
        shared, master = self.initial_distribution(step * run.sigma_factor, ratios)
        shared = {"theta": self.first_theta(run.restart), **shared, "population": np.array(run.population)}
        ours = {"age": np.array(0), **stopping.nothing(len(ratios)), **run.arrays()}
        return State(generation, shared, {**master, **ours})

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Ranked:
        """Return what the fitness says."""
        reason = nothing_to_learn(fitness, self.needed(self.population(state)))
        return Ranked(fitness, reason, None if reason else self.weights(state, rows, fitness))

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
        """Move the distribution; begin the next search where this one has ended."""
        ranked: Ranked = results.prepared
        shared, master = state.shared, state.master
        if ranked.reason is None:
            new = self.update(state, ranked.weights, results.blocks)
            shared, master = {**shared, **new[0]}, {**master, **new[1]}
        after, run = self._counted(State(state.generation + 1, shared, master), ranked.fitness)
        metrics = {
            **self.metrics(after),
            "population_size": float(self.population(after)),
            "restarts": float(after.master["run_restart"]),
            "skipped_update": float(ranked.reason is not None),
        }
        return (after if run is None else self._begin(after.generation, run)), metrics

    def _counted(self, after: State, fitness: Float64) -> tuple[State, Search | None]:
        """Return the state with a generation counted, and the search to begin where this one has ended.

        A short search of BIPOP ends when it has used its evaluations, too.
        """
        master = after.master
        age, population, limit = int(master["age"]) + 1, self.population(after), int(master["run_limit"])
        evaluations = int(master["run_evaluations"]) + population
        more: Any = {"ratios": self._first_ratios, "is_objective": self.problem.is_objective}
        view = replace(self.view(after), **more, age=age, population=population)
        seen = stopping.updated(self.options.stops, view, fitness, master)
        stopped = int(seen["stopped"])
        if limit and evaluations >= limit:
            stopped |= stopping.bit("run_limit")
        ours = {"age": np.array(age), **seen, "run_evaluations": np.array(evaluations), "stopped": np.array(stopped)}
        state = State(after.generation, after.shared, {**master, **ours})
        if not stopped:
            return state, None
        given, run = self.options, Search.of(state.master)
        growing = (given.population_factor, given.max_restarts, self.pairs.size)
        plan = RestartPlan(given.restarts, self.first_population, *growing)
        return state, following(plan, self.keys, run, stopped)

    def notices(self, state: State, results: Results, after: State) -> Sequence[str]:
        """Return why there was no update, and that a search has begun."""
        run, reason = Search.of(after.master), results.prepared.reason
        told = [reason] if reason else []
        if run.restart != int(state.master["run_restart"]):
            ended = stopping.names(run.ended_by)
            told.append(f"restart {run.restart} with a population of {run.population}, after {ended}")
        return told

    def finished(self, state: State) -> str | None:
        """Return by which criteria the last search has ended."""
        return stopping.names(int(state.master["stopped"])) or None
