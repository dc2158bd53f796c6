"""How many chunks rank 0 can hand out a second, in a job of its own, whose rank 0 prints JSON.

mpiexec -n 4 python -m benchmarks.scale.dispatch

The workers ask for a chunk ahead, as fast as they can, and take their answers in the end: so there is always somebody
asking, and `capacity` is by the processor time that rank 0 takes to receive and to answer.
"""

from __future__ import annotations

import json
import time
from collections import deque

from hpc_es.mpi.connect import connect
from hpc_es.mpi.scheduler import AHEAD, ANSWER, Work

REQUESTS = 10_000  # of each worker
PAUSE_SECONDS = 0.5  # until requests have gathered


def main() -> None:
    """Hand out chunks that nobody evaluates."""
    world = connect()
    work = Work(world, "on_demand", False)
    world.poll = None
    world.barrier()
    if world.rank:
        for _ in range(REQUESTS):
            world.send(0, AHEAD, [])
        for _ in range(REQUESTS):
            world.receive(0, ANSWER)
    else:
        chunks = REQUESTS * (world.size - 1)
        work._left = deque(range(chunks + world.size))
        time.sleep(PAUSE_SECONDS)
        since = time.process_time()
        while len(work._left) > world.size:
            work._look()
        told = {"ranks": world.size, "capacity": chunks / (time.process_time() - since)}
        print(json.dumps(told))
    world.finalize()


if __name__ == "__main__":
    main()
