"""Choice of --mpi= for the installed MPI library; on a real SLURM: tests/slurm/test_scripts.py."""

from __future__ import annotations

import pytest

from hpc_es.core.errors import LaunchError
from hpc_es.mpi.plugin import choose
from tests.helpers.harness import python

DEBIAN = ["cray_shasta", "none", "pmi2", "pmix", "pmix_v4"]


@pytest.mark.parametrize(
    ("name", "offered", "kind"),
    [
        ("MPICH 5.0.2", DEBIAN, "pmi2"),
        ("Intel(R) MPI 2021.9", DEBIAN, "pmi2"),
        ("Open MPI 5.0.8", DEBIAN, "pmix"),
        ("Open MPI 4.1.4", ["none", "pmi2"], "pmi2"),
        ("Open MPI 5.0.8", ["none", "pmix_v4"], "pmix_v4"),
        ("CRAY MPICH 8.1.2", DEBIAN, "cray_shasta"),
        ("MPICH 5.0.2", ["none", "pmix"], "pmix"),
    ],
)
def test_best_available_mpi_plugin_is_chosen(name: str, offered: list[str], kind: str) -> None:
    assert choose(name, offered) == kind


@pytest.mark.parametrize("offered", [[], ["none", "openmpi"]])
def test_missing_mpi_plugin_is_reported_with_the_available_ones(offered: list[str]) -> None:
    with pytest.raises(
        LaunchError,
        match=f"MPICH 5.0 supports pmi2 or pmix, but .* offers {', '.join(offered) or 'nothing'}",
    ):
        choose("MPICH 5.0", offered)


def test_installed_mpi_library_is_recognised() -> None:
    # MPI stays uninitialised there
    done = python(["-c", "from hpc_es.mpi.plugin import library; print(library())"])
    assert done.stdout.startswith(("MPICH", "Open MPI", "Intel")), str(done)
