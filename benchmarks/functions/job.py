"""A job whose generations are timed: `mpiexec -n RANKS python -m benchmarks.functions.job SPEC`;
rank 0 prints JSON.

If SPEC has a kind, the job is a search by `hpc_es.minimize`, and the result is the seconds of each
generation but the first. Otherwise every rank runs a bare loop, and the result is the sum of their
evaluations per second.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from benchmarks.functions.front import zdt
from benchmarks.jobs import MPIEXEC, ROOT
from hpc_es.core.data import Float64

Work = Literal["none", "sleep", "busy"]
LIMIT_SECONDS = 1800


@dataclass(frozen=True)
class Spec:
    """The work of a job."""

    kind: str = ""  # empty: a bare loop
    size: int = 10  # parameters
    population: int = 10
    generations: int = 10  # of a search; or evaluations per rank
    work: Work = "none"
    seconds: float = 0.0  # per evaluation
    objectives: int = 1  # two: those of ZDT1, between 0 and 1

    def run(self, ranks: int) -> Any:
        """Run the job and return its result."""
        job = [str(MPIEXEC), "-n", str(ranks), sys.executable, "-m", "benchmarks.functions.job"]
        command = [*job, json.dumps(asdict(self))]
        done = subprocess.run(
            command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=LIMIT_SECONDS
        )
        return json.loads(done.stdout.splitlines()[-1])

    def rate(self, generations: Sequence[float]) -> float:
        """Return the evaluations per second over generations with these durations."""
        return self.population * len(generations) / sum(generations)

    def function(self) -> Callable[[Float64], float | Float64]:
        """Return the objective, which is nearly noise, so that no search ends."""

        def value(x: Float64) -> float | Float64:
            if self.work == "sleep":
                time.sleep(self.seconds)
            elif self.work == "busy":
                until = time.perf_counter() + self.seconds
                while time.perf_counter() < until:
                    pass
            return math.sin(1e4 * float(x.sum())) if self.objectives == 1 else zdt(1, x)

        return value


def search(spec: Spec) -> list[float] | None:
    """Return the seconds of each generation but the first, on rank 0."""
    import hpc_es
    from hpc_es.mpi.connect import connect

    ends: list[float] = []
    several: dict[str, Any] = {"objectives": spec.objectives, "bounds": (0, 1)}
    hpc_es.minimize(
        spec.function(),
        np.zeros(spec.size),
        1.0,
        **(several if spec.objectives > 1 else {}),
        algorithm=spec.kind,
        population_size=spec.population,
        max_evaluations=spec.generations * spec.population,
        callback=lambda row: ends.append(time.perf_counter()),
    )
    return np.diff(ends).tolist() if connect().rank == 0 else None


def loops(spec: Spec) -> float | None:
    """Return the evaluations per second of all ranks together, on rank 0."""
    from mpi4py import MPI

    function, x = spec.function(), np.zeros(spec.size)
    MPI.COMM_WORLD.Barrier()
    since = time.perf_counter()
    for _ in range(spec.generations):
        function(x)
    rates = MPI.COMM_WORLD.gather(spec.generations / (time.perf_counter() - since))
    return None if rates is None else sum(rates)


if __name__ == "__main__":
    spec = Spec(**json.loads(sys.argv[1]))
    result = search(spec) if spec.kind else loops(spec)
    if result is not None:
        print(json.dumps(result))
