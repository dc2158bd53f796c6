"""The best few, each once: the hall of fame of a genetic algorithm, the queue of priority queue training.

Nothing in it depends on hashes or on the order of a set. As in Abolafia et al. 2018 (arXiv:1801.03526).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Any

Entry = tuple[Any, Hashable, Any]  # score, item, extra


class MaxUniquePriorityQueue:
    """Keeps the `capacity` items of the largest scores.

    An item that is in already is ignored, also with another score. When the queue is full a new item takes the place of
    the smallest only with a larger score: of equal ones the older stays. What was dropped may come again.
    """

    def __init__(self, capacity: int) -> None:
        assert capacity >= 1, f"capacity {capacity}"
        self.capacity = capacity
        self._heap: list[tuple[Any, int, Hashable, Any]] = []  # the number makes ties compare nothing else
        self._items: set[Hashable] = set()
        self._count = 0

    def push(self, score: Any, item: Hashable, extra: Any = None) -> bool:
        """Take an item in; whether it is in now for the first time."""
        if item in self._items:
            return False
        self._count += 1
        entry = (score, -self._count, item, extra)
        if len(self._heap) < self.capacity:
            heapq.heappush(self._heap, entry)
        elif score > self._heap[0][0]:
            self._items.discard(heapq.heapreplace(self._heap, entry)[2])
        else:
            return False
        self._items.add(item)
        return True

    def pop(self) -> Entry | None:
        """Take the smallest out; None of an empty queue."""
        if not self._heap:
            return None
        score, _, item, extra = heapq.heappop(self._heap)
        self._items.discard(item)
        return score, item, extra

    def smallest(self) -> Entry | None:
        """Return the entry that would go first."""
        return self._entry(self._heap[0]) if self._heap else None

    def largest(self) -> Entry | None:
        """Return the best entry; of equal scores the oldest."""
        return self._entry(max(self._heap)) if self._heap else None

    def in_order(self) -> list[Entry]:
        """From the best to the worst; of equal scores the older first."""
        return [self._entry(found) for found in sorted(self._heap, reverse=True)]

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
