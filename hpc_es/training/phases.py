"""The phases of the training loop in which all ranks take each step of a generation together.

In a phase, ranks do what the last command of rank 0 asks for. Delayed and asynchronous updates are
phases too, in files of their own. `Training` chooses the phase, and records the generations that it
yields.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from hpc_es.core.data import Arrays, Results
from hpc_es.core.errors import RunError
from hpc_es.training.collective import contiguous
from hpc_es.training.command import Command, failing_everywhere
from hpc_es.training.commander import Commander
from hpc_es.training.executors import Executor, Rank0Alone
from hpc_es.training.finished import FinishedGeneration
from hpc_es.training.generation import Evaluated, Generation, UpdateInputs
from hpc_es.training.messages import HEADER
from hpc_es.training.this_rank import ThisRank

if TYPE_CHECKING:
    from hpc_es.training.journal import UpdateReplay


class Phase(Protocol):
    """What the ranks do until rank 0 chooses the next command."""

    def generations(self, command: Command, started: float) -> Generator[FinishedGeneration]:
        """Yield finished generations on rank 0, each before the next; nothing on other ranks.

        The state of the rank is then the one after the generation. `started` is when the command
        was chosen. A RunError that all ranks can hear of ends all of them. If rank 0 closes the
        generator, the others wait for a command.
        """
        ...


class InStep:
    """One generation on all ranks, and perhaps some on rank 0 alone after it."""

    def __init__(
        self, rank: ThisRank, commander: Commander | None, alone: Rank0Alone | None
    ) -> None:
        self._rank, self._commander, self._alone = rank, commander, alone
        self._seconds = 0.0  # that the last generation took

    def generations(self, command: Command, started: float) -> Generator[FinishedGeneration]:
        """Yield a generation of all ranks, and those of rank 0 alone; see `Phase`."""
        rank, alone = self._rank, self._alone
        evaluated = rank.evaluate(command, rank.evaluations.due(rank.state.generation))
        if self._commander is None:
            if rank.is_replicated and not evaluated.is_cut:
                update_replica(rank, evaluated.results, rank.updates.units(evaluated, rank.state))
            return
        yield self._finish(evaluated, started, rank.executor)
        if alone is None or evaluated.is_cut or not alone.is_next(False, self._seconds, evaluated):
            return
        while self._commander.goes_on():
            started = time.perf_counter()
            rank.state = replace(rank.state, shared=contiguous(rank.state.shared))
            evaluation_jobs = rank.evaluations.due(rank.state.generation)
            evaluated = alone.run(
                rank.state, evaluation_jobs, rank.planner.plan, self._commander.jobs_left()
            )
            yield self._finish(evaluated, started, alone.executor)
            if not alone.is_next(True, self._seconds, evaluated):
                return

    def _finish(
        self, evaluated: Evaluated, started: float, executor: Executor
    ) -> FinishedGeneration:
        with failing_everywhere(self._rank.world):
            finished = self._rank.finish(evaluated, started, executor)
        self._seconds = time.perf_counter() - started
        return finished


class Learning:
    """One generation with results of the caller's in place of its jobs.

    All ranks evaluate the centre if it is due.
    """

    def __init__(self, rank: ThisRank, commander: Commander | None) -> None:
        self._rank, self._commander = rank, commander

    def generations(self, command: Command, started: float) -> Generator[FinishedGeneration]:
        """Yield the generation; see `Phase`."""
        rank, evaluation = self._rank, np.zeros(0, self._rank.parts.row)
        if rank.evaluations.due(rank.state.generation):
            evaluation = rank.evaluate_centre(command).evaluation
        if self._commander is None:
            return
        evaluated = Evaluated(
            np.zeros(rank.world.size, HEADER), self._commander.take_results(), evaluation
        )
        with failing_everywhere(rank.world):
            finished = rank.finish(evaluated, started, rank.executor)
        yield finished


class Replay:
    """The next update since the last full checkpoint, computed again after a restart.

    Its inputs were stored.
    """

    def __init__(self, rank: ThisRank, commander: Commander | None) -> None:
        self._rank, self._commander = rank, commander

    def generations(self, command: Command, started: float) -> Generator[FinishedGeneration]:
        """Yield nothing, since the generation is recorded already; see `Phase`."""
        rank, packed = self._rank, np.zeros(0, np.uint8)
        replay = None if rank.recorder is None else rank.recorder.replay
        if replay is not None:
            line, state = rank.parts.delay_line, rank.state
            measured = state if line is None else line.measured(state, state.generation)
            packed = np.frombuffer(replay.next(state, measured), np.uint8)
        inputs = UpdateInputs.unpack(rank.world.allgather(packed)[0].tobytes(), rank.parts.row)
        drawn = rank.state if replay is None else rank.drawn_around()
        generation = Generation(rank.parts, drawn, plan=command.plan)
        results = rank.executor.replay(generation, inputs.rows, inputs.probes)
        if replay is not None:
            self._update(replay, results, inputs)
        elif rank.is_replicated:
            update_replica(rank, results, inputs.units)
        yield from ()

    def _update(self, replay: UpdateReplay, results: Results[object], inputs: UpdateInputs) -> None:
        rank = self._rank
        assert rank.recorder is not None and self._commander is not None
        with failing_everywhere(rank.world):
            rank.state = rank.updates.update(rank.state, results, inputs.units).state
            if not replay.is_due(rank.state):
                rank.recorder.replayed(rank.state)
        self._commander.note_signals()


def update_replica(rank: ThisRank, results: Results[object], units: Sequence[Arrays]) -> None:
    """Make a replicated update on a rank other than 0, with the same RunError.

    It reports the error.
    """
    since = time.perf_counter()
    with contextlib.suppress(RunError):
        rank.state = rank.updates.update(rank.state, results, units).state
    rank.executor.clock.add("update", since)
