"""What most problems do not need to say: they learn nothing themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpc_es.core.data import Arrays, Carried, Column, Results, Rows, State
from hpc_es.core.interfaces import Cutting, Evaluation
from hpc_es.core.places import RunPlace


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

    def carried(self) -> Carried:
        """Return nothing."""
        return Carried()

    def merge(self, carried: Carried, units: Sequence[Arrays]) -> Carried:
        """Return nothing."""
        return carried

    def unit(self, parts: Sequence[Arrays]) -> Arrays:
        """Return the only part: chunks are whole units."""
        (whole,) = parts
        return whole

    def metrics(self, carried: Carried) -> Mapping[str, float]:
        """Return nothing."""
        return {}

    def measured(self, state: State, evaluation: Rows) -> Sequence[Arrays]:
        """Return nothing: an evaluation of the centre teaches nothing."""
        return ()

    def is_reached(self, carried: Carried, target: float) -> bool:
        """Return False: there are no values."""
        return False

    def summary(self, carried: Carried) -> Mapping[str, Any]:
        """Return nothing."""
        return {}

    def open(self, place: RunPlace) -> None:
        """Most problems need no place in the run directory."""

    def check(self) -> None:
        """Nothing is left to be seen."""

    def circumstances(self) -> Mapping[str, Any]:
        """Return nothing: the bits depend on the config and the versions alone."""
        return {}

    def saved(self, generation: int) -> None:
        """Most problems keep nothing until a checkpoint."""

    def evaluations(self, state: State, results: Results, evaluation: Rows) -> Iterator[Evaluation]:
        """Return nothing: there is no evaluations.csv."""
        return iter(())
