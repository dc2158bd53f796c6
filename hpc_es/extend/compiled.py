"""Segments of compiled episodes, for algorithms that differentiate them (`CompiledEpisodes`).

Importing this module imports JAX: set it up before, as building a compiled task does.
"""

from __future__ import annotations

from hpc_es.devices.jax_setup import compiling, in_thread
from hpc_es.tasks.jax_episodes.program import reason
from hpc_es.tasks.jax_episodes.segments import (
    CompiledSegments,
    Lanes,
    Recorded,
    SegmentRows,
    packed,
    unpacked,
)

__all__ = [
    "CompiledSegments",
    "Lanes",
    "Recorded",
    "SegmentRows",
    "compiling",
    "in_thread",
    "packed",
    "reason",
    "unpacked",
]
