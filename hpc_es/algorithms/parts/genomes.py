"""Children as mutations of parents, theta' = theta + sigma z, with z of the noise's (generation, child); no crossover.

The parents' chains are in the state. Without parents each child begins anew, with an initial vector of its own; where
all genomes begin with the same vector, it is a mutation of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpc_es.algorithms.parts.chains import Chain, Rebuilder, chain, longer, unpacked
from hpc_es.algorithms.parts.samples import first_deviations
from hpc_es.core.data import Array, State
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Noise

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
