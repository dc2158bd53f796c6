"""The journal of evaluations: finished ones are not repeated after a restart.

They are those of an interrupted generation. Each rank appends its evaluations to its own file in
RUN/journal, one file per generation. After a restart rank 0 reads all files and broadcasts them. An
entry is used if its job has the same number, vector, seed and source, so that the results are
bit-identical to those of an uninterrupted run. Files of generations before a checkpoint are
removed.

With `task.close_at`, rank 0 also writes the jobs of a generation that gave no result, before its
update. After a restart they fail again, and the generation is not closed early another time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from hpc_es.core.data import Float64, JsonObject
from hpc_es.core.errors import Failure, RunError, kind_of, one_line
from hpc_es.core.run_files import make_directory, open_file, parse_json, read_text, remove
from hpc_es.tasks.functions.results import EvaluationResult

Mode = Literal["auto"] | bool

FOLDER = "journal"
EXPENSIVE_SECONDS = 0.01  # with mode auto, chunks with a longer evaluation are recorded
# at most between two calls of fsync; a chunk with a longer evaluation is synchronised at once
SYNC_SECONDS = 1.0
FILE_NAME = re.compile(r"generation_(\d{9})_.*\.jsonl")

# what a line raises that is no entry: numbers may be infinite, and attributes those of another type
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError)

EntryKey = tuple[int, str]  # generation, and the result of `EvaluationJournal.key`


class EvaluationJournal:
    """The journal of one rank.

    Without `failures`, failed evaluations are not recorded and so repeated.
    """

    def __init__(self, mode: Mode, identity: str, failures: bool = True) -> None:
        self._mode, self._identity, self._failures = mode, identity, failures
        self._folder: Path | None = None
        self._entries: dict[EntryKey, EvaluationResult] = {}  # of the interrupted run
        # jobs without a result, by generation that was closed early
        self.closed: dict[int, frozenset[int]] = {}
        self._file: BinaryIO | None = None
        self._generation = -1
        self._synced = time.monotonic()

    def open(self, run: Path, call_on_rank_0: Callable[[Callable[[], str]], str]) -> None:
        """Read the journal of an interrupted run.

        `call_on_rank_0(f)` returns rank 0's result of f() on every rank.
        """
        if self._mode is False:
            return
        self._folder = run / FOLDER
        text = call_on_rank_0(lambda: "".join(_complete_lines(run / FOLDER)))
        entries = (entry for line in text.splitlines() if (entry := _parse_entry(line)) is not None)
        self._entries = {key: result for key, result in entries if self._is_recorded(result)}
        self.closed = dict(filter(None, map(_parse_closed, text.splitlines())))

    @property
    def is_open(self) -> bool:
        """Whether the journal is enabled and there is a run directory."""
        return self._folder is not None

    def key(self, job: str, vector: Float64, seed: int) -> str:
        """Return a hash of a job: its number, vector, seed and source of the objective.

        The vector is float64[size].
        """
        content = f"{job} {seed} {self._identity} ".encode() + vector.astype("<f8").tobytes()
        return hashlib.sha256(content).hexdigest()

    def recorded(
        self, generation: int, keys: Callable[[], Sequence[str]]
    ) -> list[EvaluationResult] | None:
        """Return the recorded results of these jobs, or None if one of them is missing.

        `keys` is called only if there are records, as hashes take longer than cheap evaluations.
        """
        if not self._entries:
            return None
        results = [self._entries.get((generation, key)) for key in keys()]
        return [result for result in results if result is not None] if None not in results else None

    def add(
        self,
        generation: int,
        keys: Callable[[], Sequence[str]],
        results: Sequence[EvaluationResult],
    ) -> None:
        """Append the results of a chunk, unless its evaluations are cheap.

        Raises:
            RunError: writing fails.
        """
        slowest = max(result.seconds for result in results)
        if self._folder is None or (self._mode == "auto" and slowest < EXPENSIVE_SECONDS):
            return
        pairs = zip(keys(), results, strict=True)
        lines = [
            _format_entry(generation, key, result)
            for key, result in pairs
            if self._is_recorded(result)
        ]
        try:
            file = self._open_file(self._folder, generation)
            file.write(b"".join(lines))
            if slowest >= SYNC_SECONDS or time.monotonic() - self._synced >= SYNC_SECONDS:
                os.fsync(file.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            raise RunError(
                f"{self._folder} could not be written ({error.strerror}): free space there, or "
                "set task.journal: false, then start the same command again"
            ) from error

    def close_generation(self, generation: int, jobs: Sequence[int]) -> None:
        """Write the jobs without a result of a generation that was closed early.

        Raises:
            RunError: writing fails.
        """
        assert self._folder is not None
        try:
            make_directory(self._folder, parents=False)
            with open_file(
                self._folder / f"generation_{generation:09}_closed.jsonl", "ab", buffering=0
            ) as file:
                file.write(
                    json.dumps({"generation": generation, "closed": list(jobs)}).encode() + b"\n"
                )
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(
                f"{self._folder} could not be written ({error.strerror}): free space there, "
                "then start the same command again"
            ) from error
        self.closed[generation] = frozenset(jobs)

    def _is_recorded(self, result: EvaluationResult) -> bool:
        return self._failures or result.failure is None

    def _open_file(self, folder: Path, generation: int) -> BinaryIO:
        if self._file is None or generation != self._generation:
            self.close()
            make_directory(folder, parents=False)
            name = f"generation_{generation:09}_{os.uname().nodename}_{os.getpid()}.jsonl"
            self._file, self._generation = open_file(folder / name, "ab", buffering=0), generation
        return self._file

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            # of a quota on NFS: the evaluations of these lines are repeated
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def remove_finished(run: Path, generation: int) -> None:
    """Remove the files of the generations before `generation`; on rank 0 only.

    A checkpoint has stored them.
    """
    for path in (run / FOLDER).glob("generation_*.jsonl"):
        match = FILE_NAME.fullmatch(path.name)
        if match and int(match[1]) < generation:
            with contextlib.suppress(OSError):  # the next checkpoint tries again
                remove(path)


def _complete_lines(folder: Path) -> list[str]:
    """Return the complete lines of each file.

    Files that cannot be read are skipped, and their jobs repeated.
    """
    texts = []
    for path in sorted(folder.glob("generation_*.jsonl")):
        with contextlib.suppress(OSError):
            text = read_text(path, errors="replace")
            texts.append(text[: text.rfind("\n") + 1])
    return texts


def _format_entry(generation: int, key: str, result: EvaluationResult) -> bytes:
    value = None if math.isnan(result.value) else result.value.hex()  # exact
    entry: dict[str, object] = {
        "generation": generation,
        "key": key,
        "value": value,
        "failure": None,
    }
    if result.numbers:
        entry["numbers"] = [number.hex() for number in result.numbers]
    if result.failure is not None:
        entry |= {"failure": result.failure.text, "kind": result.failure.kind}
    return json.dumps(entry).encode() + b"\n"


def _parse_closed(line: str) -> tuple[int, frozenset[int]] | None:
    """Return generation and jobs of a line about a closed generation; None for other lines."""
    try:
        entry: JsonObject = parse_json(line)
        return int(entry["generation"]), frozenset(map(int, entry["closed"]))
    except DAMAGE:
        return None


def _parse_entry(line: str) -> tuple[EntryKey, EvaluationResult] | None:
    """Return the entry of a line; None if it is damaged, so that its job is evaluated again."""
    try:
        entry: JsonObject = parse_json(line)
        value = math.nan if entry["value"] is None else float.fromhex(entry["value"])
        text: str | None = entry["failure"]
        if text is not None and not isinstance(kind := entry.get("kind", kind_of(text)), str):
            raise TypeError(f"expected a text, found {kind!r}")
        failure = None if text is None else Failure(one_line(text), kind)
        # Version 0.2 had constraints only.
        numbers = tuple(map(float.fromhex, entry.get("numbers", entry.get("constraints", ()))))
        key = int(entry["generation"]), str(entry["key"])
        return key, EvaluationResult(value, failure, numbers=numbers)
    except DAMAGE:
        return None
