"""The environment variables of programs that a rank starts.

A program gets the environment of its rank without the variables that would make MPI or srun treat
it as a rank: with them a program that starts MPI would join our job, or wait for it. So it may run
`mpiexec -n 4 solver`, or srun to start a further step. Variables of the job (SLURM_JOB_ID,
SLURM_JOB_NODELIST, SLURM_NTASKS ...) stay, since srun needs them.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIXES = (  # of environment variables that a program does not get
    # MPICH, Intel MPI
    "PMI",
    "MPI_",
    "MPICH_",
    "MPIR_",
    "MPIEXEC_",
    "HYDRA_",
    "HYDI_",
    "HYD_",
    "I_MPI_HYDRA",
    # Open MPI
    "OMPI_",
    "OPAL_",
    "ORTE_",
    "PRTE_",
    "PRRTE_",
    # MVAPICH, Cray, Flux, jsrun
    "MV2_COMM_WORLD_",
    "PALS_",
    "ALPS_",
    "FLUX_JOB_",
    "FLUX_TASK_",
    "JSM_",
    # of a step
    "SLURM_STEP",
    "SLURM_SRUN_",
    "SLURM_PMI",
    "SLURM_MPI_",
    "SLURM_CPU_BIND",
    "SLURM_MEM_BIND",
)
NAMES = frozenset(  # likewise
    (
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_GTIDS",
        "SLURM_TASK_PID",
        "SLURM_LAUNCH_NODE_IPADDR",
        "SLURM_DISTRIBUTION",
        "SLURM_KILL_BAD_EXIT",
        "SLURM_UMASK",
    )
)


def program_environment(environ: Mapping[str, str], additions: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a program:
    `environ` without those of MPI and srun steps, and `additions`.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in NAMES and not name.startswith(PREFIXES)
    }
    return {**kept, **additions}
