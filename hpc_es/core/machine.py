"""Versions, processor, cores and threads of this process, on which the last bits of results depend.

`hpc_es.main` imports this module before any library that may bind the process to fewer cores.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import json
import os
import platform
import re
import threading
from collections.abc import Mapping
from pathlib import Path

__version__ = "0.2.0"


INFORMATION = Path("/proc/cpuinfo")
MEMORY_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

# The cores that the launcher assigned to this process.
AVAILABLE_CORES: tuple[int, ...] = (
    tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
)


def in_main_thread() -> bool:
    """Whether this is the main thread, the only one that may have signal handlers and timers."""
    return threading.current_thread() is threading.main_thread()


def _cpu_lines(*prefixes: str) -> list[str]:
    try:
        lines = INFORMATION.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.startswith(prefixes)]


def processor_model() -> str:
    """Return the model name of the processor."""
    names = _cpu_lines("model name")
    return (
        names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
    )


@functools.cache
def processor_fingerprint() -> str:
    """Return a digest of the processor's model and instruction sets."""
    features = sorted(set(_cpu_lines("model name", "flags", "Features"))) or [
        platform.processor(),
        platform.machine(),
    ]
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:16]


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
    "torch",
    "gymnax",
    "brax",
    "mujoco-mjx",
    "playground",
    "jumanji",
    "craftax",
)


@functools.cache
def versions() -> Mapping[str, str]:
    """Return the versions of hpc_es, Python and all installed packages of PACKAGES."""
    import importlib.metadata  # imports 60 modules that other ranks than 0 do not need

    result = {"hpc_es": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        # `version` parses the description of the package too, which takes milliseconds
        match = re.search(
            r"^Version: (\S+)$", distribution.read_text("METADATA") or "", re.MULTILINE
        )
        result[name] = match[1] if match else distribution.version
    return result


def environment_info(mpi: str, ranks: int, packages: Mapping[str, str]) -> dict[str, object]:
    """Return the provenance that checkpoints store.

    Args:
        mpi: name of the MPI library.
        ranks: their number.
        packages: versions of the packages to which kinds of the config belong.
    """
    return {
        "versions": {**versions(), **packages},
        "host": platform.node(),
        "processor": processor_model(),
        "system": platform.platform(),
        "mpi": mpi,
        "ranks": ranks,
        "blas_threads": blas_threads(),
    }


def blas_threads() -> int:
    """Return the number of threads of the linear algebra library, on which results depend."""
    from threadpoolctl import threadpool_info

    return max(
        (int(pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas"),
        default=1,
    )


def memory_bytes() -> int:
    """Return the memory of this machine, or the limit of this process's control group, in bytes."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # there is no limit
            limits.append(int(path.read_text(encoding="utf-8")))
    return min(limits)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt
KEPT_BYTES, LARGEST_KEPT_BYTES = 256 << 20, 64 << 20  # of all freed arrays, and of one of them
OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def bytes_text(count: float) -> str:
    """Return a number of bytes as text, such as "12.3 MB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def keep_freed_memory() -> None:
    """Let this process keep the memory of freed arrays for the next ones.

    The user may have set how much; then nothing changes. By default glibc returns that of arrays of
    a few megabytes to the system. The next chunk then gets it back page by page, which takes longer
    than computing small candidates.
    """
    if any(name in os.environ for name in OWN_SETTINGS):
        return
    # Another library may have no such function.
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def return_freed_memory() -> None:
    """Return freed memory to the system; see `keep_freed_memory`."""
    # another library, which has no such function
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def as_comment(provenance: Mapping[str, object]) -> str:
    """Return the provenance as YAML comments, which are appended to the stored config."""
    plain = json.loads(json.dumps(provenance, default=dataclasses.asdict))
    flat = {**plain.pop("versions", {}), **plain}
    lines = (f"#   {name}: {_as_text(value)}\n" for name, value in flat.items())
    return "\n# made with:\n" + "".join(lines)


def _as_text(value: object) -> str:
    match value:
        case dict():
            parts = [f"{name} {item}" for name, item in value.items() if item is not None]
            return ", ".join(parts) or "none"
        case list():
            return "; ".join(map(_as_text, value)) or "none"
    return str(value)
