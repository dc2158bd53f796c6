"""Search hyperparameters: run the trials of a tuning file; run again, what is missing, or was added to it.

A tuning file is YAML: {base: config.yaml, search: grid|random|optuna, space: {dotted.key: values}, trials: N,
repetitions: R, objective: final_return}; a grid needs only base and space. Under MPI (mpiexec -n 4 python -m hpc_es
tune ...) all ranks take part in each trial; tasks of a job array share the trials.

Exit status: 0 done, 2 a mistake of yours, 75 interrupted (the same command carries on), 1 failed.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    """The tuning file and where to put what comes of it."""
    parser.add_argument("tuning", metavar="TUNING", type=Path, help="a YAML file")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: runs/<name of the file>")
    parser.add_argument(
        "--fixed",
        nargs="+",
        action="extend",
        default=[],
        metavar="key=value",
        help="this one value instead of those in the space; the value is YAML",
    )
    shard = "part i (from 0) of n, which run side by side; default: this task's place in its SLURM job array"
    parser.add_argument("--shard", metavar="i/n", help=shard)


def run(arguments: argparse.Namespace) -> int:
    """Run the trials on every rank, inside the guard."""
    from hpc_es.mpi.guard import guarded

    def body() -> int:
        from hpc_es.tuning.run import tune

        return tune(arguments.tuning, arguments.output, arguments.fixed, arguments.shard)

    guarded(body)
