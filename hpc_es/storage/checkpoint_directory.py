"""The checkpoints of a run directory: saving, pruning, and finding the newest valid one."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpc_es.core.errors import CheckpointError, visible
from hpc_es.core.paths import absolute
from hpc_es.core.run_files import make_directory, own_directory, remove
from hpc_es.storage import checkpoint
from hpc_es.storage.checkpoint import DamagedError, Snapshot
from hpc_es.storage.files import remove_leftovers, sync_directory, writing

DIRECTORY = "checkpoints"  # inside a run directory; `find` also looks in the run directory itself
MOST_REASONS = 20  # of a message about damaged checkpoints
BEST = "best.h5"
_NAME = re.compile(r"checkpoint_(\d{10,})\.h5")


@dataclass(frozen=True)
class Store:
    """The checkpoints of a run: the newest `keep_last`, the full one below them, and best.h5.

    That is the full checkpoint on which they are based. Only one process writes (see
    `run_lock.py`).
    """

    directory: Path
    keep_last: int = 3  # at least 1
    keep_best: bool = True

    def save(self, snapshot: Snapshot) -> Path:
        """Save a checkpoint under the name of its generation, then remove the oldest ones.

        Raises RunError as `save` does.
        """
        path = self.path(snapshot.generation)
        self._make_directory()
        checkpoint.save(path, snapshot)
        for old in self._too_old():
            # if the directory has files of a longer run, the new one is among the oldest
            if old != path:
                with writing(old):
                    remove(old)
        return path

    def _too_old(self) -> list[Path]:
        """Return the checkpoints to remove.

        These are all but the newest ones and the full one on which the oldest of these is based.
        """
        paths = self.paths()
        old, newest = paths[: -self.keep_last], paths[-self.keep_last :]
        if newest and not checkpoint.is_full(newest[0]):
            base = next((path for path in reversed(old) if checkpoint.is_full(path)), None)
            old = [path for path in old if path != base]
        return old

    def path(self, generation: int) -> Path:
        """Return the path of the checkpoint of a generation."""
        return self.directory / f"checkpoint_{generation:010d}.h5"

    def save_best(self, snapshot: Snapshot) -> Path | None:
        """Save as best.h5, which is never pruned; do nothing if `keep_best` is false.

        Raises RunError.
        """
        if not self.keep_best:
            return None
        self._make_directory()
        checkpoint.save(self.directory / BEST, snapshot)
        return self.directory / BEST

    def newest(self, warn: Callable[[str], None]) -> tuple[Path, Snapshot] | None:
        """Return the checkpoint to resume from, or None for a new run.

        Temporary files of killed writes are removed. After an older checkpoint was loaded, damaged
        files are renamed to NAME.damaged, with a warning. Raises CheckpointError if all are damaged
        (they are kept, so that the next start does not begin a new run), or if one is not from
        hpc_es or of a newer format.
        """
        for name in ("checkpoint_*.h5", BEST):
            remove_leftovers(self.directory / name)
        damaged: list[tuple[Path, DamagedError]] = []
        for path in reversed(self.paths()):
            try:
                snapshot = checkpoint.load(path)
            except DamagedError as error:
                damaged.append((path, error))
                continue
            for other, reason in damaged:
                warn(f"{reason}; renamed to {_set_aside(other).name}, continuing from {path.name}")
            return path, snapshot
        if damaged:
            raise _all_damaged(self.directory, [reason for _, reason in damaged])
        return None

    def paths(self) -> list[Path]:
        """Return the checkpoints of generations, oldest first, without best.h5."""
        if not self.directory.is_dir():
            return []
        return sorted(
            (path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)),
            key=_generation,
        )

    def _make_directory(self) -> None:
        with writing(self.directory):
            if not self.directory.is_dir():
                # without parents: a missing run directory is an error
                make_directory(self.directory, parents=False)
                sync_directory(self.directory.parent)


def find(path: Path, full: bool = True) -> Path:
    """Return `path` if it is a checkpoint, or the newest valid checkpoint of a run directory.

    The directory is not changed. With `full`, incremental checkpoints are excluded.

    Raises:
        CheckpointError: there is none.

    Warns:
        UserWarning: newer ones are damaged.
    """
    if path.is_file():
        checkpoint.check_digests(path)
        if full and not checkpoint.is_full(path):
            raise CheckpointError(_incremental_text(path))
        return path
    if not path.is_dir():
        raise CheckpointError(
            f"{path}: expected a checkpoint or a run directory, but there is no such file"
        )
    damaged: dict[Path, DamagedError] = {}
    is_pruned = True
    while is_pruned:
        is_pruned = False
        for candidate in reversed(_candidates(path, full)):
            if candidate in damaged:
                continue
            try:
                checkpoint.check_digests(candidate)
                if damaged:
                    newest, *others = damaged.values()
                    more = f" and {len(others):,} more damaged ones" if others else ""
                    text = f"{newest}; {candidate.name} is read in place of it{more}"
                    warnings.warn(visible(text), stacklevel=2)
                return candidate
            except DamagedError as error:
                damaged[candidate] = error
            except CheckpointError:
                if candidate in _candidates(path, full):  # also a link to nothing
                    raise
                # a run in progress has written a newer one: list them again
                is_pruned = True
                break
    if damaged:
        raise _all_damaged(path, list(damaged.values()))
    raise CheckpointError(
        f"{path}: no checkpoint_*.h5 here or in {DIRECTORY}/; the run may not have saved one yet"
    )


def all_full(path: Path) -> list[Path]:
    """Return a checkpoint file, or all full checkpoints of a run, oldest first, with best.h5.

    Those of its repetitions are among them. Their paths are absolute.

    Raises:
        CheckpointError: there is none.
    """
    from hpc_es.storage.results import repetition_directories  # which training does not need

    if path.is_file():
        return [absolute(path)]
    runs = [path, *repetition_directories(path)]
    folders = [folder for run in runs for folder in (run, run / DIRECTORY)]
    files = [file for folder in folders for file in [*Store(folder).paths(), folder / BEST]]
    found = [absolute(file) for file in files if file.exists() and checkpoint.is_full(file)]
    if not found:
        raise CheckpointError(f"{path}: expected a run directory with checkpoints, found none")
    return found


def _incremental_text(path: Path) -> str:
    increment = checkpoint.load(path).increment
    assert increment
    return (
        f"{path}: an incremental checkpoint without parameters: expected the full one, {increment.base}, or the run "
        "resumed until it finishes"
    )


def _generation(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _candidates(run: Path, full: bool) -> list[Path]:
    paths = sorted([*Store(run).paths(), *Store(run / DIRECTORY).paths()], key=_generation)
    return [path for path in paths if checkpoint.is_full(path)] if full else paths


def _set_aside(path: Path) -> Path:
    """Rename a damaged file without overwriting an earlier one."""
    aside, number = path.with_name(path.name + ".damaged"), 1
    while os.path.lexists(aside):
        aside, number = path.with_name(f"{path.name}.damaged.{number}"), number + 1
    with writing(path), own_directory(path) as place:
        os.rename(path.name, aside.name, src_dir_fd=place, dst_dir_fd=place)
    return aside


def _all_damaged(directory: Path, errors: list[DamagedError]) -> CheckpointError:
    lines = "\n  ".join(str(error) for error in errors[:MOST_REASONS])
    if len(errors) > MOST_REASONS:
        lines += f"\n  and {len(errors) - MOST_REASONS:,} more"
    return CheckpointError(
        f"{directory}: every checkpoint is damaged: restore one from a backup, or remove them "
        f"to start again from the beginning\n  {lines}"
    )
