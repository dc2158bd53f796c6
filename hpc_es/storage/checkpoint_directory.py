"""The checkpoints of a run directory: which are kept, which is the newest that can be trusted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpc_es.core.errors import CheckpointError
from hpc_es.storage import checkpoint
from hpc_es.storage.checkpoint import DamagedError, Snapshot
from hpc_es.storage.files import remove_leftovers, sync_directory, writing

DIRECTORY = "checkpoints"  # where `find` looks inside a run directory, besides the directory itself
BEST = "best.h5"
_NAME = re.compile(r"checkpoint_(\d{10,})\.h5")


@dataclass(frozen=True)
class Store:
    """The checkpoints of a run: the newest `keep_last` with the whole ones they lead on from, and best.h5.

    One process writes (see `run_lock.py`).
    """

    directory: Path
    keep_last: int = 3  # at least 1
    keep_best: bool = True

    def save(self, snapshot: Snapshot) -> Path:
        """Save under the name of its generation, then remove the oldest; raises RunError as `save` does."""
        path = self.path(snapshot.generation)
        self._make_directory()
        checkpoint.save(path, snapshot)
        for old in self._too_old():
            if old != path:  # lower than others if somebody put files of a longer run here
                with writing(old):
                    old.unlink(missing_ok=True)
        return path

    def _too_old(self) -> list[Path]:
        """Return all but the newest, and the whole checkpoint that the oldest of these leads on from."""
        paths = self.paths()
        old, kept = paths[: -self.keep_last], paths[-self.keep_last :]
        if kept and not checkpoint.is_whole(kept[0]):
            base = next((path for path in reversed(old) if checkpoint.is_whole(path)), None)
            old = [path for path in old if path != base]
        return old

    def path(self, generation: int) -> Path:
        """Return the file of a generation."""
        return self.directory / f"checkpoint_{generation:010d}.h5"

    def save_best(self, snapshot: Snapshot) -> Path | None:
        """Save as best.h5, which is never pruned; nothing and None if `keep_best` is off. Raises RunError."""
        if not self.keep_best:
            return None
        self._make_directory()
        checkpoint.save(self.directory / BEST, snapshot)
        return self.directory / BEST

    def newest(self, warn: Callable[[str], None]) -> tuple[Path, Snapshot] | None:
        """Return the checkpoint to resume from, or None in a new run.

        Leftovers of killed writes are removed. Damaged files are named to `warn` and renamed to NAME.damaged once an
        older one was loaded. Raises CheckpointError if all are damaged (they stay, so that the next start does not
        take the run for a new one), or if one is not ours or of a newer format.
        """
        self._remove_leftovers()
        damaged: list[tuple[Path, DamagedError]] = []
        for path in reversed(self.paths()):
            try:
                snapshot = checkpoint.load(path)
            except DamagedError as error:
                damaged.append((path, error))
                continue
            for other, reason in damaged:
                warn(f"{reason}; renamed to {_set_aside(other).name}, going on from {path.name}")
            return path, snapshot
        if damaged:
            raise _all_damaged(self.directory, [reason for _, reason in damaged])
        return None

    def paths(self) -> list[Path]:
        """Return the numbered checkpoints, oldest first; without best.h5."""
        if not self.directory.is_dir():
            return []
        return sorted((path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)), key=_generation)

    def _make_directory(self) -> None:
        with writing(self.directory):
            if not self.directory.is_dir():
                self.directory.mkdir(exist_ok=True)  # without parents: a run directory that vanished is an error
                sync_directory(self.directory.parent)

    def _remove_leftovers(self) -> None:
        for name in ("checkpoint_*.h5", BEST):
            remove_leftovers(self.directory / name)


def find(path: Path, whole: bool = True) -> Path:
    """Return the checkpoint that `path` means: itself, or the newest valid one of a run directory. Nothing is changed.

    Raises CheckpointError if there is none. One that is to be `whole` has the state itself.
    """
    if path.is_file():
        checkpoint.read_image(path)
        if whole and not checkpoint.is_whole(path):
            raise CheckpointError(_between(path))
        return path
    if not path.is_dir():
        raise CheckpointError(f"{path}: expected a checkpoint or a run directory, but there is no such file")
    damaged: dict[Path, DamagedError] = {}
    while candidates := [candidate for candidate in _candidates(path, whole) if candidate not in damaged]:
        try:
            checkpoint.read_image(candidates[-1])
            return candidates[-1]
        except DamagedError as error:
            damaged[candidates[-1]] = error
        except CheckpointError:
            if candidates[-1].exists():  # else a run in progress has pruned it and written a newer one: look again
                raise
    if damaged:
        raise _all_damaged(path, list(damaged.values()))
    raise CheckpointError(f"{path}: no checkpoint_*.h5 here or in {DIRECTORY}/; has the run saved one yet?")


def _between(path: Path) -> str:
    since = checkpoint.load(path).since
    assert since
    text = f"{path}: holds what the generations since {since.base} have learned from, not the parameters"
    return f"{text}: expected that one, or a run that was carried on to its end"


def _generation(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _candidates(run: Path, whole: bool) -> list[Path]:
    paths = sorted([*Store(run).paths(), *Store(run / DIRECTORY).paths()], key=_generation)
    return [path for path in paths if checkpoint.is_whole(path)] if whole else paths


def _set_aside(path: Path) -> Path:
    """Rename a damaged file without overwriting an earlier one."""
    aside, number = path.with_name(path.name + ".damaged"), 1
    while os.path.lexists(aside):
        aside, number = path.with_name(f"{path.name}.damaged.{number}"), number + 1
    with writing(path):
        return path.rename(aside)


def _all_damaged(directory: Path, errors: list[DamagedError]) -> CheckpointError:
    lines = "\n  ".join(str(error) for error in errors)
    remedy = "bring one back from a backup, or remove them to start anew"
    return CheckpointError(f"{directory}: every checkpoint is damaged: {remedy}\n  {lines}")
