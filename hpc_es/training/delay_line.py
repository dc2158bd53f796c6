"""Delayed updates: a generation is drawn around a state that lacks the last `delay` updates.

S_t is the state after t updates, S_k is S_0 for k < 0, and d is the delay:

    a(t)     = max(t - d, 0)
    B_t      : the shared arrays of S_a(t), with the number t for its random numbers
    theta    of B_t is theta_a(t) + d (theta_a(t) - theta_(a(t)-1)) with `lookahead`, else
             theta_a(t)
    S_(t+1)  = update of S_t by the results of generation t at B_t

Until these updates are known, ranks can evaluate the next generations: see `delayed.py`.
Everything follows from the config and the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpc_es.algorithms.common.delay import OverlapOptions
from hpc_es.core.data import Arrays, State

EARLIER = "delayed/"  # prefix of the arrays of earlier states: delayed/I/NAME, I updates ago


@dataclass(frozen=True)
class DelayLine:
    """The states that generations are drawn around; its methods are pure functions.

    State, master:
        delayed/I/NAME: dtype[...]; the shared array NAME, I updates ago, for I from 1 to delay + 1
    """

    delay: int
    lookahead: bool

    @staticmethod
    def of(algorithm: object) -> DelayLine | None:
        """Return the line of the options of an algorithm, None without a delay."""
        if isinstance(algorithm, OverlapOptions) and algorithm.delay:
            return DelayLine(algorithm.delay, algorithm.looks_ahead())
        return None

    def start(self, state: State) -> State:
        """Return the first state of a run with its earlier states, which equal it."""
        return _with_earlier(state, [state.shared] * (self.delay + 1))

    def drawn_around(self, state: State, generation: int) -> State:
        """Return B_t of a generation from the newest state, which lacks at most `delay` updates."""
        known = max(generation - self.delay, 0)
        shared = dict(_earlier(state, state.generation - known))
        if self.lookahead and known:
            theta, before = shared["theta"], _earlier(state, state.generation - known + 1)["theta"]
            shared["theta"] = theta + theta.dtype.type(self.delay) * (theta - before)
        return State(generation, shared, without_earlier(state).master)

    def measured(self, state: State, generation: int) -> State:
        """Return the state that the evaluation of a generation measures: B_t without lookahead."""
        return replace(self, lookahead=False).drawn_around(state, generation)

    def advance(self, before: State, after: State) -> State:
        """Return the state after an update of `before`, with the earlier ones."""
        return _with_earlier(
            after, [_earlier(before, updates) for updates in range(self.delay + 1)]
        )


def without_earlier(state: State) -> State:
    """Return a state without the arrays of earlier states."""
    return replace(
        state, master={name: a for name, a in state.master.items() if not name.startswith(EARLIER)}
    )


def _earlier(state: State, updates: int) -> Arrays:
    """Return the shared arrays of a state, this number of updates ago."""
    if not updates:
        return state.shared
    prefix = f"{EARLIER}{updates}/"
    return {
        name.removeprefix(prefix): array
        for name, array in state.master.items()
        if name.startswith(prefix)
    }


def _with_earlier(state: State, earlier: Sequence[Arrays]) -> State:
    arrays = {
        f"{EARLIER}{i}/{name}": array
        for i, shared in enumerate(earlier, 1)
        for name, array in shared.items()
    }
    return replace(state, master={**without_earlier(state).master, **arrays})
