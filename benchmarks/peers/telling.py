"""How a program tells of its generations: a line each, which the one who started it takes the time of."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

MARK = "#generation"
NOT_COUNTED = 2  # generations: a second one may compile again
FEWEST = 5  # generations, also of a program that takes long for one


class Telling:
    """Says how many steps were made, and when it is enough."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._until, self._ended = seconds, 0.0, 0

    def goes_on(self, steps: int) -> bool:
        """Tell the steps of all generations so far; return whether there is to be another one."""
        print(MARK, steps, flush=True)
        self._ended += 1
        if self._ended == NOT_COUNTED:
            self._until = time.perf_counter() + self._seconds
        return self._ended < FEWEST or time.perf_counter() < self._until


def told() -> dict[str, Any]:
    """Return the work, as the command line has it."""
    work: dict[str, Any] = json.loads(sys.argv[1])
    return work
