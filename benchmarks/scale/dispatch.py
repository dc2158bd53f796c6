"""What rank 0 takes to hand out a chunk, in a job of its own, whose rank 0 prints JSON.

mpiexec -n 8 python -m benchmarks.scale.dispatch

Evaluations take 5 ms and rank 0 makes none. `chunks_a_second` is by the clock: here the ranks compete for the cores,
and wait politely for each other. `capacity` is by the processor time that rank 0 takes to receive and to answer: what
it could hand out if there were always somebody asking.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hpc_es.core.data import ROW, Chunk, Outcome, Poll
from hpc_es.mpi.connect import connect
from hpc_es.mpi.work import Work

CHUNKS, ROUNDS = 4_000, 3


class Busy:
    """Processor time spent in calls that did something."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose time counts where there was a message."""

        def timed(*given: Any) -> Any:
            since = time.process_time()
            found = function(*given)
            if given or found is not None:
                self.seconds += time.process_time() - since
            return found

        return timed


def main() -> None:
    """Hand out chunks."""
    world = connect()
    work = Work(world, "on_demand", False)
    busy = Busy()
    world.receive_any = busy.of(world.receive_any)  # type: ignore[method-assign]
    work._take = busy.of(work._take)  # type: ignore[method-assign]
    chunks = [Chunk(number, number, 1) for number in range(CHUNKS)]

    def evaluate(chunk: Chunk, poll: Poll) -> Outcome:
        time.sleep(5e-3)
        return Outcome(np.zeros(1, ROW))

    found = []
    for _ in range(ROUNDS):
        world.allgather(np.zeros(1, np.uint8))
        clock, busy.seconds = time.perf_counter(), 0.0
        work.evaluate(chunks, evaluate)
        found.append((time.perf_counter() - clock, busy.seconds))
    if world.rank == 0:
        clock, processor = (sorted(each)[ROUNDS // 2] for each in zip(*found, strict=True))
        told = {"ranks": world.size, "chunks_a_second": CHUNKS / clock, "capacity": CHUNKS / processor}
        print(json.dumps(told))
    world.finalize()


if __name__ == "__main__":
    main()
