"""The rank of this process, for scripts that call `hpc_es.minimize` or `hpc_es.train` on all ranks."""

from __future__ import annotations

import os

from hpc_es.mpi.connect import connect, joined
from hpc_es.mpi.guard import install_hooks
from hpc_es.mpi.launch import tasks_started


def rank() -> int:
    """Return the rank of this process in its job, 0 without an MPI launcher.

    Under a launcher the first call connects the ranks, like `minimize` and `train`: every rank must call one of them.
    Without a launcher MPI is not started. Do not let results depend on the rank.

    Raises `hpc_es.core.errors.LaunchError` if a launcher started several tasks that are not connected to each other.
    """
    world = joined()
    if world is None:
        if tasks_started(os.environ)[0] == 1:
            return 0
        world = connect()
        install_hooks()
    return world.rank


def is_main() -> bool:
    """Return whether this process is rank 0, which should print and write files; True without an MPI launcher."""
    return rank() == 0
