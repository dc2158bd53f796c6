"""Seconds of each type of message, by size; a separate job, whose rank 0 prints JSON.

mpiexec -n 8 python -m benchmarks.scale.messages
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from hpc_es.mpi.connect import connect

SIZES = (1_000, 100_000, 10_000_000)  # bytes
REPEATS = 9


def main() -> None:
    """Time broadcast, allgather and gather."""
    world = connect()
    result: dict[str, Any] = {"ranks": world.size}
    for size in SIZES:
        array = np.zeros(size // 4, np.float32)
        share = np.zeros(max(size // world.size, 1), np.uint8)

        def broadcast(array: Any = array) -> Any:
            return world.broadcast(array)

        def allgather(share: Any = share) -> Any:
            return world.allgather(share)

        def gather(share: Any = share) -> Any:
            return world.gather(share)

        for name, function in (
            ("broadcast", broadcast),
            ("allgather", allgather),
            ("gather", gather),
        ):
            result[f"{name} {size}"] = timed(world, function)
    if world.rank == 0:
        print(json.dumps(result))
    world.finalize()


def timed(world: Any, function: Callable[[], Any]) -> float:
    """Return the median seconds on rank 0, from when all ranks are ready until all are done."""
    seconds = []
    for _ in range(REPEATS):
        world.allgather(np.zeros(1, np.uint8))
        since = time.perf_counter()
        function()
        world.allgather(np.zeros(1, np.uint8))
        seconds.append(time.perf_counter() - since)
    return median(seconds)


main()
