"""The version of hpc_es, and the processor of this process: its type, on which the last bits depend, and its cores.

`hpc_es.main` imports this module before any library that may bind the process to fewer cores.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from pathlib import Path

__version__ = "0.2.0"


INFORMATION = Path("/proc/cpuinfo")

# The cores that the launcher assigned to this process.
AVAILABLE_CORES: tuple[int, ...] = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def _cpu_lines(*prefixes: str) -> list[str]:
    try:
        lines = INFORMATION.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.startswith(prefixes)]


def processor_model() -> str:
    """Return the model name of the processor."""
    names = _cpu_lines("model name")
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()


@functools.cache
def processor_fingerprint() -> str:
    """Return a digest of the processor's model and instruction sets."""
    features = sorted(set(_cpu_lines("model name", "flags", "Features"))) or [platform.processor(), platform.machine()]
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:16]
