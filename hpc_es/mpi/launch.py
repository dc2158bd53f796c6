"""The launcher: its environment variables, read before MPI starts, and how to end all ranks."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import NoReturn

from hpc_es.core import streams
from hpc_es.mpi.ending import end_children

# Variables with the number of tasks that were started together. Not SLURM_NTASKS, which is also set
# in batch shells.
SIZES = (
    "SLURM_STEP_NUM_TASKS",
    "PMI_SIZE",  # Hydra (MPICH, Intel MPI), srun --mpi=pmi2, Cray PALS
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "FLUX_JOB_SIZE",
    "JSM_NAMESPACE_SIZE",  # jsrun
)
# PMIx sets a rank, but no size
RANKS = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
HYDRA = "MPI_LOCALNRANKS"  # set by Hydra for its ranks

LIST = ("srun", "--mpi=list")
LIST_SECONDS = 10.0  # time limit of LIST
KILL_SECONDS = 1.0  # wait for Hydra to kill this process
# a launcher that ends the job may drop output that it has not forwarded yet (seen with Hydra)
FLUSH_SECONDS = 0.2


def tasks_started(environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the number of tasks that the launcher started, and the variable that says so; (1, "")
    without a launcher.

    With PMIx only a lower bound is known, this rank + 1.
    """
    counts = [(_number(environ.get(name)), name) for name in SIZES]
    counts.append((_number(environ.get("PMIX_RANK")) + 1, "PMIX_RANK"))
    count, name = max(counts, key=lambda pair: pair[0])
    return (count, name) if count > 1 else (1, "")


def task_rank(environ: Mapping[str, str]) -> int | None:
    """Return the rank of this task according to the launcher.

    It is for messages before MPI is initialised.
    """
    if tasks_started(environ)[0] == 1:
        return None
    return next((_number(environ[name]) for name in RANKS if name in environ), None)


def by_srun(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this task directly, not through mpiexec."""
    return "SLURM_STEP_NUM_TASKS" in environ and HYDRA not in environ


def abandon_timeout(environ: Mapping[str, str]) -> float:
    """Return how many seconds a rank that abandoned its generation waits for rank 0.

    Rank 0 saves and ends the job. Under srun it can finish even if other ranks end first
    (KillWait), and rank 0 may be the rank that died.
    """
    return 4.0 if by_srun(environ) else 60.0


def launch_error(count: int, variable: str, problem: str) -> str:
    """Return the message for a job of `count` tasks that `problem` keeps from connecting."""
    started = f"at least {count} tasks" if variable == "PMIX_RANK" else f"{count} tasks"
    return (
        f"the launcher started {started} ({variable} is set), but {problem}: each task would be a separate job, "
        "and all would write the same directory. Remedies:\n"
        f"  under SLURM:       {_srun_command(variable, problem)}\n"
        f"  without SLURM:     {beside_python('mpiexec')} -n RANKS {sys.executable} -m hpc_es.main ...\n"
        "  another MPI:       the launcher and the MPI library of mpi4py must match; see "
        "`python -m mpi4py --mpi-lib-version`\n"
        f"  for a single rank: env -u {variable} {sys.executable} -m hpc_es.main ..."
    )


def _srun_command(variable: str, problem: str) -> str:
    """Return the srun command that starts this MPI library.

    On rank 0 under srun it is chosen from what srun supports.
    """
    preferred = ("pmix", "pmi2") if "Open MPI" in problem else ("pmi2", "pmix")
    offered = (
        srun_mpi_types() if variable.startswith("SLURM_") and not task_rank(os.environ) else []
    )
    mpi_type = next((name for name in preferred if name in offered), preferred[0])
    supported = f"says: {', '.join(offered)}" if offered else "shows what your SLURM supports"
    return f"srun --mpi={mpi_type} ...   (`srun --mpi=list` {supported})"


def srun_mpi_types() -> list[str]:
    """Return the types in the output of `srun --mpi=list`, sorted; [] if the call fails."""
    import subprocess

    try:
        done = subprocess.run(  # noqa: S603
            LIST,
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=LIST_SECONDS,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return []
    return mpi_types_in(done.stdout + done.stderr) if done.returncode == 0 else []


def mpi_types_in(text: str) -> list[str]:
    """Return the types in the output of `srun --mpi=list`, sorted.

    Old versions prefix lines with "srun: ".
    """
    types: list[str] = []
    for line in text.splitlines():
        head, colon, tail = line.removeprefix("srun: ").partition(":")
        words = tail.replace(",", " ").split() if colon else head.split()
        types += words if colon or len(words) == 1 else []
    return sorted(types)


def abort_launch(environ: Mapping[str, str], status: int) -> None:
    """Ask Hydra to end all ranks, before MPI is initialised.

    Hydra ignores the exit of a rank there, and the other ranks wait in MPI_Init. The request is one
    line of the PMI-1 wire protocol. Other launchers react to the exit status (srun with
    --kill-on-bad-exit=1).
    """
    if HYDRA not in environ:  # PMI_FD of srun has another protocol
        return
    with contextlib.suppress(OSError, ValueError, KeyError):
        descriptor = int(environ["PMI_FD"])
        # in a child process the number may mean anything
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            os.write(descriptor, f"cmd=abort exitcode={status}\n".encode())
            time.sleep(KILL_SECONDS)


def prefer_short_addresses(environ: MutableMapping[str, str]) -> None:
    """Make the mpich wheel use libfabric under srun, unless MPIR_CVAR_CH4_NETMOD is set.

    With UCX it publishes its address together with 4 KiB of uninitialised memory; when encoded, a
    part of that may be longer than the 1024 bytes that srun's pmi2 reads at once, and the start
    fails (seen once).
    """
    if not by_srun(environ):
        return
    from importlib.metadata import PackageNotFoundError, version  # imports 60 modules

    with contextlib.suppress(PackageNotFoundError):
        if version("mpich"):  # another MPICH may have been built without libfabric
            environ.setdefault("MPIR_CVAR_CH4_NETMOD", "ofi")


def beside_python(program: str) -> str:
    """Return the path of a program in the directory of this Python.

    If it is not there, the result is its bare name.
    """
    # not resolved: the python of a venv is a link to elsewhere
    path = Path(sys.executable).parent / program
    return str(path) if path.exists() else program


def _number(text: str | None) -> int:
    try:
        return int(text) if text is not None else -1
    except ValueError:
        return -1


def abort(status: int) -> NoReturn:
    """End this process and all other ranks immediately; needs no World."""
    end_children()
    streams.flush(sys.stdout, sys.stderr)
    time.sleep(FLUSH_SECONDS)
    mpi = sys.modules.get("mpi4py.MPI")
    if (
        mpi is not None
        and mpi.Is_initialized()
        and not mpi.Is_finalized()
        and mpi.COMM_WORLD.size > 1
    ):
        mpi.COMM_WORLD.Abort(status)
    elif tasks_started(os.environ)[0] > 1:
        abort_launch(os.environ, status)
    os._exit(status)
