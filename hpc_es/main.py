"""The door: `srun python -m hpc_es.main config.yaml [key=value ...]`.

Exit status: 0 finished, 2 a mistake in the command or config, 75 interrupted (the same command carries on), 1 anything
else.
"""

from __future__ import annotations

import os
import signal
import sys

# Until the guard's Signals counts them: a job that has hardly begun is stopped like any other, not killed. Not SIGTERM,
# by which srun ends the ranks that wait in MPI_Init for one that failed before it.
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1, signal.SIGUSR2))
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before NumPy is imported
    os.environ.setdefault(_name, os.environ.get("OMP_NUM_THREADS", "1"))

from hpc_es.core import processor  # noqa: E402, F401  before anything binds threads to cores
from hpc_es.mpi.guard import guarded  # noqa: E402


def body() -> int:
    """Import and run the rest inside the guard, so that a failing import on one rank ends all of them."""
    from hpc_es.api.job import run_command

    return run_command(sys.argv[1:])


def main() -> None:
    """Train, and end the process with the exit status."""
    guarded(body)


if __name__ == "__main__":
    main()
