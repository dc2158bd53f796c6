"""Rank 0's side of a run: its directory with lock, checkpoints, metrics, log, and what is told to the user."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpc_es.common.files import remove_leftovers, write_json, write_text
from hpc_es.config import Config, config_hash, dump, identity
from hpc_es.errors import CheckpointError, InUseError, RunError, UserError
from hpc_es.experiment import versions
from hpc_es.experiment.checkpoint import Best, Snapshot
from hpc_es.experiment.compare import differences
from hpc_es.experiment.lock import RunLock
from hpc_es.experiment.measure import Row
from hpc_es.experiment.store import Store
from hpc_es.experiment.triggers import IntervalTrigger, TriggerList, Unit
from hpc_es.interfaces import Arrays, State
from hpc_es.report import tensorboard
from hpc_es.report.metrics import MetricsLog
from hpc_es.report.progress import Progress
from hpc_es.slurm import this_run

Resume = Literal["auto", "never", "require"]
STATUS = "status.json"
CONFIG = "config.yaml"
Counters = dict[str, float | int]


@dataclass(frozen=True)
class Opened:
    """A run directory that is ours, and the snapshot to carry on from, if any."""

    directory: Path
    lock: RunLock
    store: Store
    snapshot: Snapshot | None
    identity: Mapping[str, Any]  # what may not change on resume
    warnings: tuple[str, ...]


def open_run(directory: Path, config: Config, resume: Resume, repetition: int = 0) -> Opened:
    """Make and lock the run directory, find the newest checkpoint and see that it is of this experiment.

    Raises UserError (CheckpointError, RunError) before anything is changed but the lock.
    """
    if config.report.tensorboard:
        tensorboard.require()
    if config.report.export_interval:
        from hpc_es.experiment import export

        export.require()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output {directory} cannot be made: {error.strerror}; choose another --output") from error
    try:
        lock = RunLock(directory).acquire()
    except RunError as error:
        raise UserError(f"output {directory} cannot be used: {error}") from error
    except InUseError as error:
        raise InUseError(f"{error}{_of_an_array()}") from error
    warnings: list[str] = []
    identity = full_identity(config, repetition)
    store = Store(directory / "checkpoints", config.checkpoint.keep_last, config.checkpoint.keep_best)
    try:
        if resume == "never" and _used(directory):
            text = f"{directory} holds a run already, and --resume is never: choose another --output, or --resume auto"
            raise UserError(text)
        if any(directory.glob("repetition_*")):
            raise UserError(f"{directory} holds repetitions, not a single run: choose another --output")
        found = store.newest(warnings.append)
        if found is None and resume == "require":
            raise UserError(f"--resume require: there is no checkpoint in {directory}")
        snapshot = found[1] if found else None
        if snapshot is not None:
            _same_experiment(directory, snapshot, identity)
    except BaseException:
        lock.release()
        raise
    return Opened(directory, lock, store, snapshot, identity, tuple(warnings))


def _of_an_array() -> str:
    """What a task of a job array is told where another has the directory: an array shares repetitions only."""
    if "SLURM_ARRAY_TASK_ID" not in os.environ:
        return ""
    return ". Tasks of a job array share the repetitions of one output: set repetitions, or give each its own --output"


def _used(directory: Path) -> bool:
    return any((directory / name).exists() for name in ("metrics.jsonl", "checkpoints", CONFIG))


def full_identity(config: Config, repetition: int = 0) -> dict[str, Any]:
    """What may not change on resume: the experiment, its random numbers, and the threads that its bits depend on."""
    which = {"repetition": repetition} if repetition else {}
    return {**identity(config), **which, "blas_threads": versions.blas_threads()}


def _same_experiment(directory: Path, snapshot: Snapshot, identity: Mapping[str, Any]) -> None:
    different = differences(snapshot.identity, identity)
    if different:
        lines = "\n  ".join(different)
        text = (
            f"{directory} holds another experiment; these may not change on resume:\n  {lines}\nchoose another --output"
        )
        raise CheckpointError(text)


class Record:
    """Everything that rank 0 writes. The state of the run lives here too: counters, best, triggers."""

    def __init__(self, opened: Opened, config: Config, provenance: Mapping[str, Any], aloud: bool = True) -> None:
        self.config, self.directory = config, opened.directory
        self._opened, self._provenance = opened, dict(provenance)
        old = opened.snapshot
        self.resumed = old is not None
        self.counters: Counters = dict(old.counters) if old else {"episodes": 0, "timesteps": 0, "seconds": 0.0}
        self.best: Best | None = old.best if old else None
        self.measured = _measured(self.directory / STATUS, old)
        self._state: State | None = old.state if old else None
        self._saved_generation = old.state.generation if old else -1
        checkpoint = config.checkpoint
        report = config.report
        self.triggers = TriggerList(
            [
                IntervalTrigger(self.draw, report.plot_interval_seconds, unit=Unit.SECONDS, name="plot"),
                IntervalTrigger(self.export, report.export_interval, name="export"),
                IntervalTrigger(self.save, checkpoint.interval, name="checkpoint"),
                IntervalTrigger(self.save, checkpoint.interval_seconds, unit=Unit.SECONDS, name="checkpoint_seconds"),
            ]
        )
        if old:
            self.triggers.restore(old.triggers)
        for name in (CONFIG, STATUS):
            remove_leftovers(self.directory / name)
        write_text(self.directory / CONFIG, dump(config) + _comment(self._provenance))
        self.metrics = MetricsLog(self.directory, self._warn)
        self.metrics.cut(old.file_lengths if old else {})
        self.progress = Progress(self.directory, config.stop, aloud)
        first = old.state.generation if old else 0
        self._events = tensorboard.EventWriter(self.directory, first) if config.report.tensorboard else None
        for warning in opened.warnings:
            self._warn(warning)

    def _warn(self, text: str) -> None:
        self.progress.message(f"WARNING: {text}")

    def started(self, state: State, info: Mapping[str, object]) -> None:
        """The run begins, or goes on: say so, and put the first state on disk."""
        self._state = state
        self.progress.start(info)
        if self._saved_generation < 0:
            self.save()
        else:
            self.status("running")

    def add(self, state: State, row: Row, evaluated: Arrays | None) -> None:
        """Book a finished generation; `evaluated` are the shared arrays that its evaluation (if any) measured."""
        self.counters.update(
            episodes=int(row["episodes_total"] or 0),
            timesteps=int(row["timesteps_total"] or 0),
            seconds=float(row["seconds_total"] or 0),
        )
        self._state = state
        if int(row["generation"] or 0) % self.config.report.metrics_interval == 0:
            self.metrics.write(row)
            if self._events:
                self._events.write(row)
        self.progress.update(row)
        mean = row["evaluation_return_mean"]
        if evaluated is not None and mean is not None and (self.best is None or mean > self.best.return_):
            generation = int(row["generation"] or 0)
            self.best = Best(float(mean), generation, {name: array.copy() for name, array in evaluated.items()})
            self._opened.store.save_best(self._snapshot())
        self.triggers(self._values())

    def _values(self) -> dict[Unit, float]:
        assert self._state
        return {
            Unit.GENERATION: self._state.generation,
            Unit.TIMESTEPS: self.counters["timesteps"],
            Unit.SECONDS: self.counters["seconds"],
        }

    def _snapshot(self) -> Snapshot:
        assert self._state
        return Snapshot(
            state=self._state,
            counters=self.counters,
            best=self.best,
            triggers=self.triggers.state(),
            config_text=dump(self.config),
            config_hash=config_hash(self.config),
            identity=self._opened.identity,
            file_lengths=self.metrics.lengths(),
            provenance=self._provenance,
        )

    def save(self) -> None:
        """Write a checkpoint of the last finished generation, unless it is on disk already."""
        assert self._state
        if self._state.generation == self._saved_generation:
            return
        self._opened.store.save(self._snapshot())
        self._saved_generation = self._state.generation
        self.status("running")

    def draw(self) -> None:
        """Refresh curve.png; a picture that cannot be drawn ends no run."""
        from hpc_es.report.plot import plot

        try:
            plot([self.directory], self.directory / "curve.png")
        except UserError as error:
            self._warn(f"no learning curve: {error}")

    def export(self) -> None:
        """Refresh policy.keras from the newest checkpoint, made now."""
        from hpc_es.experiment.export import export

        self.save()
        export(self.directory, self.directory / "policy.keras", "last")

    def finish_triggers(self) -> None:
        """Force all triggers, at the end and on a signal."""
        self.triggers(self._values(), force=True)
        self.save()

    def stop_reason(self) -> str | None:
        """Why the run is over, or None: the first limit of `stop:` that is reached."""
        assert self._state
        stop, counters = self.config.stop, self.counters
        if stop.generations is not None and self._state.generation >= stop.generations:
            return f"stop.generations: {stop.generations}"
        if stop.timesteps is not None and counters["timesteps"] >= stop.timesteps:
            return f"stop.timesteps: {stop.timesteps}"
        if stop.episodes is not None and counters["episodes"] >= stop.episodes:
            return f"stop.episodes: {stop.episodes}"
        if stop.seconds is not None and counters["seconds"] >= stop.seconds:
            return f"stop.seconds: {stop.seconds:g}"
        if stop.target_return is not None and self.best is not None and self.best.return_ >= stop.target_return:
            return f"stop.target_return: {stop.target_return:g}"
        return None

    def status(self, state: str, **more: object) -> None:
        """Replace status.json, which scripts read: running, finished, interrupted or failed."""
        assert self._state
        values = {"status": state, "generation": self._state.generation, **self.counters, **more}
        values |= this_run(os.environ)
        if self.best is not None:
            values["best_return"] = self.best.return_
        write_json(self.directory / STATUS, values)

    def close(self) -> None:
        """Close the files and give the directory back."""
        with contextlib.suppress(OSError):
            self.metrics.close()
            if self._events:
                self._events.close()
        self.progress.close()
        self._opened.lock.release()


def _measured(path: Path, old: Snapshot | None) -> dict[str, float]:
    """The final evaluation of a run that was finished already."""
    try:
        status = json.loads(path.read_text())
        names = [name for name in status if name.startswith("final_")]
        known = old is not None and status["generation"] == old.state.generation
        return {name: float(status[name]) for name in names} if known else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _comment(provenance: Mapping[str, Any]) -> str:
    """Where and with what the run was made, as YAML comments below the config."""
    plain = json.loads(json.dumps(provenance, default=dataclasses.asdict))
    flat = {**plain.pop("versions", {}), **plain}
    return "\n# made with:\n" + "".join(f"#   {name}: {value}\n" for name, value in flat.items())
