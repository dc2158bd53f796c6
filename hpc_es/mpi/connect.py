"""Connection to the other ranks, with or without an MPI library."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import re
import threading
from collections.abc import Iterator, Mapping

from hpc_es.core.errors import LaunchError, install_command
from hpc_es.core.settings_files import UCX, settings_of_user
from hpc_es.mpi import shared_memory as shared
from hpc_es.mpi.launch import launch_error, prefer_short_addresses, task_rank, tasks_started
from hpc_es.mpi.world import World, create_communicators

INIT_LIMIT = "HPC_ES_MPI_INIT_SECONDS"  # environment variable
INIT_SECONDS = 600.0  # its default

_worlds: list[World] = []


def connect() -> World:
    """Return the world of all ranks, or of one rank without an MPI library.

    Later calls return the same.

    Raises:
        LaunchError: a launcher started several tasks that are not connected to each other.
    """
    world = joined()
    if world is None:
        world = _connect()
        _worlds.append(world)
    return world


def joined() -> World | None:
    """Return the world that `connect` returned, or None before its first call."""
    return _worlds[0] if _worlds else None


def _connect() -> World:
    count, variable = tasks_started(os.environ)
    prefer_short_addresses(os.environ)
    try:
        import mpi4py

        mpi4py.rc.thread_level = "funneled"
        # at exit it would block a rank that fails alone; see `World.finalize`
        mpi4py.rc.finalize = False
        with _init_limit(os.environ), settings_of_user(UCX, is_said=not task_rank(os.environ)):
            from mpi4py import MPI
    except (ImportError, OSError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if count > 1:
            raise LaunchError(
                launch_error(
                    count,
                    variable,
                    f"there is no MPI library here ({reason}); "
                    f"{install_command('mpich')} installs MPICH",
                )
            ) from error
        world = World(f"none: {reason}")
        world.notes.append(
            f"one rank, without MPI; for more ranks install MPICH: {install_command('mpich')}"
        )
        return world
    library = library_name(MPI.Get_library_version())
    if MPI.COMM_WORLD.size == 1:
        if count > 1:
            raise LaunchError(launch_error(count, variable, f"{library} sees a world of one rank"))
        shared.unlink_segments()
        return World(library)
    comms = create_communicators(MPI, MPI.COMM_WORLD)
    if comms.node.rank == 0:  # all ranks are past MPI_Init
        shared.unlink_segments()
    return World.connect(library, comms)


@contextlib.contextmanager
def _init_limit(environ: Mapping[str, str]) -> Iterator[None]:
    """End the process with a traceback if MPI_Init takes too long.

    It never returns if a rank died before it. The limit must include the time until the last rank
    has started. MPI_Init holds the interpreter lock, so only faulthandler can do this.
    """
    text = environ.get(INIT_LIMIT) or str(INIT_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise LaunchError(f"{INIT_LIMIT} must be a positive number of seconds, not {text!r}")
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)  # sys.stderr may be no file
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def library_name(version: str) -> str:
    """Return name and version from the output of MPI_Get_library_version, such as "MPICH 5.0.2"."""
    line = " ".join(version.splitlines()[0].split()) if version.strip() else "unknown MPI"
    match = re.search(
        r"(?P<name>CRAY MPICH|MVAPICH2?|MPICH|Open MPI|Intel\S* MPI)\D*?(?P<number>\d[\w.]*)", line
    )
    return f"{match['name']} {match['number']}" if match else line[:60]
