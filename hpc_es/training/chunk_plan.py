"""What rank 0 decides of the chunks of a run, from its ranks and from how long they took."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpc_es.config.sections import Config
from hpc_es.core.data import NO_FITNESS, State
from hpc_es.core.errors import RunError
from hpc_es.mpi.work import evaluators
from hpc_es.mpi.world import World
from hpc_es.training.build import Parts
from hpc_es.training.cutting import Plan, cut_by_time, evaluation_size, first_cut
from hpc_es.training.executors import Evaluated
from hpc_es.training.filling import least_size, told_idle, trained

MIXED = (
    "the environment's steps draw from Python's or NumPy's global generator, so that episodes of one chunk change each "
    "other, and results would depend on the number of ranks. Set mpi.chunk_size to a number, such as 16, which is then "
    "part of the result; or have the environment draw from self.np_random"
)


class ChunkPlan:
    """The plan of the next generation; that of rank 0 is told to all."""

    def __init__(self, config: Config, parts: Parts, world: World, evaluated: int) -> None:
        self._config, self._parts, self._world = config, parts, world
        self._ranks = len(evaluators(world.size, config.mpi.master_evaluates))
        given, cutting = config.mpi.chunk_size, parts.cutting
        self._is_free = cutting != "fixed"
        self._follows = self._is_free and given == "auto"
        self.plan = Plan(first_cut(cutting, given), evaluation_size(evaluated, cutting, given, self._ranks))

    def follow(self, evaluated: Evaluated, size: int) -> None:
        """Choose how the next generation is cut, where no bit depends on that; `size` is that of theta in bytes.

        Where lost ranks are outlived chunks stay as they were, as those that are left tell each other which they have.
        """
        if self._world.faults.outlives:
            return
        rows, measured = evaluated.results.rows, evaluated.evaluation
        if len(measured) and len(rows):
            is_longer = bool(measured["length"].mean() >= rows["length"].mean())
            self.plan = replace(self.plan, evaluation_first=is_longer)
        if self._follows:
            seconds = float(evaluated.headers["environment"].sum())
            cut = cut_by_time(self._parts.cutting, len(rows), seconds, self._ranks, size)
            self.plan = replace(self.plan, cut=cut)

    def require_independent(self, evaluated: Evaluated) -> None:
        """Raise RunError where results depend on how this generation was cut."""
        if self._follows and evaluated.headers["mixed"].any():
            raise RunError(MIXED)

    def idle(self, state: State) -> str | None:
        """Return what to say of ranks that will have nothing to do."""
        if getattr(self._config.algorithm, "updates", "") == "asynchronous":
            return None
        jobs = trained(self._parts.algorithm.ask(state, 0, np.zeros(0, self._parts.row), NO_FITNESS))
        size = least_size(self._config, self._is_free, self._parts.unit)
        given = self._config.mpi.master_evaluates
        return told_idle(jobs, size, self._world.size, given, self._is_free) if jobs else None
