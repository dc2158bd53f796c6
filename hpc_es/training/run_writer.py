"""The ranks in the log: each with its process, or of many those of each host.

Which generations leave a row: each `report.metrics_interval`, those with an evaluation, and the last one.

Which one is the last is known at the end only. Its row is then written behind what the checkpoint counts, so that a
run that goes on after all cuts it off and has the same file as one that was never stopped. If nothing is left to train
it is written again.


The files of a run that grow with its generations; a checkpoint counts their bytes, a resume cuts them to those.

Rank 0's side of a run: what is written into its directory and told to the user."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from hpc_es.config import user_kinds
from hpc_es.config.resolved import config_hash, dump, resolved
from hpc_es.config.schema import Config, Report
from hpc_es.config.sources import sources, with_history
from hpc_es.config.warnings import warnings_of
from hpc_es.core.data import Arrays, Results, Rows, State
from hpc_es.core.errors import RunError, UserError
from hpc_es.core.interfaces import Problem
from hpc_es.core.slurm import this_run
from hpc_es.mpi.world import World
from hpc_es.programs.log import ProgramsLog
from hpc_es.report.loggers.loggers import LoggedRun, Loggers, Status, flat
from hpc_es.report.progress import Progress
from hpc_es.storage import metrics_log, provenance, results
from hpc_es.storage.checkpoint import Best, Since, Snapshot, is_whole
from hpc_es.storage.files import remove_leftovers, write_json, write_text, written
from hpc_es.storage.line_logs import EvaluationsLog, FailuresLog
from hpc_es.storage.status import HEARTBEAT_SECONDS, RUNNING, STATUS, final_evaluation, now, this_process
from hpc_es.training.build import needs
from hpc_es.training.failure_reports import FailureReport
from hpc_es.training.metrics_row import MetricsRow
from hpc_es.training.recorder import Recorder, UpdateJournal, UpdateReplay
from hpc_es.training.run_directory import CONFIG, OpenedRun
from hpc_es.training.triggers import IntervalTrigger, TriggerList, Unit

if TYPE_CHECKING:
    from hpc_es.report.saved_policy import Env


FEW = 64  # ranks that are told one by one


def table_lines(table: Sequence[tuple[int, str, int]]) -> list[str]:
    """Return lines of (rank, host, process id): `rank=host:pid`, or of many ranks `ranks=host`, ten hosts a line."""
    if len(table) <= FEW:
        return ["rank=host:pid  " + "  ".join(f"{rank}={host}:{pid}" for rank, host, pid in table)]
    runs = [(host, [rank for rank, _, _ in ranks]) for host, ranks in groupby(table, key=lambda entry: entry[1])]
    told = [f"{ranks[0]}-{ranks[-1]}={host}" if len(ranks) > 1 else f"{ranks[0]}={host}" for host, ranks in runs]
    if len(told) > len(table) // 2:  # ranks that go round the hosts
        by_host: dict[str, list[int]] = {}
        for rank, host, _ in table:
            by_host.setdefault(host, []).append(rank)
        told = [f"{ranks[0]},{ranks[1]}..{ranks[-1]}={host}" for host, ranks in by_host.items() if len(ranks) > 1]
        told += [f"{ranks[0]}={host}" for host, ranks in by_host.items() if len(ranks) == 1]
    return ["ranks=host  " + "  ".join(told[start : start + 10]) for start in range(0, len(told), 10)]


class WrittenRows:
    """The rows of a run on their way to metrics.jsonl, log.csv and the loggers.

    `lengths` are the file lengths of the checkpoint that training goes on from, `generation` that of its state.
    """

    def __init__(
        self,
        run_dir: Path,
        report: Report,
        lengths: Mapping[str, int],
        generation: int,
        loggers: Loggers,
        warn: Callable[[str], object],
    ) -> None:
        self._interval = report.metrics_interval
        self._last: MetricsRow | None = _row_behind(run_dir, generation)
        self._log = metrics_log.MetricsLog(run_dir, warn, report.columns)
        self._log.cut(lengths)
        rows = metrics_log.read_metrics(run_dir)
        if self._last is not None and any(row["generation"] == generation - 1 for row in rows):
            self._last = None  # it is within what the checkpoint counts
        self._loggers = loggers
        self._loggers.start(generation if self._last is None else generation - 1, rows)
        self._lengths: dict[str, int] | None = None  # before the last row

    def add(self, row: MetricsRow, has_evaluation: bool) -> None:
        """Write a generation's row if it is due, or keep it, as it may be the last."""
        self._last = row
        if has_evaluation or int(row["generation"] or 0) % self._interval == 0:
            self._write()

    def end(self) -> None:
        """Write the last row where it is not there yet; `lengths` stays as it was before."""
        if self._last is not None and self._lengths is None:
            self._lengths = self._log.lengths()
            self._write()

    def lengths(self) -> dict[str, int]:
        """Return the bytes of each file that a checkpoint counts."""
        return self._lengths or self._log.lengths()

    def close(self, status: Status) -> None:
        """Close the files and the loggers."""
        with contextlib.suppress(OSError):
            self._log.close()
        self._loggers.close(status)

    def _write(self) -> None:
        assert self._last is not None
        self._log.write(self._last)
        self._loggers.write(self._last)
        self._last = None


def _row_behind(run_dir: Path, generation: int) -> MetricsRow | None:
    """Return the row of the last finished generation, if the file has it."""
    with contextlib.suppress(RunError):  # of a damaged file: `cut` says what is to be done
        rows = metrics_log.each_row(run_dir) if generation else iter(())
        return next((row for row in rows if row["generation"] == generation - 1), None)
    return None


class RunLogs:
    """metrics.jsonl, log.csv and the loggers; programs.jsonl; evaluations.csv.

    `lengths` are those of the checkpoint that training goes on from, `generation` that of its state.
    """

    def __init__(
        self,
        directory: Path,
        report: Report,
        problem: Problem,
        lengths: Mapping[str, int],
        generation: int,
        loggers: Loggers,
        warn: Callable[[str], object],
    ) -> None:
        self._problem = problem
        self._metrics = WrittenRows(directory, report, lengths, generation, loggers, warn)
        self._programs = ProgramsLog(directory, warn)
        self._programs.cut(lengths)
        self._evaluations = EvaluationsLog(directory, problem.coordinate_names, warn)
        self._evaluations.cut(lengths)

    def add_evaluations(self, state: State, results: Results[object], evaluation: Rows) -> None:
        """Write down what a generation has evaluated, before its update."""
        self._evaluations.write(state.generation, self._problem.evaluations(state, results, evaluation))

    def add(self, row: MetricsRow, is_evaluation: bool, found: Sequence[Mapping[str, Any]]) -> None:
        """Write down a generation's metrics, and the correct programs that it has found."""
        self._metrics.add(row, is_evaluation)
        self._programs.write(found)

    def end(self) -> None:
        """Write the last row of the metrics."""
        self._metrics.end()

    def lengths(self) -> dict[str, int]:
        """Return the bytes of each file, all of them on the disk: what a checkpoint stores."""
        return {**self._metrics.lengths(), **self._programs.lengths(), **self._evaluations.lengths()}

    def close(self, status: Status) -> None:
        """Close the files; `status` is how the run has ended."""
        self._metrics.close(status)
        self._programs.close()
        self._evaluations.close()


class RunWriter(Recorder):
    """Everything that rank 0 writes: checkpoints, logs, status, exports and what is shown of the run."""

    def __init__(
        self,
        opened: OpenedRun,
        config: Config,
        problem: Problem,
        world: World,
        triggers: Sequence[IntervalTrigger] = (),
        show_progress: bool = True,
    ) -> None:
        old = opened.snapshot
        super().__init__(config, problem, old.state if old else None)
        self.directory, self._world = opened.directory, world
        self._opened, self._provenance = opened, _provenance(config, world, problem, old)
        if old:
            self.counters |= old.counters
            self.best, self._final = old.best, old.final
        self.measured = final_evaluation(self.directory, old.generation if old else None)
        self._saved_generation = old.generation if old else -1
        self._journal = UpdateJournal(config.checkpoint.full_interval if needs(config).searches == "vectors" else 0)
        if old:
            self._journal.begin(opened.store.path(old.generation), old)
        if old and old.since:
            self.replay = UpdateReplay(old.since, old.state, old.best.generation if old.best else None)
        self._triggers = TriggerList([*triggers, *self._own_triggers()])
        if old:
            self._triggers.restore(old.triggers)
        for name in (CONFIG, STATUS):
            remove_leftovers(self.directory / name)
        self._text, self._hash = dump(config), config_hash(config)
        write_text(self.directory / CONFIG, self._text + provenance.as_comment(self._provenance))
        self.progress = Progress(self.directory, config.stop, show_progress, getattr(config.task, "goal", None))
        lengths, generation = (old.file_lengths, old.generation) if old else ({}, 0)
        run_ids = old.provenance.get("loggers", {}) if old else {}
        self._loggers = Loggers(config.report, _logged(config, self.directory), run_ids, self._warn)
        self._logs = RunLogs(self.directory, config.report, problem, lengths, generation, self._loggers, self._warn)
        if self._loggers.run_ids != run_ids:
            self._saved_generation = -1  # the checkpoint is written again, with them
        self._failures = FailuresLog(self.directory, keep=bool(old))
        self.remedy = f"see {self._failures.path}, mend the cause, and the same command resumes the run"
        self._process, self._status, self._beaten = this_process(), dict[str, object](), time.monotonic()
        self._ended: Status = "interrupted"
        self._export_env: Env = "unwrapped"  # what policy.keras acts in
        for warning in (*opened.warnings, *warnings_of(config), *problem.notices):
            self._warn(warning)

    def _own_triggers(self) -> list[IntervalTrigger]:
        """Plot, export and checkpoints, which come last: they save the state of the others."""
        report, checkpoint = self.config.report, self.config.checkpoint
        return [
            IntervalTrigger(self.draw, report.plot_interval_seconds, unit=Unit.SECONDS, name="plot"),
            IntervalTrigger(self.export, report.export_interval, name="export"),
            IntervalTrigger(self.save_in_between, checkpoint.interval, name="checkpoint"),
            IntervalTrigger(
                self.save_in_between, checkpoint.interval_seconds, unit=Unit.SECONDS, name="checkpoint_seconds"
            ),
        ]

    def message(self, text: str) -> None:
        """Show a line, and put it into the log."""
        self.progress.message(text)

    def finish(self, text: str) -> None:
        """Show the last line, and put it into the log."""
        self.progress.finish(text)

    def _warn(self, text: str) -> None:
        self.message(f"WARNING: {text}")

    def started(self, state: State, task: str, repetition: int) -> None:
        """Say that the run begins, or goes on, and put the first state on disk."""
        self._state = state
        for note in self._world.notes:
            self.message(note)
        for line in table_lines(self._world.table()):
            self.message(line)
        self.progress.start(self._info(state, task, repetition))
        if self.replay is not None:
            self.message(self.replay.message)
        if self._saved_generation < 0:
            self.save()
        else:
            self.status("running")

    def _info(self, state: State, task: str, repetition: int) -> Mapping[str, object]:
        is_one_of_several = self.config.repetitions > 1
        return {
            "name": self.config.name,
            "repetition": f"{repetition} of {self.config.repetitions}" if is_one_of_several else None,
            "task": task,
            "goal": getattr(self.config.task, "goal", None),
            "params": state.theta.size or None,
            "ranks": self._world.size,
            "mpi": self._world.library,
            "output": str(self.directory),
            "resumed": f"from generation {old.generation}" if (old := self._opened.snapshot) else None,
            "best_evaluation": self.best.return_ if self.best else None,
        }

    def replayed(self, state: State) -> None:
        """The generations since the last whole checkpoint were computed again: go on from this state."""
        assert self.replay
        self.replay.require_same(state)
        if self.best and self.replay.best is not None:
            self.best = dataclasses.replace(self.best, shared=self.replay.best)
        self._state, self.replay = state, None
        if self._saved_generation < 0:
            self.save()

    def failed(self, report: FailureReport) -> None:
        """Log why a job failed, the first one of its kind; later ones are only counted."""
        self.message(f"{report.line()}; others like it are only counted")
        self._failures.add(f"{report.line()} (on {report.host})", report.failure)

    def evaluated(self, state: State, results: Results[object], evaluation: Rows, units: Sequence[Arrays]) -> None:
        """Write down what a generation has evaluated and learned from, before it is booked."""
        self._journal.add(results, units)
        self._logs.add_evaluations(state, results, evaluation)

    def add(self, state: State, row: MetricsRow, evaluated: Arrays | None, found: Sequence[Mapping[str, Any]]) -> None:
        """Book a finished generation; `evaluated` are the shared arrays that its evaluation (if any) measured.

        `found` are the correct programs of the generation.
        """
        self._state, self._final = state, {}
        self._logs.add(row, evaluated is not None, found)
        self.progress.update(row)
        mean = row["evaluation_return_mean"]
        if evaluated is not None and mean is not None and (self.best is None or mean > self.best.return_):
            generation = int(row["generation"] or 0)
            self.best = Best(float(mean), generation, {name: array.copy() for name, array in evaluated.items()})
            self._opened.store.save_best(self._snapshot())
        self._triggers(self._values())
        self.beat()

    def _values(self) -> dict[Unit, float]:
        assert self._state
        return {
            Unit.GENERATION: self._state.generation,
            Unit.TIMESTEPS: self.counters["timesteps"],
            Unit.SECONDS: self.counters["seconds"],
        }

    def _snapshot(self, since: tuple[int, Since] | None = None) -> Snapshot:
        assert self._state
        return Snapshot(
            state=State(since[0], {}, {}) if since else self._state,
            since=since[1] if since else None,
            counters=self.counters,
            best=dataclasses.replace(self.best, shared={}) if self.best and since else self.best,
            triggers=self._triggers.state(),
            config_text=self._text,
            config_hash=self._hash,
            identity=self._opened.identity,
            file_lengths=self._logs.lengths(),
            final=self._final,
            provenance=self._provenance | ({"loggers": self._loggers.run_ids} if self._loggers.run_ids else {}),
        )

    def save(self) -> Path:
        """Write a whole checkpoint of the last finished generation, unless it is on disk already; return its file."""
        return self._save(whole=True)

    def save_in_between(self) -> None:
        """Write a checkpoint, of which only some are whole where `checkpoint.full_interval` says so."""
        self._save(whole=False)

    def _save(self, whole: bool) -> Path:
        assert self._state
        path = self._opened.store.path(max(self._saved_generation, self._state.generation))
        is_saved = self._state.generation == self._saved_generation and (not whole or is_whole(path))
        if self.replay is None and not is_saved:
            snapshot = self._snapshot(None if whole else self._journal.since(self._state))
            self._opened.store.save(snapshot)
            self._journal.begin(path, snapshot)
            self._saved_generation = self._state.generation
            self._problem.on_checkpoint(self._saved_generation)
            self.status("running")
        return path

    def draw(self) -> None:
        """Refresh curve.png; a picture that cannot be drawn ends no run."""
        from hpc_es.report.plot import plot

        try:
            plot([self.directory], self.directory / "curve.png")
        except UserError as error:
            self._warn(f"no learning curve: {error}")
        gc.collect()  # a Figure is a ring of references: those of many drawings would pile up until Python looks

    def export(self) -> None:
        """Refresh policy.keras from the newest checkpoint, made now; keep it by its number where that is asked for."""
        from hpc_es.report.export import ExportOptions, export

        self.save()
        options, file = ExportOptions("last", self._export_env, trust=True), self.directory / "policy.keras"
        try:
            export(self.directory, file, options)
        except UserError as error:
            if self._export_env == "wrapped":
                raise
            self._warn(f"policy.keras is for the environment with its wrappers: {error}")
            self._export_env = "wrapped"
            export(self.directory, file, dataclasses.replace(options, env="wrapped"))
        if self.config.report.export_numbered:
            assert self._state
            with written(self.directory / f"policy_{self._state.generation:06d}.keras") as temporary:
                shutil.copyfile(file, temporary)

    def finish_triggers(self, whole: bool) -> None:
        """Write the last row and force all triggers, at the end and on a signal; then the checkpoint may be small."""
        if self.replay is None:
            self._logs.end()
            self._triggers(self._values(), force=True)
            self._save(whole)

    def measured_at_end(self, units: Sequence[Arrays]) -> bool:
        """Save what the final evaluation has taught, beside the state, which goes on without it."""
        changed = super().measured_at_end(units)
        if changed:
            self._saved_generation = -1
            self.save()
        return changed

    def status(self, state: str, **more: object) -> None:
        """Replace status.json, which scripts read."""
        super().status(state, **more)
        assert self._state
        if state in get_args(Status):
            self._ended = cast(Status, state)
        values = {"status": state, "generation": self._state.generation, **self.counters, **more}
        values |= this_run(os.environ)
        if self.best is not None:
            values["best_return"] = self.best.return_
        self._status = values
        self._write_status()

    def _write_status(self) -> None:
        self._beaten = time.monotonic()
        write_json(self.directory / STATUS, {**self._status, **self._process, "heartbeat": now()})

    def beat(self) -> None:
        """Renew the time in status.json where that is due; called often, also between the steps of an evaluation."""
        if time.monotonic() - self._beaten < HEARTBEAT_SECONDS or self._status.get("status") != RUNNING:
            return
        with contextlib.suppress(RunError):  # it may be an environment that is interrupted here; a checkpoint will tell
            self._write_status()

    def result(
        self, task: str, repetition: int, final: Mapping[str, float], summary: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what is to be known of the finished run, and write it to result.json."""
        assert self._state
        target, carried = self.config.stop.target_value, self.carried()
        success = {} if target is None else {"success": self.is_reached(target)}
        found = results.result(
            self.config,
            repetition,
            task,
            self._state,
            self.counters,
            self.best.return_ if self.best else None,
            final,
            {**success, **self._problem.summary(carried), **summary},
        )
        write_json(self.directory / results.ALONE, found)
        return found

    def close(self) -> None:
        """Close the files and give the directory back."""
        self._logs.close(self._ended)
        self.progress.close()
        self._opened.lock.release()


def _provenance(config: Config, world: World, problem: Problem, old: Snapshot | None) -> dict[str, Any]:
    """Return where and with what the run goes on; sources that have changed since it began keep their hashes."""
    now = {
        **provenance.environment_info(world.library, world.size),
        **problem.environment_info(),
        "import_paths": list(user_kinds.used()),
        "sources": sources(resolved(config)),
    }
    return with_history(now, old.provenance if old else {})


def _logged(config: Config, directory: Path) -> LoggedRun:
    """Return the run as loggers show it: a repetition by its number too."""
    name = config.name or directory.name
    return LoggedRun(directory, f"{name}/{directory.name}" if config.repetitions > 1 else name, flat(resolved(config)))
