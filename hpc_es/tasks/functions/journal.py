"""Finished evaluations of a generation that a checkpoint does not hold yet: they are not evaluated again.

Each rank appends what it has finished to a file of its own in RUN/journal, one file a generation. After a restart rank
0 reads them all and tells the others. A line is taken where its job has the same number, vector, seed and source, so
that the bits are those of a run that was never killed. Files of generations that a checkpoint holds are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

from hpc_es.core.data import Float64
from hpc_es.core.errors import RunError
from hpc_es.core.failures import Failure, kind_of
from hpc_es.tasks.functions.python_evaluator import Measured

Mode = Literal["auto"] | bool

FOLDER = "journal"
EXPENSIVE_SECONDS = 0.01  # an evaluation that takes longer is worth a line, where the mode is auto
SYNC_SECONDS = 1.0  # between two looks at the disk; an evaluation that takes longer is on the disk at once
NAME = re.compile(r"generation_(\d{9})_.*\.jsonl")

Entry = tuple[int, str]  # generation, and the key of what was evaluated
Known = dict[Entry, Measured]


class EvaluationJournal:
    """The journal of one rank; without `failures`, what has failed is evaluated again."""

    def __init__(self, mode: Mode, identity: str, failures: bool = True) -> None:
        self._mode, self._identity, self._failures = mode, identity, failures
        self._folder: Path | None = None
        self._known: Known = {}
        self._file: BinaryIO | None = None
        self._generation = -1
        self._synced = time.monotonic()

    def open(self, run: Path, call_on_rank_0: Callable[[Callable[[], str]], str]) -> None:
        """Read what a killed run has left; `call_on_rank_0` gives all ranks what its argument returns on rank 0."""
        if self._mode is False:
            return
        self._folder = run / FOLDER
        told = call_on_rank_0(lambda: "".join(_lines(run / FOLDER)))
        entries = (entry for line in told.splitlines() if (entry := _entry(line)) is not None)
        self._known = {key: measured for key, measured in entries if self._is_kept(measured)}

    @property
    def is_open(self) -> bool:
        """Whether there is a run whose evaluations may be kept."""
        return self._folder is not None

    def key(self, job: str, vector: Float64, seed: int) -> str:
        """Return what a job is known by again: its number, its vector, its seed and the source of the objective."""
        told = f"{job} {seed} {self._identity} ".encode() + vector.astype("<f8").tobytes()
        return hashlib.sha256(told).hexdigest()

    def known(self, generation: int, keys: Sequence[str]) -> list[Measured] | None:
        """Return what came of these jobs before, or None where one of them is not known."""
        found = [self._known.get((generation, key)) for key in keys] if self._known else [None]
        return [each for each in found if each is not None] if None not in found else None

    def add(self, generation: int, keys: Sequence[str], measured: Sequence[Measured]) -> None:
        """Append what was evaluated, unless it was cheap; RunError where the disk is full."""
        slowest = max(each.seconds for each in measured)
        if self._folder is None or (self._mode == "auto" and slowest < EXPENSIVE_SECONDS):
            return
        pairs = zip(keys, measured, strict=True)
        lines = [_line(generation, key, each) for key, each in pairs if self._is_kept(each)]
        try:
            file = self._opened(self._folder, generation)
            file.write(b"".join(lines))
            if slowest >= SYNC_SECONDS or time.monotonic() - self._synced >= SYNC_SECONDS:
                os.fsync(file.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            remedy = "free space there, or set task.journal: false, then start the same command again"
            raise RunError(f"{self._folder} could not be written ({error.strerror}): {remedy}") from error

    def _is_kept(self, measured: Measured) -> bool:
        return self._failures or measured.failure is None

    def _opened(self, folder: Path, generation: int) -> BinaryIO:
        if self._file is None or generation != self._generation:
            self.close()
            folder.mkdir(exist_ok=True)
            name = f"generation_{generation:09}_{socket.gethostname()}_{os.getpid()}.jsonl"
            self._file, self._generation = (folder / name).open("ab", buffering=0), generation
        return self._file

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def remove_finished(run: Path, generation: int) -> None:
    """Remove, on rank 0, the files of the generations before `generation`, which a checkpoint holds."""
    for path in (run / FOLDER).glob("generation_*.jsonl"):
        named = NAME.fullmatch(path.name)
        if named and int(named[1]) < generation:
            with contextlib.suppress(OSError):  # what is left is removed after the next checkpoint
                path.unlink()


def _lines(folder: Path) -> list[str]:
    """Return the lines that were written whole; a file that cannot be read has none: its jobs are evaluated again."""
    texts = []
    for path in sorted(folder.glob("generation_*.jsonl")):
        with contextlib.suppress(OSError):
            text = path.read_text(errors="replace")
            texts.append(text[: text.rfind("\n") + 1])
    return texts


def _line(generation: int, key: str, measured: Measured) -> bytes:
    value = None if math.isnan(measured.value) else measured.value.hex()  # exact
    told = {"generation": generation, "key": key, "value": value, "failure": None}
    if measured.failure is not None:
        told |= {"failure": measured.failure.text, "kind": measured.failure.kind}
    return json.dumps(told).encode() + b"\n"


def _entry(line: str) -> tuple[Entry, Measured] | None:
    """Return what a line tells; None where it is damaged: that job is evaluated again."""
    try:
        told: dict[str, Any] = json.loads(line)
        value = math.nan if told["value"] is None else float.fromhex(told["value"])
        text: str | None = told["failure"]
        failure = None if text is None else Failure(text, told.get("kind", kind_of(text)))
        return (int(told["generation"]), str(told["key"])), Measured(value, failure)
    except (ValueError, KeyError, TypeError):
        return None
