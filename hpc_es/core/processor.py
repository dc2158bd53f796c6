"""The type of processor that this process runs on: bits and compiled code may differ from one type to another.

The cores that this process may use, as its launcher gave them: libraries may bind it to fewer later.

`hpc_es.main` imports this before any of them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from pathlib import Path

INFORMATION = Path("/proc/cpuinfo")


def _lines(*beginnings: str) -> list[str]:
    try:
        lines = INFORMATION.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.startswith(beginnings)]


def model() -> str:
    """Return the name of the processor's model."""
    names = _lines("model name")
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()


@functools.cache
def fingerprint() -> str:
    """Return a name for this type of processor: its model and what it can do."""
    features = sorted(set(_lines("model name", "flags", "Features"))) or [platform.processor(), platform.machine()]
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:16]


AT_START: tuple[int, ...] = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
