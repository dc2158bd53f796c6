"""Base classes of problems, with defaults for the methods that most problems do not need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpc_es.core.data import Array, Arrays, Column, Float64, FloatDtype, JsonObject, ProblemState, Results, Rows, State
from hpc_es.core.interfaces import Cutting, Evaluation, RunContext, VectorProblem
from hpc_es.core.keys import Keys
from hpc_es.core.population import Layout

SPREAD = 0.3  # initial standard deviation of a coordinate, where a problem has no bounds


class ProblemDefaults:
    """A problem without a state, with the chunks and evaluations of the config. See `core.interfaces.Problem`."""

    columns: tuple[Column, ...] = ()
    is_objective = False
    episodes_per_job = 1
    chunk_size: int | None = None
    cutting: Cutting = "fixed"
    evaluation_episodes: int | None = None
    notices: tuple[str, ...] = ()
    coordinate_names: tuple[str, ...] = ()

    def carried(self) -> ProblemState:
        """Return an empty state."""
        return ProblemState()

    def merge(self, carried: ProblemState, units: Sequence[Arrays]) -> ProblemState:
        """Return the unchanged state."""
        return carried

    def unit(self, parts: Sequence[Arrays]) -> Arrays:
        """Return the only part: every chunk is a complete unit."""
        (part,) = parts
        return part

    def fitness(self, rows: Rows, carried: ProblemState) -> Float64:
        """Return the returns of the rows, float64[jobs]."""
        returns: Float64 = rows["return_"]
        return returns

    def metrics(self, carried: ProblemState) -> Mapping[str, float]:
        """Return no metrics."""
        return {}

    def evaluation_units(self, state: State, evaluation: Rows) -> Sequence[Arrays]:
        """Return no units."""
        return ()

    def is_reached(self, carried: ProblemState, target: float) -> bool:
        """Return False: the jobs have no values."""
        return False

    def summary(self, carried: ProblemState) -> JsonObject:
        """Return an empty summary."""
        return {}

    def open(self, run: RunContext) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Do nothing."""

    def environment_info(self) -> JsonObject:
        """Return nothing: results depend on the config and the versions only."""
        return {}

    def on_checkpoint(self, generation: int) -> None:
        """Do nothing."""

    def evaluations(self, state: State, results: Results[object], evaluation: Rows) -> Iterator[Evaluation]:
        """Yield nothing."""
        return iter(())


class VectorProblemDefaults(ProblemDefaults):
    """Base class of vector problems: a subclass defines `layout`, `initial` and `evaluate`.

    Vectors are float64; the initial standard deviation is 0.3 for strategies whose config has no sigma.
    """

    layout: Layout
    dtype: FloatDtype = np.dtype(np.float64)

    @cached_property
    def size(self) -> int:
        """Number of coordinates."""
        return self.layout.size

    @cached_property
    def spread(self) -> Array:
        """Initial standard deviations, dtype[size], for strategies whose config has no sigma."""
        return np.full(self.size, SPREAD, self.dtype)


@dataclass(frozen=True)
class VectorTask:
    """A task without a policy, whose problem is created from the keys of a repetition."""

    name: str  # name in messages and plots
    make: Callable[[Keys], VectorProblem]  # creates the problem from the keys of a repetition
    spaces: None = None

    def problem(self, searched: str, policy: None, keys: Keys, unit: int) -> VectorProblem:
        """Return the result of `make`."""
        return self.make(keys)

    def close(self) -> None:
        """Do nothing."""


def ranks_returns(problem: object) -> bool:
    """Return whether the fitness of a problem is the default, its return."""
    return getattr(type(problem), "fitness", None) is ProblemDefaults.fitness
