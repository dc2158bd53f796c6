"""Rank 0 writes a run directory: checkpoints, logs, status, exports, and shows progress."""

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

from hpc_es.config import user_code
from hpc_es.config.options import warnings_of
from hpc_es.config.resolved import (
    config_hash,
    dump,
    package_versions,
    resolved,
    software_warning,
    sources,
    stored_text,
    with_history,
)
from hpc_es.config.schema import Config, Report
from hpc_es.core.data import IMAGE, Array, Arrays, Json, JsonObject, Rows, State, without_info
from hpc_es.core.errors import RunError, UserError
from hpc_es.core.interfaces import Problem
from hpc_es.core.machine import as_comment, environment_info
from hpc_es.core.paths import shown
from hpc_es.core.run_files import open_file
from hpc_es.core.slurm import this_run
from hpc_es.core.time_share import TimeShare
from hpc_es.core.vocabulary import RETURNS, Vocabulary
from hpc_es.devices.decision import current_decision
from hpc_es.mpi.world import World
from hpc_es.report.progress import Progress
from hpc_es.storage import metrics_log, results
from hpc_es.storage.answers import NOISE_MEASURED, RESULT, Answer, Found
from hpc_es.storage.checkpoint import BestCentre, CutShort, Increment, Snapshot, is_full
from hpc_es.storage.files import finite, remove_leftovers, replace_by, write_json, write_text
from hpc_es.storage.line_logs import EvaluationsLog, FailuresLog, ProgramsLog
from hpc_es.storage.status import (
    FINISHED,
    HEARTBEAT_SECONDS,
    RUNNING,
    STATUS,
    EndStatus,
    final_evaluation,
    now,
    this_process,
)
from hpc_es.storage.trust import trust_imported, trust_own
from hpc_es.training.centre_evaluation import CentreEvaluation
from hpc_es.training.collective import FailureReport
from hpc_es.training.compatibility import points_text, rounding_warnings
from hpc_es.training.finished import FinishedGeneration, Measured
from hpc_es.training.generation import NOTHING_USED, Counters, MetricsRow
from hpc_es.training.journal import UpdateJournal, UpdateReplay
from hpc_es.training.outcomes import StoredOutcomes
from hpc_es.training.recorder import long_wait_message
from hpc_es.training.run_directory import CONFIG, OpenedRun
from hpc_es.training.standing import Standing
from hpc_es.training.triggers import IntervalTrigger, TriggerList, Unit

if TYPE_CHECKING:
    from hpc_es.core.elites import Elites
    from hpc_es.mpi.waiting import LongWait
    from hpc_es.report.loggers import Loggers
    from hpc_es.storage.members import Again
    from hpc_es.trained.policy import Env
    from hpc_es.training.members import MembersWriter


SHOWN = ("members", "coverage", "qd_score")  # of a corrected score, in the log
MOST_MISSING = 1 << 30  # bytes of a missing log, which is replaced by as many
MOST_LISTED_RANKS = 64  # above this, the log lists hosts with their ranks instead of single ranks


class MetricsFiles:
    """The metrics of a run in metrics.jsonl, log.csv and the loggers.

    Rows are written every `report.metrics_interval` generations, for generations with an
    evaluation, and for the last one. Which generation is the last is known only at the end: its row
    is then written beyond the lengths that the last checkpoint records, so that a resumed run cuts
    it off, and has the same file as a run without interruption. If nothing is left to train, it is
    written again.

    Args:
        lengths: file lengths of the checkpoint that training resumes from, by name.
        generation: generation of its state.
    """

    def __init__(
        self,
        run_dir: Path,
        report: Report,
        lengths: Mapping[str, int],
        *,
        generation: int,
        loggers: Loggers | None,
        warn: Callable[[str], object],
        vocabulary: Vocabulary = RETURNS,
    ) -> None:
        self._interval = report.metrics_interval
        self._image: Array | None = None  # of the last row
        self._last: MetricsRow | None = _last_row(run_dir, generation)
        self._log = metrics_log.MetricsLog(run_dir, warn, report.columns, vocabulary)
        self._log.cut(lengths)
        rows = metrics_log.read_metrics(run_dir)
        if self._last is not None and any(row["generation"] == generation - 1 for row in rows):
            self._last = None  # within the lengths of the checkpoint
        self._loggers = loggers
        if loggers is not None:
            loggers.start(generation if self._last is None else generation - 1, rows)
        self._lengths: dict[str, int] | None = None  # before the last row

    def add(self, row: MetricsRow, has_evaluation: bool, image: Array | None = None) -> None:
        """Write the row of a generation if it is due, otherwise keep it for the end.

        It may be the last one. `image` is an observation for the loggers, [height, width] or with
        channels.
        """
        self._last, self._image = row, image
        if has_evaluation or int(row["generation"] or 0) % self._interval == 0:
            self._write()

    def add_last(self, row: MetricsRow, image: Array | None = None) -> None:
        """Write the row of a generation that was cut short, which a resumed run replaces."""
        self._last, self._image = row, image
        self.end()

    def end(self) -> None:
        """Write the last row if it is missing; `lengths` does not count it."""
        if self._last is not None and self._lengths is None:
            self._lengths = self._log.lengths()
            self._write()

    def write_answer(self, generation: int, answer: Answer) -> None:
        """Show the answer of a finished run in the loggers, after the last generation."""
        if self._loggers is not None and answer.value is not None:
            values = {"answer_value": answer.value, "answer_standard_error": answer.standard_error}
            self._loggers.write({"generation": generation, **values})

    def lengths(self) -> dict[str, int]:
        """Return the length in bytes of each file, for a checkpoint."""
        return self._lengths or self._log.lengths()

    def close(self, status: EndStatus) -> None:
        """Close the files and the loggers; `status` is how the run ended."""
        with contextlib.suppress(OSError):
            self._log.close()
        if self._loggers is not None:
            self._loggers.close(status)

    def _write(self) -> None:
        assert self._last is not None
        self._log.write(self._last)
        if self._loggers is not None:
            self._loggers.write(self._last, self._image)
        self._last = None


def _last_row(run_dir: Path, generation: int) -> MetricsRow | None:
    """Return the row of the last finished generation if the file has it."""
    with contextlib.suppress(RunError):  # of a damaged file, which `MetricsLog.cut` reports
        rows = metrics_log.each_row(run_dir) if generation else iter(())
        return next((row for row in rows if row["generation"] == generation - 1), None)
    return None


# of the time, that checkpoints by generation may take with `checkpoint.interval: auto`
SAVING_SHARE = 0.02


class RunWriter:
    """Writes everything that rank 0 writes in a run, and shows its progress."""

    def __init__(
        self,
        opened: OpenedRun,
        config: Config,
        problem: Problem,
        *,
        state: State,
        world: World,
        triggers: Sequence[IntervalTrigger] = (),
        show_progress: bool = True,
        members: MembersWriter | None = None,
    ) -> None:
        self._members = members
        old = opened.snapshot
        self.config, self._problem = config, problem
        self._vocabulary = config.setup.vocabulary
        self.standing = Standing(config, problem, state)
        self.state_is_whole = True
        self.replay: UpdateReplay | None = None
        self.pending: CutShort | None = None
        self.directory, self._world, self._opened = opened.directory, world, opened
        data = resolved(config)
        current = {
            **environment_info(world.library, world.size, package_versions(data)),
            **(decision.provenance(world) if (decision := current_decision()) else {}),
            **problem.environment_info(),
            "import_paths": list(user_code.import_directories()),
            "sources": sources(data),
        }
        self._provenance = with_history(current, old.provenance if old else {})
        changed = software_warning(old.provenance, current) if old else None
        if old:
            self.standing.counters |= old.counters
            self.standing.best, self.standing.final = old.best, old.final
        # the last generation if it was cut short, after the state
        self._cut: CutShort | None = None
        self._lengths_before_cut: dict[str, int] | None = None
        self._after_pending = (self.standing.counters, self.standing.final)  # after `pending`
        if old and old.cut:
            seconds = {"seconds": old.counters["seconds"]}
            self.standing.counters, self.standing.final = (
                {**NOTHING_USED, **old.cut.counters, **seconds},
                {},
            )
            self.pending = old.cut
        generation = old.generation if old else None
        self.measured: Mapping[str, float] = final_evaluation(self.directory, generation)
        self._saved_generation = old.generation if old else -1
        self._saving = TimeShare(SAVING_SHARE)
        self._journal = UpdateJournal(
            config.checkpoint.full_interval if config.setup.needs.searches == "vectors" else 0
        )
        if old:
            self._journal.begin(opened.store.path(old.generation), old)
        if old and old.increment:
            self.replay = UpdateReplay(
                old.increment, old.state, old.best.generation if old.best else None
            )
        self._triggers = TriggerList([*triggers, *self._own_triggers()])
        if old:
            self._triggers.restore(old.triggers)
        for name in (CONFIG, STATUS):
            remove_leftovers(self.directory / name)
        self._text, self._hash = stored_text(config, text := dump(config)), config_hash(config)
        write_text(self.directory / CONFIG, text + as_comment(self._provenance))
        trust_own(self.directory, resolved(config), self._provenance["sources"])
        self.progress = Progress(
            self.directory,
            config.stop,
            show_progress,
            vocabulary=self._vocabulary,
            metrics=config.setup.metrics,
            objectives=tuple(problem.quantities.objectives),
        )
        self._open_logs(old)
        self._failures = FailuresLog(self.directory, keep=bool(old))
        # relative, since reports, which are handed on, show it
        file = shown(self._failures.path)
        self.remedy = f"see {file}, fix the cause, and the same command resumes the run"
        self._process, self._status, self._last_beat = (
            this_process(),
            dict[str, object](),
            time.monotonic(),
        )
        self._end_status: EndStatus = "interrupted"
        self._export_env: Env = "unwrapped"  # the environment that policy.keras is made for
        if changed:
            self._warn(changed)
        for warning in (
            *opened.warnings,
            *warnings_of(config),
            *rounding_warnings(config, problem),
            *problem.notices,
        ):
            self._warn(warning)

    def _open_logs(self, old: Snapshot | None) -> None:
        """Open the files that grow with each generation, cut to the lengths of the checkpoint."""
        config, directory = self.config, self.directory
        lengths, generation = (old.file_lengths, old.generation) if old else ({}, 0)
        for name, length in lengths.items():
            if length > MOST_MISSING and not (directory / name).exists():
                raise RunError(
                    f"{directory / name} is missing, and had {length:,} bytes by the checkpoint: "
                    "resume with it, or from another checkpoint"
                )
        run_ids = old.provenance.get("loggers", {}) if old else {}
        self._loggers = (
            self._new_loggers(run_ids) if config.report.all_loggers() or run_ids else None
        )
        self._metrics = MetricsFiles(
            directory,
            config.report,
            lengths,
            generation=generation,
            loggers=self._loggers,
            warn=self._warn,
            vocabulary=self._vocabulary,
        )
        self._programs = ProgramsLog(directory, self._warn)
        self._programs.cut(lengths)
        self._evaluations = EvaluationsLog(directory, self._problem.coordinate_names, self._warn)
        self._evaluations.cut(lengths)
        if self._loggers is not None and self._loggers.run_ids != run_ids:
            self._saved_generation = -1  # save the checkpoint again with the new ids

    def _new_loggers(self, run_ids: Mapping[str, str]) -> Loggers:
        from hpc_es.report.loggers import LoggedRun, Loggers, flat

        config, name = self.config, self.config.name or self.directory.name
        if config.repetitions > 1:
            name = f"{name}/{self.directory.name}"
        return Loggers(
            config.report,
            LoggedRun(self.directory, name, flat(resolved(config))),
            run_ids,
            self._warn,
        )

    def _own_triggers(self) -> list[IntervalTrigger]:
        """Return triggers for plot, export and checkpoints, which come last:
        they save the others' state.
        """
        report, checkpoint = self.config.report, self.config.checkpoint
        return [
            _UnforcedTrigger(
                self.draw, report.plot_interval_seconds, unit=Unit.SECONDS, name="plot"
            ),
            IntervalTrigger(self.export, report.export_interval, name="export"),
            IntervalTrigger(self.save_if_cheap, checkpoint.generations, name="checkpoint"),
            IntervalTrigger(
                self.save_in_between,
                checkpoint.interval_seconds,
                unit=Unit.SECONDS,
                name="checkpoint_seconds",
            ),
        ]

    def message(self, text: str) -> None:
        """Show a line and write it to the log."""
        self.progress.message(text)

    def long_wait(self, wait: LongWait, task: str) -> None:
        """Show that no evaluation of the task has finished for long."""
        self.message(long_wait_message(self.standing, wait, task))

    def finish(self, text: str) -> None:
        """Show the last line and write it to the log."""
        self.progress.finish(text)

    def draw_at_end(self) -> None:
        """Draw the learning curve, with the final evaluation that status.json has now."""
        if self.config.report.plot_interval_seconds:
            self.draw()

    def _warn(self, text: str) -> None:
        self.message(f"WARNING: {text}")

    def started(self, task: str, repetition: int) -> None:
        """Show that the run starts or resumes, and save the first state."""
        state = self.standing.state
        for line in (*self._world.notes, *rank_table_lines(self._world.table())):
            self.message(line)
        old, config = self._opened.snapshot, self.config
        self.progress.start(
            {
                "name": config.name,
                "repetition": f"{repetition} of {config.repetitions}"
                if config.repetitions > 1
                else None,
                "task": task,
                "goal": config.setup.offers.goal,
                "params": state.theta.size or None,
                "ranks": self._world.size,
                "mpi": self._world.library,
                "output": shown(self.directory),
                "resumed": f"from generation {old.generation}" if old else None,
                "best_evaluation": self._best_centre(),
            }
        )
        if old is None and (text := points_text(config, self._problem)):
            self.message(text)
        if self.replay is not None:
            self.message(self.replay.message)
        # frees memory after the first update
        self._opened = dataclasses.replace(self._opened, snapshot=None)
        if self._saved_generation < 0:
            self.save()
        else:
            self.status("running")

    # A generation.

    def keep(self, measured: State, evaluation: Rows, is_overwritten: bool) -> Measured:
        """Return the state that an evaluation measured, copied if its arrays are recorded.

        See `Recorder.keep`.
        """
        is_best = len(evaluation) > 0 and self.standing.is_better(measured, evaluation)
        is_listed = len(evaluation) > 0 and bool(self._problem.coordinate_names)
        if is_best or (is_listed and is_overwritten):
            shared = {name: array.copy() for name, array in measured.shared.items()}
            measured = dataclasses.replace(measured, shared=shared)
        return Measured(measured, is_best)

    def add(
        self, finished: FinishedGeneration, row: MetricsRow, solutions: Sequence[JsonObject]
    ) -> None:
        """Record a finished generation: logs, progress, best evaluation, triggers.

        See `Recorder.add`.
        """
        # of all ranks, since a resumed run may have one
        seconds = float(row["time_update_mean"] or 0) * int(row["ranks"] or 1)
        self._journal.add(finished.evaluated.results, finished.update.units, seconds)
        self._write_evaluations(finished)
        self.standing.state, self.standing.final = finished.state, {}
        self.pending, self.measured = None, {}
        self._metrics.add(row, len(finished.evaluated.evaluation) > 0, _image(finished))
        self._add(finished, row, solutions)
        self._triggers(self._trigger_values())
        self.beat()

    def add_cut(
        self,
        finished: FinishedGeneration,
        row: MetricsRow,
        solutions: Sequence[JsonObject],
        *,
        outcomes: StoredOutcomes,
        counters: Counters,
        is_new: bool,
    ) -> None:
        """Record such a generation; its lines are not part of the next checkpoint.

        See `Recorder.add_cut`.
        """
        used = {name: value for name, value in counters.items() if name != "seconds"}
        self._cut, self._lengths_before_cut = CutShort(used, outcomes.pack()), self._file_lengths()
        self._write_evaluations(finished)
        self.standing.cut_short(finished.update.state)
        if is_new:
            self._saved_generation, self.measured = -1, {}
        else:
            _, self.standing.final = self._after_pending  # with the final evaluation
        self.pending = None
        self._metrics.add_last(row, _image(finished))
        self._add(finished, row, solutions)
        self.beat()

    def _write_evaluations(self, finished: FinishedGeneration) -> None:
        if self._problem.coordinate_names:
            evaluated, measured = finished.evaluated, finished.measured.state
            evaluations = self._problem.evaluations(
                measured, evaluated.results, evaluated.evaluation
            )
            self._evaluations.write(measured.generation, evaluations)

    def _add(
        self, finished: FinishedGeneration, row: MetricsRow, solutions: Sequence[JsonObject]
    ) -> None:
        """Record new programs, the best evaluation and the progress."""
        if solutions:
            self._programs.write(solutions)
        evaluation = finished.evaluated.evaluation
        measured = CentreEvaluation(evaluation, self._problem.episodes_per_job)
        is_best = finished.measured.is_best and len(measured.returns) > 0
        if is_best:
            rows = without_info(evaluation) if self._problem.derives_fitness else None
            generation, error = int(row["generation"] or 0), measured.standard_error
            shared = finished.measured.state.shared
            mean = float(measured.returns.mean())
            self.standing.best = BestCentre(
                mean, generation, shared, rows, error, measured.episodes
            )
        is_noisy = self.standing.has_noisy_answer
        self.progress.update(row, self._best_centre(), is_noisy=is_noisy)
        if is_best:
            self._opened.store.save_best(self._snapshot())

    def failed(self, report: FailureReport) -> None:
        """Log the first failed job of a kind; later ones are only counted."""
        self.message(f"{report.line()}; others like it are only counted")
        self._failures.add(f"{report.line()} (on {report.host})", report.failure)

    def replayed(self, state: State) -> None:
        """Continue from this state, after the replay of the last full checkpoint's updates."""
        assert self.replay
        self.replay.require_same(state)
        best = self.standing.best
        if best and self.replay.best is not None:
            self.standing.best = dataclasses.replace(best, shared=self.replay.best)
        self.standing.state, self.replay = state, None
        if self._saved_generation < 0:
            self.save()

    def _trigger_values(self) -> dict[Unit, float]:
        counters = self.standing.counters
        return {
            Unit.GENERATION: self.standing.state.generation,
            Unit.TIMESTEPS: counters["timesteps"],
            Unit.SECONDS: counters["seconds"],
        }

    # Checkpoints.

    def _snapshot(self, since: tuple[int, Increment] | None = None) -> Snapshot:
        """Return a checkpoint; `since` holds the updates that it stores instead of the state."""
        standing, cut = self.standing, self._cut
        counters, final, best = standing.counters, standing.final, standing.best
        if self.pending is not None:  # an interruption before it was recorded again
            (counters, final), cut = self._after_pending, self.pending
        run_ids = {} if self._loggers is None else self._loggers.run_ids
        return Snapshot(
            state=State(since[0], {}, {}) if since else standing.state,
            increment=since[1] if since else None,
            counters=counters,
            best=dataclasses.replace(best, shared={}) if best and since else best,
            triggers=self._triggers.state(),
            config_text=self._text,
            config_hash=self._hash,
            identity=self._opened.identity,
            file_lengths=self._lengths_before_cut or self._file_lengths(),
            final=final,
            cut=cut,
            provenance={**self._provenance, **({"loggers": run_ids} if run_ids else {})},
        )

    def _file_lengths(self) -> dict[str, int]:
        return {
            **self._metrics.lengths(),
            **self._programs.lengths(),
            **self._evaluations.lengths(),
        }

    def save(self) -> Path:
        """Write a full checkpoint of the last finished generation and return its file.

        If there is one, it stays.
        """
        return self._save(whole=True)

    def save_in_between(self) -> None:
        """Write a checkpoint, which need not be whole if `checkpoint.full_interval` is set."""
        self._save(whole=False)

    def save_if_cheap(self) -> None:
        """Write a checkpoint that is due by its generation.

        With `auto` only while they take little of the time.
        """
        is_auto = self.config.checkpoint.interval == "auto"
        if not is_auto or self._saving.is_due():
            self.save_in_between()

    def _save(self, whole: bool) -> Path:
        state = self.standing.state
        path = self._opened.store.path(max(self._saved_generation, state.generation))
        is_saved = state.generation == self._saved_generation and (not whole or is_full(path))
        if not self.state_is_whole:
            raise RunError(
                f"the update of generation {state.generation + 1} failed while it changed the "
                "state, which cannot be saved: resume from the last checkpoint"
            )
        if self.replay is None and not is_saved:
            with self._saving.spent():
                snapshot = self._snapshot(None if whole else self._journal.since(state))
                self._opened.store.save(snapshot)
                if snapshot.increment is None and (whole or self._members_are_due()):
                    self._write_members()
                self._journal.begin(path, snapshot)
                self._saved_generation = state.generation
                self._problem.on_checkpoint(self._saved_generation)
                self.status("running")
        return path

    # Pictures and exports.

    def draw(self) -> None:
        """Refresh curve.png; an error while drawing becomes a warning."""
        from hpc_es.report.plot import plot

        try:
            plot([self.directory], self.directory / "curve.png")
        except UserError as error:
            self._warn(f"no learning curve: {error}")
        gc.collect()  # figures are reference cycles, which would pile up until Python collects them

    def export(self) -> None:
        """Save a checkpoint, and refresh policy.keras from the same state.

        With `report.export_numbered`, there is also a numbered copy.
        """
        from hpc_es.report.export import export_policy
        from hpc_es.trained.policy import ready
        from hpc_es.trained.stored import stored_policy

        self.save()
        # not from the directory, where others may have written a newer checkpoint
        source = stored_policy(self.directory, self._snapshot(), "last")
        file = self.directory / "policy.keras"
        try:
            export_policy(ready(source, self._export_env), file)
        except UserError as error:
            if self._export_env == "wrapped":
                raise
            self._warn(f"policy.keras is for the environment with its wrappers: {error}")
            self._export_env = "wrapped"
            export_policy(ready(source, "wrapped"), file)
        if self.config.report.export_numbered:
            numbered = self.directory / f"policy_{self.standing.state.generation:06d}.keras"
            with open_file(file) as exported:
                replace_by(numbered, lambda copy: shutil.copyfileobj(exported, copy))

    # The end.

    def finish_triggers(self, whole: bool) -> None:
        """Write the last row, force all triggers and save; with `whole`, a full checkpoint."""
        if self.replay is None:
            self._metrics.end()
            self._triggers(self._trigger_values(), force=True)
            self._save(whole)
            if self._members is not None:
                self._write_members()
                self._draw_members(self._members)
                self.message(self._members.text)

    def _draw_members(self, members: MembersWriter) -> None:
        """Draw the archive beside the learning curve; an error becomes a warning."""
        if self.config.report.plot_interval_seconds:
            try:
                members.draw(self.directory)
            except UserError as error:
                self._warn(f"no picture of the archive: {error}")
            gc.collect()

    def _members_are_due(self) -> bool:
        """Whether a checkpoint in between comes with the files of the members."""
        is_auto = self.config.checkpoint.interval == "auto"
        return self._members is not None and (not is_auto or self._members.share.is_due())

    def _write_members(self) -> None:
        """Write the front or archive of the state, which the last checkpoint has."""
        if self._members is not None:
            self._members.write(self.directory, self.standing.outcome)

    def measured_at_end(self, units: Sequence[Arrays]) -> None:
        """Save what the problem learned from the final evaluation.

        It is apart from the state, which a resume continues.
        """
        if self.standing.add_learned(units):
            self._saved_generation = -1
            self.save()

    def members_at_end(self, each: int) -> Elites | None:
        """Return the members to evaluate again; see `Recorder`."""
        if self._members is None:
            return None
        elites = self._members.elites(self.standing.outcome)
        again = self._members.again(self.directory, elites)
        is_known = again is not None and again.each == each
        return None if is_known or not len(elites) else elites

    def add_members(self, again: Again) -> None:
        """Write what the members returned again, and show the corrected score."""
        assert self._members is not None
        self._members.add_again(self.directory, self.standing.outcome, again)
        text = f"{again.evaluations:,} evaluations of all members, {again.each} of each"
        score = self._members.corrected(self.directory, self.standing.outcome)
        parts = [f"{name} {value:.6g}" for name, value in score.items() if name in SHOWN]
        self.message(f"{text}: {', '.join(parts)}")

    def status(self, state: str, **more: object) -> None:
        """Replace status.json, which scripts read."""
        standing = self.standing
        if state in get_args(EndStatus):
            self._end_status = cast(EndStatus, state)
        self._status = {
            "status": state,
            "generation": standing.state.generation,
            **standing.counters,
            **more,
        }
        self._status |= this_run(os.environ)
        self._write_status()
        if state == FINISHED:
            answer = standing.found(final_results(more)).answer
            self._metrics.write_answer(standing.state.generation, answer)

    def _write_status(self) -> None:
        """Replace status.json, with what the run has found until now:
        a generation may take longer than a heartbeat.
        """
        self._last_beat = time.monotonic()
        found = self.standing.found(final_results(self._status))
        best = self._best_return(found)
        values = {**self._status, **({} if best is None else {"best_return": best})}
        values = {**self._vocabulary.public(values), **found.data()}
        if self.standing.has_noisy_answer:
            values[NOISE_MEASURED] = True
        if metrics := self.config.setup.metrics:
            values["metrics"] = {name: vars(metric) for name, metric in metrics.items()}
        values |= {**self._process, "heartbeat": now()}
        write_json(self.directory / STATUS, finite(values))

    def _best_return(self, found: Found) -> float | None:
        """Return the return of the best evaluated centre.

        It is the answer, or for an objective that of a centre.
        """
        if found.answer.is_evaluated_centre and found.answer.value is not None:
            return self._vocabulary.sign * found.answer.value
        best = self.standing.best
        return None if best is None else best.return_

    def _best_centre(self) -> float | None:
        """Return the best evaluation of a centre as the user sees it."""
        best = self.standing.best
        return None if best is None else self._vocabulary.sign * best.return_

    def beat(self) -> None:
        """Renew the heartbeat in status.json if it is due.

        Called often, also between the steps of an evaluation.
        """
        if (
            time.monotonic() - self._last_beat < HEARTBEAT_SECONDS
            or self._status.get("status") != RUNNING
        ):
            return
        # an environment may be running now; the next checkpoint reports the error
        with contextlib.suppress(RunError):
            self._write_status()

    def result(
        self, task: str, repetition: int, final: Mapping[str, float], summary: JsonObject
    ) -> JsonObject:
        """Return the result of the finished run, and write it to result.json."""
        standing, target = self.standing, self.config.stop.target_value
        found = standing.found(final)
        success = {} if target is None else {"success": standing.has_succeeded(found, target)}
        if (volume := self.config.stop.hypervolume) is not None:
            success = {"success": standing.is_front_reached(volume)}
        members: dict[str, Json] = {}
        if self._members is not None:
            members["members"] = self._members.count
            if again := self._members.corrected(self.directory, standing.outcome):
                members["members_again"] = again
        result = results.result(
            self.config,
            repetition=repetition,
            task=task,
            state=standing.state,
            counters=standing.counters,
            found=found,
            best=self._best_return(found),
            final=final,
            more={**success, **members, **self._problem.summary(standing.carried()), **summary},
        )
        write_json(self.directory / RESULT, result)
        return result

    def close(self) -> None:
        """Close the files and release the directory."""
        if self._provenance["sources"]:
            trust_imported()  # during the run, too
        self._metrics.close(self._end_status)
        self._programs.close()
        self._evaluations.close()
        self.progress.close()
        self._opened.lock.release()


class _UnforcedTrigger(IntervalTrigger):
    """A trigger that is not called at the end of the run."""

    def __call__(self, value: float, force: bool = False) -> None:
        """Call the function if it is due."""
        super().__call__(value)


def _image(finished: FinishedGeneration) -> Array | None:
    """Return the first image that a chunk has sent, or None."""
    return next(
        (arrays[IMAGE] for arrays in finished.evaluated.results.chunk_arrays if IMAGE in arrays),
        None,
    )


def final_results(status: Mapping[str, Any]) -> dict[str, float]:
    """Return the results of the final evaluation among the entries of status.json."""
    return {name: value for name, value in status.items() if name.startswith("final_")}


def rank_table_lines(table: Sequence[tuple[int, str, int]]) -> list[str]:
    """Return lines for (rank, host, process id): `rank=host:pid`.

    For many ranks it is `ranks=host`, ten per line.
    """
    if len(table) <= MOST_LISTED_RANKS:
        return ["rank=host:pid  " + "  ".join(f"{rank}={host}:{pid}" for rank, host, pid in table)]
    runs = [
        (host, [rank for rank, _, _ in ranks])
        for host, ranks in groupby(table, key=lambda entry: entry[1])
    ]
    items = [
        f"{ranks[0]}-{ranks[-1]}={host}" if len(ranks) > 1 else f"{ranks[0]}={host}"
        for host, ranks in runs
    ]
    if len(items) > len(table) // 2:  # ranks alternate between hosts
        by_host: dict[str, list[int]] = {}
        for rank, host, _ in table:
            by_host.setdefault(host, []).append(rank)
        items = [
            f"{ranks[0]},{ranks[1]}..{ranks[-1]}={host}"
            for host, ranks in by_host.items()
            if len(ranks) > 1
        ]
        items += [f"{ranks[0]}={host}" for host, ranks in by_host.items() if len(ranks) == 1]
    return [
        "ranks=host  " + "  ".join(items[start : start + 10]) for start in range(0, len(items), 10)
    ]
