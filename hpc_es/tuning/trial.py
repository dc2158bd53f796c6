"""A trial on disk: its directory, trial.json with what became of it, and who is at it.

output/trial_0007/trial.json    begun, complete, pruned or failed, beside the run or its repetitions
output/locks/trial_0007/lock    held by the task that runs it; it dies with its process
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_es.core.errors import InUseError, UserError
from hpc_es.storage.files import write_json, writing
from hpc_es.storage.metrics_log import JSONL
from hpc_es.storage.run_lock import RunLock
from hpc_es.tuning.space import Hyperparameters

NAME = "trial.json"
PRUNED = "pruned.json"  # while the trial is still running: every group of ranks looks for it
BEGUN, COMPLETE, PRUNING, FAILED = "begun", "complete", "pruned", "failed"
OVER = (COMPLETE, PRUNING, FAILED)
MOST_BEGINNINGS = 3  # without a new generation
WAIT_SECONDS, LOOK_SECONDS = 120.0, 0.01  # for a lock that others hold for milliseconds


@dataclass(frozen=True)
class Trial:
    """One trial of a tuning."""

    directory: Path  # of the tuning
    number: int

    @property
    def name(self) -> str:
        """As in its directory."""
        return f"trial_{self.number:04d}"

    @property
    def place(self) -> Path:
        """Its directory."""
        return self.directory / self.name

    def record(self) -> dict[str, Any]:
        """Return what became of it; {} before it was begun. UserError where the file is damaged."""
        path = self.place / NAME
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return {"state": found["state"], **found}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            text = f"{path}: expected a trial as JSON, but it cannot be read: {error}"
            raise UserError(f"{text}; remove it, and the trial carries on") from error

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.record().get("state") in OVER

    def generations(self) -> int:
        """Generations that its run, or all its repetitions, have written down."""
        paths = [self.place / JSONL, *sorted(self.place.glob(f"repetition_*/{JSONL}"))]
        return sum(path.read_bytes().count(b"\n") for path in paths if path.exists())

    def in_vain(self) -> int:
        """Return how often it was begun since it last wrote down a new generation."""
        before = self.record()
        return int(before.get("begun", 0)) if self.generations() <= int(before.get("generation", 0)) else 0

    def begin(self, hyperparameters: Hyperparameters) -> bool:
        """Write down that it begins, or goes on; False if that has helped so often in vain that it has failed now.

        What has ended the whole job each time would otherwise keep the other trials from ever being run.
        """
        begun = self.in_vain()
        if begun >= MOST_BEGINNINGS:
            text = f"begun {begun} times without a new generation: it seems to end the whole job; see its log.txt"
            self.end(hyperparameters, FAILED, reason=text)
            return False
        furthest = max(self.generations(), int(self.record().get("generation", 0)))
        self._write(hyperparameters, BEGUN, begun=begun + 1, generation=furthest)
        return True

    def interrupt(self, hyperparameters: Hyperparameters) -> None:
        """A signal ended it: this beginning was not in vain."""
        self._write(hyperparameters, BEGUN, begun=0, generation=self.generations())

    def end(self, hyperparameters: Hyperparameters, state: str, objective: float | None = None, **more: Any) -> None:
        """Write down how it ended: for good."""
        self._write(hyperparameters, state, objective=objective, generation=self.generations(), **more)

    def _write(self, hyperparameters: Hyperparameters, state: str, **more: Any) -> None:
        with writing(self.place):
            self.place.mkdir(parents=True, exist_ok=True)
        write_json(
            self.place / NAME, {"trial": self.number, "state": state, "hyperparameters": hyperparameters, **more}
        )

    def prune(self, reason: str) -> None:
        """Ask all groups of ranks to end it."""
        write_json(self.place / PRUNED, {"reason": reason})

    def pruned(self) -> str | None:
        """Return why it is to end early, or None."""
        try:
            return str(json.loads((self.place / PRUNED).read_text())["reason"])
        except (OSError, ValueError, KeyError):
            return None

    def claim(self) -> RunLock:
        """Take it for this task until the lock is released, or the process ends; InUseError names who has it."""
        return lock(self.directory, self.name).acquire()


def begun(directory: Path) -> Iterator[Trial]:
    """Yield the trials of a directory that have a record, by number."""
    names = sorted(path.parent.name for path in directory.glob(f"trial_*/{NAME}"))
    return (Trial(directory, number) for number in sorted(int(name.removeprefix("trial_")) for name in names))


def lock(directory: Path, name: str) -> RunLock:
    """Return a lock of the tuning."""
    place = directory / "locks" / name
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    return RunLock(place)


@contextlib.contextmanager
def held(mine: RunLock) -> Iterator[None]:
    """Hold a lock that is never held for long; InUseError after WAIT_SECONDS."""
    limit = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            mine.acquire()
            break
        except InUseError:
            if time.monotonic() > limit:
                raise
            time.sleep(LOOK_SECONDS)
    try:
        yield
    finally:
        mine.release()
