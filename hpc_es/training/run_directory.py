"""Rank 0 opens the run directory.

It locks it and checks that the newest checkpoint belongs to this experiment.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Literal

from hpc_es.config.resolved import changes, completed, identity, named_user_kinds, resolved, sources
from hpc_es.config.schema import Config
from hpc_es.core.data import Json, JsonObject
from hpc_es.core.errors import CheckpointError, InUseError, RunError, UserError, require
from hpc_es.core.interfaces import BASE_HASH
from hpc_es.core.machine import blas_threads
from hpc_es.core.run_files import (
    UnusualFileError,
    make_directory,
    require_own_entries,
    require_own_way,
)
from hpc_es.devices.decision import changes as device_changes
from hpc_es.devices.decision import current_decision
from hpc_es.storage.checkpoint import Snapshot, load
from hpc_es.storage.checkpoint_directory import Store
from hpc_es.storage.compare import differences
from hpc_es.storage.files import writing
from hpc_es.storage.run_lock import RunLock
from hpc_es.tasks.observation_statistics import REFERENCE_HASH, not_finite

NO_INFO: Mapping[str, Json] = {}
Resume = Literal["auto", "never", "require"]
CONFIG = "config.yaml"


@dataclass(frozen=True)
class OpenedRun:
    """A locked run directory, and the checkpoint to resume from, if there is one."""

    directory: Path
    lock: RunLock
    store: Store
    snapshot: Snapshot | None
    identity: JsonObject  # what must not change on resume
    warnings: tuple[str, ...]


def open_run(
    directory: Path,
    config: Config,
    resume: Resume,
    repetition: int = 0,
    info: Mapping[str, Json] = NO_INFO,
) -> OpenedRun:
    """Create and lock the run directory, and load the newest checkpoint.

    It must belong to this experiment. `info` is the `environment_info` of the problem.

    Raises:
        UserError: (CheckpointError, RunError) before anything but the lock is changed.
    """
    require("report.loggers", *config.report.all_loggers(), otherwise="or remove it")
    _require_own_place(directory)
    with writing(directory):
        make_directory(directory)
        require_own_entries(directory)
    try:
        lock = RunLock(directory).acquire()
    except RunError as error:
        raise UserError(f"output {directory} cannot be used: {error}") from error
    except InUseError as error:
        text = ""
        if os.environ.get("SLURM_ARRAY_TASK_ID"):
            text = ". Tasks of a job array can only share repetitions: set repetitions, or give each its own --output"
        raise InUseError(f"{error}{text}") from error
    warnings: list[str] = []
    identity = full_identity(config, repetition)
    store = Store(
        directory / "checkpoints", config.checkpoint.keep_last, config.checkpoint.keep_best
    )
    try:
        is_used = any(
            (directory / name).exists() for name in ("metrics.jsonl", "checkpoints", CONFIG)
        )
        if resume == "never" and is_used:
            raise UserError(
                f"{directory} already holds a run, and --resume is never: choose another "
                "--output, or --resume auto"
            )
        if any(directory.glob("repetition_*")):
            raise UserError(
                f"{directory} holds repetitions, not a single run: choose another --output"
            )
        newest = store.newest(warnings.append)
        if newest is None and resume == "require":
            raise UserError(f"--resume require: there is no checkpoint in {directory}")
        snapshot = newest[1] if newest else None
        if newest is not None and snapshot is not None:
            different = differences(
                completed(snapshot.identity, named_user_kinds(resolved(config))), identity
            )
            if different:
                lines = "\n  ".join(different)
                text = f"{directory} holds another experiment; these may not change on resume:\n  {lines}\n"
                remedy = "set them to their old values, or choose another --output"
                has_same_policy = not any(line.startswith("policy.") for line in different)
                if has_same_policy and _has_initial_parameters(config):
                    remedy += f", which continues from these parameters with policy.init_from={quote(str(directory))}"
                raise CheckpointError(text + remedy)
            before, now = snapshot.provenance.get(REFERENCE_HASH), info.get(REFERENCE_HASH)
            if before != now:
                raise CheckpointError(
                    f"{directory} cannot be resumed: random play gives other reference observations, on which "
                    f"policy.normalisation: virtual_batch depends (SHA-256 {before} in the checkpoint, {now} now): "
                    "install the versions of the checkpoint, which hpc-es inspect shows, or choose another --output"
                )
            _require_base(directory, snapshot, info)
            _require_finite_statistics(store, newest[0], snapshot)
            warnings += device_changes(snapshot.provenance, current_decision())
            warnings += changes(snapshot.provenance.get("sources", {}), sources(resolved(config)))
    except BaseException:
        lock.release()
        raise
    return OpenedRun(directory, lock, store, snapshot, identity, tuple(warnings))


def _require_own_place(directory: Path) -> None:
    """Raise UserError if a run here would be written through a link of another user."""
    try:
        require_own_way(directory / CONFIG)  # as for every file there
    except UnusualFileError as error:
        raise UserError(f"output {error}: choose another --output") from None


def _require_base(directory: Path, snapshot: Snapshot, info: Mapping[str, Json]) -> None:
    """Raise CheckpointError if the task has other base weights than at the start of the run."""
    before, now = snapshot.provenance.get(BASE_HASH), info.get(BASE_HASH)
    if before != now:
        raise CheckpointError(
            f"{directory} was started from base weights with SHA-256 {before}, found {now}: "
            "restore their files, or choose another --output for a run from these weights"
        )


def _has_initial_parameters(config: Config) -> bool:
    """Return whether the policy has the option init_from."""
    from hpc_es.policies.networks.feed_forward import PolicyOptions

    return isinstance(config.policy, PolicyOptions)


def _require_finite_statistics(store: Store, path: Path, snapshot: Snapshot) -> None:
    """Raise CheckpointError if observation statistics are not finite.

    It names an earlier checkpoint.
    """
    state = snapshot.state
    wrong = not_finite(state.shared, state.master)
    if not wrong:
        return
    earlier = [
        other.name for other in store.paths() if other != path and _has_finite_statistics(other)
    ]
    remedy = (
        f"remove the checkpoints after {earlier[-1]} to continue from that one, or "
        if earlier
        else ""
    )
    raise CheckpointError(
        f"{path}: expected finite observation statistics, found infinity or NaN in {wrong}, from an infinite "
        f"observation of the environment, with which every further episode would fail: {remedy}choose another "
        "--output to start again"
    )


def _has_finite_statistics(path: Path) -> bool:
    with contextlib.suppress(CheckpointError):
        state = load(path).state
        return not not_finite(state.shared, state.master)
    return False


def full_identity(config: Config, repetition: int = 0) -> JsonObject:
    """Return the values that must not change on resume.

    These are experiment, random numbers, and number of BLAS threads.
    """
    which = {"repetition": repetition} if repetition else {}
    return {**identity(config), **which, "blas_threads": blas_threads()}
