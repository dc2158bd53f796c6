"""The random numbers that Python 2 drew, of which the published test cases were made.

Python 2 and 3 share the Mersenne Twister and `random()`, but make whole numbers of it in different ways.
"""

from __future__ import annotations

import random
from collections.abc import MutableSequence
from typing import Any


class Python2Random:
    """`random.Random(seed)` as in Python 2.7."""

    def __init__(self, seed: int) -> None:
        self._stream = random.Random(seed)  # noqa: S311  (not for secrets)

    def randrange(self, start: int, stop: int | None = None) -> int:
        """Return a whole number from start to below stop; from 0 to below start where there is no stop."""
        low, high = (0, start) if stop is None else (start, stop)
        return low + int(self._stream.random() * (high - low))

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """In place."""
        for last in range(len(items) - 1, 0, -1):
            other = int(self._stream.random() * (last + 1))
            items[last], items[other] = items[other], items[last]
