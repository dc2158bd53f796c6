"""The states of generations of two searches that alternate, for `algorithm.side_by_side`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpc_es.algorithms.common.side_by_side import own_search
from hpc_es.core.data import State
from hpc_es.training.delay_line import DelayLine


@dataclass(frozen=True)
class AlternatingLine(DelayLine):
    """Two generations in flight that do not depend on each other.

    There are no earlier states to keep.
    """

    delay: int = 1
    lookahead: bool = False

    def start(self, state: State) -> State:
        """Return the state unchanged."""
        return state

    def drawn_around(self, state: State, generation: int) -> State:
        """Return the newest state, in which the search of this generation is up to date."""
        return replace(state, generation=generation)

    def measured(self, state: State, generation: int) -> State:
        """Return the search of the generation alone, with its mean as theta.

        Whether the other one has made its last update depends on the ranks.
        """
        return own_search(replace(state, generation=generation))

    def advance(self, before: State, after: State) -> State:
        """Return the state after an update unchanged."""
        return after
