"""What the launcher's environment variables say about this job, before and without MPI."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path

# Variables with the number of tasks that were started together. SLURM_NTASKS is not one: batch shells have it too.
SIZES = (
    "SLURM_STEP_NUM_TASKS",
    "PMI_SIZE",  # Hydra (MPICH, Intel MPI), srun --mpi=pmi2, Cray PALS
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "FLUX_JOB_SIZE",
    "JSM_NAMESPACE_SIZE",  # jsrun
)
RANKS = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")  # PMIx tells a rank, but no size

KILL_SECONDS = 1.0  # to be killed in, before this process ends by itself


def tasks_started(environ: Mapping[str, str]) -> tuple[int, str]:
    """How many tasks a launcher says it started (1 if none does), and the variable that says so."""
    told = [(_number(environ.get(name)), name) for name in SIZES]
    told.append((_number(environ.get("PMIX_RANK")) + 1, "PMIX_RANK"))
    count, name = max(told, key=lambda pair: pair[0])
    return (count, name) if count > 1 else (1, "")


def task_rank(environ: Mapping[str, str]) -> int | None:
    """The rank of this task as the launcher tells it, for messages before MPI is initialised."""
    if tasks_started(environ)[0] == 1:
        return None
    return next((_number(environ[name]) for name in RANKS if name in environ), None)


def refusal(count: int, variable: str, found: str) -> str:
    """The message for a job of `count` tasks that do not see each other; `found` is what each of them has instead."""
    started = f"at least {count} tasks" if variable == "PMIX_RANK" else f"{count} tasks"
    return (
        f"the launcher started {started} ({variable} is set), but {found}: each task would be a master of its own "
        "and all would write the same directory. Remedies:\n"
        "  under SLURM:       srun --mpi=pmi2 ...   (`srun --mpi=list` shows what your SLURM offers)\n"
        f"  without SLURM:     {beside_python('mpiexec')} -n RANKS {sys.executable} -m hpc_es.main ...\n"
        "  another MPI:       the launcher and the MPI library of mpi4py must be of one kind; see "
        "`python -m mpi4py --mpi-lib-version`\n"
        f"  meant to be alone: env -u {variable} {sys.executable} -m hpc_es.main ..."
    )


def abort_launch(environ: Mapping[str, str], status: int) -> None:
    """Ask Hydra to end all ranks, before MPI is initialised: it ignores an exit there, and the others wait in MPI_Init.

    It is one line of the PMI-1 wire protocol. Other launchers see an exit status (srun with --kill-on-bad-exit=1).
    """
    if "MPI_LOCALNRANKS" not in environ:  # a mark of Hydra; srun's PMI_FD speaks another protocol
        return
    with contextlib.suppress(OSError, ValueError, KeyError):
        descriptor = int(environ["PMI_FD"])
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):  # in a child of a rank the number may mean anything
            os.write(descriptor, f"cmd=abort exitcode={status}\n".encode())
            time.sleep(KILL_SECONDS)


def beside_python(program: str) -> str:
    """The program in the directory of this Python, or its bare name if there is none."""
    path = Path(sys.executable).parent / program  # not resolved: a venv's python is a link out of it
    return str(path) if path.exists() else program


def _number(text: str | None) -> int:
    try:
        return int(text) if text is not None else -1
    except ValueError:
        return -1
