"""The environment that an external program gets: this rank's, without what makes MPI or srun think it is a rank too.

With these variables a program that starts MPI would join our job, or wait for it for ever; without them it may start
MPI alone, as `mpiexec -n 4 solver`, or under SLURM as a further step with srun. What a batch shell has too stays
(SLURM_JOB_ID, SLURM_JOB_NODELIST, SLURM_NTASKS ...): a step of the program's own needs it, and has its defaults there.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIXES = (
    *("PMI", "MPI_", "MPICH_", "MPIR_", "MPIEXEC_", "HYDRA_", "HYDI_", "HYD_", "I_MPI_HYDRA"),  # MPICH, Intel MPI
    *("OMPI_", "OPAL_", "ORTE_", "PRTE_", "PRRTE_"),  # Open MPI
    *("MV2_COMM_WORLD_", "PALS_", "ALPS_", "FLUX_JOB_", "FLUX_TASK_", "JSM_"),  # MVAPICH, Cray, Flux, jsrun
    *("SLURM_STEP", "SLURM_SRUN_", "SLURM_PMI", "SLURM_MPI_", "SLURM_CPU_BIND", "SLURM_MEM_BIND"),  # of a step
)
NAMES = frozenset(
    (
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID"),
        *("SLURM_LAUNCH_NODE_IPADDR", "SLURM_DISTRIBUTION", "SLURM_KILL_BAD_EXIT", "SLURM_UMASK"),
    )
)


def cleaned(environ: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a program gets, with `more` put in."""
    kept = {name: value for name, value in environ.items() if name not in NAMES and not name.startswith(PREFIXES)}
    return {**kept, **more}
