"""Runs the trials of a tuning task in turn; every rank takes part in each.

Rank 0 (`Master`) chooses the next trial and records how the last one ended.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.api.job import contained, run_experiment, status_name
from hpc_es.config.schema import Config
from hpc_es.core.data import JsonObject
from hpc_es.core.errors import (
    INTERRUPTED,
    READING,
    RunError,
    UserError,
    require,
    unreadable_reason,
    visible,
)
from hpc_es.core.paths import absolute, shown
from hpc_es.core.run_files import make_directory, require_own_entries
from hpc_es.core.slurm import this_run
from hpc_es.core.streams import say, say_error
from hpc_es.core.vocabulary import counted
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals
from hpc_es.mpi.world import World
from hpc_es.storage import results
from hpc_es.storage.files import write_json, writing
from hpc_es.storage.results import Shard
from hpc_es.storage.run_lock import RunLock
from hpc_es.training.collective import (
    CollectiveExit,
    ExitReason,
    config_from_message,
    config_message,
    on_rank_0,
)
from hpc_es.training.generation import MetricsRow
from hpc_es.tuning.plan import ANSWER, check, fraction, is_minimised, load, measures, objective
from hpc_es.tuning.space import Hyperparameters, require_in_space
from hpc_es.tuning.trials import (
    COMPLETE,
    FAILED,
    OVER,
    PRUNED,
    PRUNED_FILE,
    STARTED,
    TABLE_FILE,
    Trial,
    extend,
    freeze,
    grown,
    holding,
    lock,
    matching_trials,
    read_table,
    started_trials,
)

if TYPE_CHECKING:
    from hpc_es.tuning.study import Study

STATUS_SECONDS = 5.0  # between two updates of the status file during a trial


@dataclass(frozen=True)
class TuneRequest:
    """Arguments of `hpc-es tune`."""

    tuning: Path
    output: Path | None = None
    fixed: Sequence[str] = ()
    shard: str | None = None


@dataclass(frozen=True)
class RunningTrial:
    """The trial that is being run."""

    trial: Trial
    claim: RunLock
    hyperparameters: Hyperparameters
    config: Config


class Master:
    """Makes all decisions of a tuning task."""

    def __init__(self, request: TuneRequest, ranks: int) -> None:
        """Read and check the tuning.

        Raises:
            UserError: for every error that is known before the first trial runs.
        """
        shard = Shard.parse(request.shard) if request.shard else Shard.of_array(os.environ)
        self._shard = shard or Shard()
        self._plan = load(request.tuning, request.fixed)
        self._directory = absolute(request.output or Path("runs") / request.tuning.stem)
        self._study: Study | None = None
        if self._plan.options.search == "optuna":
            require("search: optuna", "optuna")
        self._table = self._frozen(ranks)
        if self._plan.options.search == "optuna":
            from hpc_es.tuning.study import Study

            plan = self._plan
            self._study = Study(
                self._directory, plan.space, plan.trials, plan.seed, plan.options.sampler
            )
        else:  # until this process ends; a study needs no lock, since any task takes any trial
            lock(self._directory, f"shard_{self._shard.index}_of_{self._shard.count}").acquire()
        mine = [Trial(self._directory, number) for number in self._shard.share(len(self._table))]
        unfinished = (trial for trial in mine if not trial.over)
        # of equal ones the lower number first
        self._remaining = sorted(unfinished, key=Trial.fruitless_starts)
        self._running: RunningTrial | None = None
        self._status_values: JsonObject = {}  # content of the status file except `generation`
        self._other_generations = 0  # of the trials that are not running
        self._written = 0.0

    def _frozen(self, ranks: int) -> list[Hyperparameters]:
        """Return the trials of the directory, up to the requested number.

        Missing ones are added to its table.
        """
        identity = self._plan.identity()
        if self._directory.is_dir():
            require_own_entries(self._directory)
        if matching_trials(self._directory, identity) is None:
            check(self._plan, ranks)
            with writing(self._directory):
                make_directory(self._directory)
            freeze(self._directory, identity, self._plan.table())
        on_disk = read_table(self._directory)
        assert on_disk is not None
        trials = self._plan.table()
        table = self._in_space(on_disk["trials"])
        more = (
            grown(on_disk, identity, trials)["identity"]["trials"] - on_disk["identity"]["trials"]
        )
        if more > 0:
            check(self._plan, ranks)
            with holding(lock(self._directory, "table")):
                table = self._in_space(extend(self._directory, identity, trials))
            say(f"{shown(self._directory)}: {more} more trials than before\n")
        return table[: self._plan.trials]

    def _in_space(self, trials: list[Hyperparameters]) -> list[Hyperparameters]:
        """Return the trials of a directory; UserError if one has other settings than the space."""
        for number, hyperparameters in enumerate(trials):
            try:
                require_in_space(self._plan.space, hyperparameters)
            except ValueError as error:
                raise UserError(
                    f"{self._directory / TABLE_FILE}: trial {number}: {error}; "
                    "choose another --output"
                ) from None
        return trials

    # The next trial.

    def next(self, ended: ExitReason | None, stop: bool) -> JsonObject | ExitReason:
        """Record how the last trial ended; return what all ranks run next, or how the command ends.

        UserError.
        """
        try:
            return self._next(ended, stop)
        except UserError as error:
            with contextlib.suppress(RunError):  # report the original error
                self._status("failed", exit_status=error.status, reason=str(error))
            raise

    def _next(self, ended: ExitReason | None, stop: bool) -> JsonObject | ExitReason:
        if ended is not None:
            self._record_end(ended)
            stop = stop or ended.status == INTERRUPTED
        while not stop:
            chosen = self._choose()
            if chosen is None:
                return self._finish()
            running = self._start_trial(*chosen)
            if running is not None:
                self._running = running
                self._announce(running)
                pruned = running.trial.path / PRUNED_FILE if self._study else None
                paths = {
                    "output": str(running.trial.path),
                    "pruned": str(pruned) if pruned else None,
                }
                return {**config_message(running.config), **paths}
        self._status("interrupted", exit_status=INTERRUPTED, reason="a signal")
        return ExitReason(
            INTERRUPTED, "interrupted by a signal; the same command resumes the tuning"
        )

    def _choose(self) -> tuple[Trial, RunLock, Hyperparameters] | None:
        if self._study is not None:
            return self._study.choose()
        while self._remaining:
            trial = self._remaining.pop(0)
            claim = trial.claim()
            if not trial.over:
                return trial, claim, self._table[trial.number]
            claim.release()
        return None

    def _start_trial(
        self, trial: Trial, claim: RunLock, hyperparameters: Hyperparameters
    ) -> RunningTrial | None:
        """Start a trial and return it; None if it ended without running."""
        pruned = trial.pruned()
        if pruned is not None:
            trial.end(hyperparameters, PRUNED, reason=pruned)
        elif trial.begin(hyperparameters):
            try:
                return RunningTrial(
                    trial, claim, hyperparameters, self._plan.config(hyperparameters, trial.number)
                )
            except UserError as error:
                trial.end(hyperparameters, FAILED, reason=str(error))
        self._over(trial, claim)
        return None

    def _announce(self, running: RunningTrial) -> None:
        values = "  ".join(f"{key} {value}" for key, value in running.hyperparameters.items())
        say(f"{running.trial.name} of {self._plan.trials}  {values}\n")
        self._status("running")

    # The running trial.

    def row(self, repetition: int, row: MetricsRow) -> None:
        """Report a generation of the running trial.

        It is pruned if its first repetition is below the median.
        """
        assert self._running
        running, value = self._running, self._intermediate(row)
        if time.monotonic() - self._written > STATUS_SECONDS:
            self._write_status()
        generation = int(row["generation"] or 0)
        is_initial = generation == 0  # an evaluation of the initial theta
        if self._study is None or repetition != 0 or value is None or is_initial:
            return
        used = {
            "timesteps": counted(row, "timesteps_total"),
            "episodes": counted(row, "episodes_total"),
            "seconds": row.get("seconds_total"),
        }
        share = fraction({**used, "generations": generation + 1}, results.budget(running.config))
        sign = -1.0 if is_minimised(running.config, self._plan.options.objective) else 1.0
        reason = self._study.report(float(value), share, sign)
        if reason is not None and share < 1:
            running.trial.prune(reason)

    def _intermediate(self, row: MetricsRow) -> float | None:
        """Return the value of a generation by which running trials are compared.

        Higher is better.
        """
        assert self._running
        value = row.get("best_value")
        if self._plan.options.objective != ANSWER or "best_value" not in row:
            vocabulary = self._running.config.setup.vocabulary
            mean: float | None = vocabulary.internal(row)["evaluation_return_mean"]
            return mean
        if value is None or math.isnan(value) or row.get("best_violation"):
            return None
        return -value if is_minimised(self._running.config, ANSWER) else value

    def _record_end(self, ended: ExitReason) -> None:
        assert self._running
        running, self._running = self._running, None
        trial, hyperparameters = running.trial, running.hyperparameters
        if ended.status == INTERRUPTED:
            trial.interrupt(hyperparameters)
            running.claim.release()
            return
        if ended.in_use:
            running.claim.release()
            raise UserError(ended.text)
        pruned = trial.pruned() if self._study else None
        if ended.status:
            trial.end(hyperparameters, FAILED, reason=ended.text)
        elif pruned is not None:
            trial.end(hyperparameters, PRUNED, reason=pruned)
        else:
            self._measure(running)
        self._over(trial, running.claim)

    def _measure(self, running: RunningTrial) -> None:
        try:
            rows = results.read_results(running.trial.path)
            if len(rows) != running.config.repetitions:
                raise ValueError(
                    f"{len(rows)} of {running.config.repetitions} repetitions have results"
                )
            value = objective(rows, self._plan.options.objective)
        except (UserError, *READING) as error:  # others may have written into the directory
            running.trial.end(running.hyperparameters, FAILED, reason=unreadable_reason(error))
        else:
            goal = (
                {"goal": "minimise"}
                if is_minimised(running.config, self._plan.options.objective)
                else {}
            )
            running.trial.end(running.hyperparameters, COMPLETE, value, **goal, **measures(rows))

    def _over(self, trial: Trial, claim: RunLock) -> None:
        if self._study is not None:
            self._study.tell(trial)
        claim.release()
        record = trial.record()
        outcome = (
            f"objective {record['objective']:.6g}"
            if record["state"] == COMPLETE
            else record["reason"]
        )
        say(f"{trial.name} {record['state']}: {visible(str(outcome))}\n")

    # The task as a whole.

    def _trials(self) -> Iterator[Trial]:
        """Return the trials of this task or, for an Optuna study, all started trials."""
        if self._study is not None:
            return started_trials(self._directory)
        return (Trial(self._directory, number) for number in self._shard.share(len(self._table)))

    def _finish(self) -> ExitReason:
        ended, quoted = ExitReason(0), shlex.quote(str(shown(self._directory)))
        states = Counter(str(trial.record().get("state")) for trial in self._trials())
        if states[FAILED] and not states[COMPLETE]:
            ended = ExitReason(1, f"all trials failed, see: hpc-es tune-report {quoted}")
        counts = ", ".join(
            f"{states[state]} {state}" for state in (*OVER, STARTED) if states[state]
        )
        say(f"{sum(states.values())} trials: {counts or 'none'}; hpc-es tune-report {quoted}\n")
        self._status(
            "failed" if ended.status else "finished",
            exit_status=ended.status,
            reason=ended.text or "done",
        )
        return ended

    def _status(self, status: str, **more: object) -> None:
        """Replace the status file of this task, which scripts read."""
        states, generations = Counter[str](), 0
        for trial in self._trials():
            record = trial.record()
            states[record.get("state", "missing")] += 1
            if self._running is None or trial != self._running.trial:
                generations += (
                    int(record.get("generation", 0))
                    if record.get("state") in OVER
                    else trial.generations()
                )
        self._status_values = {"status": status, "trials": states, **more, **this_run(os.environ)}
        self._other_generations = generations
        self._write_status()

    def _write_status(self) -> None:
        """Write the status file with the current generation of the running trial."""
        self._written = time.monotonic()
        generation = self._other_generations + (
            self._running.trial.generations() if self._running else 0
        )
        write_json(
            self._directory / status_name(self._shard),
            {"generation": generation, **self._status_values},
        )


# Every rank.


def tune(tuning: Path, output: Path | None, fixed: Sequence[str], shard: str | None) -> int:
    """Run the remaining trials of this task and return the exit status; every rank calls this."""
    request, world = TuneRequest(tuning, output, fixed, shard), connect()
    signals = Signals()
    try:
        master, _ = on_rank_0(world, lambda: Master(request, world.size))
        ended: ExitReason | None = None
        while True:
            ended = _trial(world, signals, _next(world, signals, master, ended), master)
    except CollectiveExit as end:
        if world.rank == 0 and end.reason.text:
            say_error(f"hpc_es: {end.reason.text}\n")
        return end.reason.status


def _next(
    world: World, signals: Signals, master: Master | None, ended: ExitReason | None
) -> JsonObject:
    """Return the trial that all ranks run next. Raise CollectiveExit if there is none."""

    def ask() -> JsonObject | ExitReason:
        assert master is not None
        return master.next(ended, signals.count() > 0)

    return on_rank_0(world, ask, dict)[1]


def _trial(
    world: World, signals: Signals, message: JsonObject, master: Master | None
) -> ExitReason:
    pruned = Path(message["pruned"]) if message["pruned"] else None

    def on_row(repetition: int, row: MetricsRow) -> bool:
        if master is not None:
            master.row(repetition, row)
        return pruned is None or not pruned.exists()  # so that the other groups of ranks see it too

    try:
        config = config_from_message(world, message)
    except CollectiveExit as ended:
        return ended.reason
    output = Path(message["output"])
    return contained(world, lambda: run_experiment(world, signals, config, output, on_row=on_row))
