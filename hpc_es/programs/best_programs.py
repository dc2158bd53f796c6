"""Programs that a search keeps: the best one, the first correct one, and a priority queue.

The best and the first correct program are arrays of constant shape in the state on rank 0: ASCII
text, padded with 0. The number of programs executed (NPE) until the first correct one is counted in
the order of jobs, so that it depends neither on the number of ranks nor on the number of programs
per generation.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from hpc_es.core.data import Array, Arrays, Float64, Json, Rows, State
from hpc_es.core.elites import BestMember


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
    """Return whether the arrays of a state include those of `initial_arrays`.

    Those of somebody else may have anything under these names.
    """
    return all(
        name in arrays
        and (arrays[name].ndim, arrays[name].dtype) == (array.ndim, array.dtype)
        and (name == "best_reward" or array.ndim != 0 or arrays[name] >= 0)
        for name, array in initial_arrays(0).items()
    )


def update(
    arrays: Arrays, rows: Rows, fitness: Float64, program: Callable[[int], str]
) -> dict[str, Array]:
    """Return the arrays after executing further programs.

    `rows` have the column `correct`, `fitness` is float64[jobs] rewards, NaN for failed programs;
    `program` returns the text of a job. Of programs with equal rewards, the first is the best.
    """
    after = {name: arrays[name] for name in initial_arrays(0)}
    if not len(rows):
        return after
    rewards = np.where(np.isnan(fitness), -np.inf, fitness)
    correct = rows["correct"]
    best = int(rewards.argmax())
    if rewards[best] > after["best_reward"]:
        after["best_program"] = as_bytes(program(best), len(after["best_program"]))
        after["best_reward"], after["best_correct"] = (
            np.array(rewards[best]),
            np.array(correct[best]),
        )
    if correct.any() and not after["solution_npe"]:
        first = int(correct.argmax())
        after["solution"] = as_bytes(program(first), len(after["solution"]))
        after["solution_npe"] = after["executed"] + np.int64(first + 1)
    after["executed"] = after["executed"] + np.int64(len(rows))
    return {name: np.asarray(array) for name, array in after.items()}


def solutions(
    before: State, rows: Rows, program: Callable[[int], str]
) -> Sequence[dict[str, Json]]:
    """Return the correct programs of a generation in job order with their NPE.

    `before` is the state at its start. Failed jobs do not count as correct.
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
    return {
        "best_reward": reward if np.isfinite(reward) else 0.0,
        "solved": float(is_solved(arrays)),
    }


def summary(arrays: Arrays) -> dict[str, Json]:
    """Return the entries of result.json.

    `npe` is that of the first correct program, or of all programs without one.
    """
    executed = int(arrays["executed"])
    return {
        "success": is_solved(arrays),
        "npe": int(arrays["solution_npe"]) or executed,
        "code_solution": as_text(arrays["solution"]),
        "best_reward": float(arrays["best_reward"]) if executed else None,
        "best_correct": bool(arrays["best_correct"]),
        "best_program": as_text(arrays["best_program"]),
    }


def best_member(arrays: Arrays) -> BestMember | None:
    """Return the best program among the arrays of a state; None if they have none."""
    if not has_best_programs(arrays):
        return None
    facts = summary(arrays)
    value: Any = facts["best_reward"]
    return BestMember(value, facts["best_program"], facts)


def as_bytes(text: str, length: int) -> Array:
    """Return ASCII text as uint8[length], padded with 0."""
    return np.frombuffer(text.encode("ascii").ljust(length, b"\0"), np.uint8)


def as_text(array: Array) -> str:
    """Return the text of uint8[length]."""
    return array.tobytes().rstrip(b"\0").decode("ascii", "backslashreplace")


Score: TypeAlias = Any  # of any type with an order, such as a number or a tuple of numbers
QueueEntry = tuple[Score, Hashable, object]  # score, item, extra data
HeapEntry = tuple[Score, int, Hashable, object]  # the unique number prevents comparisons of items


class UniquePriorityQueue:
    """Priority queue of the `capacity` items with the highest scores.

    As in Abolafia et al. 2018 (arXiv:1801.03526). An item that is already in the queue is ignored,
    even with another score; a dropped item may be added again. `ties` selects whether older or
    newer items of equal scores are preferred. With `unique` scores, there is at most one item per
    score. The result depends neither on hashes nor on the order of sets.
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
        heapq.heappush(
            self._heap, (score, self._count if self._prefers_newer else -self._count, item, extra)
        )
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
        return [
            self._entry(entry)
            for entry in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)
        ]

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
