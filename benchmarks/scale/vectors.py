"""Large vectors: memory per rank, and seconds of the update, its messages and checkpoints; rank 0
prints JSON.

mpiexec -n 2 python -m benchmarks.scale.vectors 1_000_000 gathered

A policy with this number of parameters acts for one step; 2 antithetic pairs, chunks of one job,
counter noise, Adam. Memory is the peak of a rank (`ru_maxrss`) minus its value before the run, in
vectors of 4 bytes per parameter.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import hpc_es
from hpc_es.mpi.connect import connect
from hpc_es.storage.checkpoint_directory import Store

GENERATIONS = 4  # the first is not counted
SHORT = {"step_seconds": 0.0, "scale": 1e-6}  # episodes of one step


def main() -> None:
    """Train, and print memory and times on rank 0."""
    parameters, update = int(sys.argv[1]), sys.argv[2]
    world, before = connect(), peak()
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "run"
        run = hpc_es.train(config(parameters, update), output)
        rows = list(run)
        vector = run.theta.nbytes
        parts = world.allgather(np.array([(peak() - before) / vector]).view(np.uint8))
        if world.rank == 0:
            memory = [float(part.view(np.float64)[0]) for part in parts]
            print(
                json.dumps(
                    {
                        "parameters": run.theta.size,
                        "update": update,
                        **figures(rows, memory, output),
                    }
                )
            )
    world.finalize()


def peak() -> int:
    """Return the peak memory of this process in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def config(parameters: int, update: str) -> dict[str, Any]:
    """Return the config, with two hidden layers of equal width."""
    width = math.isqrt(parameters)
    return {
        "seed": 1,
        "task": {
            "kind": "episodes",
            "env_id": "benchmarks.scale.timer:Timer-v0",
            "env_kwargs": SHORT,
        },
        "policy": {"kind": "mlp", "hidden_dims": [width, width]},
        "algorithm": {"kind": "es", "population_size": 4, "optimizer": {"kind": "adam"}},
        "noise": {"kind": "counter"},
        "mpi": {"chunk_size": 1, "update": update},
        "evaluation": {"interval": 0},
        "checkpoint": {"interval": 1, "full_interval": 1_000_000, "keep_last": 1000},
        "report": {"plot_interval_seconds": 0},
        "stop": {"generations": GENERATIONS},
    }


def figures(rows: list[Any], memory: list[float], output: Path) -> dict[str, Any]:
    """Return the figures that rank 0 prints."""
    counted = rows[1:]
    paths = Store(output / "checkpoints").paths()
    seconds = {
        name: median(row[f"time_{name}_mean"] for row in counted)
        for name in ("update", "messages", "idle")
    }
    return {
        "memory_rank_0": memory[0],
        "memory_others": max(memory[1:], default=0.0),
        "seconds": median(row["seconds_this_generation"] for row in counted),
        **seconds,
        "whole_bytes": paths[0].stat().st_size,
        "between_bytes_a_generation": paths[-2].stat().st_size / (len(paths) - 2),
    }


if __name__ == "__main__":
    main()
