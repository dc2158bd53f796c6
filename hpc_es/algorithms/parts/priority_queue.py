"""The best few, each once: the hall of fame of a genetic algorithm, the queue of priority queue training.

Nothing in it depends on hashes or on the order of a set. As in Abolafia et al. 2018 (arXiv:1801.03526), and with rules
of its own for equal scores.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Any, Literal

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
