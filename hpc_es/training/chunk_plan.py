"""Whether a generation has work for all ranks.

What rank 0 decides of the chunks of a run, from its ranks and from how long they took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from hpc_es.config.registry import module
from hpc_es.config.schema import Config
from hpc_es.core.data import NO_FITNESS, Chunk, State, row_dtype
from hpc_es.core.errors import RunError
from hpc_es.core.keys import Keys
from hpc_es.mpi.scheduler import evaluators
from hpc_es.mpi.world import World
from hpc_es.training.build import Parts, cutting_of, unit_of
from hpc_es.training.chunking import CutPlan, cut_by_time, evaluation_size, first_cut
from hpc_es.training.compatibility import needs
from hpc_es.training.executors import Evaluated


def told_idle(
    jobs: int, size: int, ranks: int, master_evaluates: Literal["auto"] | bool = "auto", is_free: bool = True
) -> str | None:
    """Return what to say where ranks have nothing to do, or None: so many jobs, in chunks of at least `size`."""
    busy, chunks = len(evaluators(ranks, master_evaluates)), -(-jobs // size)
    if chunks >= busy:
        return None
    told = f"{jobs} jobs a generation are {_count(chunks, 'chunk')} for {busy} evaluating ranks"
    fill = f"{busy * size} jobs a generation (population, batch) would fill them"
    if size > 1 and jobs >= busy:
        fill += ", and so would mpi.chunk_size: " + ("auto" if is_free else str(jobs // busy))
    return f"{told}, so {_count(busy - chunks, 'rank')} of {ranks} will be idle: {fill}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def least_size(config: Config, is_free: bool, unit: int) -> int:
    """Return the fewest jobs that a chunk may have."""
    given = config.mpi.chunk_size
    if not is_free:
        return unit
    return 1 if given == "auto" else given


def idle_on(config: Config, problem: object, ranks: int) -> str | None:
    """Return what to say of a run on so many ranks, before it begins; None where all have work."""
    wanted, unit = needs(config), getattr(problem, "chunk_size", None) or unit_of(config)
    if wanted.tensorflow:  # without importing it
        jobs = int(getattr(config.algorithm, "batch_size", 0))
    else:
        build = module("algorithms", config.algorithm.kind).build
        algorithm = build(config.algorithm, problem, None, Keys(config.seed), unit)
        state = problem.carried().merge_into(algorithm.initial())  # type: ignore[attr-defined]
        jobs = trained(algorithm.ask(state, 0, np.zeros(0, row_dtype()), NO_FITNESS))
    is_free = cutting_of(config, problem) != "fixed"
    size = least_size(config, is_free, unit)
    return told_idle(jobs, size, ranks, config.mpi.master_evaluates, is_free) if jobs else None


def trained(chunks: Sequence[Chunk]) -> int:
    """Return the jobs of training among these."""
    return sum(chunk.jobs for chunk in chunks if chunk.purpose == "train")


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
        self.plan = CutPlan(first_cut(cutting, given), evaluation_size(evaluated, cutting, given, self._ranks))

    def follow(self, evaluated: Evaluated, size: int) -> None:
        """Choose how the next generation is cut, where no bit depends on that; `size` is that of theta in bytes.

        Where lost ranks are outlived chunks stay as they were, as those that are left tell each other which they have.
        """
        if self._world.fault_handler.is_fault_tolerant:
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
