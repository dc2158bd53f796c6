"""The --mpi= option of srun for this MPI library.

    srun --mpi="$(python -m hpc_es.mpi.plugin)" ...

In a container without srun, the output of `srun --mpi=list` outside of it is the argument.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpc_es.core.errors import LaunchError, UserError, install_command
from hpc_es.core.settings_files import UCX, settings_of_user
from hpc_es.mpi.connect import library_name
from hpc_es.mpi.launch import mpi_types_in, srun_mpi_types

SUPPORTED = {  # prefix of the library's name: MPI types of srun that it supports, the best first
    "Open MPI": ("pmix", "pmi2"),
    "CRAY MPICH": ("cray_shasta", "pmi2", "pmix"),
    "": ("pmi2", "pmix"),  # MPICH and its derivatives
}


def choose(library: str, offered: Sequence[str]) -> str:
    """Return the best of the offered MPI types for a library, such as pmi2 or pmix_v4.

    Raises:
        LaunchError: none fits.
    """
    supported = next(
        types for name, types in SUPPORTED.items() if library.upper().startswith(name.upper())
    )
    for mpi_type in supported:
        matches = [name for name in offered if name == mpi_type or name.startswith(f"{mpi_type}_v")]
        if matches:
            return min(matches, key=len)
    raise LaunchError(
        f"{library} supports {' or '.join(supported)}, but `srun --mpi=list` offers {', '.join(offered) or 'nothing'}: "
        "load another MPI module and install mpi4py for it, "
        "or start the ranks with the library's mpiexec instead of srun"
    )


def library() -> str:
    """Return the name of the MPI library of mpi4py without initialising it.

    Raises:
        LaunchError: there is none.
    """
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        with settings_of_user(UCX):
            from mpi4py import MPI
    except (ImportError, OSError, RuntimeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise LaunchError(
            f"no MPI library found ({reason}); install MPICH: {install_command('mpich')}"
        ) from error
    return library_name(MPI.Get_library_version())


def main() -> None:
    """Print the MPI type."""
    offered = mpi_types_in(sys.argv[1]) if len(sys.argv) > 1 else srun_mpi_types()
    try:
        sys.stdout.write(choose(library(), offered) + "\n")
    except UserError as error:
        sys.stderr.write(f"hpc-es: {error}\n")
        sys.exit(error.status)


if __name__ == "__main__":
    main()
