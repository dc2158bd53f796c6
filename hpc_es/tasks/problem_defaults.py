"""Base classes of problems: defaults of what most problems do not need, since they learn nothing themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Arrays, Column, Float64, ProblemState, Results, Rows, State
from hpc_es.core.interfaces import Cutting, Evaluation, RunContext
from hpc_es.core.keys import Keys
from hpc_es.core.population import Layout

SPREAD = 0.3  # initial standard deviation of a coordinate, where a problem has no bounds


class ProblemDefaults:
    """A problem that learns nothing, with the chunks and evaluations of the config."""

    columns: tuple[Column, ...] = ()
    is_objective = False
    episodes_per_job = 1
    chunk_size: int | None = None
    cutting: Cutting = "fixed"
    evaluation_episodes: int | None = None
    notices: tuple[str, ...] = ()
    coordinate_names: tuple[str, ...] = ()

    def carried(self) -> ProblemState:
        """Return nothing."""
        return ProblemState()

    def merge(self, carried: ProblemState, units: Sequence[Arrays]) -> ProblemState:
        """Return nothing."""
        return carried

    def unit(self, parts: Sequence[Arrays]) -> Arrays:
        """Return the only part: chunks are whole units."""
        (whole,) = parts
        return whole

    def fitness(self, rows: Rows, carried: ProblemState) -> Float64:
        """Return the returns."""
        returns: Float64 = rows["return_"]
        return returns

    def metrics(self, carried: ProblemState) -> Mapping[str, float]:
        """Return nothing."""
        return {}

    def evaluation_units(self, state: State, evaluation: Rows) -> Sequence[Arrays]:
        """Return nothing: an evaluation of the centre teaches nothing."""
        return ()

    def is_reached(self, carried: ProblemState, target: float) -> bool:
        """Return False: there are no values."""
        return False

    def summary(self, carried: ProblemState) -> Mapping[str, Any]:
        """Return nothing."""
        return {}

    def open(self, run: RunContext) -> None:
        """Do nothing: most problems keep no files in the run directory."""

    def check(self) -> None:
        """Nothing is left to be seen."""

    def environment_info(self) -> Mapping[str, Any]:
        """Return nothing: the bits depend on the config and the versions alone."""
        return {}

    def on_checkpoint(self, generation: int) -> None:
        """Most problems keep nothing until a checkpoint."""

    def evaluations(self, state: State, results: Results[object], evaluation: Rows) -> Iterator[Evaluation]:
        """Return nothing: there is no evaluations.csv."""
        return iter(())


class VectorProblemDefaults(ProblemDefaults):
    """A problem on vectors with the defaults of `ProblemDefaults`: it writes `layout`, `initial` and `evaluate`.

    Vectors are float64, and strategies without a sigma in the config begin with standard deviations of 0.3.
    """

    layout: Layout
    dtype: np.dtype[Any] = np.dtype(np.float64)

    @cached_property
    def size(self) -> int:
        """Number of coordinates."""
        return self.layout.size

    @cached_property
    def spread(self) -> Array:
        """Initial standard deviations, dtype[size], of strategies to which the config gives none."""
        return np.full(self.size, SPREAD, self.dtype)


@dataclass(frozen=True)
class VectorTask:
    """A task in which no policy acts, and whose problem is made of the keys alone."""

    name: str  # for people
    make: Callable[[Keys], Any]  # from the keys of a repetition to the problem
    spaces: None = None

    def problem(self, searched: str, policy: None, keys: Keys, unit: int) -> Any:
        """Return the problem."""
        return self.make(keys)

    def close(self) -> None:
        """Do nothing: it holds nothing."""


def ranks_returns(problem: object) -> bool:
    """Return whether the fitness of a problem is the return, as above."""
    return getattr(type(problem), "fitness", None) is ProblemDefaults.fitness
