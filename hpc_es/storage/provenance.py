"""Provenance of a run: versions, machine and number of threads."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform

from hpc_es.core.data import JsonObject
from hpc_es.core.machine import __version__, processor_model

PACKAGES = (
    "numpy",
    "gymnasium",
    "mpi4py",
    "h5py",
    "mujoco",
    "box2d",
    "ale-py",
    "tensorflow",
    "PyYAML",
    "pydantic",
    "shimmy",
    "gym",
    "jax",
    "jaxlib",
    "flax",
    "equinox",
    "keras",
    "gymnax",
    "brax",
    "mujoco-mjx",
    "playground",
    "jumanji",
    "craftax",
)


def versions() -> dict[str, str]:
    """Return the versions of hpc_es, Python and all installed packages of PACKAGES."""
    result = {"hpc_es": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            result[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return result


def machine() -> JsonObject:
    """Return host, processor and operating system."""
    return {"host": platform.node(), "processor": processor_model(), "system": platform.platform()}


def environment_info(mpi: str, ranks: int) -> JsonObject:
    """Return the provenance that checkpoints store; `mpi` is the name of the MPI library."""
    return {"versions": versions(), **machine(), "mpi": mpi, "ranks": ranks, "blas_threads": blas_threads()}


def blas_threads() -> int:
    """Return the number of threads of the linear algebra library, on which results depend."""
    from threadpoolctl import threadpool_info

    return max((int(pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)


def as_comment(provenance: JsonObject) -> str:
    """Return the provenance as YAML comments, which are appended to the stored config."""
    plain = json.loads(json.dumps(provenance, default=dataclasses.asdict))
    flat = {**plain.pop("versions", {}), **plain}
    return "\n# made with:\n" + "".join(f"#   {name}: {value}\n" for name, value in flat.items())
