"""What the launcher's environment variables say about this job, before and without MPI.

Ending all ranks from one of them."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, MutableMapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

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
HYDRA = "MPI_LOCALNRANKS"  # a mark of its ranks

LIST = ("srun", "--mpi=list")
LIST_SECONDS = 10.0  # for srun to list its MPI types
KILL_SECONDS = 1.0  # to be killed in, before this process ends by itself


def tasks_started(environ: Mapping[str, str]) -> tuple[int, str]:
    """Return how many tasks a launcher says it started (1 if none does), and the variable that says so."""
    told = [(_number(environ.get(name)), name) for name in SIZES]
    told.append((_number(environ.get("PMIX_RANK")) + 1, "PMIX_RANK"))
    count, name = max(told, key=lambda pair: pair[0])
    return (count, name) if count > 1 else (1, "")


def task_rank(environ: Mapping[str, str]) -> int | None:
    """Return the rank of this task as the launcher tells it, for messages before MPI is initialised."""
    if tasks_started(environ)[0] == 1:
        return None
    return next((_number(environ[name]) for name in RANKS if name in environ), None)


def by_srun(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this task itself, and not through an mpiexec."""
    return "SLURM_STEP_NUM_TASKS" in environ and HYDRA not in environ


def patience(environ: Mapping[str, str]) -> float:
    """For how many seconds a rank that gave up waits for its master to save and end the job.

    srun lets the master finish when others end first (KillWait), and the master may be the rank that died.
    """
    return 4.0 if by_srun(environ) else 60.0


def refusal(count: int, variable: str, found: str) -> str:
    """The message for a job of `count` tasks that do not see each other; `found` is what each of them has instead."""
    started = f"at least {count} tasks" if variable == "PMIX_RANK" else f"{count} tasks"
    return (
        f"the launcher started {started} ({variable} is set), but {found}: each task would be a master of its own "
        "and all would write the same directory. Remedies:\n"
        f"  under SLURM:       {_srun(variable, found)}\n"
        f"  without SLURM:     {beside_python('mpiexec')} -n RANKS {sys.executable} -m hpc_es.main ...\n"
        "  another MPI:       the launcher and the MPI library of mpi4py must be of one kind; see "
        "`python -m mpi4py --mpi-lib-version`\n"
        f"  meant to be alone: env -u {variable} {sys.executable} -m hpc_es.main ..."
    )


def _srun(variable: str, found: str) -> str:
    """Return how srun is to start this MPI library, with what this SLURM offers where srun started us."""
    speaks = ("pmix", "pmi2") if "Open MPI" in found else ("pmi2", "pmix")
    offered = mpi_kinds() if variable.startswith("SLURM_") and not task_rank(os.environ) else []
    kind = next((each for each in speaks if each in offered), speaks[0])
    says = f"says: {', '.join(offered)}" if offered else "shows what your SLURM offers"
    return f"srun --mpi={kind} ...   (`srun --mpi=list` {says})"


def mpi_kinds() -> list[str]:
    """What `srun --mpi=list` lists, sorted; empty if it cannot be asked. Old versions put "srun: " before each."""
    try:
        done = subprocess.run(LIST, check=False, capture_output=True, text=True, timeout=LIST_SECONDS)  # noqa: S603
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return []
    kinds: list[str] = []
    for line in (done.stdout + done.stderr).splitlines() if done.returncode == 0 else []:
        head, colon, tail = line.removeprefix("srun: ").partition(":")
        words = tail.replace(",", " ").split() if colon else head.split()
        kinds += words if colon or len(words) == 1 else []
    return sorted(kinds)


def abort_launch(environ: Mapping[str, str], status: int) -> None:
    """Ask Hydra to end all ranks, before MPI is initialised: it ignores an exit there, and the others wait in MPI_Init.

    It is one line of the PMI-1 wire protocol. Other launchers see an exit status (srun with --kill-on-bad-exit=1).
    """
    if HYDRA not in environ:  # srun's PMI_FD speaks another protocol
        return
    with contextlib.suppress(OSError, ValueError, KeyError):
        descriptor = int(environ["PMI_FD"])
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):  # in a child of a rank the number may mean anything
            os.write(descriptor, f"cmd=abort exitcode={status}\n".encode())
            time.sleep(KILL_SECONDS)


def prefer_short_addresses(environ: MutableMapping[str, str]) -> None:
    """Have the mpich wheel use libfabric where srun starts it, unless MPIR_CVAR_CH4_NETMOD is set already.

    With UCX it announces its address with 4 KiB of whatever stands behind it in memory; encoded, a piece of that may
    be longer than the 1024 bytes that srun's pmi2 reads at once, and the start fails (seen once).
    """
    with contextlib.suppress(PackageNotFoundError):
        if by_srun(environ) and version("mpich"):  # another MPICH may have been built without libfabric
            environ.setdefault("MPIR_CVAR_CH4_NETMOD", "ofi")


def beside_python(program: str) -> str:
    """Return the program in the directory of this Python, or its bare name if there is none."""
    path = Path(sys.executable).parent / program  # not resolved: a venv's python is a link out of it
    return str(path) if path.exists() else program


def _number(text: str | None) -> int:
    try:
        return int(text) if text is not None else -1
    except ValueError:
        return -1


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
