"""What a search for programs has found: the best program, the first correct one, how many were executed.

All of it is arrays of fixed form, a part of the master's state. Programs are ASCII text, zeros behind it. The number of
programs executed (NPE) until the first correct one counts in the order of jobs, so that it does not depend on ranks nor
on how many programs a generation has.


The best few, each once: the hall of fame of a genetic algorithm, the queue of priority queue training.

Nothing in it depends on hashes or on the order of a set. As in Abolafia et al. 2018 (arXiv:1801.03526), and with rules
of its own for equal scores.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from hpc_es.core.data import Array, Arrays, Float64, Rows, State


def nothing(length: int) -> dict[str, Array]:
    """Before the first program; none is longer than `length`.

    State, master:
        executed: int64[]; programs executed so far
        best_program: uint8[length]; program with the best reward, ASCII, then zeros
        best_reward: float64[]; its reward; -infinity before
        best_correct: bool[]; whether it is correct
        solution: uint8[length]; first correct program, ASCII, then zeros
        solution_npe: int64[]; programs executed until then; 0 before
    """
    return {
        "executed": np.array(0, np.int64),
        "best_program": np.zeros(length, np.uint8),
        "best_reward": np.array(-np.inf, np.float64),
        "best_correct": np.array(False),
        "solution": np.zeros(length, np.uint8),
        "solution_npe": np.array(0, np.int64),  # 0: none is found yet
    }


def is_in(arrays: Arrays) -> bool:
    """Return whether these arrays are of a search for programs."""
    return nothing(0).keys() <= arrays.keys()


def updated(found: Arrays, rows: Rows, fitness: Float64, program: Callable[[int], str]) -> dict[str, Array]:
    """After some more programs, rows of which have `correct`; `program` gives the text of one of them.

    A program is the best if its fitness, which is its reward, is larger than any before it. NaN is no reward.
    """
    after = {name: found[name] for name in nothing(0)}
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


def solutions(before: State, rows: Rows, program: Callable[[int], str]) -> Sequence[dict[str, Any]]:
    """Return the correct programs of a generation in job order, each with its NPE; `before` is the state it began with.

    A job that has failed is no correct program, whatever its row says of that.
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


def is_solved(found: Arrays) -> bool:
    """Return whether a correct program is known."""
    return bool(found["solution_npe"])


def finished(found: Arrays, stop_on_success: bool) -> str | None:
    """Return why the search is over, if it is."""
    return "a correct program" if stop_on_success and is_solved(found) else None


def metrics(found: Arrays) -> dict[str, float]:
    """For the row of a generation that has executed a program."""
    reward = float(found["best_reward"])
    return {"best_reward": reward if np.isfinite(reward) else 0.0, "solved": float(is_solved(found))}


def summary(found: Arrays) -> dict[str, Any]:
    """For result.json: `npe` is that of the first correct program, or of all where there is none."""
    executed = int(found["executed"])
    return {
        "success": is_solved(found),
        "npe": int(found["solution_npe"]) or executed,
        "code_solution": as_text(found["solution"]),
        "best_reward": float(found["best_reward"]) if executed else None,
        "best_correct": bool(found["best_correct"]),
        "best_program": as_text(found["best_program"]),
    }


def as_bytes(text: str, length: int) -> Array:
    """Text as uint8[length]."""
    return np.frombuffer(text.encode("ascii").ljust(length, b"\0"), np.uint8)


def as_text(array: Array) -> str:
    """Return what `as_bytes` was made of."""
    return array.tobytes().rstrip(b"\0").decode("ascii")


Entry = tuple[Any, Hashable, Any]  # score, item, extra


class MaxUniquePriorityQueue:
    """Keeps the `capacity` items of the largest scores.

    An item that is in already is ignored, also with another score. What was dropped may come again. Of equal scores
    either the older stays and stands in front, or the newer does. With `unique` scores there is one item of each.
    """

    def __init__(
        self,
        capacity: int,
        ties: Literal["older", "newer"] = "older",
        unique: Literal["items", "scores"] = "items",
    ) -> None:
        assert capacity >= 1, f"capacity {capacity}"
        self.capacity = capacity
        self._newer, self._one_of_each = ties == "newer", unique == "scores"
        self._heap: list[tuple[Any, int, Hashable, Any]] = []  # the number makes ties compare nothing else
        self._items: set[Hashable] = set()
        self._scores: set[Any] = set()
        self._count = 0

    def push(self, score: Any, item: Hashable, extra: Any = None) -> bool:
        """Take an item in; whether it is in now for the first time."""
        if item in self._items:
            return False
        if self._one_of_each and score in self._scores:
            if not self._newer:
                return False
            self._drop(score)
        if len(self._heap) == self.capacity:
            least = self._heap[0][0]
            if not (score > least or (self._newer and score == least)):
                return False
            self.pop()
        self._count += 1
        heapq.heappush(self._heap, (score, self._count if self._newer else -self._count, item, extra))
        self._items.add(item)
        self._scores.add(score)
        return True

    def pop(self) -> Entry | None:
        """Take the smallest out; None of an empty queue."""
        return self._without(heapq.heappop(self._heap)) if self._heap else None

    def _drop(self, score: Any) -> None:
        """Take the one with this score out, where scores are unique."""
        place = next(place for place, entry in enumerate(self._heap) if entry[0] == score)
        self._without(self._heap.pop(place))
        heapq.heapify(self._heap)

    def _without(self, found: tuple[Any, int, Hashable, Any]) -> Entry:
        """Forget an entry that has left the heap, and return it."""
        self._items.discard(found[2])
        if self._one_of_each:
            self._scores.discard(found[0])
        return self._entry(found)

    def smallest(self) -> Entry | None:
        """Return the entry that would go first."""
        return self._entry(self._heap[0]) if self._heap else None

    def largest(self) -> Entry | None:
        """Return the best entry."""
        return self._entry(max(self._heap, key=lambda entry: entry[:2])) if self._heap else None

    def in_order(self) -> list[Entry]:
        """From the best to the worst."""
        return [self._entry(found) for found in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]

    @staticmethod
    def _entry(found: tuple[Any, int, Hashable, Any]) -> Entry:
        score, _, item, extra = found
        return score, item, extra

    def __contains__(self, item: Hashable) -> bool:
        return item in self._items

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.in_order())
