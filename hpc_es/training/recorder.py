"""Counters and best evaluation of a run, on rank 0, and whether a limit of `stop:` is reached.

`UpdateJournal` and `UpdateReplay` serve incremental checkpoints: they store the inputs of each update instead of
the state, and a resumed run computes the updates again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpc_es.config.resolved import resolved
from hpc_es.config.schema import Config
from hpc_es.core.data import Array, Arrays, ConfigData, JsonObject, ProblemState, Results, Rows, State, without_info
from hpc_es.core.errors import RunError
from hpc_es.core.interfaces import Problem
from hpc_es.core.rank_output import say_error
from hpc_es.storage.answers import Found
from hpc_es.storage.checkpoint import Increment, Snapshot, image_sha256
from hpc_es.storage.results import BUDGET, digest
from hpc_es.storage.status import is_surpassed
from hpc_es.training.collective import FailureReport
from hpc_es.training.found import found_by
from hpc_es.training.generation import NOTHING_USED, Counters, MetricsRow, UpdateInputs, derived_fitness

if TYPE_CHECKING:
    from hpc_es.mpi.waiting import LongWait
    from hpc_es.storage.checkpoint import Best, CutShort
    from hpc_es.training.outcomes import StoredOutcomes

QUIET_GENERATIONS = 100  # for which a repeated notice is suppressed


# Counters of `stop.patience`: evaluations since the last improvement, the value then (higher is better), and the sum of
# its constraint violations. Only runs with a patience have them.
PLATEAU = ("evaluations_without_improvement", "improved_value", "improved_violation")


class UpdateReplay:
    """The updates since the last full checkpoint, to be computed again before the first new generation."""

    def __init__(self, since: Increment, state: State, best_generation: int | None) -> None:
        self._since, self._first, self._best_generation = since, state.generation, best_generation
        self.best: Arrays | None = None  # the shared arrays of the best evaluation, once they were computed

    @property
    def message(self) -> str:
        """The line for the log."""
        count = len(self._since.learned_from)
        return f"recomputing {count} update{'s'[: count > 1]} since {self._since.base}"

    def next(self, state: State, measured: State) -> bytes:
        """Return the packed inputs of the update after this state; its generation measured the other state."""
        if state.generation == self._best_generation:
            self.best = {name: array.copy() for name, array in measured.shared.items()}
        return self._since.learned_from[state.generation - self._first]

    def is_due(self, state: State) -> bool:
        """Return whether there are updates after this state."""
        return state.generation < self._first + len(self._since.learned_from)

    def require_same(self, state: State) -> None:
        """Raise RunError if the recomputed state differs from the one that was saved."""
        if digest({**state.shared, **state.master}) != self._since.state_sha256:
            base = self._since.base
            raise RunError(
                f"generation {state.generation}, recomputed since {base}, differs from the saved state: has a library, "
                "the processor or the GPU changed? Resume where the run was started, or remove checkpoints newer than "
                f"{base}"
            )


class UpdateJournal:
    """The inputs of the updates since the last full checkpoint."""

    def __init__(self, interval: int) -> None:
        self._interval = interval  # maximum number of updates between full checkpoints; 0: all are full
        self._base: tuple[str, str, int] | None = None  # name, SHA-256 and generation of the last full checkpoint
        self._inputs: list[bytes] = []

    def begin(self, path: Path, snapshot: Snapshot) -> None:
        """Continue from this checkpoint, which was loaded or written just now."""
        since, generation = snapshot.increment, snapshot.state.generation
        if since is not None:
            self._base, self._inputs = (since.base, since.base_sha256, generation), list(since.learned_from)
        elif self._interval:
            try:
                self._base, self._inputs = (path.name, image_sha256(path), generation), []
            except OSError as error:
                text = f"{path} cannot be written: it could not be read back ({error.strerror})"
                raise RunError(f"{text}; the previous checkpoints are unchanged") from error

    def add(self, results: Results[object], units: Sequence[Arrays]) -> None:
        """Add the inputs of an update; if they include arrays of chunks, the next checkpoint must be whole."""
        if any(results.chunk_arrays):
            self._base = None
        if self._interval and self._base:
            # without the columns of `report.info`, which a restart may change
            self._inputs.append(UpdateInputs(without_info(results.rows), without_info(results.probes), units).pack())

    def since(self, state: State) -> tuple[int, Increment] | None:
        """Return (generation of the full checkpoint, updates since) in place of this state; None: save a full one."""
        if not self._interval or self._base is None or len(self._inputs) >= self._interval:
            return None
        name, sha256, generation = self._base
        arrays = {**state.shared, **state.master}
        if generation == state.generation or sum(map(len, self._inputs)) > sum(a.nbytes for a in arrays.values()):
            return None
        return generation, Increment(name, sha256, self._inputs, digest({"theta": state.theta}), digest(arrays))


class Recorder:
    """Records a run in memory, for runs that write no files; `RunWriter` also writes a run directory."""

    replay: UpdateReplay | None = None  # updates to compute again before the first new generation
    pending: CutShort | None = None  # the generation that a budget cut short before the run was resumed
    remedy = ""  # what a user can do after a failed run
    state_is_whole = True  # False while an update overwrites the state, and if it failed

    def __init__(self, config: Config, problem: Problem, state: State | None = None) -> None:
        self.config, self._problem, self._state = config, problem, state
        self.counters: Counters = dict(NOTHING_USED)
        self.best: Best | None = None  # the best evaluation of a policy
        self.measured: Mapping[str, float] = {}  # results of a final evaluation before the run was resumed
        self.reason = ""  # why the run has ended
        self._final: Arrays = {}  # of the state, after a generation that was cut short and the final evaluation
        self._noticed: dict[str, int] = {}  # last generation of each notice

    # A generation.

    def evaluated(self, state: State, results: Results[object], evaluation: Rows, units: Sequence[Arrays]) -> None:
        """Record the evaluations of a generation and what the problem learned, before the update and `add`."""

    def add(self, state: State, row: MetricsRow, solutions: Sequence[JsonObject]) -> None:
        """Record a finished generation.

        Args:
            state: the state after it.
            row: its metrics.
            solutions: new correct programs.
        """
        self._state = state

    def begin_cut(self, outcomes: StoredOutcomes) -> None:
        """Begin to record a generation that a budget has cut short to these outcomes, before `evaluated`."""

    def add_cut(
        self, before: State, after: State, row: MetricsRow, solutions: Sequence[JsonObject], is_new: bool
    ) -> None:
        """Record such a generation (see `add`).

        Args:
            before: the state, from which training continues if the budget is raised.
            after: the same with what the jobs have found.
            is_new: whether jobs were evaluated, and not all recalled from a checkpoint.
        """
        self._final = _changed(before.master, after.master)

    def failed(self, report: FailureReport) -> None:
        """Report the first failed job of a kind."""
        say_error(f"{report.line()}\n")

    def beat(self) -> None:
        """Show that the run is alive; called often, also between the steps of an evaluation."""

    def long_wait(self, wait: LongWait, task: str) -> None:
        """Report that no evaluation of the task has finished for long, and which limits its options offer."""
        offers = self.config.setup.offers
        unset = " or ".join(f"task.{key}" for key in offers.unset_limits)
        remedy = f"; if a job may not end, set {unset}" if unset else ""
        counted = "steps" if offers.counts_steps else ""
        generation = 1 if self._state is None else self._state.generation + 1  # as progress lines count
        self.show(f"generation {generation} of {task} {wait.text(counted)}{remedy}")

    def show(self, text: str) -> None:
        """Show a line to the user, on standard error if there is no log."""
        say_error(f"hpc_es: {text}\n")

    def message(self, text: str) -> None:
        """Show a line to the user, if there is a log."""

    def notices(self, generation: int, notices: Sequence[str]) -> None:
        """Show the algorithm's notices of a generation, each once unless it was absent for QUIET_GENERATIONS.

        `generation` counts from 0, as in metrics.jsonl.
        """
        for notice in notices:
            if generation - self._noticed.get(notice, -QUIET_GENERATIONS) >= QUIET_GENERATIONS:
                self.message(f"generation {generation + 1}: {notice}")  # as in progress lines
            self._noticed[notice] = generation

    def is_better(self, state: State, evaluation: Rows) -> bool:
        """Return whether an evaluation of the centre of this state is better than the best one so far.

        It is if its mean fitness is higher; by default the fitness is the return. A derived fitness may rank rows
        relative to each other, so one call gets the rows of both evaluations.
        """
        returns = evaluation["return_"][~np.isnan(evaluation["return_"])]
        if not len(returns) or self.best is None:
            return len(returns) > 0
        if not self._problem.derives_fitness:
            return float(returns.mean()) > self.best.return_
        known, rows = self.best.rows, without_info(evaluation)
        if known is None or known.dtype != rows.dtype:  # the best evaluation is of a version that compared returns
            return True
        carried = ProblemState({name: state.shared[name] for name in self._problem.carried().shared})
        fitness = derived_fitness(self._problem, carried, np.concatenate([known, rows]))
        old, new = (values[~np.isnan(values)] for values in (fitness[: len(known)], fitness[len(known) :]))
        return len(new) > 0 and (not len(old) or float(new.mean()) > float(old.mean()))

    def count_evaluations(self, row: MetricsRow) -> None:
        """Update the counters of `stop.patience` with the metrics of a generation; without it, remove them.

        Values are compared with the last one that was an improvement, so that slow progress adds up. With constraints,
        a smaller violation of the best vector is an improvement too, and so is the first feasible vector.
        """
        stop, counters = self.config.stop, self.counters
        if stop.patience is None:
            for name in PLATEAU:
                counters.pop(name, None)
            return
        if (value := row.get("best_value")) is not None:
            evaluations, violation = int(row["episodes_this_generation"] or 0), float(row.get("best_violation") or 0)
            value *= self.config.setup.offers.sign
        else:
            evaluations, violation, value = int(bool(row["evaluation_episodes"])), 0.0, row["evaluation_return_mean"]
        stale, last, last_violation = (counters.get(name) for name in PLATEAU)
        is_valid = value is not None and not math.isnan(value)
        if evaluations and is_valid and value is not None:
            improves = last is None or last_violation is None or value > last + stop.min_improvement
            if not improves and last_violation:
                improves = violation == 0 or violation < last_violation - stop.min_improvement
            if improves:
                counters.update(zip(PLATEAU, (0, value, violation), strict=True))
                return
        counters[PLATEAU[0]] = int(stale or 0) + evaluations

    def found(self, final: Mapping[str, float]) -> Found:
        """Return what the run has found so far; `final` has the results of the final evaluation, {} before it."""
        if self._state is None:
            return Found()
        state, master = self._state, {**self._state.master, **self._final}
        return found_by(
            self._plain_config,
            self.config.setup.offers.goal or "maximise",
            state.shared,
            master,
            generation=state.generation,
            best=self.best,
            final=final,
        )

    @cached_property
    def _plain_config(self) -> ConfigData:
        return resolved(self.config)

    # The end.

    def evaluations_left(self) -> int | None:
        """Return how many evaluations `stop.episodes` leaves; None without this limit."""
        limit = self.config.stop.episodes
        return None if limit is None else limit - int(self.counters["episodes"])

    def outcome(self, state: State) -> State:
        """Return the state with what a generation that was cut short and the final evaluation have found."""
        return replace(state, master={**state.master, **self._final})

    def stop_reason(self) -> str | None:
        """Return the first limit of `stop:` that is reached, or None."""
        assert self._state
        stop, used = self.config.stop, {**self.counters, "generations": self._state.generation}
        for name in BUDGET:
            limit = getattr(stop, name)
            if limit is not None and used[name] >= limit:
                return f"stop.{name}: {limit:g}" if name == "seconds" else f"stop.{name}: {limit}"
        if stop.target_return is not None and self.best is not None and self.best.return_ >= stop.target_return:
            return f"stop.target_return: {stop.target_return:g}"
        if stop.target_value is not None and self.is_reached(stop.target_value):
            return f"stop.target_value: {stop.target_value:g}"
        if stop.patience is not None and self.counters.get(PLATEAU[0], 0) >= stop.patience:
            return f"stop.patience: {stop.patience}"
        return None

    def is_reached(self, target: float) -> bool:
        """Return whether the best value is as good as `target`."""
        return self._problem.is_reached(self.carried(), target)

    def carried(self) -> ProblemState:
        """Return the problem's arrays, including those from the final evaluation."""
        assert self._state
        return self._problem.carried().extract_from(self.outcome(self._state))

    def replayed(self, state: State) -> None:
        """Continue from this state, the result of `replay`."""

    def finish_triggers(self, whole: bool) -> None:
        """Do what is due at the end of a run; with `whole` the last checkpoint must be whole."""

    def save(self) -> object:
        """Write a checkpoint of the last finished generation."""

    def measured_at_end(self, units: Sequence[Arrays]) -> bool:
        """Add what the problem learned from the final evaluation; return whether anything changed."""
        before = self.carried().master
        after = self._problem.merge(self.carried(), units).master
        changed = _changed(before, after)
        self._final = {**self._final, **changed}
        return bool(changed)

    def status(self, state: str, **more: object) -> None:
        """Record that the run is running, finished, interrupted or failed, and why."""
        self.reason = str(more.get("reason", ""))

    @property
    def jobs_name(self) -> str:
        """What the log calls the jobs: programs, evaluations or episodes."""
        offered = self.config.setup.offers
        if self.config.setup.needs.searches == "programs":
            return "programs"
        return "evaluations" if offered.values or offered.measures_centre else "episodes"

    def end_message(self, status: str, reason: str, generations: int, final: Mapping[str, float]) -> str:
        """Return the last line of a run; `final` has the results of the final evaluation, if there was one."""
        counters, jobs = self.counters, self.jobs_name
        used = f"{counters['timesteps']:,} timesteps"
        if jobs != "episodes":
            used = f"{counters['episodes']:,} {jobs}"
        sign = self.config.setup.offers.sign  # from return to value
        work = f"{generations} generations, {used}, {counters['failed_episodes']:,} failed {jobs}"
        answer = self.found(final).answer
        best = f"  best evaluation {sign * self.best.return_ + 0.0:.4g}" if self.best else ""  # + 0.0: not -0
        if answer.kind == "evaluation":
            best = "" if answer.value is None else f"  best value {answer.value + 0.0:.4g}"
            best += f" (violation {answer.violation:.4g})" if answer.violation else ""
        if status == "failed":
            return f"failed after {work}{best}: {reason}"
        final_text = f"  final evaluation {sign * final['final_return_mean'] + 0.0:.4g}" if final else ""
        is_last_better = answer.kind == "centre" and is_surpassed(self.best, final)
        better = " (the last theta did better)" if is_last_better else ""
        again = "; the same command resumes the run" if status == "interrupted" else ""
        return f"{status} by {reason} after {work}{final_text}{best}{better}{again}"

    def finish(self, text: str) -> None:
        """Show the last line of the run."""

    def close(self) -> None:
        """Close files and release the directory."""


def _changed(before: Arrays, after: Arrays) -> dict[str, Array]:
    """Return the arrays that differ from those of the same names before."""
    return {name: array for name, array in after.items() if array.tobytes() != before[name].tobytes()}
