"""What ran: the versions of everything, the machine, the threads."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from typing import Any

from hpc_es.core import processor
from hpc_es.core.version import __version__

PACKAGES = (
    "numpy",
    "gymnasium",
    "mpi4py",
    "h5py",
    "mujoco",
    "box2d",
    "tensorflow",
    "PyYAML",
    "pydantic",
    "shimmy",
    "gym",
    "jax",
    "jaxlib",
    "gymnax",
    "brax",
    "mujoco-mjx",
    "playground",
    "jumanji",
    "craftax",
)


def versions() -> dict[str, str]:
    """Name to version of Python, hpc_es and every package that is installed and could matter."""
    found = {"hpc_es": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Host, processor and operating system."""
    return {"host": platform.node(), "processor": processor.model(), "system": platform.platform()}


def environment_info(mpi: str, ranks: int) -> dict[str, Any]:
    """Return all that a checkpoint tells of where and with what it was made; `mpi` is the MPI library."""
    return {"versions": versions(), **machine(), "mpi": mpi, "ranks": ranks, "blas_threads": blas_threads()}


def blas_threads() -> int:
    """Threads of the linear algebra library, which are part of the result's bits."""
    from threadpoolctl import threadpool_info

    return max((int(pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)


def as_comment(provenance: Mapping[str, Any]) -> str:
    """Return where and with what the run was made, as YAML comments below the config."""
    plain = json.loads(json.dumps(provenance, default=dataclasses.asdict))
    flat = {**plain.pop("versions", {}), **plain}
    return "\n# made with:\n" + "".join(f"#   {name}: {value}\n" for name, value in flat.items())
