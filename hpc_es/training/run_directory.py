"""Rank 0 opens the run directory: it is ours from now on, and its newest checkpoint is of this experiment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpc_es.config.resolved import completed, identity, resolved
from hpc_es.config.schema import Config
from hpc_es.config.sources import changes, foreign_kinds, sources
from hpc_es.core import extras
from hpc_es.core.errors import CheckpointError, InUseError, RunError, UserError
from hpc_es.storage import provenance
from hpc_es.storage.checkpoint import Snapshot
from hpc_es.storage.checkpoint_directory import Store
from hpc_es.storage.compare import differences
from hpc_es.storage.files import writing
from hpc_es.storage.run_lock import RunLock

Resume = Literal["auto", "never", "require"]
CONFIG = "config.yaml"


@dataclass(frozen=True)
class OpenedRun:
    """A run directory that is ours, and the snapshot to carry on from, if any."""

    directory: Path
    lock: RunLock
    store: Store
    snapshot: Snapshot | None
    identity: Mapping[str, Any]  # what may not change on resume
    warnings: tuple[str, ...]


def open_run(directory: Path, config: Config, resume: Resume, repetition: int = 0) -> OpenedRun:
    """Make and lock the run directory, find the newest checkpoint and see that it is of this experiment.

    Raises UserError (CheckpointError, RunError) before anything is changed but the lock.
    """
    extras.require("report.loggers", *config.report.all_loggers(), otherwise="or leave it out")
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
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
            _same_experiment(directory, snapshot, identity, config)
            warnings += changes(snapshot.provenance.get("sources", {}), sources(resolved(config)))
    except BaseException:
        lock.release()
        raise
    return OpenedRun(directory, lock, store, snapshot, identity, tuple(warnings))


def _of_an_array() -> str:
    """Return what a task of a job array is told where another has the directory: an array shares repetitions only."""
    if "SLURM_ARRAY_TASK_ID" not in os.environ:
        return ""
    return ". Tasks of a job array share the repetitions of one output: set repetitions, or give each its own --output"


def _used(directory: Path) -> bool:
    return any((directory / name).exists() for name in ("metrics.jsonl", "checkpoints", CONFIG))


def full_identity(config: Config, repetition: int = 0) -> dict[str, Any]:
    """What may not change on resume: the experiment, its random numbers, and the threads that its bits depend on."""
    which = {"repetition": repetition} if repetition else {}
    return {**identity(config), **which, "blas_threads": provenance.blas_threads()}


def _same_experiment(directory: Path, snapshot: Snapshot, identity: Mapping[str, Any], config: Config) -> None:
    different = differences(completed(snapshot.identity, foreign_kinds(resolved(config))), identity)
    if different:
        lines = "\n  ".join(different)
        text = (
            f"{directory} holds another experiment; these may not change on resume:\n  {lines}\n"
            "set them as they were, or choose another --output"
        )
        raise CheckpointError(text)
