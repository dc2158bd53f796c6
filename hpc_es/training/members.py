"""Writes the members of a front or archive of a run, on rank 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hpc_es.config.schema import Config
from hpc_es.core.data import State
from hpc_es.core.interfaces import KeepsElites, NamesParameters
from hpc_es.storage.members import table_name, write_members
from hpc_es.training.build import Parts


class MembersWriter:
    """Writes the files of `storage.members` for the states it is given."""

    def __init__(self, config: Config, parts: Parts) -> None:
        self._incumbent, self._parts = config.setup.needs.incumbent, parts
        self._goal = config.setup.offers.goal
        # the directory, and the generation of the files in it
        self._written: tuple[Path, int] | None = None
        self.count = 0  # of members in the files

    @property
    def text(self) -> str:
        """What the files have, for the log."""
        return f"{table_name(self._incumbent)}: {self.count:,} member{'s' * (self.count != 1)}"

    def write(self, run: Path, state: State) -> None:
        """Write the members of a state, unless it was the last one to be written.

        Raises:
            RunError: they cannot be written.
        """
        algorithm, problem = self._parts.algorithm, self._parts.problem
        assert isinstance(algorithm, KeepsElites)  # as the checks before a run have seen
        if self._written == (run, state.generation):
            return
        elites = algorithm.elites(state)
        parameters = None
        if isinstance(problem, NamesParameters):
            elites = replace(elites, vectors=problem.evaluated_vectors(elites.vectors))
            parameters = [problem.parameters(vector) for vector in elites.vectors]
        self.count = len(elites)
        write_members(run, self._incumbent, elites, problem.quantities, parameters, self._goal)
        self._written = run, state.generation
