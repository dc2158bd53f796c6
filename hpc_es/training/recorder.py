"""Rank 0: checkpoints between whole ones are kept as what generations learned from, and the state is computed again.

What rank 0 keeps of a run: what it has used, its best evaluation, and whether a limit of `stop:` is reached."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_es.config.schema import Config, Stop
from hpc_es.core.data import Arrays, ProblemState, Results, Rows, State
from hpc_es.core.errors import RunError
from hpc_es.core.interfaces import Problem
from hpc_es.storage.checkpoint import Since, Snapshot, image_sha256
from hpc_es.storage.results import digest
from hpc_es.training.failure_reports import FailureReport
from hpc_es.training.metrics_row import NOTHING_USED, Counters, Row
from hpc_es.training.replay import LearnedFrom

if TYPE_CHECKING:
    from hpc_es.storage.checkpoint import Best


class UpdateReplay:
    """The generations that are to be computed again before the first new one."""

    def __init__(self, since: Since, state: State, best_generation: int | None) -> None:
        self._since, self._begin, self._best_generation = since, state.generation, best_generation
        self.best: Arrays | None = None  # the shared arrays that the best evaluation measured, once they are there

    @property
    def told(self) -> str:
        """What is to be done, for the log."""
        count = len(self._since.learned_from)
        return f"computing {count} generation{'s'[: count > 1]} again that came after {self._since.base}"

    def next(self, state: State) -> bytes:
        """Return what the generation after this state learned from; take note of the state."""
        if state.generation == self._best_generation:
            self.best = {name: array.copy() for name, array in state.shared.items()}
        return self._since.learned_from[state.generation - self._begin]

    def is_due(self, state: State) -> bool:
        """Return whether there are generations after this state."""
        return state.generation < self._begin + len(self._since.learned_from)

    def require_same(self, state: State) -> None:
        """RunError if the state that came out is another than the one that was there."""
        if digest({**state.shared, **state.master}) != self._since.state_sha256:
            text = f"the state of generation {state.generation}, computed again since {self._since.base}, is another"
            remedy = f"go on where it was computed, or remove the checkpoints that are newer than {self._since.base}"
            raise RunError(f"{text}: have versions or the processor changed? {remedy}")


class UpdateJournal:
    """What the generations since the last whole checkpoint learned from, for the next one."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._base: tuple[str, str, int] | None = None  # name, digest and generation of the whole one
        self._learned_from: list[bytes] = []

    def begin(self, path: Path, snapshot: Snapshot) -> None:
        """A run goes on from this checkpoint, or has just written it."""
        since, generation = snapshot.since, snapshot.state.generation
        if since is not None:
            self._base, self._learned_from = (since.base, since.base_sha256, generation), list(since.learned_from)
        elif self._interval:
            self._base, self._learned_from = (path.name, image_sha256(path), generation), []

    def add(self, results: Results[object], units: Sequence[Arrays]) -> None:
        """Keep what a generation learned from; where that is more than rows the next checkpoint is a whole one."""
        if any(results.chunk_arrays):
            self._base = None
        if self._interval and self._base:
            self._learned_from.append(LearnedFrom.of(results, units).packed())

    def since(self, state: State) -> tuple[int, Since] | None:
        """Return what stands for this state, and the generation that it leads on from; None: it is to be whole."""
        if not self._interval or self._base is None or len(self._learned_from) >= self._interval:
            return None
        name, sha256, generation = self._base
        arrays = {**state.shared, **state.master}
        if generation == state.generation or sum(map(len, self._learned_from)) > sum(a.nbytes for a in arrays.values()):
            return None
        return generation, Since(name, sha256, self._learned_from, digest({"theta": state.theta}), digest(arrays))


BUDGET = ("generations", "timesteps", "episodes", "seconds")


class Recorder:
    """Keeps it in memory, which is enough where nothing is written; `RunWriter` writes a run directory too."""

    replay: UpdateReplay | None = None  # generations to compute again before the first new one
    remedy = ""  # what a user can do about a run that has failed

    def __init__(self, config: Config, problem: Problem, state: State | None = None) -> None:
        self.config, self._problem, self._state = config, problem, state
        self.counters: Counters = dict(NOTHING_USED)
        self.best: Best | None = None  # the best evaluation of a policy
        self.measured: Mapping[str, float] = {}  # the final evaluation of the state that a run begins with
        self.reason = ""  # why the run has ended
        self._final: Arrays = {}  # what the final evaluation has taught the problem

    # A generation.

    def evaluated(self, state: State, results: Results[object], evaluation: Rows, units: Sequence[Arrays]) -> None:
        """Record what a generation has evaluated and what the problem learned from it, before `add`."""

    def add(self, state: State, row: Row, evaluated: Arrays | None, found: Sequence[Mapping[str, Any]]) -> None:
        """Record a finished generation: the state after it, its metrics, and the correct programs it found.

        `evaluated` are the shared arrays that its evaluation, if there was one, measured.
        """
        self._state = state

    def failed(self, report: FailureReport) -> None:
        """Report why a job failed, the first one of its kind."""
        sys.stderr.write(f"{report.line()}\n")

    def beat(self) -> None:
        """Show that the run is alive; called often, also between the steps of an evaluation."""

    def message(self, text: str) -> None:
        """Show a line to the user, where there is a log for it."""

    # The end.

    def stop_reason(self) -> str | None:
        """Return the first limit of `stop:` that is reached, or None."""
        assert self._state
        used = {**self.counters, "generations": self._state.generation}
        return stop_reason(self.config.stop, used, self.best.return_ if self.best else None, self.is_reached)

    def is_reached(self, target: float) -> bool:
        """Return whether the best value is as good as this."""
        return self._problem.is_reached(self.carried(), target)

    def carried(self) -> ProblemState:
        """Return what the problem has learned, from the final evaluation too."""
        assert self._state
        carried = self._problem.carried().extract_from(self._state)
        return ProblemState(carried.shared, {**carried.master, **self._final})

    def replayed(self, state: State) -> None:
        """Go on from this state: the generations of `replay` were computed again."""

    def finish_triggers(self, whole: bool) -> None:
        """Do what is due at the end of a run; `whole` says whether the last checkpoint must be whole."""

    def save(self) -> object:
        """Write a checkpoint of the last finished generation."""

    def measured_at_end(self, units: Sequence[Arrays]) -> bool:
        """Take what the final evaluation has taught the problem; return whether anything is new."""
        before = self.carried().master
        after = self._problem.merge(self.carried(), units).master
        changed = {name: array for name, array in after.items() if array.tobytes() != before[name].tobytes()}
        self._final = {**self._final, **changed}
        return bool(changed)

    def status(self, state: str, **more: object) -> None:
        """Record that the run is running, finished, interrupted or failed, and why."""
        self.reason = str(more.get("reason", ""))

    def finish(self, text: str) -> None:
        """Show the last line of the run."""

    def close(self) -> None:
        """Give back what is held."""


def stop_reason(
    stop: Stop, used: Mapping[str, float | int], best_return: float | None, is_reached: Callable[[float], bool]
) -> str | None:
    """Return the first limit that is reached, or None; `is_reached` says whether the best value is good enough."""
    for name in BUDGET:
        limit = getattr(stop, name)
        if limit is not None and used[name] >= limit:
            return f"stop.{name}: {limit:g}" if name == "seconds" else f"stop.{name}: {limit}"
    if stop.target_return is not None and best_return is not None and best_return >= stop.target_return:
        return f"stop.target_return: {stop.target_return:g}"
    if stop.target_value is not None and is_reached(stop.target_value):
        return f"stop.target_value: {stop.target_value:g}"
    return None
