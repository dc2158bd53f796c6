"""Joining the other ranks, with or without an MPI library."""

from __future__ import annotations

import os
import re

from hpc_es.core.errors import LaunchError
from hpc_es.core.extras import install_command
from hpc_es.mpi import shared_memory as shared
from hpc_es.mpi.fault_tolerance import limit_init_time
from hpc_es.mpi.launch import prefer_short_addresses, refusal, tasks_started
from hpc_es.mpi.world import World, connected

_joined: list[World] = []


def connect() -> World:
    """Join the other ranks; without an MPI library, a world of one. Later calls give the same world.

    Raises LaunchError where a launcher started several tasks that do not see each other.
    """
    world = joined()
    if world is None:
        world = _connect()
        _joined.append(world)
    return world


def joined() -> World | None:
    """Return the world of `connect`, if it was called."""
    return _joined[0] if _joined else None


def _connect() -> World:
    count, variable = tasks_started(os.environ)
    prefer_short_addresses(os.environ)
    try:
        import mpi4py

        mpi4py.rc.thread_level = "funneled"
        mpi4py.rc.finalize = False  # at exit it would block a rank that fails alone; `World.finalize` does it
        with limit_init_time(os.environ):
            from mpi4py import MPI
    except (ImportError, OSError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if count > 1:
            found = f"there is no MPI library here ({reason}); {install_command('mpich')} brings MPICH"
            raise LaunchError(refusal(count, variable, found)) from error
        return World(f"none: {reason}")
    library = library_name(MPI.Get_library_version())
    if MPI.COMM_WORLD.size == 1:
        if count > 1:
            raise LaunchError(refusal(count, variable, f"{library} sees a world of one"))
        shared.unlink_mapped()
        return World(library)
    comms = connected(MPI, MPI.COMM_WORLD)
    if comms.node.rank == 0:  # all ranks are past MPI_Init
        shared.unlink_mapped()
    return World(library, comms)


def library_name(version: str) -> str:
    """Return the name and number in what MPI_Get_library_version says, such as "MPICH 5.0.2"."""
    line = " ".join(version.splitlines()[0].split()) if version.strip() else "unknown MPI"
    found = re.search(r"(?P<name>CRAY MPICH|MVAPICH2?|MPICH|Open MPI|Intel\S* MPI)\D*?(?P<number>\d[\w.]*)", line)
    return f"{found['name']} {found['number']}" if found else line[:60]
