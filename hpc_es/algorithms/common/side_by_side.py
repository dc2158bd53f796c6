"""BIPOP's large and small searches side by side, for `algorithm.side_by_side`.

Generations alternate: even ones belong to the search whose population grows, odd ones to the
searches with small populations and small initial standard deviations. A generation needs the
results of its own search only, so ranks begin it while the longest evaluations of the other one are
still running (`training/delayed.py`). Everything follows from the config and the seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpc_es.algorithms.common import stopping
from hpc_es.algorithms.common.distribution import (
    DistributionStrategy,
    Ranked,
    RestartPolicy,
    Search,
)
from hpc_es.algorithms.common.strategy import BaseStrategy, Pairs
from hpc_es.core.data import Array, Arrays, Chunk, Float64, Outcome, Poll, Results, Rows, State
from hpc_es.core.interfaces import AnyAlgorithm
from hpc_es.core.keys import Purpose
from hpc_es.core.population import Population

if TYPE_CHECKING:
    from typing_extensions import Self

SMALL = "small/"  # prefix of the arrays of the small search
# number of the first small search, whose random numbers differ from those of large ones
FIRST_SMALL = 1 << 20


def side_by_side(algorithm: AnyAlgorithm) -> AnyAlgorithm:
    """Return the algorithm, with its searches side by side if its options say so."""
    if isinstance(algorithm, DistributionStrategy) and algorithm.options.side_by_side:
        return SideBySide.of(algorithm)
    return algorithm


def own_search(state: State) -> State:
    """Return a state with the mean of the generation's search as theta.

    It has no arrays of the other search, since `shared` is stored with the best theta.
    """
    shared = state.shared
    if state.generation % 2:
        kept = {
            name: shared[name]
            for name in shared
            if name.startswith(SMALL) or SMALL + name not in shared
        }
    else:
        kept = {name: shared[name] for name in shared if not name.startswith(SMALL)}
    return State(state.generation, {**kept, "theta": own_state(state).theta}, state.master)


def own_state(state: State) -> State:
    """Return the arrays of the search to which a generation belongs."""
    return state.scope(SMALL) if state.generation % 2 else state


@dataclass(frozen=True)
class SideBySide(BaseStrategy[Ranked]):
    """Two searches in turn. The arrays of the small one have the prefix `small/`."""

    large: DistributionStrategy  # with IPOP restarts
    small: DistributionStrategy  # one search

    @classmethod
    def of(cls, search: DistributionStrategy) -> Self:
        """Return the two searches of a strategy with BIPOP restarts."""
        searches = (
            replace(search, options=replace(search.options, restarts=how))
            for how in ("ipop", "none")
        )
        return cls(
            search.options, search.problem, search.noise, search.keys, search.chunk_size, *searches
        )

    def _search(self, state: State) -> DistributionStrategy:
        return self.small if state.generation % 2 else self.large

    @property
    def pairs(self) -> Pairs:
        return self.large.pairs

    def population(self, state: State) -> int:
        """Return the population size of the generation's search."""
        return self._search(state).population(own_state(state))

    def initial(self) -> State:
        """Return the initial state of the first large and the first small search."""
        large = self.large.initial()
        small = self._small_state(1, 0, Search.from_arrays(large.master))
        return large.with_scope(SMALL, small)

    def _small_state(self, generation: int, number: int, large: Search, ended_by: int = 0) -> State:
        """Return the initial state of a small search, whose settings depend on the large one."""
        options = self.options
        rng = self.keys.generator(Purpose.RESTARTS, FIRST_SMALL + number)
        growth = options.population_factor, options.max_restarts
        policy = RestartPolicy("bipop", self.large.first_population, *growth, self.pairs.size)
        population, sigma_factor = policy.small(rng, large.growths)
        limit = (large.of_small + large.of_large) // 2
        search = Search(
            FIRST_SMALL + number,
            population,
            False,
            sigma_factor,
            large.growths,
            limit,
            ended_by=ended_by,
        )
        return self.small.begin(generation, search)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return the candidates of the generation's search."""
        return self._search(state).candidates(own_state(state), chunk)

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate a chunk of the generation's search."""
        own = own_state(state)
        own = State(own.generation, {**state.shared, **own.shared}, {**state.master, **own.master})
        return self._search(state).evaluate(own, chunk, poll)

    def centre(self, state: State, parent: int) -> Array:
        """Return the mean of the generation's search."""
        return own_state(state).theta

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Ranked:
        """Rank the samples of the generation's search."""
        return self._search(state).prepare(own_state(state), rows, fitness)

    def blocks(self, state: State) -> int:
        """Return the number of blocks of the generation's search."""
        return self._search(state).blocks(own_state(state))

    def block_costs(self, state: State, prepared: Ranked) -> Sequence[float]:
        """Return the costs of the blocks of the generation's search."""
        return self._search(state).block_costs(own_state(state), prepared)

    def partial_update(self, state: State, prepared: Ranked, block: int) -> Arrays:
        """Compute one block of the update of the generation's search."""
        return self._search(state).partial_update(own_state(state), prepared, block)

    def tell(self, state: State, results: Results[Ranked]) -> tuple[State, Mapping[str, float]]:
        """Update the generation's search; the other one stays as it is."""
        after, metrics = self._search(state).tell(own_state(state), results)
        prefix = ""
        if state.generation % 2:
            prefix, stopped, search = (
                SMALL,
                int(after.master["stopped"]),
                Search.from_arrays(after.master),
            )
            if stopped:
                number = search.restart - FIRST_SMALL + 1
                after = self._small_state(
                    after.generation, number, Search.from_arrays(state.master), stopped
                )
            metrics = {**metrics, "restarts": float(search.restart - FIRST_SMALL)}
        merged = replace(state, generation=after.generation).with_scope(prefix, after)
        return merged, {**metrics, "small_search": float(state.generation % 2)}

    def notices(self, state: State, results: Results[Ranked], after: State) -> Sequence[str]:
        """Return why there was no update, and that another search has begun."""
        following = own_state(replace(after, generation=state.generation))
        if not state.generation % 2:
            return self.large.notices(state, results, following)
        search, reason = Search.from_arrays(following.master), results.prepared.reason
        lines = [reason] if reason else []
        if search.restart != int(own_state(state).master["run_restart"]):
            number, ended_by = search.restart - FIRST_SMALL, stopping.names(search.ended_by)
            lines.append(
                f"small search {number} with a population of {search.population}, after {ended_by}"
            )
        return lines

    def finished(self, state: State) -> str | None:
        """Return the criteria that ended the last large search."""
        return self.large.finished(state)
