"""Ending all ranks from one of them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import NoReturn

from hpc_es.mpi.launch import abort_launch, tasks_started

PASS_ON_SECONDS = 0.2  # a launcher that ends the job may drop output that it has not passed on yet (Hydra, seen once)


def abort(status: int) -> NoReturn:
    """End this process and, where MPI runs, all ranks at once; needs no World."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe must not keep the others hanging
            stream.flush()
    time.sleep(PASS_ON_SECONDS)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1:
        mpi.COMM_WORLD.Abort(status)
    elif tasks_started(os.environ)[0] > 1:
        abort_launch(os.environ, status)
    os._exit(status)
