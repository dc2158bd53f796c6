"""Writes the members of a front or archive of a run, on rank 0."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from hpc_es.config.schema import Config
from hpc_es.core.data import State
from hpc_es.core.errors import CheckpointError
from hpc_es.core.interfaces import KeepsElites, NamesParameters
from hpc_es.storage.members import table_name, write_members
from hpc_es.training.build import Parts

# numbers of all vectors up to which a table lists them; a text of more takes minutes
MOST_LISTED = 2_000_000


class MembersWriter:
    """Writes the files of `storage.members` for the states it is given."""

    def __init__(self, config: Config, parts: Parts) -> None:
        self._incumbent, self._parts = config.setup.needs.incumbent, parts
        self._goal = config.setup.offers.goal
        # the directory, the generation of the files in it, and their members
        self._written: tuple[Path, int, list[str]] | None = None
        self.count = 0  # of members in the files
        self._is_listed = True  # whether the table has their parameters

    @property
    def text(self) -> str:
        """What the files have, for the log."""
        text = f"{table_name(self._incumbent)}: {self.count:,} member{'s' * (self.count != 1)}"
        if self._is_listed:
            return text
        file = table_name(self._incumbent).replace(".csv", ".npz")
        return f"{text}, without their parameters, which {file} has"

    def draw(self, run: Path) -> None:
        """Draw the archive that the files have; UserError if that fails."""
        if self._incumbent == "cells" and (run / "archive.npz").is_file():
            from hpc_es.report.archive_plot import plot_archive

            with contextlib.suppress(CheckpointError):  # of a custom algorithm without a division
                plot_archive(run, run / "archive.png")

    def write(self, run: Path, state: State) -> None:
        """Write the members of a state, unless it was the last one to be written.

        Raises:
            RunError: they cannot be written.
        """
        algorithm, problem = self._parts.algorithm, self._parts.problem
        assert isinstance(algorithm, KeepsElites)  # as the checks before a run have seen
        elites = algorithm.elites(state)
        written = run, state.generation, elites.names
        if self._written == written:
            return
        parameters = None
        if isinstance(problem, NamesParameters):
            elites = replace(elites, vectors=problem.evaluated_vectors(elites.vectors))
            self._is_listed = elites.vectors.size <= MOST_LISTED
            if self._is_listed:
                parameters = [problem.parameters(vector) for vector in elites.vectors]
        self.count = len(elites)
        write_members(
            run,
            self._incumbent,
            elites,
            quantities=problem.quantities,
            parameters=parameters,
            goal=self._goal,
        )
        self._written = written
