"""Progress of a program: it prints one line per generation, whose arrival the benchmark times."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

MARK = "#generation"
NOT_COUNTED = 2  # generations; the second one may compile again
FEWEST = 5  # generations, also if they are slow


class Reporter:
    """Reports the number of steps, and decides when the program ends."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._until, self._ended = seconds, 0.0, 0

    def report(self, steps: int) -> bool:
        """Print the number of steps of all generations so far;
        return whether to run another generation.
        """
        print(MARK, steps, flush=True)
        self._ended += 1
        if self._ended == NOT_COUNTED:
            self._until = time.perf_counter() + self._seconds
        return self._ended < FEWEST or time.perf_counter() < self._until


def read_arguments() -> dict[str, Any]:
    """Return the `Work.arguments` on the command line."""
    work: dict[str, Any] = json.loads(sys.argv[1])
    return work
