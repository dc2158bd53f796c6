"""Custom kinds for `same_bits` with options that have the names of built-in ones.

Each has the same option under a name of its own, with which the older version runs: what an option
is called must not change a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpc_es.extend import (
    Array,
    Arrays,
    Chunk,
    Float64,
    Layout,
    Needs,
    Offers,
    Outcome,
    Population,
    Results,
    Rows,
    State,
    VectorProblemDefaults,
    VectorTask,
    cut,
    option,
    options,
    row_dtype,
)

try:
    from hpc_es.extend import BaseStrategy
except ImportError:  # its name in older versions
    from hpc_es.extend import Strategy as BaseStrategy

TARGET = (1.0, 2.0, 3.0)


class Market(VectorProblemDefaults):
    """Minus the squared distance to TARGET, if the market closes at this price."""

    layout = Layout({"x": (3,)})
    dtype = np.dtype(np.float64)
    cutting = "free"

    def __init__(self, price: float) -> None:
        self._price = price

    def initial(self, rng: np.random.Generator) -> Float64:
        """Return zeros, float64[3]."""
        return np.zeros(3)

    def evaluate(self, population: Population, jobs: Any, carried: Any, poll: Any) -> Outcome:
        """Return one row per candidate."""
        rows = np.zeros(len(jobs), row_dtype())
        distances = np.square(population.stacked() - np.array(TARGET)).sum(axis=1)
        rows["return_"] = -self._price * distances
        rows["length"] = 1
        return Outcome(rows, {}, {"environment": 0.0})


class MarketTask:
    """A task with the option `close_at`, a price; tasks that close generations had one, too."""

    OFFERS = Offers(problems=("vectors",), any_chunks=True)

    @options
    class Options:
        """`task:` with `kind: "same_bits_kinds:MarketTask"`."""

        kind: str = option("this class", "same_bits_kinds:MarketTask")
        close_at: float | None = option("price at which the market closes", None)
        price: float = option("the same, unless close_at is given", 1.0)

    @staticmethod
    def build(options: Any, repetition: int = 0) -> VectorTask:
        """Return the task at its price."""
        price = options.price if options.close_at is None else options.close_at
        return VectorTask("market", lambda keys: Market(price))


class Climber(BaseStrategy[Array]):
    """The centre moves to the mean of the better half of eight candidates.

    State, shared:
        theta: dtype[params]; the centre
    """

    NEEDS = Needs(searches="vectors", noise=True)

    @options
    class Options:
        """`algorithm:` with `kind: "same_bits_kinds:Climber"`."""

        kind: str = option("this class", "same_bits_kinds:Climber")
        updates: str = option("a word of the user's, as actor_critic has one", "")
        side_by_side: bool = option("as restarts of cma_es have one", False)
        half: bool = option("move by half a step only", False)

    def initial(self) -> State:
        """Return the initial centre."""
        return State(0, {"theta": self.first_theta()}, {})

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return eight jobs in the first round, and no others."""
        return [] if round else cut(8, self.chunk_size)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return theta + 0.5 eps for the jobs of a chunk."""
        return self.perturbed(state, chunk, 0.5)

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Array:
        """Return weights, float64[1, jobs]: those of the better half are equal."""
        return ((fitness >= np.median(fitness)) / 4)[np.newaxis].astype(np.float64)

    def partial_update(self, state: State, prepared: Array, block: int) -> Arrays:
        """Return the weighted sum of the directions in one block of parameters."""
        return {"step": self.weighted_sums(state, prepared, (1,), block)[0]}

    def tell(self, state: State, results: Results[Array]) -> tuple[State, Mapping[str, float]]:
        """Return the moved centre."""
        step = np.concatenate([block["step"] for block in results.blocks])
        length = 0.25 if self.options.half or self.options.side_by_side else 0.5
        theta = (state.theta + length * step).astype(state.theta.dtype)
        return State(state.generation + 1, {"theta": theta}, {}), {}
