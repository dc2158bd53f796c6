"""The program of a job: `srun python -m hpc_es.main config.yaml [key=value ...]`.

Exit status: 0 finished, 2 wrong command or config, 75 interrupted (the same command resumes), 1
failed.
"""

from __future__ import annotations

import os
import signal
import sys

# Blocked until the guard's Signals handles them, so that they do not kill a job that is just
# starting. SIGTERM is not blocked: srun uses it to end ranks that wait in MPI_Init for one that has
# failed.
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1, signal.SIGUSR2))
# before NumPy is imported
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, os.environ.get("OMP_NUM_THREADS", "1"))

from hpc_es.core import (  # noqa: E402
    machine,  # noqa: F401  before anything binds threads to cores
    streams,
)
from hpc_es.mpi.guard import guarded  # noqa: E402


def body() -> int:
    """Import and run the job inside the guard.

    A failing import on one rank then ends all ranks.
    """
    from hpc_es.api.job import parser, run_job

    return run_job(lambda: parser().parse_intermixed_args(sys.argv[1:]))


def main() -> None:
    """Train, and end the process with its exit status."""
    streams.complete()
    streams.show_plain_warnings()
    streams.drop_errors("stdout", "stderr")
    guarded(body)


if __name__ == "__main__":
    main()
