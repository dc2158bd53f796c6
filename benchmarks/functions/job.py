"""A job whose generations are timed: `mpiexec -n RANKS python -m benchmarks.functions.job SPEC`; rank 0 prints JSON.

With a kind, SPEC is a search by `hpc_es.minimize`: seconds of each generation but the first, from one to the next. With
none it is a bare loop on every rank, all at the same time: evaluations a second, added up.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from benchmarks.jobs import MPIEXEC, ROOT
from hpc_es.core.data import Float64

Work = Literal["none", "sleep", "busy"]
LIMIT_SECONDS = 1800


@dataclass(frozen=True)
class Spec:
    """What a job does."""

    kind: str = ""  # none: a bare loop
    size: int = 10  # parameters
    population: int = 10
    generations: int = 10  # or evaluations of each rank
    work: Work = "none"
    seconds: float = 0.0  # that an evaluation takes

    def run(self, ranks: int) -> Any:
        """Run it on so many ranks, and return what it printed."""
        job = [str(MPIEXEC), "-n", str(ranks), sys.executable, "-m", "benchmarks.functions.job"]
        asked = [*job, json.dumps(asdict(self))]
        done = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True, timeout=LIMIT_SECONDS)
        return json.loads(done.stdout.splitlines()[-1])

    def function(self) -> Callable[[Float64], float]:
        """Return what is minimised: nearly noise, so that no search comes to an end."""

        def value(x: Float64) -> float:
            if self.work == "sleep":
                time.sleep(self.seconds)
            elif self.work == "busy":
                until = time.perf_counter() + self.seconds
                while time.perf_counter() < until:
                    pass
            return math.sin(1e4 * float(x.sum()))

        return value


def search(spec: Spec) -> list[float] | None:
    """Return the seconds of each generation but the first, on rank 0."""
    import hpc_es
    from hpc_es.mpi.connect import connect

    ends: list[float] = []
    hpc_es.minimize(
        spec.function(),
        np.zeros(spec.size),
        1.0,
        algorithm=spec.kind,
        population_size=spec.population,
        max_evaluations=spec.generations * spec.population,
        callback=lambda row: ends.append(time.perf_counter()),
    )
    return np.diff(ends).tolist() if connect().rank == 0 else None


def loops(spec: Spec) -> float | None:
    """Return how many evaluations a second the ranks make together, on rank 0."""
    from mpi4py import MPI

    function, x = spec.function(), np.zeros(spec.size)
    MPI.COMM_WORLD.Barrier()
    since = time.perf_counter()
    for _ in range(spec.generations):
        function(x)
    rates = MPI.COMM_WORLD.gather(spec.generations / (time.perf_counter() - since))
    return None if rates is None else sum(rates)


if __name__ == "__main__":
    given = Spec(**json.loads(sys.argv[1]))
    found = search(given) if given.kind else loops(given)
    if found is not None:
        print(json.dumps(found))
