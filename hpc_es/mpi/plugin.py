"""Which --mpi= starts this MPI library under this SLURM: `srun --mpi="$(python -m hpc_es.mpi.plugin)" ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpc_es.core.errors import LaunchError, UserError
from hpc_es.core.extras import install_command
from hpc_es.mpi.connect import library_name
from hpc_es.mpi.launch import mpi_kinds

SPEAKS = {  # by the beginning of the library's name, the best first
    "Open MPI": ("pmix", "pmi2"),
    "CRAY MPICH": ("cray_shasta", "pmi2", "pmix"),
    "": ("pmi2", "pmix"),  # MPICH and its relatives
}


def choose(library: str, offered: Sequence[str]) -> str:
    """Return the best kind for a library that is offered, such as pmi2, or pmix_v4; LaunchError if there is none."""
    speaks = next(kinds for name, kinds in SPEAKS.items() if library.upper().startswith(name.upper()))
    for kind in speaks:
        found = [each for each in offered if each == kind or each.startswith(f"{kind}_v")]
        if found:
            return min(found, key=len)
    raise LaunchError(
        f"{library} speaks {' or '.join(speaks)}, but `srun --mpi=list` offers {', '.join(offered) or 'nothing'}: load "
        "another MPI module and install mpi4py for it, or start the ranks by the library's own mpiexec instead of srun"
    )


def library() -> str:
    """Return the MPI library that mpi4py finds, without joining other ranks; LaunchError if there is none."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, OSError, RuntimeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise LaunchError(f"no MPI library found ({reason}); install MPICH: {install_command('mpich')}") from error
    return library_name(MPI.Get_library_version())


def main() -> None:
    """Print the kind."""
    try:
        sys.stdout.write(choose(library(), mpi_kinds()) + "\n")
    except UserError as error:
        sys.stderr.write(f"hpc-es: {error}\n")
        sys.exit(error.status)


if __name__ == "__main__":
    main()
