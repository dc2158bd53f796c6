"""Rank 0 by itself for a while, where the messages of a generation cost more than the other ranks save.

Of a cheap function of few parameters rank 0 evaluates all vectors in any case. It tries then whether it is faster
alone, and if so runs generations alone for `SPELL_SECONDS` at a time, while the others wait for its next command. No
bit depends on who computes what. Between the spells a generation of all ranks tells rank 0 of their signals.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np

from hpc_es.config.sections import Config
from hpc_es.core.data import State
from hpc_es.mpi.work import Work
from hpc_es.mpi.world import World
from hpc_es.training.build import Parts
from hpc_es.training.cutting import SHARED_SECONDS, Plan
from hpc_es.training.executors import HEADER, Evaluated, SerialExecutor
from hpc_es.training.failure_reports import FailureReports
from hpc_es.training.generation import Generation
from hpc_es.training.metrics_row import Row

SPELL_SECONDS = 0.25
LONGEST_SECONDS = 0.05  # of a generation of all ranks, to whose messages that matters
COMPARED = 5  # generations of all ranks, and alone, whose medians are compared
TRIED_LESS = 10  # times as many generations until the next trial, after one that did not pay


class Alone:
    """Runs generations on rank 0 only, and says when."""

    def __init__(self, world: World, parts: Parts, signals: Callable[[], int], reports: FailureReports) -> None:
        self._ranks = world.size
        mine = World(world.library)  # of one rank
        self._parts, self._work = parts, Work(mine, "static", True, signals)
        self.executor = SerialExecutor(self._work, signals, reports)
        self._together, self._alone = (deque[float](maxlen=COMPARED) for _ in range(2))  # seconds of generations
        self._until = 0.0  # the end of a spell
        self._to_trial = self._interval = COMPARED  # generations of all ranks until the next trial

    @classmethod
    def of(
        cls, config: Config, world: World, parts: Parts, signals: Callable[[], int], reports: FailureReports
    ) -> Alone | None:
        """Return that of rank 0, where it may evaluate all and nobody's share is part of the result or a recovery."""
        mpi = config.mpi
        is_free = parts.cutting == "one by one" and mpi.chunk_size == "auto" and mpi.master_evaluates is not False
        if not is_free or world.rank or world.size == 1 or mpi.update == "replicated" or world.faults.outlives:
            return None
        return cls(world, parts, signals, reports)

    def insist(self) -> None:
        """Give the generation up where an evaluation hangs."""
        self._work.insist()

    def run(self, state: State, evaluation_jobs: int, plan: Plan) -> Evaluated:
        """Return a generation in which the other ranks do nothing; `state` is `contiguous`."""
        evaluated = self.executor.run(Generation(self._parts, state, evaluation_jobs, plan=plan))
        headers = np.zeros(self._ranks, HEADER)  # the others tell after the spell that they were idle
        headers[0] = evaluated.headers[0]
        return replace(evaluated, headers=headers)

    def is_next(self, was_alone: bool, measured: Row, evaluated: Evaluated) -> bool:
        """Return whether rank 0 runs the next generation alone, after this one and its metrics."""
        seconds = float(measured["seconds_this_generation"] or 0.0)
        (self._alone if was_alone else self._together).append(seconds)
        if float(evaluated.headers["environment"].sum()) >= SHARED_SECONDS:
            return False
        if was_alone:
            return time.perf_counter() < self._until
        if seconds > LONGEST_SECONDS or not (self._pays() or self._is_tried()):
            return False
        self._until = time.perf_counter() + SPELL_SECONDS
        return True

    def _pays(self) -> bool:
        return bool(self._alone) and median(self._alone) < median(self._together)

    def _is_tried(self) -> bool:
        """Count down to the next trial."""
        self._to_trial -= 1
        if self._to_trial > 0:
            return False
        self._alone.clear()
        self._interval *= TRIED_LESS
        self._to_trial = self._interval
        return True
