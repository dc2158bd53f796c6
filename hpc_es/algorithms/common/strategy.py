"""Rounds of jobs, of which a generation has as many as it takes to a number of timesteps.

How wide the first samples of a normal distribution spread.

What algorithms share: the methods of `interfaces.Algorithm` that most do not need to write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Self

from hpc_es.algorithms.common.antithetic import ALONE, Pairs
from hpc_es.core.data import Array, Arrays, Chunk, Float64, Jobs, Outcome, Poll, ProblemState, Results, Rows, State, cut
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Directions, Noise, Perturbed, Population, unperturbed


def round_of_jobs(
    round: int, rows: Rows, population: int, least_timesteps: int, most_jobs: int | None = None, *, chunk_size: int
) -> Sequence[Chunk]:
    """Return the chunks of a round of `population` jobs; none where the rows so far have enough timesteps.

    No round goes beyond `most_jobs` of a generation. Episodes that all end before a step would never give enough: they
    end the generation too.
    """
    timesteps, first = int(rows["length"].sum()), round * population
    if round and (timesteps >= least_timesteps or timesteps == 0):
        return []
    return cut(population if most_jobs is None else min(population, most_jobs - first), chunk_size, first)


def first_deviations(sigma: float | None, problem: VectorProblem) -> tuple[float, Float64]:
    """Return a step size and each coordinate's share of it, float64[size]: a config's sigma, or the problem's spread.

    The shares are 1 where all coordinates have one deviation; their geometric mean is 1 where they do not.
    """
    if sigma is not None:
        return sigma, np.ones(problem.size)
    spread: Array = problem.spread.astype(np.float64)
    if (spread == spread[0]).all():
        return float(spread[0]), np.ones(problem.size)
    step = float(np.exp(np.log(spread).mean()))
    return step, spread / step


@dataclass(frozen=True)
class Strategy:
    """Base class of algorithms, with defaults of most methods; all are pure functions of their arguments.

    A strategy on vectors writes `initial`, `candidates`, `prepare`, `partial_update` and `tell`. It overrides `pairs`
    if jobs share directions, and `ask` if a generation is not one round of `population` jobs. A search for programs
    writes `evaluate` instead of `candidates`.
    """

    options: Any
    problem: Any
    noise: Any  # None where NEEDS.noise is false
    keys: Keys
    chunk_size: int

    @classmethod
    def build(cls, options: Any, problem: Any, noise: Any, keys: Keys, chunk_size: int) -> Self:
        """Return the strategy, so that a class with `Options` and `NEEDS` is a kind of algorithm."""
        return cls(options, problem, noise, keys, chunk_size)

    def population(self, state: State) -> int:
        """Return the number of jobs of a generation, `options.population_size` by default."""
        population: int = self.options.population_size
        return population

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return one round of `population` jobs."""
        return [] if round else cut(self.population(state), self.chunk_size)

    def first_theta(self, restart: int = 0) -> Array:
        """Return the initial vector of the problem, dtype[size], the same on every rank; `restart` selects another."""
        theta: Array = self.problem.initial(self.keys.generator(Purpose.INITIAL_PARAMETERS, restart))
        return theta

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return the candidates of a chunk of training jobs."""
        raise AssertionError(f"{type(self).__name__} has neither `candidates` nor an `evaluate` of its own")

    def centre(self, state: State, parent: int) -> Array:
        """Return the vector that evaluations and probes measure, [size]; `parent` is its index if there are several."""
        return state.theta

    @property
    def pairs(self) -> Pairs:
        """Which jobs share a direction, and so their seeds: none, unless a strategy says so."""
        return ALONE

    def perturbed(
        self, state: State, chunk: Chunk, scale: float, ratios: Array | None = None, centre: Array | None = None
    ) -> Perturbed:
        """Return centre +- scale * ratios * eps of a chunk; ratios are [size] or 1, the centre is theta by default."""
        jobs, theta = chunk.job_numbers, state.theta if centre is None else centre
        directions = Directions(self.noise, state.generation, self.pairs.among(jobs), ratios)
        return self.pairs.along(self.problem.layout, theta, directions, jobs, scale)

    def group(self, job: int) -> int:
        """Return the group of a training job: jobs of one group share their seeds, such as both halves of a pair."""
        return self.pairs.of(job)

    def jobs(self, state: State, chunk: Chunk) -> Jobs:
        """Return the jobs of a chunk."""
        numbers = chunk.job_numbers
        groups = [self.group(job) for job in numbers] if chunk.purpose == "train" else list(numbers)
        return Jobs(state.generation, numbers, groups, chunk.purpose, chunk.parent, chunk.offset)

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate the strategy's candidates, or the centre without noise."""
        if chunk.purpose == "train":
            candidates = self.candidates(state, chunk)
        else:
            candidates = unperturbed(self.problem.layout, self.centre(state, chunk.parent), chunk.jobs)
        return self.evaluated(state, chunk, candidates, poll)

    def evaluated(self, state: State, chunk: Chunk, candidates: Population, poll: Poll) -> Outcome:
        """Return the problem's outcome of a chunk with these candidates."""
        carried = self._carried.extract_from(state)
        outcome: Outcome = self.problem.evaluate(candidates, self.jobs(state, chunk), carried, poll)
        return outcome

    @cached_property
    def _carried(self) -> ProblemState:
        """The names of what the problem carries; a cheap evaluation should not make its arrays anew."""
        found: ProblemState = self.problem.carried()
        return found

    def with_probes(self, state: State, probes: Rows, fitness: Float64) -> State:
        """Return the state as it is: what probes show is for the update."""
        return state

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Any:
        """Return nothing: the update needs no blocks."""
        return None

    def blocks(self, state: State) -> int:
        """Return the number of blocks of the noise; 0 without noise."""
        return 0 if self.noise is None else len(self.noise.edges)

    def weighted_sums(self, state: State, weights: Array, powers: tuple[int, ...], block: int) -> Array:
        """Return sum_i weights[k, i] * eps_i ** powers[k] of one block, [k, block]."""
        sums: Array = self.noise.weighted_sums(state.generation, weights, powers, block, self.problem.dtype)
        return sums

    def partial_update(self, state: State, prepared: Any, block: int) -> Arrays:
        """Return a block of the update."""
        raise AssertionError(f"{type(self).__name__} has blocks but no `partial_update`")

    def discoveries(self, state: State, results: Results) -> Sequence[Mapping[str, Any]]:
        """Return nothing: only searches for programs have something to keep besides the state."""
        return ()

    def finished(self, state: State) -> str | None:
        """Return None: there is always something left to search for."""
        return None

    def notices(self, state: State, results: Results, after: State) -> Sequence[str]:
        """Return nothing to tell."""
        return ()

    def summary(self, state: State) -> Mapping[str, Any]:
        """Return nothing besides theta."""
        return {}


@dataclass(frozen=True)
class Weights:
    """What a generation's fitness says of its directions."""

    values: Array  # [powers, pairs], in the problem's dtype; failed pairs are dropped whole and weigh 0
    reason: str | None = None  # why nothing can be learned from them
    deviation: float = 0.0  # of the fitness, where it is divided by it
    count: int = 0  # jobs that they come from


@dataclass(frozen=True)
class PairedStrategy(Strategy, ABC):
    """Base class of strategies that sum weighted directions, such as ES.

    A strategy writes `initial`, `candidates`, `weights` and `tell`, and `pairs` if its pairs are not mirrored.
    """

    problem: VectorProblem
    noise: Noise

    powers: ClassVar[tuple[int, ...]] = (1,)  # of the directions: each is summed with weights of its own
    called: ClassVar[str] = "pair"  # what a user is told of

    @property
    def pairs(self) -> Pairs:
        """Which jobs share a direction: two in a row."""
        return Pairs(mirrored=True)

    def whole(self, fitness: Float64) -> Array:
        """Return bool[pairs], the pairs of which no job has failed."""
        return self.pairs.whole(fitness)

    @abstractmethod
    def weights(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        """Return the weights of the pairs without failures; there is at least one.

        Both arguments are [pairs, jobs of a pair], the fitness float64.
        """

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        """Return the weights of all pairs."""
        kept = self.whole(fitness)
        values = np.zeros((len(self.powers), len(kept)), self.problem.dtype)
        if not kept.any():
            return Weights(values, f"every {self.called} has a failed evaluation: no update")
        found = self.weights(state, self.pairs.in_pairs(rows)[kept], self.pairs.in_pairs(fitness)[kept])
        values[:, kept] = found.values
        return replace(found, values=values, count=int(kept.sum()) * self.pairs.size)

    def partial_update(self, state: State, prepared: Weights, block: int) -> Arrays:
        """Return the weighted sums of one block of parameters, over all pairs in their order."""
        return {} if prepared.reason else {"sums": self.weighted_sums(state, prepared.values, self.powers, block)}

    def summed(self, results: Results) -> Array:
        """Return the sums of all blocks, [powers, size]; 0 where nothing was learned."""
        if results.prepared.reason:
            return np.zeros((len(self.powers), self.problem.size), self.problem.dtype)
        return np.concatenate([block["sums"] for block in results.blocks], axis=1)

    def notices(self, state: State, results: Results, after: State) -> Sequence[str]:
        """Return why there was no update."""
        reason = results.prepared.reason
        return [reason] if reason else []
