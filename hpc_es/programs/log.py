"""programs.jsonl: every correct program that a search found, one JSON line per program, in the order of jobs.

    {"generation": 7, "npe": 763, "reward": 1.0, "length": 20, "program": ">,>,.<."}

`npe` is the number of programs executed up to this one. A program is listed only once per run. A checkpoint stores
`lengths()`; a resumed run truncates the file to them with `cut` and reads the listed programs, so that the file does
not depend on restarts. There is no file before the first correct program.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hpc_es.core.data import JsonObject
from hpc_es.core.errors import RunError
from hpc_es.storage.files import json_text
from hpc_es.storage.line_logs import LinesFile

NAME = "programs.jsonl"
MAX_PROGRAMS = (
    1_000_000  # about 200 MB in memory; a search that continues after success may find correct programs forever
)


class ProgramsLog:
    """Appends the correct programs of a run; after MAX_PROGRAMS lines, only programs with a new best reward.

    A new run calls `cut({})` first, which removes programs of a run that died before its first checkpoint.
    """

    def __init__(self, run_dir: Path, warn: Callable[[str], object] = warnings.warn) -> None:
        self._file = LinesFile(run_dir / NAME)
        self._warn = warn
        self._listed: set[str] = set()
        self._best = -math.inf

    def write(self, programs: Sequence[JsonObject]) -> None:
        """Append the programs that are not yet listed; raises RunError if the disk is full or not writable."""
        lines = [json_text(program) + "\n" for program in programs if self._is_new(program)]
        if lines:
            self._file.append("".join(lines))

    def _is_new(self, program: JsonObject) -> bool:
        text, reward = str(program["program"]), float(program["reward"])
        if text in self._listed or (len(self._listed) >= MAX_PROGRAMS and reward <= self._best):
            return False
        self._listed.add(text)
        self._best = max(self._best, reward)
        if len(self._listed) == MAX_PROGRAMS:
            self._warn(f"{self._file.path} has {MAX_PROGRAMS:,} programs: from now on, only better ones are added")
        return True

    def lengths(self) -> dict[str, int]:
        """Return the length of the file in bytes, after syncing it to disk; checkpoints store it for `cut`."""
        length = self._file.length()
        return {NAME: length} if length else {}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Remove programs that were found after the checkpoint with these lengths; a missing name means 0.

        A missing file is replaced, with a warning, by one blank line of the recorded length, so that the lengths in all
        checkpoints remain valid. Raises RunError, before anything is changed, if the file was damaged.
        """
        length = lengths.get(NAME, 0)
        if not self._file.cut(length):
            self._warn(f"{self._file.path} is missing: the correct programs found before this resume are lost")
            self._file.append(" " * (length - 1) + "\n")
        self._listed, self._best = set(), -math.inf
        for program in read_programs(self._file.path.parent):
            self._listed.add(str(program["program"]))
            self._best = max(self._best, float(program["reward"]))

    def close(self) -> None:
        """Close the file; the next `write` opens it again."""
        self._file.close()


def read_programs(run_dir: Path, length: int | None = None) -> Iterator[JsonObject]:
    """Yield the programs of a run in the order of discovery, or those in the first `length` bytes.

    An incomplete last line, left by a killed process, is ignored. Raises RunError for a line that is not a program.
    """
    path = run_dir / NAME
    if not path.exists():
        return
    end = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            end += len(line)
            if not line.endswith(b"\n") or (length is not None and end > length):
                return
            if line.strip():
                yield _parsed(line, f"{path}, line {number}")


def _parsed(line: bytes, where: str) -> JsonObject:
    try:
        program = json.loads(line)
        return {**program, "program": str(program["program"]), "reward": float(program["reward"])}
    except (ValueError, KeyError, TypeError):
        text = f"expected a program with its reward as JSON, found {line[:40]!r}; restore the file or remove the line"
        raise RunError(f"{where}: {text}") from None
