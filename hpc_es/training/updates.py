"""Updates of the state by generations: on rank 0, and if they are replicated on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hpc_es.core.data import Arrays, Results, State
from hpc_es.core.interfaces import RecordingAlgorithm
from hpc_es.core.machine import return_freed_memory
from hpc_es.training.build import Parts
from hpc_es.training.delay_line import without_earlier
from hpc_es.training.finished import Update
from hpc_es.training.generation import Evaluated, update_state

if TYPE_CHECKING:
    from hpc_es.training.recorder import Recorder

NO_METRICS: Mapping[str, float] = {}
# parameters of theta from which updates overwrite theta and the optimizer's slots
OVERWRITTEN = 1 << 22


class Updates:
    """Makes the updates of a run."""

    def __init__(self, parts: Parts, initial: State, recorder: Recorder | None) -> None:
        self._parts, self._recorder = parts, recorder
        # the state before
        self.overwrite = initial.theta.size >= OVERWRITTEN and parts.delay_line is None

    def units(self, evaluated: Evaluated, measured: State) -> Sequence[Arrays]:
        """Return what the problem learned in a generation, by unit.

        Its evaluation measured this state.
        """
        problem, repeating = self._parts.problem, self._parts.repeating
        repeated: Sequence[Arrays] = ()
        if repeating is not None and evaluated.passes:
            passes = evaluated.passes
            repeated = repeating.repeat_units(evaluated.number, evaluated.results, passes)
        return [
            *map(problem.unit, evaluated.learned),
            *repeated,
            *problem.evaluation_units(measured, evaluated.evaluation),
        ]

    def update(self, before: State, results: Results[object], units: Sequence[Arrays]) -> Update:
        """Return the update of a state, whose earlier states a delay line keeps.

        Raises:
            RunError: theta is not finite.
        """
        line, algorithm, problem = (
            self._parts.delay_line,
            self._parts.algorithm,
            self._parts.problem,
        )
        if line is not None:
            after, merged, metrics = update_state(
                algorithm, problem, without_earlier(before), results, units
            )
            return Update(units, after, line.advance(before, merged), metrics)
        if self.overwrite:
            return_freed_memory()  # that of candidates
            results = replace(results, overwrite=True)
        self._note_whole_state(not self.overwrite)
        update = Update(units, *update_state(algorithm, problem, before, results, units))
        self._note_whole_state(True)
        return update

    def found(self, before: State, results: Results[object], units: Sequence[Arrays]) -> Update:
        """Return what the jobs of a generation that was cut short have found, without an update."""
        algorithm, problem = self._parts.algorithm, self._parts.problem
        found, metrics = before, NO_METRICS
        if len(results.rows) and isinstance(algorithm, RecordingAlgorithm):
            found, metrics = algorithm.recorded(before, results)
        merged = problem.merge(problem.carried().extract_from(before), units).merge_into(found)
        return Update(units, found, merged, metrics)

    def _note_whole_state(self, is_whole: bool) -> None:
        if self._recorder is not None:
            self._recorder.state_is_whole = is_whole
