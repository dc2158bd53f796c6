"""Number of chunks that rank 0 can assign per second; a separate job, whose rank 0 prints JSON.

mpiexec -n 4 python -m benchmarks.scale.dispatch

The workers request chunks as fast as they can and receive the answers at the end. So requests are
always pending, and `capacity` is the number of answers per CPU second of rank 0.
"""

from __future__ import annotations

import json
import time
from collections import deque

from hpc_es.mpi.connect import connect
from hpc_es.mpi.scheduler import Work
from hpc_es.mpi.tags import Tag

REQUESTS = 10_000  # per worker
PAUSE_SECONDS = 0.5  # until requests have accumulated


def main() -> None:
    """Assign chunks that no rank evaluates."""
    world = connect()
    work = Work(world, "on_demand", False)
    world.barrier()
    if world.rank:
        for _ in range(REQUESTS):
            world.send(0, Tag.AHEAD, [])
        for _ in range(REQUESTS):
            world.receive(0, Tag.ANSWER)
    else:
        chunks = REQUESTS * (world.size - 1)
        work._left = deque(range(chunks + world.size))
        time.sleep(PAUSE_SECONDS)
        since = time.process_time()
        while len(work._left) > world.size:
            work.check_messages()
        result = {"ranks": world.size, "capacity": chunks / (time.process_time() - since)}
        print(json.dumps(result))
    world.finalize()


if __name__ == "__main__":
    main()
