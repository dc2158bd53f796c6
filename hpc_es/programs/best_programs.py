"""Programs that a search keeps: the best one, the first correct one, a priority queue, and programs.jsonl.

The best and the first correct program are arrays of constant shape in the state on rank 0: ASCII text, padded with 0.
The number of programs executed (NPE) until the first correct one is counted in the order of jobs, so that it depends
neither on the number of ranks nor on the number of programs per generation. programs.jsonl lists all correct programs.
"""

from __future__ import annotations

import heapq
import json
import math
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from hpc_es.core.data import Array, Arrays, Float64, Json, JsonObject, Rows, State
from hpc_es.core.errors import RunError
from hpc_es.storage.files import json_text
from hpc_es.storage.line_logs import LinesFile


def initial_arrays(length: int) -> dict[str, Array]:
    """Return the arrays before the first program; no program is longer than `length`.

    State, master:
        executed: int64[]; number of programs executed so far
        best_program: uint8[length]; program with the best reward, ASCII, padded with 0
        best_reward: float64[]; its reward; -infinity before
        best_correct: bool[]; whether it is correct
        solution: uint8[length]; first correct program, ASCII, padded with 0
        solution_npe: int64[]; number of programs executed until then; 0 before
    """
    return {
        "executed": np.array(0, np.int64),
        "best_program": np.zeros(length, np.uint8),
        "best_reward": np.array(-np.inf, np.float64),
        "best_correct": np.array(False),
        "solution": np.zeros(length, np.uint8),
        "solution_npe": np.array(0, np.int64),
    }


def has_best_programs(arrays: Arrays) -> bool:
    """Return whether the arrays of a state include those of `initial_arrays`."""
    return initial_arrays(0).keys() <= arrays.keys()


def update(arrays: Arrays, rows: Rows, fitness: Float64, program: Callable[[int], str]) -> dict[str, Array]:
    """Return the arrays after executing further programs.

    `rows` have the column `correct`, `fitness` is float64[jobs] rewards, NaN for failed programs; `program` returns the
    text of a job. Of programs with equal rewards, the first is the best.
    """
    after = {name: arrays[name] for name in initial_arrays(0)}
    if not len(rows):
        return after
    rewards = np.where(np.isnan(fitness), -np.inf, fitness)
    correct = rows["correct"]
    best = int(rewards.argmax())
    if rewards[best] > after["best_reward"]:
        after["best_program"] = as_bytes(program(best), len(after["best_program"]))
        after["best_reward"], after["best_correct"] = np.array(rewards[best]), np.array(correct[best])
    if correct.any() and not after["solution_npe"]:
        first = int(correct.argmax())
        after["solution"] = as_bytes(program(first), len(after["solution"]))
        after["solution_npe"] = after["executed"] + np.int64(first + 1)
    after["executed"] = after["executed"] + np.int64(len(rows))
    return {name: np.asarray(array) for name, array in after.items()}


def solutions(before: State, rows: Rows, program: Callable[[int], str]) -> Sequence[dict[str, Json]]:
    """Return the correct programs of a generation in job order with their NPE; `before` is the state at its start.

    Failed jobs do not count as correct.
    """
    correct = np.flatnonzero(rows["correct"] & ~np.isnan(rows["return_"])).tolist()
    executed = int(before.master["executed"])
    return [
        {
            "generation": before.generation,
            "npe": executed + job + 1,
            "reward": float(rows["return_"][job]),
            "length": int(rows["length"][job]),
            "program": program(job),
        }
        for job in correct
    ]


def is_solved(arrays: Arrays) -> bool:
    """Return whether a correct program has been found."""
    return bool(arrays["solution_npe"])


def finished(arrays: Arrays, stop_on_success: bool) -> str | None:
    """Return why the search has ended, or None."""
    return "a correct program" if stop_on_success and is_solved(arrays) else None


def metrics(arrays: Arrays) -> dict[str, float]:
    """Return the metrics of a generation."""
    reward = float(arrays["best_reward"])
    return {"best_reward": reward if np.isfinite(reward) else 0.0, "solved": float(is_solved(arrays))}


def summary(arrays: Arrays) -> dict[str, Json]:
    """Return the entries of result.json; `npe` is that of the first correct program, or of all programs without one."""
    executed = int(arrays["executed"])
    return {
        "success": is_solved(arrays),
        "npe": int(arrays["solution_npe"]) or executed,
        "code_solution": as_text(arrays["solution"]),
        "best_reward": float(arrays["best_reward"]) if executed else None,
        "best_correct": bool(arrays["best_correct"]),
        "best_program": as_text(arrays["best_program"]),
    }


def as_bytes(text: str, length: int) -> Array:
    """Return ASCII text as uint8[length], padded with 0."""
    return np.frombuffer(text.encode("ascii").ljust(length, b"\0"), np.uint8)


def as_text(array: Array) -> str:
    """Return the text of uint8[length]."""
    return array.tobytes().rstrip(b"\0").decode("ascii")


Score: TypeAlias = Any  # of any type with an order, such as a number or a tuple of numbers
QueueEntry = tuple[Score, Hashable, object]  # score, item, extra data
HeapEntry = tuple[Score, int, Hashable, object]  # the unique number prevents comparisons of items


class UniquePriorityQueue:
    """Priority queue of the `capacity` items with the highest scores, as in Abolafia et al. 2018 (arXiv:1801.03526).

    An item that is already in the queue is ignored, even with another score; a dropped item may be added again. `ties`
    selects whether older or newer items of equal scores are preferred. With `unique` scores, there is at most one item
    per score. The result depends neither on hashes nor on the order of sets.
    """

    def __init__(
        self,
        capacity: int,
        ties: Literal["older", "newer"] = "older",
        unique: Literal["items", "scores"] = "items",
    ) -> None:
        assert capacity >= 1, f"capacity {capacity}"
        self.capacity = capacity
        self._prefers_newer, self._unique_scores = ties == "newer", unique == "scores"
        self._heap: list[HeapEntry] = []
        self._items: set[Hashable] = set()
        self._scores: set[Score] = set()
        self._count = 0

    def push(self, score: Score, item: Hashable, extra: object = None) -> bool:
        """Add an item; return whether it was added."""
        if item in self._items:
            return False
        if self._unique_scores and score in self._scores:
            if not self._prefers_newer:
                return False
            self._drop(score)
        if len(self._heap) == self.capacity:
            lowest = self._heap[0][0]
            if not (score > lowest or (self._prefers_newer and score == lowest)):
                return False
            self.pop()
        self._count += 1
        heapq.heappush(self._heap, (score, self._count if self._prefers_newer else -self._count, item, extra))
        self._items.add(item)
        self._scores.add(score)
        return True

    def pop(self) -> QueueEntry | None:
        """Remove and return the entry with the lowest score; None if the queue is empty."""
        return self._removed(heapq.heappop(self._heap)) if self._heap else None

    def _drop(self, score: Score) -> None:
        """Remove the entry with this score, if scores are unique."""
        index = next(index for index, entry in enumerate(self._heap) if entry[0] == score)
        self._removed(self._heap.pop(index))
        heapq.heapify(self._heap)

    def _removed(self, heap_entry: HeapEntry) -> QueueEntry:
        """Forget an entry that was removed from the heap, and return it."""
        self._items.discard(heap_entry[2])
        if self._unique_scores:
            self._scores.discard(heap_entry[0])
        return self._entry(heap_entry)

    def smallest(self) -> QueueEntry | None:
        """Return the entry with the lowest score."""
        return self._entry(self._heap[0]) if self._heap else None

    def largest(self) -> QueueEntry | None:
        """Return the entry with the highest score."""
        return self._entry(max(self._heap, key=lambda entry: entry[:2])) if self._heap else None

    def sorted_entries(self) -> list[QueueEntry]:
        """Return the entries from highest to lowest score."""
        return [self._entry(entry) for entry in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]

    @staticmethod
    def _entry(heap_entry: HeapEntry) -> QueueEntry:
        score, _, item, extra = heap_entry
        return score, item, extra

    def __contains__(self, item: Hashable) -> bool:
        return item in self._items

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[QueueEntry]:
        return iter(self.sorted_entries())


PROGRAMS = "programs.jsonl"
MAX_PROGRAMS = 1_000_000  # about 200 MB; a search that continues after success may find correct programs forever


class ProgramsLog:
    """Writer of programs.jsonl: every correct program of a run, one JSON line per program, in the order of jobs.

        {"generation": 7, "npe": 763, "reward": 1.0, "length": 20, "program": ">,>,.<."}

    `npe` is the number of programs executed up to this one. A program is listed only once per run; after MAX_PROGRAMS
    lines, only programs with a new best reward are added. A checkpoint stores `lengths()`; a resumed run truncates the
    file to them with `cut` and reads the listed programs, so that the file does not depend on restarts. There is no
    file before the first correct program.

    A new run calls `cut({})` first, which removes programs of a run that died before its first checkpoint.
    """

    def __init__(self, run_dir: Path, warn: Callable[[str], object] = warnings.warn) -> None:
        self._file = LinesFile(run_dir / PROGRAMS)
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
        return {PROGRAMS: length} if length else {}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Remove programs that were found after the checkpoint with these lengths; a missing name means 0.

        A missing file is replaced, with a warning, by one blank line of the recorded length, so that the lengths in all
        checkpoints remain valid. Raises RunError, before anything is changed, if the file was damaged.
        """
        length = lengths.get(PROGRAMS, 0)
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
    path = run_dir / PROGRAMS
    if not path.exists():
        return
    end = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            end += len(line)
            if not line.endswith(b"\n") or (length is not None and end > length):
                return
            if not line.strip():
                continue
            try:
                program = json.loads(line)
                entry = {**program, "program": str(program["program"]), "reward": float(program["reward"])}
            except (ValueError, KeyError, TypeError):
                text = f"expected a program with its reward as JSON, found {line[:40]!r}"
                remedy = "restore the file or remove the line"
                raise RunError(f"{path}, line {number}: {text}; {remedy}") from None
            yield entry
