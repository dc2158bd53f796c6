"""What the strategies share that weigh directions: pairs of jobs are kept or dropped whole, and blocks are summed.

The jobs of a pair go along one direction eps and against it. What a strategy learns is sum_i w_i eps_i, and of some
sum_i v_i eps_i^2 too, each cut into blocks of parameters that one rank sums over all pairs in their order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from hpc_es.algorithms.parts.pairs import Pairs
from hpc_es.algorithms.parts.strategy import Strategy
from hpc_es.core.data import Array, Arrays, Float64, Results, Rows, State
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.population import Noise


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

    def contribute(self, state: State, prepared: Weights, block: int) -> Arrays:
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
