"""Speed of the compiled interpreter relative to the reference interpreter in Python, in programs
per second.

Both score the same random programs of 100 characters on the 16 cases of the task 'reverse', as
searches do.
"""

from __future__ import annotations

import random
import time
from statistics import median
from typing import Any

from hpc_es.programs.brainfuck import CHARACTERS
from hpc_es.programs.task import make_task

REPEATS, FEW, MANY = 5, 20, 2000


def run() -> list[dict[str, Any]]:
    """Return one row; both interpreters alternate."""
    rng = random.Random(1)
    programs = ["".join(rng.choices(CHARACTERS, k=100)) for _ in range(MANY)]
    task = make_task("reverse")
    task.score_many(programs[:1])  # compile
    ratios, rates = [], []
    for _ in range(REPEATS):
        slow = seconds(lambda: [task.score(program) for program in programs[:FEW]]) / FEW
        fast = seconds(lambda: task.score_many(programs)) / MANY
        ratios.append(slow / fast)
        rates.append(1 / fast)
    ratio = median(ratios)
    row = {"task": "reverse", "speedup": ratio, "target": 50, "met": ratio >= 50}
    return [
        {
            **row,
            "programs_per_second": median(rates),
            "spread": f"{min(ratios):.0f}-{max(ratios):.0f}",
        }
    ]


def seconds(work: Any) -> float:
    """Return the seconds of a call."""
    since = time.perf_counter()
    work()
    return time.perf_counter() - since
