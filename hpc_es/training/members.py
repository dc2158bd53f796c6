"""Writes the members of a front or archive of a run, on rank 0."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from hpc_es.config.schema import Config
from hpc_es.core.data import JsonObject, State
from hpc_es.core.elites import Elites
from hpc_es.core.errors import CheckpointError
from hpc_es.core.interfaces import KeepsElites, NamesParameters
from hpc_es.core.time_share import TimeShare
from hpc_es.storage.members import Again, read_again, table_name, write_members
from hpc_es.training.build import Parts
from hpc_es.training.members_again import corrected

# numbers of all vectors up to which a table lists them; a text of more takes minutes
MOST_LISTED = 2_000_000
# of the time, with `checkpoint.interval: auto`; as text, they may take longer than a checkpoint
WRITING_SHARE = 0.005


class MembersWriter:
    """Writes the files of `storage.members` for the states it is given."""

    def __init__(self, config: Config, parts: Parts) -> None:
        self._incumbent, self._parts = config.setup.needs.incumbent, parts
        self._goal = config.setup.offers.goal
        # the directory, the generation of the files in it, and their members
        self._written: tuple[Path, int, list[str]] | None = None
        self.share = TimeShare(WRITING_SHARE)
        self.count = 0  # of members in the files
        self._is_listed = True  # whether the table has their parameters
        # the members that were evaluated again, and what they returned
        self._again: tuple[list[str], Again] | None = None

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
        elites = self.elites(state)
        written = run, state.generation, elites.names
        if self._written != written:
            with self.share.spent():
                self._write(run, elites)
            self._written = written

    def _write(self, run: Path, elites: Elites) -> None:
        problem = self._parts.problem
        again = self.again(run, elites)
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
            again=again,
        )

    def elites(self, state: State) -> Elites:
        """Return the members of a state."""
        algorithm = self._parts.algorithm
        assert isinstance(algorithm, KeepsElites)  # as the checks before a run have seen
        return algorithm.elites(state)

    def again(self, run: Path, elites: Elites) -> Again | None:
        """Return what these members returned again, now or before the run was resumed."""
        if self._written is None and self._again is None:
            found = read_again(run, self._incumbent, elites)
            self._again = None if found is None else (elites.names, found)
        is_known = self._again is not None and self._again[0] == elites.names
        return self._again[1] if self._again is not None and is_known else None

    def add_again(self, run: Path, state: State, again: Again) -> None:
        """Write what the members of a state returned again."""
        self._again, self._written = (self.elites(state).names, again), None
        self.write(run, state)

    def corrected(self, run: Path, state: State) -> JsonObject:
        """Return the corrected score of the members of a state; {} if it is not known."""
        elites = self.elites(state)
        again = self.again(run, elites)
        return {} if again is None else corrected(elites, again, self._parts.problem.quantities)
